"""Packs the files that a notebook imports into one cell: carrier.py.in, which runs library.py.in."""

import ast
import base64
import bz2
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from lib.errors import BadInput
from trainbook import PUBLIC

CELL, LIBRARY = (
    Path(__file__).resolve().with_name(name) for name in ("carrier.py.in", "library.py.in")
)
BASE = re.compile(r"^base: *(\S+)", re.MULTILINE)  # a configuration's other file, beside it
PACKED = re.compile(r'b85decode\("([^"]+)"\)')  # one line, of which a preview shows the beginning


def carried_files(
    source_path: Path,
    tasks: Iterable[str],
    configs: Iterable[str],
    planning: bool,
    cells: Iterable[str],
    root: Path,
) -> dict[str, str]:
    """Returns the texts that a notebook carries, by their paths below `root`. Raises BadInput.

    They are the files that its cells and tasks import, directly or not, the data files beside them, and configurations.
    If `planning`, imports inside a task's functions do not count: they are for reading data and for evaluation.
    """
    names = [name for cell in cells for name in imported(cell, True)]
    for task in tasks:
        if not (root / "workloads" / task).is_dir():
            raise BadInput(
                f"{source_path}:1: the header names the task '{task}', but workloads/ has no such folder."
            )
        names.append(f"workloads.{task}")
    paths: set[Path] = set()
    while names:
        parts = names.pop().split(".")
        for base in (root.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)):
            path = next(
                (
                    file
                    for file in (base / "__init__.py", base.with_suffix(".py"))
                    if file.is_file()
                ),
                None,
            )
            if path and path not in paths:
                paths.add(path)
                names += imported(
                    path.read_bytes(), not planning or root / "workloads" not in path.parents
                )
    for package in [path.parent for path in paths if path.name == "__init__.py"]:
        paths |= {*data_files(package)}
    waiting = [f"{name}.yaml" for name in configs]
    while waiting:
        path = root / "configs" / waiting.pop()
        paths.add(path)
        waiting += BASE.findall(read(path, source_path, root))
    return {
        path.relative_to(root).as_posix(): read(path, source_path, root) for path in sorted(paths)
    }


@cache
def imported(code: str | bytes, in_functions: bool) -> list[str]:
    """Returns the dotted names in the three houses that code imports or starts by `python -m`, not those for types."""
    names: list[str] = []
    waiting: list[ast.AST] = [ast.parse(code)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not in_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
            names += [
                PUBLIC[alias.name]
                for alias in node.names
                if node.module == "trainbook" and alias.name in PUBLIC
            ]
        elif isinstance(node, ast.List) and (
            words := [getattr(item, "value", None) for item in node.elts]
        ):
            names += [f"{word}.__main__" for option, word in pairwise(words) if option == "-m"]
    return [name for name in names if name.split(".")[0] in ("lib", "trainbook", "workloads")]


def data_files(package: Path) -> Iterator[Path]:
    for path in package.iterdir():
        if path.name.startswith((".", "__pycache__")) or path.suffix == ".py":
            continue
        if path.is_file():
            yield path
        elif not (path / "__init__.py").is_file():
            yield from data_files(path)


def read(path: Path, source_path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(
            f"{source_path}:1: the notebook needs {name}, which does not exist."
        ) from None
    except UnicodeDecodeError:
        raise BadInput(
            f"{source_path}:1: {name} is not UTF-8 text; a notebook carries nothing else."
        ) from None


def largest(files: dict[str, str]) -> str:
    sizes = sorted(
        ((len(text.encode("utf-8")), name) for name, text in files.items()), reverse=True
    )
    return ", ".join(f"{name} ({size:,} bytes)" for size, name in sizes[:5])


def pack(files: dict[str, str]) -> str:
    content = json.dumps(files, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode(
        "utf-8"
    )
    return base64.b85encode(bz2.compress(content)).decode("ascii")


def unpack(code: str) -> dict[str, str]:
    """Returns the files that a carrier cell's code holds. Raises BadInput where it cannot be read."""
    try:
        files = json.loads(bz2.decompress(base64.b85decode(PACKED.search(code)[1])))
        return {name: text for name, text in files.items() if name != "library.py"}
    except (TypeError, ValueError, OSError):
        sentence = (
            "it was edited, or built by an earlier version; put back the one of the built notebook."
        )
        raise BadInput(f"the carrier cell can no longer be read: {sentence}") from None


def code(name: str, files: dict[str, str], made_from: str = "") -> str:
    """Returns the carrier cell's code, which names `made_from` as its source, by default a file of notebooks_src."""
    text = CELL.read_text(encoding="utf-8").rstrip("\n").replace("@COUNT@", str(len(files)))
    text = text.replace("@SOURCE@", made_from or f"notebooks_src/{name}.py")
    first = LIBRARY.read_text(encoding="utf-8").replace("@NAME@", name)
    return text.replace("@PACKED@", pack({**files, "library.py": first}))
