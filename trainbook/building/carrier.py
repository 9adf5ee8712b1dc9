"""Packs the files that a notebook imports into one cell, carrier.py.in, and reads and compares them."""

import ast
import base64
import bz2
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import trainbook
from lib.errors import BadInput

CELL = Path(__file__).resolve().with_name("carrier.py.in")
HOUSES = ("lib", "trainbook", "workloads")
BASE = re.compile(r"^base: *(\S+)", re.MULTILINE)  # a configuration's other file, beside it
VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
COMMIT = re.compile(r'^COMMIT = "([^"]*)"', re.MULTILINE)
PACKED = re.compile(r'^HOME = library\("""\n([^"]+)\n"""\)$', re.MULTILINE)
# GitHub and nbconvert show a folded cell whole: in lines of 120 characters these are 2,900 rows,
# and a notebook is 7 % larger. Editors take lines of up to 20,000 characters.
WIDTH = 10_000
LEFT_OUT = {"trainbook/options.yaml"}  # options of commands that no notebook carries


def carried_files(
    source_path: Path,
    tasks: Iterable[str],
    configs: Iterable[str],
    planning: bool,
    cells: Iterable[str],
    root: Path,
) -> dict[str, str]:
    """Returns the texts that a notebook carries, by their paths below `root`. Raises BadInput.

    They are the files that its cells and tasks import, directly or not, the data files beside them,
    and configurations. If `planning`, imports inside a task's functions do not count: they are for
    reading data and for evaluation.
    """
    names = [name for cell in cells for name in imported(cell, True)]
    for task in tasks:
        if not (root / "workloads" / task).is_dir():
            raise BadInput(
                f"{source_path}:1: the header names the task '{task}', but workloads/ has no such folder."
            )
        names.append(f"workloads.{task}")
    paths = _modules(names, planning, root)
    for package in [path.parent for path in paths if path.name == "__init__.py"]:
        paths.update(data_files(package))
    waiting = [f"{name}.yaml" for name in configs]
    while waiting:
        path = root / "configs" / waiting.pop()
        paths.add(path)
        waiting += BASE.findall(read(path, source_path, root))
    files = {}
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if name not in LEFT_OUT:
            files[name] = read(path, source_path, root)
    return files


def _modules(names: list[str], planning: bool, root: Path) -> set[Path]:
    """Returns the files of modules with these dotted names, and of all that they import."""
    paths: set[Path] = set()
    waiting = list(names)
    while waiting:
        parts = waiting.pop().split(".")
        for length in range(1, len(parts) + 1):
            path = _module(root.joinpath(*parts[:length]))
            if path is None or path in paths:
                continue
            paths.add(path)
            in_functions = not planning or root / "workloads" not in path.parents
            waiting += imported(path.read_bytes(), in_functions)
    return paths


def _module(base: Path) -> Path | None:
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


@cache
def imported(code: str | bytes, in_functions: bool) -> list[str]:
    """Returns the dotted names in the three houses that code imports or starts by `python -m`.

    Imports used only for types are left out.
    """
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
            if node.module == "trainbook":
                public = [alias.name for alias in node.names if alias.name in trainbook.PUBLIC]
                names += [trainbook.PUBLIC[name] for name in public]
        elif isinstance(node, ast.List):
            words = [getattr(item, "value", None) for item in node.elts]
            names += [f"{word}.__main__" for option, word in pairwise(words) if option == "-m"]
    return [name for name in names if name.split(".")[0] in HOUSES]


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


def largest(files: Mapping[str, str]) -> str:
    sizes = {name: len(text.encode("utf-8")) for name, text in files.items()}
    names = sorted(sizes, key=lambda name: (sizes[name], name), reverse=True)
    return ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in names[:5])


def archive(files: Mapping[str, str]) -> bytes:
    """Returns a tar archive compressed by bzip2, the same bytes on every machine.

    It is compressed whole: a zip, which compresses each file by itself, is 60 % larger.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in sorted(files.items()):
            content = text.encode("utf-8")
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return bz2.compress(buffer.getvalue())


def pack(files: Mapping[str, str]) -> str:
    """Returns the archive of files in base 85, in lines."""
    text = base64.b85encode(archive(files)).decode("ascii")
    return "\n".join(re.findall(f".{{1,{WIDTH}}}", text))


def packed(code: str) -> bytes:
    """Returns the archive in a carrier cell's code. Raises BadInput if the cell has no archive."""
    match = PACKED.search(code)
    try:
        return base64.b85decode(match[1].replace("\n", "")) if match else b""
    except ValueError:
        return b""


def unpack(code: str) -> dict[str, str]:
    """Returns the files that a carrier cell's code holds. Raises BadInput if it cannot be read."""
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed(code)), mode="r:bz2") as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    files[member.name] = content.read().decode("utf-8")
    except (tarfile.TarError, EOFError, OSError, ValueError):
        raise BadInput(
            "the carrier cell can no longer be read: it was edited, or built by an earlier version; "
            "put back the one of the built notebook."
        ) from None
    return files


def code(name: str, files: Mapping[str, str], made_from: str = "", commit: str = "") -> str:
    """Returns the carrier cell's code; `made_from` is its source, by default in notebooks_src."""
    version = VERSION.search(files.get("lib/__init__.py", ""))
    values = {
        "@NAME@": name,
        "@COUNT@": str(len(files)),
        "@SOURCE@": made_from or f"notebooks_src/{name}.py",
        "@VERSION@": version[1] if version else "unknown",
        "@COMMIT@": commit or "unknown",
        "@PACKED@": pack(files),
    }
    text = CELL.read_text(encoding="utf-8").rstrip("\n")
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def commit_of(root: Path) -> str:
    """Returns the commit of a checkout, and whether carried folders differ from it; "" without git."""
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changes = _git(root, "status", "--porcelain", "--", *HOUSES, "configs")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit} with changes" if changes else commit


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, encoding="utf-8"
    )
    return done.stdout.strip()
