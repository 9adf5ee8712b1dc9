"""Builds a graph of the definitions and uses in a tree of Python files, identical on every machine."""

import builtins
import gc
import pathlib
from collections.abc import Iterator

from workloads.codegraph import source, trees
from workloads.codegraph.facts import CALL, INSTANCE, Definition, Facts, Path, Reference
from workloads.codegraph.records import Entity, Graph, Place, Triple
from workloads.codegraph.resolve import Resolver, Target, is_builtin_type
from workloads.codegraph.trees import Sources

_COMMON = (
    dict,
    list,
    str,
    set,
    tuple,
    int,
    float,
    bytes,
)  # of two with a method of one name the first is meant
# (head, relation, tail) with the type of the tail's entity and a line of the file that states it
Edge = tuple[str, str, str, str, int]


def build(folder: pathlib.Path | Sources) -> Graph:
    """Builds the graph of trees; lists unreadable files in `skipped`. Raises BadInput without a file."""
    if isinstance(folder, Sources):
        sources = folder
    else:
        sources = Sources([trees.folder(folder)])
    (jobs, skipped), facts = sources.jobs(), []
    gc.disable()  # for millions of small objects without cycles it would double the time (4.6 s for 2.1)
    try:
        for job in jobs:
            try:
                answer = source.parse(sources.read(job.file), *job)
            except OSError as error:
                answer = f"cannot be read: {error.strerror}"
            if isinstance(answer, Facts):
                facts.append(answer)
            else:
                skipped.append((job.file, answer))
        return _assembled(facts, sorted(skipped))
    finally:
        gc.enable()


def _assembled(facts: list[Facts], skipped: list[tuple[str, str]]) -> Graph:
    resolver = Resolver(facts)
    entities = dict[str, Entity]()
    for one in facts:
        for name, kind in ((f"file::{one.file}", "File"), (one.module, "Module")):
            entities[name] = Entity(name, kind, one.file, 1, one.lines)
        for made in one.definitions:
            entity = Entity(made.id, made.kind, one.file, made.first_line, made.last_line)
            entities.setdefault(made.id, entity)
    triples: dict[tuple[str, str, str], Triple] = {}
    for one in facts:
        for head, relation, tail, kind, line in edges(resolver, one):
            place = Place("python", one.file, one.module, line)
            triples.setdefault((head, relation, tail), Triple(head, relation, tail, place))
            if tail not in entities:
                entities[tail] = Entity(tail, kind)
    ordered = {name: entities[name] for name in sorted(entities)}
    return Graph([triples[key] for key in sorted(triples)], ordered, skipped)


def edges(resolver: Resolver, facts: Facts) -> Iterator[Edge]:
    """Yields all edges of one file, repeated ones included, in the order of the source."""
    yield f"file::{facts.file}", "defines", facts.module, "Module", 1
    package = facts.module.rpartition(".")[0]
    if package in resolver.modules:
        yield package, "contains", facts.module, "Module", 1
    for definition in facts.definitions:
        yield from _of_definition(resolver, facts, definition)
    for owner, attributes in facts.attributes.items():
        for name, bindings in attributes.items():
            yield owner, "has_attribute", f"attr::{name}", "Attribute", bindings[0].line
    for reference in facts.references:
        yield from _REFERENCES[reference.relation](resolver, facts, reference)


def _of_definition(resolver: Resolver, facts: Facts, definition: Definition) -> Iterator[Edge]:
    """Yields the place of a definition, its members and overrides, and its header, read in the scope around it."""
    identity = definition.id
    outer = definition.outer
    line = definition.first_line
    relation = "defines" if outer == 0 else "contains"
    kind = resolver.definitions[identity][0].kind
    yield definition.parent, relation, identity, kind, line
    for name, parameter_line in definition.parameters:
        yield identity, "has_parameter", f"param::{name}", "Parameter", parameter_line
    if definition.kind == "Class":
        for name, bindings in facts.scopes[definition.inner].bindings.items():
            lines = [binding.line for binding in bindings if binding.kind == "value"]
            if lines:
                yield identity, "has_attribute", f"attr::{name}", "Attribute", lines[0]
    if definition.kind == "Method":
        hidden = resolver.overridden(definition.parent, definition.name)
        if hidden:
            yield identity, "overrides", hidden, "Method", line
    for path, path_line in definition.decorators:
        target = resolver.path(facts, outer, path, excluded=identity)
        yield from _edge(resolver, identity, "annotated_with", target, path, path_line)
    for path, path_line in definition.bases:
        target = resolver.path(facts, outer, path, excluded=identity)
        if target == Target("builtin", "object"):  # a matter of the file's age
            continue
        is_class = target is not None and target.kind == "class"
        # Bound in a circle by two definitions of one name
        if is_class and identity in resolver.ancestors(target.id):
            continue
        is_known = is_class or (target is not None and target.kind == "external")
        if target is not None and not is_known and not is_builtin_type(target):
            target = None
        yield from _edge(resolver, identity, "inherits_from", target, path, path_line)
    yield from _returns(resolver, facts, definition)


