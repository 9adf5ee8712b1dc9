"""Finds the places of references in a file, and resolves them by jedi, which follows types into installed packages.

jedi (github.com/davidhalter/jedi) is no dependency: it is asked where it is installed.
"""

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lib.report.progress import counted
from workloads.codegraph.facts import decode
from workloads.codegraph.records import Triple
from workloads.codegraph.trees import Sources

_NAME = "name::"  # before the name of a reference that is not resolved, as the tail of a triple
# The text before the name of a reference
BEFORE = (
    "bare", "self", "attribute of self", "name", "attribute", "call", "super", "item", "other",
)  # fmt: skip
_KINDS = ("function", "class", "property")
# typeshed has methods of builtins in the classes that they inherit from
_SAME = {
    "builtins.dict": r"(typing|collections|_collections_abc|collections\.abc|_typeshed)"
    r"\.(Mapping|MutableMapping|OrderedDict|defaultdict)",
    "builtins.list": r"(typing|collections\.abc)\.(Sequence|MutableSequence)",
    "builtins.set": r"(typing|collections\.abc)\.(AbstractSet|MutableSet)",
}


class Spot(NamedTuple):
    """The place of a reference's last name, by jedi's count (lines from 1, characters from 0); one of BEFORE."""

    line: int
    column: int
    before: str


class Meaning(NamedTuple):
    """The target of a reference: a module, its member of that name, and the file that defines it."""

    module: str
    inner: str
    file: Path | None
    kind: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.inner}"

    def is_of(self, entity: str, file: Path | None) -> bool:
        """Tells whether an entity is meant; `file` is the defining file in the tree, if any."""
        if not f".{entity}".endswith(f".{self.inner}"):
            return False
        if file is not None:
            return self.file == file
        # What a package exports again is of a module above: click.echo is click.utils.echo
        module = entity.removesuffix(self.inner)
        return bool(module) and f"{self.module}.".startswith(module)


def is_installed() -> bool:
    return importlib.util.find_spec("jedi") is not None


def spots_of(sources: Sources, references: Sequence[Triple]) -> list[Spot]:
    """Finds the places of a graph's unresolved references in the files of its tree."""
    of_file = cache(lambda file: spots(sources.read(file)))
    found = []
    for one in references:
        name = one.tail.removeprefix(_NAME)
        nowhere = Spot(one.line, -1, "other")  # which jedi refuses
        found.append(of_file(one.file).get((one.line, name), nowhere))
    return found


def spots(content: bytes) -> Mapping[tuple[int, str], Spot]:
    """Finds the places of referenced names, by their expression's line and by name: the outermost first."""
    lines = decode(content).split("\n")
    found: dict[tuple[int, str], Spot] = {}
    for node in ast.walk(ast.parse(content)):
        for line, named in _references(node):
            name = named.attr if isinstance(named, ast.Attribute) else named.id
            end = (named.end_lineno or line) - 1
            text = lines[end].encode()[: named.end_col_offset].decode()
            spot = Spot(end + 1, len(text) - len(name), _before(named))
            found.setdefault((line, name), spot)
    return found


def _references(node: ast.AST) -> Iterator[tuple[int, ast.Name | ast.Attribute]]:
    """Yields the references of a call, a class or a function, with the lines that `source` counts."""
    if isinstance(node, ast.Call):
        yield from _named(node.func, node.lineno)
    if isinstance(node, ast.ClassDef):
        for base in node.bases:
            bare = base.value if isinstance(base, ast.Subscript) else base
            yield from _named(bare, base.lineno)
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            bare = decorator.func if isinstance(decorator, ast.Call) else decorator
            yield from _named(bare, decorator.lineno)


def _named(node: ast.expr, line: int) -> Iterator[tuple[int, ast.Name | ast.Attribute]]:
    """Yields the name or attribute that is last in an expression: `f` of `f()(x)`."""
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Name | ast.Attribute):
        yield line, node


def _before(named: ast.Name | ast.Attribute) -> str:
    """Returns the one of BEFORE in front of a name."""
    if isinstance(named, ast.Name):
        return "bare"
    match named.value:
        case ast.Name("self" | "cls"):
            return "self"
        case ast.Name():
            return "name"
        case ast.Attribute(ast.Name("self" | "cls")):
            return "attribute of self"
        case ast.Attribute():
            return "attribute"
        case ast.Call(ast.Name("super")):
            return "super"
        case ast.Call():
            return "call"
        case ast.Subscript():
            return "item"
    return "other"


def meanings_of(
    sources: Sources, references: Sequence[Triple], spots: Sequence[Spot]
) -> list[list[Meaning]]:
    """Returns what references mean by jedi, which must be installed: functions, classes and properties.

    It sees the tree and the packages of the Python that runs. What it cannot follow has no meaning.
    """
    found: list[list[Meaning]] = [[] for _ in references]
    file = ""
    script: Any = None
    order = sorted(range(len(references)), key=lambda number: references[number].file)
    for number in counted(order, "references asked of jedi", len(order)):
        # one file at a time: a script keeps all that it has read
        if references[number].file != file:
            file = references[number].file
            script = _script(sources, file)
        found[number] = _asked(script, spots[number])
    return found


def _script(sources: Sources, file: str) -> Any:
    import jedi

    tree, _ = sources.located(file)
    code = decode(sources.read(file))
    project = jedi.Project(tree.root)
    environment = jedi.InterpreterEnvironment()
    return jedi.Script(code, path=sources.path(file), project=project, environment=environment)


def _asked(script: Any, spot: Spot) -> list[Meaning]:
    place = (spot.line, spot.column)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of modules that it cannot import
            found = script.goto(*place, follow_imports=True) + script.infer(*place)
            known = [one for one in found if one.type in _KINDS and one.full_name]
            return list(dict.fromkeys(map(_meaning, known)))
    except Exception:  # jedi has no exception class for failures
        return []


def _meaning(found: Any) -> Meaning:
    module = found.module_name
    name = found.full_name
    for same, pattern in _SAME.items():
        name = re.sub(rf"^{pattern}\.", f"{same}.", name)
    if name != found.full_name:
        module = "builtins"
    parts = name.split(".")
    depth = module.count(".") + 1  # what the module _io has is called io.IOBase
    file = found.module_path.resolve() if found.module_path else None
    return Meaning(".".join(parts[:depth]), ".".join(parts[depth:]), file, found.type)
