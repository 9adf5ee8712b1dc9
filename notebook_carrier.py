"""What a notebook carries: lib and its own task and configurations, as readable text in one cell.

`notebooks_src/carrier.py.in` is that cell's code; here it is filled, and read back.
"""

import ast
import difflib
import hashlib
import re
from pathlib import Path

MAX_DIFF_LINES = 60  # a file or notebook
TEMPLATE = Path(__file__).resolve().parent / "notebooks_src" / "carrier.py.in"
FIRST_LINE = re.compile(r"# The library of this notebook, as built from notebooks_src/([\w-]+)\.py\.")
# What a raw string cannot hold or a reader cannot see: runs of quotes, a last backslash, control characters.
NOT_RAW = re.compile(r"[\\']*(?:'{3,}|[\x00-\x08\x0b-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff]+|\Z)")


class SourceError(ValueError):
    """What was given cannot be used: says what is wrong, where, and what to do."""


def carried_files(source_path: Path, header: dict, root: Path) -> dict[str, str]:
    """What the notebook carries, by relative path: lib, its own tasks with their data files, its configurations."""
    lib = root / "lib"
    at_home = (lib / "kaggle", lib / "tasks")  # what no notebook needs, and what it carries by name
    paths = [path for path in lib.rglob("*.py") if not any(path.is_relative_to(folder) for folder in at_home)]
    paths.append(lib / "tasks" / "__init__.py")
    for name in header["tasks"]:
        task = lib / "tasks" / name
        found = [path for path in (task.with_suffix(".py"), *task.rglob("*")) if path.is_file()
                 and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(lib).parts)]
        if not found:
            raise SourceError(f"{source_path}:1: the header names the task '{name}', but lib/tasks has no such module.")
        paths += found
    paths += [root / "configs" / f"{name}.yaml" for name in header["configs"]]
    files = {}
    for path in sorted(set(paths), key=Path.as_posix):
        name = path.relative_to(root).as_posix()
        try:
            files[name] = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise SourceError(f"{source_path}:1: the notebook needs {name}, which does not exist.") from None
        except UnicodeDecodeError:
            raise SourceError(f"{source_path}:1: {name} is not UTF-8 text; a notebook carries nothing else.") from None
    return files


def largest(files: dict[str, str]) -> str:
    sizes = sorted(((len(text.encode("utf-8")), name) for name, text in files.items()), reverse=True)
    return ", ".join(f"{name} ({size:,} bytes)" for size, name in sizes[:5])


def literal(text: str) -> str:
    """A Python literal for any text: readable raw strings, joined by escaped ones where raw cannot hold it."""
    pieces, position = [], 0
    for match in NOT_RAW.finditer(text):
        pieces += [f"r'''{text[position:match.start()]}'''"] if match.start() > position else []
        pieces += [repr(match[0])] if match[0] else []
        position = match.end()
    return " ".join(pieces) or "''"


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def code(name: str, files: dict[str, str]) -> str:
    """The carrier cell's code: the template with the files filled in."""
    blocks = {"NAME": name, "FILES": "\n".join(f'"{path}": {literal(text)},' for path, text in files.items()),
              "BUILT_WITH": "\n".join(f'    "{path}": "{checksum(text)}",' for path, text in files.items())}
    template = TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    return re.sub("@(NAME|FILES|BUILT_WITH)@", lambda match: blocks[match[1]], template)


def bounded_diff(old: list[str], new: list[str], old_name: str, new_name: str) -> str:
    diff = list(difflib.unified_diff(old, new, old_name, new_name, lineterm=""))
    left_out = [f"... and {len(diff) - MAX_DIFF_LINES} more lines"] if len(diff) > MAX_DIFF_LINES else []
    return "\n".join([line.rstrip()[:200] for line in diff[:MAX_DIFF_LINES]] + left_out)


def edits(code: str, root: Path) -> list[str]:
    """What somebody edited in the carrier cell, as messages: by the checksums that the build left there."""
    try:
        values = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(code).body
                  if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)}
        files, built_with = values["FILES"], values["BUILT_WITH"]
    except (SyntaxError, ValueError, KeyError, AttributeError):
        raise SourceError("the carrier cell can no longer be read; put back the one of the built notebook.") from None
    messages = []
    for name in {**built_with, **files}:
        text = files.get(name, "")
        here = (root / name).read_text(encoding="utf-8") if (root / name).is_file() else ""
        if text != here and checksum(text) != built_with.get(name):
            messages.append(f"{name} was edited in the carrier cell. An import writes nothing below lib or configs: "
                            f"make the edit in {name} itself. The difference:\n"
                            + bounded_diff(here.split("\n"), text.split("\n"), name, f"{name} (in the notebook)"))
    return messages