def _entity(resolver: Resolver, target: Target | None) -> tuple[str, str] | None:
    """Returns id and type of the entity that a target is, or is an instance of."""
    match target:
        case Target("class" | "function" | "instance", identity):
            return identity, resolver.definitions[identity][0].kind
        case Target("builtin" | "literal", name):
            return f"builtins.{name}", builtin_kind(name)
        case Target("external" | "module" as kind, identity):
            return identity, "API" if kind == "external" else "Module"
    return None


def _edge(
    resolver: Resolver, head: str, relation: str, target: Target | None, path: Path, line: int
) -> Iterator[Edge]:
    """Yields one edge to the target, or to the last name of the path if nothing is resolved."""
    is_named = target is not None and target.kind in ("class", "function", "external", "builtin")
    names = [step for step in path if step.isidentifier()]
    if is_named and (entity := _entity(resolver, target)):
        yield head, relation, *entity, line
    elif names:
        yield head, relation, f"name::{names[-1]}", "Name", line


def _returns(resolver: Resolver, facts: Facts, definition: Definition) -> Iterator[Edge]:
    results = []
    if definition.annotation is not None:
        path = definition.annotation
        line = definition.first_line
        results = [(definition.outer, path, line)]
        if path[-1] == INSTANCE:
            target = resolver.path(facts, definition.outer, path[:-1])
            if target is not None and target.kind == "external":
                yield definition.id, "returns", target.id, "API", line
    elif not definition.deferred:
        results = [(definition.inner, path, line) for path, line in definition.returns]
    for scope, path, line in results:
        target = resolver.path(facts, scope, path)
        if target is None or target.kind not in ("instance", "literal") or target.id == "ellipsis":
            continue
        entity = _entity(resolver, target)
        if entity:
            yield definition.id, "returns", *entity, line


def _calls(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    target = resolver.path(facts, reference.scope, reference.path)
    if target is not None and target.kind == "instance":
        target = resolver.member(target, "__call__")
        if target is not None and target.kind != "function":
            target = None
    makes = target is not None and (target.kind == "class" or is_builtin_type(target))
    relation = "instantiates" if makes else "calls"
    head = facts.scopes[reference.scope].owner
    yield from _edge(resolver, head, relation, target, reference.path, reference.line)


def _exceptions(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    """Yields only certain facts: `raise error` of a parameter names no class."""
    if reference.path[-1] in (CALL, INSTANCE):
        path = reference.path[:-1]
    else:
        path = reference.path
    target = resolver.path(facts, reference.scope, path)
    if target is not None and target.kind == "function":  # a function that makes the exception
        target = resolver.path(facts, reference.scope, reference.path)
    entity = _entity(resolver, target)
    if entity and (entity[1] in ("Class", "ExceptionType") or target.kind == "external"):  # type: ignore[union-attr]
        yield facts.scopes[reference.scope].owner, reference.relation, *entity, reference.line


def _imports(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    target = resolver.imported(facts, reference.path)
    name, *names = reference.path
    entity = None
    if target is not None and target.kind not in ("instance", "literal"):
        entity = _entity(resolver, target)
    if entity:
        tail, kind = entity
    elif names:
        base = resolver.imported(facts, reference.path[:1])
        module = base.id if base is not None else name
        tail = f"{module}.{names[0]}".lstrip(".")
        kind = "Variable"
        if tail in resolver.definitions:
            kind = resolver.definitions[tail][0].kind
    else:
        tail = name
        kind = "API"
    if tail:
        yield facts.module, "imports", tail, kind, reference.line


_REFERENCES = {"calls": _calls, "raises": _exceptions, "catches": _exceptions, "imports": _imports}


def builtin_kind(name: str) -> str:
    """Returns the entity type of `builtins.<name>`; a method such as "str.join" is an API."""
    if name == "NoneType":
        return "Type"
    value = getattr(builtins, name, None)
    if not isinstance(value, type):
        return "API"
    return "ExceptionType" if issubclass(value, BaseException) else "Type"


def builtin_methods() -> dict[str, Entity]:
    """Returns Python's documentation of the public methods of its builtins: each name once, for its commonest class."""
    methods: dict[str, str] = {}
    for kind in _COMMON:
        for name, value in vars(kind).items():
            if callable(value) and not name.startswith("_"):
                methods.setdefault(name, f"builtins.{kind.__name__}.{name}")
    return {identity: Entity(identity, "API") for identity in methods.values()}
