"""The facts of one Python file, and the paths that stand for its expressions.

A path is a tuple of steps: `a.b().c` is ("a", "b", "()", "c"). The first step is a name, "?" (unknown), "<str>" (a
literal of that builtin type) or "super:Name"; a later one is an attribute, or CALL, INSTANCE or ENTER.
"""

import ast
from dataclasses import dataclass, field

Path = tuple[str, ...]
CALL, INSTANCE, ENTER = "()", "@", "with"
UNKNOWN: Path = ("?",)

_DISPLAYS = {
    ast.JoinedStr: "str", ast.List: "list", ast.ListComp: "list", ast.Dict: "dict", ast.DictComp: "dict",
    ast.Set: "set", ast.SetComp: "set", ast.Tuple: "tuple",
}  # fmt: skip
_BOOLEAN = (ast.Is, ast.IsNot, ast.In, ast.NotIn)  # `==` and `<` may be overloaded, these give a bool
_TRANSPARENT_TYPES = {"Optional", "Union", "ClassVar", "Final", "Annotated", "Required", "NotRequired"}


@dataclass(slots=True)
class Binding:
    """One meaning of a name. `kind`: definition, import, value (the path, read in `scope`), self or cls."""

    kind: str
    path: Path
    scope: int
    line: int


@dataclass(slots=True)
class Scope:
    """A module, class or function body; `parent` is an index into `Facts.scopes`, -1 for the module's own."""

    owner: str
    kind: str
    parent: int
    bindings: dict[str, list[Binding]] = field(default_factory=dict)


@dataclass(slots=True)
class Definition:
    """A Class, Function or Method; lines are counted from 1 and include decorators. `outer` is where it stands."""

    id: str
    name: str
    kind: str
    first_line: int
    last_line: int
    parent: str
    outer: int
    inner: int
    decorators: list[tuple[Path, int]] = field(default_factory=list)
    bases: list[tuple[Path, int]] = field(default_factory=list)
    parameters: list[tuple[str, int]] = field(default_factory=list)
    annotation: Path | None = None
    returns: list[tuple[Path, int]] = field(default_factory=list)
    deferred: bool = False  # async or a generator: a call does not give what `return` gives


@dataclass(slots=True)
class Reference:
    """A use of a name. `relation`: calls, raises, catches or imports."""

    relation: str
    scope: int
    path: Path
    line: int


@dataclass(slots=True)
class Facts:
    """All that one file says.

    `exports` is `__all__` where it is a literal, `package` what relative imports start from, `attributes` what methods
    assign to their receiver, by class and name.
    """

    file: str
    module: str
    package: str
    lines: int
    scopes: list[Scope]
    definitions: list[Definition] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    exports: list[str] | None = None
    attributes: dict[str, dict[str, list[Binding]]] = field(default_factory=dict)


@dataclass(slots=True)
class Unreadable:
    """A file that could not be parsed, and why."""

    file: str
    reason: str


def path_of(node: ast.expr | None, hidden: frozenset[str] = frozenset()) -> Path:
    """Returns the steps of an expression. `hidden` names belong to a comprehension or a lambda and are unknown."""
    steps: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            function, first = node.func, node.args[0] if node.args else None
            if isinstance(function, ast.Name) and function.id == "super":
                root = "super:" + (first.id if isinstance(first, ast.Name) else "")
                return (root, *reversed(steps))
            if isinstance(function, ast.Attribute) and function.attr == "__new__" and isinstance(first, ast.Name):
                steps.append(INSTANCE)  # object.__new__(cls) is an instance of cls
                node = first
            else:
                steps.append(CALL)
                node = function
        else:
            return (_root(node, hidden), *reversed(steps))


def _root(node: ast.expr | None, hidden: frozenset[str]) -> str:
    if isinstance(node, ast.Name):
        return "?" if node.id in hidden else node.id
    if isinstance(node, ast.Constant):
        return f"<{type(node.value).__name__}>"
    if type(node) in _DISPLAYS:
        return f"<{_DISPLAYS[type(node)]}>"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "<bool>"
    if isinstance(node, ast.Compare) and all(isinstance(operator, _BOOLEAN) for operator in node.ops):
        return "<bool>"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _root(node.left, hidden) == "<str>":
        return "<str>"
    return "?"


def annotation_path(node: ast.expr | None, hidden: frozenset[str] = frozenset()) -> Path:
    """Returns what an annotated name holds: an instance of Foo for `Foo`, `"Foo"`, `Foo | None`, `Optional[Foo]`."""
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, str):
            return path_of(node) if node.value is None else UNKNOWN
        try:
            return annotation_path(ast.parse(node.value.strip(), mode="eval").body, hidden)
        except (SyntaxError, ValueError, RecursionError):
            return UNKNOWN
    if isinstance(node, ast.BinOp):
        return _only([annotation_path(node.left, hidden), annotation_path(node.right, hidden)])
    if isinstance(node, ast.Subscript):
        base = path_of(node.value, hidden)
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base[-1] == "Union":
            return _only([annotation_path(item, hidden) for item in inside])
        if base[-1] in _TRANSPARENT_TYPES:
            return annotation_path(inside[0], hidden)
        return path_of(inside[0], hidden) if base[-1] in ("type", "Type") else (*base, INSTANCE)
    path = path_of(node, hidden)
    return (*path, INSTANCE) if path != UNKNOWN else UNKNOWN


def _only(paths: list[Path]) -> Path:
    known = [path for path in paths if path != ("<NoneType>",)]
    return known[0] if len(known) == 1 else UNKNOWN
