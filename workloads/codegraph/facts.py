"""The text and words of one Python file, its facts, and the paths of its expressions.

A path is a tuple of steps: `a.b().c` is ("a", "b", "()", "c"). The first step is a name, "?" (unknown), "<str>" (a
literal of that builtin type) or "super:Name"; a later one is an attribute, or CALL, INSTANCE or ENTER.
"""

import ast
import io
import re
import tokenize
from array import array
from contextlib import suppress
from dataclasses import dataclass, field

Path = tuple[str, ...]
CALL = "()"
INSTANCE = "@"
ENTER = "with"
UNKNOWN: Path = ("?",)
# Identifiers, numbers' digits, and the few signs that tell a call from a base from an attribute. Everything else
# (commas, brackets, quotes) would fill a quarter of the window and say little.
WORD = re.compile(r"[^\W\d]\w*|[(.=@]")
# Encodings that Python decodes in quadratic time, or that are not encodings of text
_NO_TEXT = {
    "idna",
    "punycode",
    "unicode_escape",
    "raw_unicode_escape",
    "undefined",
    "utf_7",
    "mbcs",
    "oem",
}
_DISPLAYS = {
    ast.JoinedStr: "str", ast.List: "list", ast.ListComp: "list", ast.Dict: "dict", ast.DictComp: "dict",
    ast.Set: "set", ast.SetComp: "set", ast.Tuple: "tuple",
}  # fmt: skip
# `==` and `<` may be overloaded, these give a bool
_BOOLEAN = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
_TRANSPARENT_TYPES = {
    "Optional",
    "Union",
    "ClassVar",
    "Final",
    "Annotated",
    "Required",
    "NotRequired",
}


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
    """A Class, Function or Method; lines are counted from 1 and include decorators. `outer` is the scope around it."""

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

    @property
    def decorator_names(self) -> set[str]:
        return {path[-1] for path, _ in self.decorators}


@dataclass(slots=True)
class Reference:
    """A use of a name. `relation`: calls, raises, catches or imports."""

    relation: str
    scope: int
    path: Path
    line: int


@dataclass(slots=True)
class Facts:
    """The facts of one file; `attributes` by class and name; `exports` is a literal `__all__`."""

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


def path_of(node: ast.expr | None, hidden: frozenset[str] = frozenset()) -> Path:
    """Returns the steps of an expression. `hidden` names belong to a comprehension or a lambda and are unknown."""
    steps: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            function = node.func
            first = node.args[0] if node.args else None
            if isinstance(function, ast.Name) and function.id == "super":
                return (
                    "super:" + (first.id if isinstance(first, ast.Name) else ""),
                    *reversed(steps),
                )
            # object.__new__(cls) is an instance of cls
            is_new = (
                isinstance(function, ast.Attribute)
                and function.attr == "__new__"
                and isinstance(first, ast.Name)
            )
            steps.append(INSTANCE if is_new else CALL)
            node = first if is_new else function
        else:
            return (_root(node, hidden), *reversed(steps))


def _root(node: ast.expr | None, hidden: frozenset[str]) -> str:
    if isinstance(node, ast.Name):
        if node.id in hidden:
            return "?"
        return node.id
    if isinstance(node, ast.Constant):
        return f"<{type(node.value).__name__}>"
    if type(node) in _DISPLAYS:
        return f"<{_DISPLAYS[type(node)]}>"
    if isinstance(node, ast.Compare):
        is_bool = all(isinstance(operator, _BOOLEAN) for operator in node.ops)
        if is_bool:
            return "<bool>"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "<bool>"
    is_format = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    if is_format and _root(node.left, hidden) == "<str>":
        return "<str>"
    return "?"


def annotation_path(node: ast.expr | None, hidden: frozenset[str] = frozenset()) -> Path:
    """Returns the type of an annotated name: an instance of Foo for `Foo`, `"Foo"`, `Foo | None`, `Optional[Foo]`."""
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, str):
            if node.value is None:
                return path_of(node)
            return UNKNOWN
        try:
            return annotation_path(ast.parse(node.value.strip(), mode="eval").body, hidden)
        except (SyntaxError, ValueError, RecursionError):
            return UNKNOWN
    if isinstance(node, ast.BinOp):
        return _only([annotation_path(node.left, hidden), annotation_path(node.right, hidden)])
    if isinstance(node, ast.Subscript):
        base = path_of(node.value, hidden)
        if isinstance(node.slice, ast.Tuple):
            inside = node.slice.elts
        else:
            inside = [node.slice]
        if base[-1] == "Union":
            return _only([annotation_path(item, hidden) for item in inside])
        if base[-1] in _TRANSPARENT_TYPES:
            return annotation_path(inside[0], hidden)
        if base[-1] in ("type", "Type"):
            return path_of(inside[0], hidden)
        return (*base, INSTANCE)
    path = path_of(node, hidden)
    if path != UNKNOWN:
        return (*path, INSTANCE)
    return UNKNOWN


def _only(paths: list[Path]) -> Path:
    known = [path for path in paths if path != ("<NoneType>",)]
    if len(known) == 1:
        return known[0]
    return UNKNOWN


def encoding_of(content: bytes) -> str:
    """Returns the encoding that a source file declares. Raises SyntaxError or ValueError for one not decoded here."""
    encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    if encoding.lower().replace("-", "_") in _NO_TEXT:
        raise ValueError(f"its encoding is {encoding}")
    return encoding


def decode(content: bytes) -> str:
    """Returns the text of a source file by its declared encoding, with line ends as Python counts them."""
    encoding = "utf-8"
    with suppress(SyntaxError, ValueError):
        encoding = encoding_of(content)
    return io.TextIOWrapper(io.BytesIO(content), encoding, errors="replace").read()


def words_by_line(content: bytes) -> tuple[list[str], array, array]:
    """Returns the different words of a source file as they come, the number of each word, and where lines begin."""
    numbers: dict[str, int] = {}
    text = array("i")
    starts = array("i")
    for line in decode(content).split("\n"):
        starts.append(len(text))
        text.extend(numbers.setdefault(word, len(numbers)) for word in WORD.findall(line))
    starts.append(len(text))
    return list(numbers), text, starts
