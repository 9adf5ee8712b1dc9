"""The edges that one file contributes to the graph, once its paths can be resolved."""

import builtins
from collections.abc import Iterator
from typing import NamedTuple

from workloads.codegraph.facts import CALL, INSTANCE, Definition, Facts, Path, Reference
from workloads.codegraph.resolve import Resolver, Target


class Edge(NamedTuple):
    """(head, relation, tail) with the type of the tail's entity and a line of the file that states it."""

    head: str
    relation: str
    tail: str
    type: str
    line: int


def edges(resolver: Resolver, facts: Facts) -> Iterator[Edge]:
    """Yields all edges of one file, repeated ones included, in the order of the source."""
    yield Edge(f"file::{facts.file}", "defines", facts.module, "Module", 1)
    package = facts.module.rpartition(".")[0]
    if package in resolver.modules:
        yield Edge(package, "contains", facts.module, "Module", 1)
    for definition in facts.definitions:
        yield from _of_definition(resolver, facts, definition)
        yield from _returns(resolver, facts, definition)
    for owner, attributes in facts.attributes.items():
        for name, bindings in attributes.items():
            yield Edge(owner, "has_attribute", f"attr::{name}", "Attribute", bindings[0].line)
    for reference in facts.references:
        yield from _REFERENCES[reference.relation](resolver, facts, reference)


def _of_definition(resolver: Resolver, facts: Facts, definition: Definition) -> Iterator[Edge]:
    """Yields where a definition stands, what it holds and hides, and its header, read in the scope around it."""
    relation = "defines" if definition.outer == 0 else "contains"
    kind = resolver.definitions[definition.id][0].kind
    yield Edge(definition.parent, relation, definition.id, kind, definition.first_line)
    for name, line in definition.parameters:
        yield Edge(definition.id, "has_parameter", f"param::{name}", "Parameter", line)
    if definition.kind == "Class":
        for name, bindings in facts.scopes[definition.inner].bindings.items():
            values = [binding for binding in bindings if binding.kind == "value"]
            if values:
                yield Edge(definition.id, "has_attribute", f"attr::{name}", "Attribute", values[0].line)
    if definition.kind == "Method":
        hidden = resolver.overridden(definition.parent, definition.name)
        if hidden is not None:
            yield Edge(definition.id, "overrides", hidden, "Method", definition.first_line)
    for path, line in definition.decorators:
        target = resolver.path(facts, definition.outer, path, excluded=definition.id)
        yield from _edge(resolver, definition.id, "annotated_with", target, path, line)
    for path, line in definition.bases:
        target = resolver.path(facts, definition.outer, path, excluded=definition.id)
        if target is not None and target.kind == "class" and definition.id in resolver.ancestors(target.id):
            continue  # bound in a circle by two definitions of one name
        if target == Target("builtin", "object"):
            continue  # every class does; writing it is a matter of the file's age
        is_class = target is not None and (target.kind in ("class", "external") or _builtin_type(target) is not None)
        yield from _edge(resolver, definition.id, "inherits_from", target if is_class else None, path, line)


def _edge(resolver: Resolver, head: str, relation: str, target: Target | None, path: Path, line: int) -> Iterator[Edge]:
    """Yields one edge to the target, or to the last name of the path where nothing is resolved."""
    if target is not None and target.kind in ("class", "function"):
        yield Edge(head, relation, target.id, resolver.definitions[target.id][0].kind, line)
    elif target is not None and target.kind == "external":
        yield Edge(head, relation, target.id, "API", line)
    elif target is not None and target.kind == "builtin":
        yield Edge(head, relation, f"builtins.{target.id}", builtin_kind(target.id), line)
    else:
        names = [step for step in path if step.isidentifier()]
        if names:
            yield Edge(head, relation, f"name::{names[-1]}", "Name", line)


def _returns(resolver: Resolver, facts: Facts, definition: Definition) -> Iterator[Edge]:
    results = [] if definition.deferred else [(definition.inner, path, line) for path, line in definition.returns]
    if definition.annotation is not None:
        path, line = definition.annotation, definition.first_line
        results = [(definition.outer, path, line)]
        if path[-1] == INSTANCE:
            target = resolver.path(facts, definition.outer, path[:-1])
            if target is not None and target.kind == "external":
                yield Edge(definition.id, "returns", target.id, "API", line)
    for scope, path, line in results:
        target = resolver.path(facts, scope, path)
        if target is not None and target.kind == "instance":
            yield Edge(definition.id, "returns", target.id, "Class", line)
        elif target is not None and target.kind == "literal" and target.id != "ellipsis":
            yield Edge(definition.id, "returns", f"builtins.{target.id}", builtin_kind(target.id), line)


def _calls(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    target = resolver.path(facts, reference.scope, reference.path)
    if target is not None and target.kind == "instance":
        called = resolver.member(target.id, "__call__")
        target = called if called is not None and called.kind == "function" else None
    makes = target is not None and (target.kind == "class" or _builtin_type(target) is not None)
    head = facts.scopes[reference.scope].owner
    yield from _edge(resolver, head, "instantiates" if makes else "calls", target, reference.path, reference.line)


def _exceptions(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    """Yields only what is certain: `raise error` of a parameter says nothing of a class."""
    path = reference.path[:-1] if reference.path[-1] in (CALL, INSTANCE) else reference.path
    target = resolver.path(facts, reference.scope, path)
    if target is not None and target.kind == "function":  # a function that makes the exception
        target = resolver.path(facts, reference.scope, reference.path)
    head = facts.scopes[reference.scope].owner
    if target is not None and target.kind in ("class", "instance"):
        yield Edge(head, reference.relation, target.id, "Class", reference.line)
    elif target is not None and target.kind == "external":
        yield Edge(head, reference.relation, target.id, "API", reference.line)
    elif target is not None and builtin_kind(target.id) == "ExceptionType":
        yield Edge(head, reference.relation, f"builtins.{target.id}", "ExceptionType", reference.line)


def _imports(resolver: Resolver, facts: Facts, reference: Reference) -> Iterator[Edge]:
    target = resolver.imported(facts, reference.path)
    if target is not None and target.kind in ("module", "external", "class", "function"):
        kind = {"module": "Module", "external": "API"}.get(target.kind, "")
        tail, kind = target.id, kind or resolver.definitions[target.id][0].kind
    elif target is not None and target.kind == "builtin":
        tail, kind = f"builtins.{target.id}", builtin_kind(target.id)
    elif len(reference.path) == 2:
        base = resolver.imported(facts, reference.path[:1])
        tail = f"{base.id if base is not None else reference.path[0]}.{reference.path[1]}".lstrip(".")
        kind = resolver.definitions[tail][0].kind if tail in resolver.definitions else "Variable"
    else:
        tail, kind = reference.path[0], "API"
    if tail:
        yield Edge(facts.module, "imports", tail, kind, reference.line)


_REFERENCES = {"calls": _calls, "raises": _exceptions, "catches": _exceptions, "imports": _imports}


def _builtin_type(target: Target) -> type | None:
    value = getattr(builtins, target.id, None) if target.kind == "builtin" else None
    return value if isinstance(value, type) else None


def builtin_kind(name: str) -> str:
    """Returns the entity type of `builtins.<name>`; a method such as "str.join" is an API."""
    value = type(None) if name == "NoneType" else getattr(builtins, name, None)
    if not isinstance(value, type):
        return "API"
    return "ExceptionType" if issubclass(value, BaseException) else "Type"
