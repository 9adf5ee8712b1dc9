"""Finds the files of a user's own task, those that it imports beside it, and the packages it needs."""

import ast
import dataclasses
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from lib.config import Config
from lib.errors import BadInput, printable

_NOT_BESIDE = frozenset(sys.stdlib_module_names) | {"lib", "workloads", "trainbook", "__future__"}
_MOST_NAMED_BYTES = 2**20
_CATCHES_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class OwnFiles(NamedTuple):
    """A task's file and those that it imports in `folder`; `packages` are other needed imports."""

    folder: Path
    files: tuple[Path, ...]
    packages: tuple[str, ...]


class Import(NamedTuple):
    """An import: its dotted name, `level` as in ast, and whether no `try` spares the module."""

    dotted: str
    level: int
    is_needed: bool


def own_files(path: Path) -> OwnFiles:
    """Returns a task's file and those that it imports from its folder, directly or not.

    Raises BadInput.
    """
    folder = path.parent
    files = [path]
    packages = set[str]()
    for file in files:  # which grows
        for imported in _imports_of(file):
            parts = _parts(imported, file.parent.relative_to(folder))
            top = parts[0] if parts else ""
            if top in _NOT_BESIDE:
                continue
            beside = _beside(folder, parts)
            files += [module for module in beside if module not in files]
            if imported.is_needed and not beside:
                packages.add(top)
    return OwnFiles(folder, (path, *sorted(files[1:])), tuple(sorted(packages)))


def _imports_of(file: Path) -> list[Import]:
    """Returns the imports of a file. Raises BadInput if this version of Python cannot read it."""
    try:
        return list(imports(file.read_bytes()))
    except (SyntaxError, ValueError) as error:
        place = printable(f"{file}:{getattr(error, 'lineno', None) or 1}")
        problem = printable(error, most=200)
        raise BadInput(
            f"{place}: Python {platform.python_version()} cannot read this ({problem}). "
            "Correct it there; if it is newer Python, run with that version."
        ) from None


def _parts(imported: Import, inside: Path) -> list[str]:
    """Returns the names along an import, from the task's folder; `inside` is the importing file's."""
    names = [imported.dotted]
    if imported.level:
        depth = len(inside.parts) - imported.level + 1
        names = [*inside.parts[:depth], imported.dotted]
    return [part for part in ".".join(names).split(".") if part]


def _beside(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Returns the files of the packages and modules along a dotted name in a folder."""
    files = []
    base = folder
    for part in parts:
        base /= part
        package = base / "__init__.py"
        module = base.with_name(f"{base.name}.py")
        if package.is_file():
            files.append(package)
        elif module.is_file():
            files.append(module)
    return files


def imports(code: str | bytes) -> Iterator[Import]:
    """Yields the imports of some code, except those for type checkers and of its use as a program."""
    # each node with whether a `try` spares the module
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(code), False)]
    for node, is_caught in waiting:  # which grows
        inner = dict.fromkeys(ast.iter_child_nodes(node), is_caught)
        match node:
            case ast.Import():
                yield from (Import(alias.name, 0, not is_caught) for alias in node.names)
            case ast.ImportFrom():
                is_needed = not (node.level or is_caught)
                yield from (Import(name, node.level, is_needed) for name in _dotted(node))
            case ast.Call(
                func=ast.Attribute(attr=function) | ast.Name(id=function), args=[ast.Constant(name)]
            ):
                if function == "import_module":
                    yield Import(str(name), 0, not is_caught)
            case ast.If() if _is_unused(ast.unparse(node.test)):
                inner = dict.fromkeys(node.orelse, is_caught)
            case ast.Try() if any(map(_catches_missing, node.handlers)):
                inner |= dict.fromkeys(node.body, True)
        waiting += inner.items()


def _dotted(node: ast.ImportFrom) -> list[str]:
    """Returns the names that `from a import b, c` may load: a.b and a.c; only a for `*`."""
    base = [node.module] if node.module else []
    names = [alias.name for alias in node.names if alias.name != "*"]
    return [".".join([*base, name]) for name in names] or base


def _is_unused(test: str) -> bool:
    """Returns whether an `if` holds only for type checkers or programs."""
    return "TYPE_CHECKING" in test or "__main__" in test


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    """Returns whether an `except` spares a module that is not installed."""
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return not _CATCHES_MISSING.isdisjoint(names)


def named_files(config: Config) -> dict[str, Path]:
    """Returns the files of at most 1 MiB among `named_paths`, which go with the task."""
    return {key: path for key, path in named_paths(config).items() if is_part(path)}


def is_part(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MOST_NAMED_BYTES


def named_paths(config: Config) -> dict[str, Path]:
    """Returns the existing paths in the settings (`path=True`) of a user's own task, by their keys."""
    if file_of(config.task) is None:
        return {}
    return dict(sorted(_paths_in("workload", config.workload).items()))


def _paths_in(prefix: str, section: Any) -> dict[str, Path]:
    hints = get_type_hints(type(section))
    paths: dict[str, Path] = {}
    for field in dataclasses.fields(section):
        key = f"{prefix}.{field.name}"
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            paths |= _paths_in(key, value)
        elif field.metadata.get("path") and value and Path(value).exists():
            paths[key] = Path(value)
    return paths


def file_of(task: str) -> Path | None:
    if ":" in task:
        return Path(task.rpartition(":")[0]).resolve()
    return None


def label(task: str) -> str:
    """Returns a task's name without folders, equal on every machine: my_task.py:MyTask."""
    file, colon, name = task.rpartition(":")
    if colon:
        return f"{Path(file).name}:{name}"
    return task
