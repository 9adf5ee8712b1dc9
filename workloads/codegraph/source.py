"""Reads one Python file into facts: definitions, bindings and references; `resolve` looks names up."""

import ast
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from workloads.codegraph import facts as of_file
from workloads.codegraph.facts import (
    ENTER,
    INSTANCE,
    UNKNOWN,
    Binding,
    Definition,
    Facts,
    Path,
    Scope,
    path_of,
)

# Without the convention, `f = staticmethod(f)` would mislead
_RECEIVERS = {"self", "cls", "mcls", "mcs", "metacls"}
_TAKES_CLASS = {"__new__", "__init_subclass__", "__class_getitem__"}
_READ_AS = "(read as Python {}.{})".format(*sys.version_info)  # newer syntax has no better message
_MOST_STARS = 200  # star imports that are looked at; more are in files that want to cost time
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(
    content: bytes, file: str, module: str, taken: frozenset[str] = frozenset(), within: str = "",
    moved: frozenset[str] = frozenset(),
) -> Facts | str:  # fmt: skip
    """Returns the facts of one file, or why it cannot be parsed; see `trees.Job` for the other arguments."""
    try:
        of_file.encoding_of(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(content)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return f"{where}{error.msg} {_READ_AS}"
    except ValueError as error:
        if isinstance(error, UnicodeError):
            return f"{type(error).__name__}: {error}"
        return str(error)
    except (RecursionError, MemoryError) as error:
        return f"it is nested too deeply, or too large ({type(error).__name__}: {error})"
    text = of_file.decode(content)
    lines = max(1, text.count("\n") + (not text.endswith("\n")))
    package = module
    if file.rpartition("/")[2] != "__init__.py":
        package = module.rpartition(".")[0]
    facts = Facts(file, module, package, lines, [Scope(module, "Module", -1)])
    try:
        _Reader(facts, taken, within, moved).children(tree)
    except RecursionError:
        return "an expression is nested too deeply"
    stars = list(dict.fromkeys(reversed(facts.stars)))[::-1]  # each at its last place
    facts.stars = stars if len(stars) <= _MOST_STARS else []
    return facts


class _Reader:
    """Walks one tree. `scope` is the body being walked, `hidden` the names of comprehensions and lambdas around it."""

    def __init__(
        self, facts: Facts, taken: frozenset[str], within: str, moved: frozenset[str]
    ) -> None:
        self.facts = facts
        self.taken = taken
        self.within = within
        self.moved = moved
        self.scope = 0
        self.hidden: frozenset[str] = frozenset()
        self.functions: list[Definition] = []
        self.receivers: dict[
            str, str
        ] = {}  # name -> class, for methods and functions nested in them
        self.redirected: dict[tuple[int, str], int] = {}  # global and nonlocal
        self.kinds: dict[str, str] = {}

    def visit(self, node: ast.AST) -> None:
        self.HANDLERS.get(type(node), _Reader.children)(self, node)

    def children(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            for item in value if type(value) is list else (value,):
                if isinstance(item, ast.AST):
                    self.visit(item)

    def all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def refer(self, relation: str, path: Path, line: int) -> None:
        self.facts.references.append(of_file.Reference(relation, self.scope, path, line))

    def bind(self, name: str, kind: str, path: Path, line: int) -> None:
        scope = self.facts.scopes[self.redirected.get((self.scope, name), self.scope)]
        scope.bindings.setdefault(name, []).append(Binding(kind, path, self.scope, line))

    @contextmanager
    def inside(self, definition: Definition) -> Iterator[None]:
        outside = (self.scope, self.hidden, self.receivers)
        self.scope = definition.inner
        yield
        self.scope, self.hidden, self.receivers = outside

    def define(self, node: _Function | ast.ClassDef, kind: str) -> Definition:
        parent = self.facts.scopes[self.scope].owner
        identity = f"{parent}.{node.name}"
        if self.scope == 0 and node.name in self.taken:
            identity = f"{parent}.__init__.{node.name}"
        if self.kinds.setdefault(identity, kind) != kind:
            identity += f"#{kind}"  # a class and a function of one name, in two branches
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        last = node.end_lineno or node.lineno
        inner = len(self.facts.scopes)
        definition = Definition(identity, node.name, kind, first, last, parent, self.scope, inner)
        for decorator in node.decorator_list:
            bare = decorator.func if isinstance(decorator, ast.Call) else decorator
            definition.decorators.append((path_of(bare, self.hidden), decorator.lineno))
            self.visit(decorator)
        self.bind(node.name, "definition", (identity,), node.lineno)
        self.facts.scopes.append(Scope(identity, kind, self.scope))
        self.facts.definitions.append(definition)
        return definition

    def class_(self, node: ast.ClassDef) -> None:
        definition = self.define(node, "Class")
        for base in node.bases:
            bare = base.value if isinstance(base, ast.Subscript) else base
            definition.bases.append((path_of(bare, self.hidden), base.lineno))
            self.visit(base)
        self.all(node.keywords)
        with self.inside(definition):
            self.all(node.body)

    def function(self, node: _Function) -> None:
        in_class = self.facts.scopes[self.scope].kind == "Class"
        definition = self.define(node, "Method" if in_class else "Function")
        definition.deferred = isinstance(node, ast.AsyncFunctionDef)
        if node.returns is not None:
            definition.annotation = of_file.annotation_path(node.returns, self.hidden)
        self.all((*node.args.defaults, *node.args.kw_defaults))
        owner = self.facts.scopes[self.scope].owner if in_class else ""
        with self.inside(definition):
            self.receivers = {} if in_class else dict(self.receivers)
            self.parameters(node.args, definition, owner)
            self.functions.append(definition)
            self.all(node.body)
            self.functions.pop()

    def parameters(self, arguments: ast.arguments, definition: Definition, owner: str) -> None:
        decorators = definition.decorator_names
        for position, argument in enumerate(_arguments(arguments)):
            name = argument.arg
            line = argument.lineno
            self.receivers.pop(name, None)
            is_first = position == 0 and owner and "staticmethod" not in decorators
            if is_first and name in _RECEIVERS:
                takes_class = "classmethod" in decorators or definition.name in _TAKES_CLASS
                self.bind(name, "cls" if takes_class else "self", (owner,), line)
                self.receivers[name] = owner
                continue
            definition.parameters.append((name, line))
            path = UNKNOWN
            if argument not in (arguments.vararg, arguments.kwarg):
                path = of_file.annotation_path(argument.annotation, self.hidden)
            self.bind(name, "value", path, line)

    def absolute(self, name: str) -> str:
        if name.partition(".")[0] in self.moved:
            return f"{self.within}.{name}"
        return name

    def import_(self, node: ast.Import) -> None:
        for alias in node.names:
            bound = alias.name
            if not alias.asname:
                bound = alias.name.partition(".")[0]
            self.bind(alias.asname or bound, "import", (self.absolute(bound),), node.lineno)
            self.refer("imports", (self.absolute(alias.name),), node.lineno)

    def import_from(self, node: ast.ImportFrom) -> None:
        parts = self.facts.package.split(".") if self.facts.package else []
        if node.level - 1 > len(parts):
            return  # beyond the top of the tree
        base = self.absolute(node.module or "")
        if node.level:
            above = parts[: len(parts) - (node.level - 1)]
            base = ".".join([*above, node.module] if node.module else above)
        for alias in node.names:
            if alias.name == "*":
                self.facts.stars.append(base)
                self.refer("imports", (base,), node.lineno)
            else:
                self.bind(alias.asname or alias.name, "import", (base, alias.name), node.lineno)
                self.refer("imports", (base, alias.name), node.lineno)

    def redirect(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            if isinstance(node, ast.Global):
                target = 0
            else:
                target = self.facts.scopes[self.scope].parent
            while target > 0 and name not in self.facts.scopes[target].bindings:
                target = self.facts.scopes[target].parent
            self.redirected[self.scope, name] = target

    def stored(self, node: ast.Name | ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store):
            self.assign(node, UNKNOWN)
        elif isinstance(node, ast.Attribute):
            self.visit(node.value)

    def assign(self, target: ast.expr, path: Path) -> None:
        if isinstance(target, ast.Name):
            self.bind(target.id, "value", path, target.lineno)
            return
        if not isinstance(target, ast.Attribute):
            self.visit(target)
            return
        self.visit(target.value)
        if isinstance(target.value, ast.Name) and target.value.id in self.receivers:
            attributes = self.facts.attributes.setdefault(self.receivers[target.value.id], {})
            binding = Binding("value", path, self.scope, target.lineno)
            attributes.setdefault(target.attr, []).append(binding)

    def assignment(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            for left, right in _pairs(target, node.value):
                self.assign(left, path_of(right, self.hidden))
            if self.scope == 0 and isinstance(target, ast.Name) and target.id == "__all__":
                self.facts.exports = _strings(node.value)

    def valued(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        if node.value is not None:
            self.visit(node.value)
        path = path_of(node.value, self.hidden)
        if isinstance(node, ast.AnnAssign):
            path = of_file.annotation_path(node.annotation, self.hidden)
        self.assign(node.target, path)

    def augmented(self, node: ast.AugAssign) -> None:
        self.children(node)
        if self.scope == 0 and isinstance(node.target, ast.Name) and node.target.id == "__all__":
            exports = self.facts.exports
            more = _strings(node.value)
            self.facts.exports = None
            if exports is not None and more is not None:
                self.facts.exports = [*exports, *more]

    def with_(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                path = UNKNOWN
                if isinstance(node, ast.With):
                    path = (*path_of(item.context_expr, self.hidden), ENTER)
                self.assign(item.optional_vars, path)
        self.all(node.body)

    def captured(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bind(name, "value", UNKNOWN, node.lineno)
        self.children(node)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        self.visit(node.generators[0].iter)  # read outside of the comprehension's own scope
        hidden_outside = self.hidden
        for part in node.generators:
            names = [inner.id for inner in ast.walk(part.target) if isinstance(inner, ast.Name)]
            self.hidden = self.hidden.union(names)
        for position, part in enumerate(node.generators):
            self.all(part.ifs if position == 0 else [part.iter, *part.ifs])
        if isinstance(node, ast.DictComp):
            self.all([node.key, node.value])
        else:
            self.visit(node.elt)
        self.hidden = hidden_outside

    def lambda_(self, node: ast.Lambda) -> None:
        self.all((*node.args.defaults, *node.args.kw_defaults))
        hidden_outside = self.hidden
        self.hidden = hidden_outside | {argument.arg for argument in _arguments(node.args)}
        self.visit(node.body)
        self.hidden = hidden_outside

    def flow(self, node: ast.Call | ast.Raise | ast.Return | ast.Yield | ast.YieldFrom) -> None:
        if isinstance(node, ast.Call):
            path = path_of(node.func, self.hidden)
            if path[-1].isidentifier():
                self.refer("calls", path, node.lineno)
        elif isinstance(node, ast.Raise):
            if node.exc is not None:
                self.refer("raises", path_of(node.exc, self.hidden), node.lineno)
        elif self.functions and isinstance(node, ast.Return):
            path = ("<NoneType>",)
            if node.value is not None:
                path = path_of(node.value, self.hidden)
            self.functions[-1].returns.append((path, node.lineno))
        elif self.functions:
            self.functions[-1].deferred = True
        self.children(node)

    def handler(self, node: ast.ExceptHandler) -> None:
        classes = [node.type] if node.type else []
        if isinstance(node.type, ast.Tuple):
            classes = node.type.elts
        for expression in classes:
            self.refer("catches", path_of(expression, self.hidden), expression.lineno)
        if node.name:
            path = UNKNOWN
            if len(classes) == 1:
                path = (*path_of(classes[0], self.hidden), INSTANCE)
            self.bind(node.name, "value", path, node.lineno)
        self.children(node)

    HANDLERS: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        ast.ClassDef: class_, ast.FunctionDef: function, ast.AsyncFunctionDef: function, ast.Import: import_,
        ast.ImportFrom: import_from, ast.Global: redirect, ast.Nonlocal: redirect, ast.Name: stored,
        ast.Attribute: stored, ast.Assign: assignment, ast.AnnAssign: valued, ast.AugAssign: augmented,
        ast.NamedExpr: valued, ast.With: with_, ast.AsyncWith: with_, ast.MatchAs: captured, ast.MatchStar: captured,
        ast.MatchMapping: captured, ast.ListComp: comprehension, ast.SetComp: comprehension,
        ast.DictComp: comprehension, ast.GeneratorExp: comprehension, ast.Lambda: lambda_, ast.Call: flow,
        ast.Yield: flow, ast.YieldFrom: flow, ast.Return: flow, ast.Raise: flow, ast.ExceptHandler: handler,
        **dict.fromkeys((ast.Constant, ast.Load, ast.Store), lambda reader, node: None),
    }  # fmt: skip


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    packed = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *packed]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Returns the pairs of an assignment: elements of two tuples of one length without stars, otherwise whole."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return [(target, value)]
    has_star = any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts))
    if has_star or len(target.elts) != len(value.elts):
        return [(target, value)]
    return list(zip(target.elts, value.elts, strict=True))


def _strings(node: ast.expr) -> list[str] | None:
    """Returns the texts of a list or tuple; None if it has anything else."""
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(node.elts):
        return texts
    return None
