"""The files of a task of one's own: its file, those beside it that it imports, and the packages that they need."""

import ast
import dataclasses
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

from lib.config import Config
from lib.errors import BadInput, printable

_NOT_BESIDE = frozenset(sys.stdlib_module_names) | {"lib", "workloads", "trainbook", "__future__"}
_MOST_NAMED_BYTES = 2**20
_CATCHES_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class OwnFiles(NamedTuple):
    """A task's file with those that it imports in its `folder`; `packages` are other imports that no `try` guards."""

    folder: Path
    files: tuple[Path, ...]
    packages: tuple[str, ...]


class Import(NamedTuple):
    """An import: its dotted name, `level` as in ast, and whether it names a module that no `try` spares."""

    dotted: str
    level: int
    is_needed: bool


def own_files(path: Path) -> OwnFiles:
    """Returns the files that a task's file imports from its folder, directly or not, itself first. Raises BadInput."""
    folder = path.parent
    files = [path]
    packages = set()
    for file in files:  # which grows
        around = file.parent.relative_to(folder).parts
        try:
            names = list(imports(file.read_bytes()))
        except (SyntaxError, ValueError) as error:
            where = printable(f"{file}:{getattr(error, 'lineno', None) or 1}")
            what = f"{where}: Python {platform.python_version()} cannot read this ({printable(error, most=200)})"
            raise BadInput(
                f"{what}. Correct it there; if it is newer Python, run with that version."
            ) from None
        for name in names:
            if name.level:
                parts = [*around[: len(around) - name.level + 1], name.dotted]
            else:
                parts = [name.dotted]
            top, *inner = [part for part in ".".join(parts).split(".") if part] or [""]
            if top in _NOT_BESIDE:
                bases = []
            else:
                bases = [folder.joinpath(top, *inner[:n]) for n in range(len(inner) + 1)]
            pairs = [
                (base / "__init__.py", base.with_name(f"{base.name}.py"))
                for base in bases
                if base != folder
            ]
            beside = [other for pair in pairs for other in [*filter(Path.is_file, pair)][:1]]
            files += [other for other in beside if other not in files]
            packages |= {top} if name.is_needed and not beside and top not in _NOT_BESIDE else set()
    return OwnFiles(folder, (path, *sorted(files[1:])), tuple(sorted(packages)))


def imports(code: str | bytes) -> Iterator[Import]:
    """Yields the imports of some code, except those for type checkers and of its use as a program."""
    waiting: list[tuple[ast.AST, bool]] = [
        (ast.parse(code), False)
    ]  # each with whether a `try` spares the module
    for node, is_caught in waiting:  # which grows
        inner = dict.fromkeys(ast.iter_child_nodes(node), is_caught)
        match node:
            case ast.Import():
                yield from (Import(alias.name, 0, not is_caught) for alias in node.names)
            case ast.ImportFrom():
                base = [node.module] if node.module else []
                for name in [
                    ".".join([*base, alias.name]) for alias in node.names if alias.name != "*"
                ] or base:
                    yield Import(name, node.level, not (node.level or is_caught))
            case ast.Call(
                func=ast.Attribute(attr=function) | ast.Name(id=function), args=[ast.Constant(name)]
            ):
                if function == "import_module":
                    yield Import(str(name), 0, not is_caught)
            case ast.If() if any(
                word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__main__")
            ):
                inner = dict.fromkeys(node.orelse, is_caught)
            case ast.Try():
                types = [
                    n
                    for handler in node.handlers
                    for n in ast.walk(handler.type or ast.Name("Exception"))
                ]
                if any(isinstance(n, ast.Name) and n.id in _CATCHES_MISSING for n in types):
                    inner |= dict.fromkeys(node.body, True)
        waiting += inner.items()


def named_files(config: Config) -> dict[str, Path]:
    """Returns the files among `named_paths` that go with the task: those of at most 1 MiB."""
    return {key: path for key, path in named_paths(config).items() if is_part(path)}


def is_part(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MOST_NAMED_BYTES


def named_paths(config: Config) -> dict[str, Path]:
    """Returns the files and folders that settings of a configuration's own task name (`path=True`), by their keys."""
    paths: dict[str, Path] = {}
    waiting = [("workload", config.workload)] if file_of(config.task) else []
    for prefix, section in waiting:  # which grows
        hints = get_type_hints(type(section))
        for field in dataclasses.fields(section):
            key = f"{prefix}.{field.name}"
            value = getattr(section, field.name)
            if dataclasses.is_dataclass(hints[field.name]):
                waiting.append((key, value))
            elif field.metadata.get("path") and value and Path(value).exists():
                paths[key] = Path(value)
    return dict(sorted(paths.items()))


def file_of(task: str) -> Path | None:
    if ":" in task:
        return Path(task.rpartition(":")[0]).resolve()
    return None


def label(task: str) -> str:
    """Returns a task's name without folders, which differ from machine to machine: my_task.py:MyTask."""
    file, colon, name = task.rpartition(":")
    if colon:
        return f"{Path(file).name}:{name}"
    return task
