"""The files of a task of one's own: its file, those beside it that it imports, and the packages that they need."""

import ast
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from lib.config import Config
from lib.errors import BadInput, printable

_NOT_BESIDE = frozenset(sys.stdlib_module_names) | {"lib", "workloads", "trainbook", "__future__"}
_MOST_NAMED_BYTES = 2**20
_CATCHES_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class OwnFiles:
    """A task's file and what it needs. `folder` is that of the file, and all of `files` lie in it or below it.

    `packages` are the names of imports that are neither Python's nor lib's nor beside the file. One whose absence is
    caught by a `try` is left out.
    """

    folder: Path
    files: tuple[Path, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Import:
    """An import of one name: `dotted` from the top, or for `level` above 0 from the package around the file.

    `is_optional` is one whose failure a `try` catches.
    """

    dotted: str
    level: int
    is_optional: bool

    @property
    def is_needed(self) -> bool:
        """Whether the import names a module from the top, and the code fails without it."""
        return not (self.level or self.is_optional)


def own_files(path: Path) -> OwnFiles:
    """Returns the files that a task's file imports from its folder, directly or not, itself first. Raises BadInput."""
    folder, files, packages = path.parent, [path], set()
    for file in files:  # which grows
        around = file.parent.relative_to(folder).parts
        for name in _read(file):
            parts = [*around[: len(around) - name.level + 1], name.dotted] if name.level else [name.dotted]
            dotted = ".".join(filter(None, parts))
            beside = _beside(folder, dotted)
            files += [other for other in beside if other not in files]
            top = dotted.split(".")[0]
            if name.is_needed and not beside and top not in _NOT_BESIDE:
                packages.add(top)
    return OwnFiles(folder, (path, *sorted(files[1:])), tuple(sorted(packages)))


def _beside(folder: Path, dotted: str) -> list[Path]:
    """Returns the files below a folder that are run when this name is imported; none for a name of another place."""
    parts = dotted.split(".")
    if parts[0] in _NOT_BESIDE:
        return []
    bases = [folder.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    pairs = [(base / "__init__.py", base.with_name(f"{base.name}.py")) for base in bases]
    return [file for pair in pairs for file in [file for file in pair if file.is_file()][:1]]


def _read(path: Path) -> list[Import]:
    """Returns the imports of a file. Raises BadInput where it is no Python."""
    try:
        return list(imports(path.read_bytes()))
    except (SyntaxError, ValueError) as error:
        where = printable(f"{path}:{getattr(error, 'lineno', None) or 1}")
        raise BadInput(f"{where}: This is no Python ({printable(error, most=200)}). Correct it there.") from None


def imports(code: str | bytes) -> Iterator[Import]:
    """Yields the imports of some code, except those for type checkers and of its use as a program."""
    return _below(ast.parse(code), False)


def _below(node: ast.AST, is_optional: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, 0, is_optional) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = [node.module] if node.module else []
        names = [".".join([*base, alias.name]) for alias in node.names if alias.name != "*"] or base
        yield from (Import(name, node.level, is_optional) for name in names)
    elif isinstance(node, ast.Try):
        caught = is_optional or any(map(_catches_missing, node.handlers))
        for child in node.body:
            yield from _below(child, caught)
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            yield from _below(other, is_optional)
    elif isinstance(node, ast.If) and ("TYPE_CHECKING" in (test := ast.unparse(node.test)) or "__main__" in test):
        for child in node.orelse:
            yield from _below(child, is_optional)
    elif isinstance(node, ast.Call) and (name := _named_module(node)):
        yield Import(name, 0, is_optional)
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _below(inner, is_optional)


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in _CATCHES_MISSING for n in ast.walk(handler.type))


def _named_module(call: ast.Call) -> str:
    """Returns the name in `importlib.import_module("name")`, where it stands there as it is."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    is_named = name == "import_module" and isinstance(first, ast.Constant) and isinstance(first.value, str)
    return first.value if is_named and len(call.args) == 1 else ""  # type: ignore[union-attr,return-value]


def named_files(config: Config) -> dict[str, Path]:
    """Returns the files among `named_paths` that go with the task: those of at most 1 MiB."""
    return {key: path for key, path in named_paths(config).items() if is_part(path)}


def is_part(path: Path) -> bool:
    """Says whether a path is small enough for a part of a task: no folder, and no large file, such as weights."""
    return path.is_file() and path.stat().st_size <= _MOST_NAMED_BYTES


def named_paths(config: Config) -> dict[str, Path]:
    """Returns the files and folders that settings of a configuration's own task name (`path=True`), by their keys."""
    paths: dict[str, Path] = {}
    waiting = [("workload", config.workload)] if file_of(config) else []
    while waiting:
        prefix, section = waiting.pop()
        hints = get_type_hints(type(section))
        for field in dataclasses.fields(section):
            key = f"{prefix}.{field.name}"
            if dataclasses.is_dataclass(hints[field.name]):
                waiting.append((key, getattr(section, field.name)))
            elif field.metadata.get("path") and (value := getattr(section, field.name)) and Path(value).exists():
                paths[key] = Path(value)
    return dict(sorted(paths.items()))


def own_places(path: Path) -> list[int]:
    """Returns the lines of a file that look for others beside it by `__file__`, its use as a program aside."""
    lines: set[int] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and node.id == "__file__":
            lines.add(node.lineno)
        if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)):
            waiting += ast.iter_child_nodes(node)
    return sorted(lines)


def file_of(config: Config) -> Path | None:
    """Returns the file of a configuration's own task; None for a task of lib."""
    return Path(config.task.rpartition(":")[0]).resolve() if ":" in config.task else None


def label(task: str) -> str:
    """Returns a task's name without folders, which differ from machine to machine: my_task.py:MyTask."""
    file, colon, name = task.rpartition(":")
    return f"{Path(file).name}:{name}" if colon else task
