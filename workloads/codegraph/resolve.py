"""Resolves a path through scopes, imports, re-exports, classes and inferred types.

A name is resolved only where all its bindings agree, and a type only where it is certain.
"""

import builtins
from collections.abc import Iterable
from typing import NamedTuple

from workloads.codegraph.facts import (
    CALL,
    ENTER,
    INSTANCE,
    UNKNOWN,
    Binding,
    Definition,
    Facts,
    Path,
)

_DEPTH = 60  # nested look-ups; chains of assignments longer than this are in generated code only
_NONE = "NoneType"
_OPAQUE = "?"  # a base outside the tree: its members are unknown
_MOST = 200  # bases of a class, and bindings of a name, that are looked at; more are in files that want to cost time
# Bases outside of the tree that give their subclasses no methods worth finding
_MARKERS = {
    "abc.ABC",
    "typing.Generic",
    "typing.Protocol",
    "typing.NamedTuple",
    "typing_extensions.Protocol",
}
_ENUMS = {"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"}
_PROPERTIES = {"property", "cached_property", "abstractproperty"}
_SAME_RESULT = _PROPERTIES | {
    "staticmethod", "classmethod", "abstractmethod", "lru_cache", "cache", "final", "override", "wraps"
}  # fmt: skip


class Target(NamedTuple):
    """The meaning of a path.

    `kind`: module, class, function, instance (of the class `id`), external, builtin (an object of `builtins`, by dotted
    name), literal (an instance of the builtin type `id`) or super (of the class `id`). `receiver` is the class through
    which a method was reached.
    """

    kind: str
    id: str
    receiver: str = ""


def is_builtin_type(target: Target) -> bool:
    return target.kind == "builtin" and isinstance(getattr(builtins, target.id, None), type)


class Resolver:
    """Looks paths up in facts, in one order: circular bindings are cut where they are met first."""

    def __init__(self, facts: Iterable[Facts]) -> None:
        self.modules = {source.module: source for source in facts}
        self.definitions: dict[str, list[Definition]] = {}
        self.home: dict[str, Facts] = {}
        for source in self.modules.values():
            for definition in source.definitions:
                self.definitions.setdefault(definition.id, []).append(definition)
                self.home[definition.id] = source
        self.folders = set(self.modules)
        for name in self.modules:
            self.folders.update(name[:i] for i, letter in enumerate(name) if letter == ".")
        packages = [name for name, source in self.modules.items() if source.package == name]
        parents = {name.rpartition(".")[0] for name in packages}
        # `src` in a tree with src/package/__init__.py
        self.source_roots = sorted(parents - {*self.modules} - {""})
        self._paths: dict[tuple[str, int, Path, str, str], Target | None] = {}
        self._names: dict[tuple[str, str], Target | None] = {}
        self._orders: dict[str, list[str]] = {}
        self._depth = 0  # of `path` and `order` within themselves

    def path(
        self, facts: Facts, scope: int, path: Path, receiver: str = "", excluded: str = ""
    ) -> Target | None:
        """Returns the meaning of `path` in a scope; `excluded` is a definition that its own header cannot mean."""
        key = (facts.module, scope, path, receiver, excluded)
        if key in self._paths:
            return self._paths[key]
        if self._depth > _DEPTH:
            return None
        self._paths[key] = None  # cuts circular bindings
        self._depth += 1
        target = self._root(facts, scope, path[0], receiver, excluded)
        for step in path[1:]:
            if target is None:
                break
            target = self._step(target, step)
        self._depth -= 1
        self._paths[key] = target
        return target

    def _root(
        self, facts: Facts, index: int, name: str, receiver: str, excluded: str
    ) -> Target | None:
        if name == UNKNOWN[0]:
            return None
        if name[0] == "<":
            return Target("literal", name[1:-1])
        if name.startswith("super:"):
            while index > 0 and facts.scopes[index].kind != "Class":
                index = facts.scopes[index].parent
            owner = facts.scopes[index].owner
            if index > 0 and name[6:] in ("", owner.rpartition(".")[2]):
                return Target("super", owner, receiver)
            return None
        own = True
        while index >= 0:
            scope = facts.scopes[index]
            # class bodies do not enclose functions
            if name in scope.bindings and (own or scope.kind != "Class"):
                bindings = scope.bindings[name]
                if own and receiver and len(bindings) == 1 and bindings[0].kind in ("self", "cls"):
                    return Target("instance" if bindings[0].kind == "self" else "class", receiver)
                return self._agreed(facts, bindings, excluded)
            own = False
            index = scope.parent
        target = self._starred(facts, name)
        if target is None and hasattr(builtins, name):
            return Target("builtin", name)
        if target is None and self._opaque_star(facts):
            return Target("external", f"{facts.module}.{name}")
        return target

    def _agreed(self, facts: Facts, bindings: list[Binding], excluded: str = "") -> Target | None:
        """Returns the one meaning of all bindings of a name, or None; a value None does not count."""
        # Names in the tree go before others (C accelerators), and the first branch before others (platforms)
        named: list[Target | None] = []
        values: list[Target | None] = []
        if len(bindings) > _MOST:
            return None
        for binding in bindings:
            target = self._bound(facts, binding)
            if target is not None and target.id == excluded:
                continue
            if binding.kind == "value":
                values.append(target)
            else:
                named.append(target)
        certain = [value for value in values if value is None or value[:2] != ("literal", _NONE)]
        if not named and not certain:
            return values[0] if values else None
        is_one = len(set(certain)) == 1
        if not named and not is_one:
            return None
        if not named:
            return certain[0]
        inside = [target for target in named if target is not None and target.kind != "external"]
        if not inside and None not in named and is_one:
            return certain[0]
        best = (inside or named)[0]
        last_name = best.id.rpartition(".")[2] if best is not None else None

        def agrees(value: Target | None) -> bool:
            if value == best:
                return True
            # A later `Name = _module.Name` from outside of the tree replaces the definition of that name in it
            is_outside = value is not None and value.kind == "external"
            return is_outside and value.id.rpartition(".")[2] == last_name

        if all(map(agrees, certain)):
            return best
        return None

    def _bound(self, facts: Facts, binding: Binding) -> Target | None:
        kind = binding.kind
        path = binding.path
        if kind == "import":
            return self.imported(facts, path)
        if kind == "value":
            return self.path(facts, binding.scope, path)
        if kind == "definition":
            is_class = self.definitions[path[0]][0].kind == "Class"
            return Target("class" if is_class else "function", path[0])
        return Target("instance" if kind == "self" else "class", path[0])

    def imported(self, facts: Facts, path: Path) -> Target | None:
        """Returns what `import a.b` (a path of one step) or `from a import b` (of two) binds."""
        base = self._module(facts, path[0])
        if len(path) == 1 or base is None:
            return base
        # `from . import part` in the package itself
        if base.kind == "module" and base.id == facts.module:
            part = f"{base.id}.{path[1]}"
            if part in self.folders:
                return Target("module", part)
            return None
        return self._step(base, path[1])

    def _module(self, facts: Facts, dotted: str) -> Target | None:
        first, _, rest = dotted.partition(".")
        prefix = self._prefix(facts, dotted)
        if prefix is None:
            return Target("external", dotted)
        if dotted == "" or prefix + dotted in self.folders:
            return Target("module", prefix + dotted)
        target: Target | None = Target("module", prefix + first)
        for step in filter(None, rest.split(".")):
            if target is None:
                break
            target = self._step(target, step)
        return target

    def _prefix(self, facts: Facts, dotted: str) -> str | None:
        """Returns the tree's prefix of an absolute import, or None for an import from outside the tree."""
        first = dotted.partition(".")[0]
        package = facts.package
        if not first or first in self.modules:
            return ""
        is_folder = first in self.folders
        is_script = package and package not in self.modules
        if not is_folder and is_script and f"{package}.{first}" in self.folders:
            return f"{package}."  # the folder of a lone script
        roots = [f"{root}." for root in self.source_roots if f"{root}.{first}" in self.folders]
        around = [root for root in roots if f"{facts.module}.".startswith(root)]
        prefix = None
        if around:
            prefix = max(around, key=len)
        elif len(roots) == 1:  # `src`
            prefix = roots[0]
        if not is_folder:
            return prefix
        # In a folder that is not a package, the package inside counts: `import black` in black/black/__init__.py
        is_inner = prefix is not None and prefix + dotted in self.folders
        if prefix is None or (dotted in self.folders and not is_inner):
            return ""
        return prefix

    def _in_module(self, module: str, name: str) -> Target | None:
        key = (module, name)
        if key in self._names:
            return self._names[key]
        self._names[key] = None  # cuts circular imports
        facts = self.modules.get(module)
        part = f"{module}.{name}".lstrip(".")
        target = None
        is_bound = facts is not None and name in facts.scopes[0].bindings
        if is_bound:
            target = self._agreed(facts, facts.scopes[0].bindings[name])
        elif facts is not None:
            target = self._starred(facts, name)
        if target is None and part in self.folders:
            target = Target("module", part)
        if target is None and facts is not None and not is_bound and self._opaque_star(facts):
            target = Target("external", part)
        self._names[key] = target
        return target

    def _starred(self, facts: Facts, name: str) -> Target | None:
        target = None
        for star in facts.stars:
            base = self._module(facts, star)
            if base is None or base.kind != "module":
                continue
            if base.id == facts.module or base.id not in self.modules:
                continue
            exports = self.modules[base.id].exports
            is_exported = not name.startswith("_") if exports is None else name in exports
            if is_exported:
                # a later star hides an earlier one
                target = self._in_module(base.id, name) or target
        return target

    def _opaque_star(self, facts: Facts) -> bool:
        bases = (self._module(facts, star) for star in facts.stars)
        return any(base is not None and base.kind == "external" for base in bases)

    def _step(self, target: Target, step: str) -> Target | None:
        if step == CALL:
            return self._called(target)
        if step == INSTANCE:
            return self._instance(target)
        if step == ENTER:
            if target.kind == "instance":
                return self._result(target, "__enter__")
            return None
        if target.kind == "module":
            return self._in_module(target.id, step)
        if target.kind == "external":
            is_builtin = target.id == "builtins" and hasattr(builtins, step)
            if is_builtin:
                return Target("builtin", step)
            return Target("external", f"{target.id}.{step}")
        if target.kind in ("builtin", "literal"):
            value = getattr(builtins, target.id, None)
            is_attribute = isinstance(value, type) and hasattr(value, step)
            if is_attribute:
                return Target("builtin", f"{target.id}.{step}")
            return None
        if step == "__class__" and target.kind == "instance":
            return Target("class", target.id)
        if target.kind in ("class", "instance", "super"):
            return self.member(target, step)
        return None

    def _instance(self, target: Target) -> Target | None:
        if target.kind == "class":
            return Target("instance", target.id)
        if is_builtin_type(target):
            return Target("literal", target.id)
        return None

    def _called(self, target: Target) -> Target | None:
        if target.kind == "function":
            return self.returned(target.id, target.receiver)
        if target.kind == "instance":
            return self._result(target, "__call__")
        return self._instance(target)

    def _result(self, target: Target, method: str) -> Target | None:
        """Returns the type that a method of an instance returns."""
        function = self.member(target, method)
        if function is not None and function.kind == "function":
            return self._called(function)
        return None

    def returned(self, function: str, receiver: str = "") -> Target | None:
        """Returns the result of a call, from the annotation or all `return` statements; None if not certain."""
        definition = self.definitions[function][0]
        names = definition.decorator_names
        if definition.deferred or not names <= _SAME_RESULT:
            return None
        # the getter of a property is its first definition
        if len(self.definitions[function]) > 1 and not names & _PROPERTIES:
            return None
        facts = self.home[function]
        if definition.annotation is not None:
            if definition.annotation == ("Self", INSTANCE):
                return Target("instance", receiver) if receiver else None
            return self.path(facts, definition.outer, definition.annotation)
        paths = [path for path, _ in definition.returns]
        results = {self.path(facts, definition.inner, path, receiver) for path in paths}
        results.discard(Target("literal", _NONE))
        if len(results) == 1:
            return results.pop()
        return None

    def member(self, target: Target, name: str) -> Target | None:
        """Returns an attribute of a class or an instance of it, or of its bases."""
        is_super = target.kind == "super"
        through = (target.receiver or target.id) if is_super else target.id
        for base in [*self.order(target.id)[is_super:], "builtins.object"]:
            if base == _OPAQUE:
                return None
            if base.startswith("builtins.") and base not in self.definitions:
                if hasattr(getattr(builtins, base[9:]), name):
                    return Target("builtin", f"{base[9:]}.{name}")
                continue
            if bindings := self._own(base, name):
                return self._through(target, through, base, self._agreed(self.home[base], bindings))
        return None

    def _own(self, owner: str, name: str) -> list[Binding]:
        facts = self.home[owner]
        scopes = (facts.scopes[definition.inner] for definition in self.definitions[owner][:_MOST])
        bindings = [binding for scope in scopes for binding in scope.bindings.get(name, [])]
        return bindings + facts.attributes.get(owner, {}).get(name, [])

    def _through(
        self, target: Target, through: str, owner: str, member: Target | None
    ) -> Target | None:
        """Returns a member as an instance has it: the value of a property, an instance of an enumeration."""
        if member is None:
            return None
        if member.kind == "function" and member.id.startswith(f"{owner}."):
            if not self.definitions[member.id][0].decorator_names & _PROPERTIES:
                return Target("function", member.id, through)
            if target.kind == "class":
                return None
            return self.returned(member.id, through)
        if member.kind == "literal":
            order = self.order(owner)
            names = set(order)
            for name in order:
                bases = self.bases(name) if name in self.definitions else []
                names |= {base.id for base in bases if base and base.kind == "external"}
            if not _ENUMS.isdisjoint(names):
                return Target("instance", owner)
        return member

    def bases(self, owner: str) -> list[Target | None]:
        facts = self.home[owner]
        bases = []
        for definition in self.definitions[owner][:_MOST]:
            for path, _ in definition.bases:
                bases.append(self.path(facts, definition.outer, path, excluded=owner))
        return bases

    def overridden(self, owner: str, name: str) -> str | None:
        """Returns the method of the next class in the resolution order that a method of `owner` hides."""
        if name.startswith("__") and not name.endswith("__"):
            return None  # mangled
        for base in self.order(owner)[1:]:
            if base == _OPAQUE:
                return None
            for binding in self._own(base, name) if base in self.definitions else []:
                if binding.kind != "definition":
                    continue
                hidden = binding.path[0]
                if self.definitions[hidden][0].kind == "Method":
                    return hidden
        return None

    def ancestors(self, owner: str) -> set[str]:
        """Returns the classes of the tree that `owner` inherits from; `owner` itself only in a circle."""
        ancestors: set[str] = set()
        rest = [owner]
        while rest and len(ancestors) < _MOST:
            for target in self.bases(rest.pop()):
                if target is not None and target.kind == "class" and target.id not in ancestors:
                    ancestors.add(target.id)
                    rest.append(target.id)
        return ancestors

    def order(self, owner: str) -> list[str]:
        """Returns the method resolution order (C3), with "builtins.x" for builtin bases and "?" for unknown ones."""
        if owner in self._orders:
            return self._orders[owner]
        self._orders[owner] = [owner]  # cuts circular inheritance
        lines: list[list[str]] = []
        bases = self.bases(owner)
        if len(bases) > _MOST or self._depth >= _MOST // 4:  # four frames of Python each
            bases = [None]
        self._depth += 1
        for target in bases:
            if target is None:
                lines.append([_OPAQUE])
            elif target.kind == "class":
                lines.append(self.order(target.id))
            elif is_builtin_type(target):
                lines.append([f"builtins.{target.id}"] if target.id != "object" else [])
            elif target.kind != "external" or target.id not in _MARKERS | _ENUMS:
                lines.append([_OPAQUE])
        self._depth -= 1
        merged = _merge([*lines, [line[0] for line in lines if line]])
        if len(merged) > _MOST:
            merged = [*merged[:_MOST], _OPAQUE]
        self._orders[owner] = [owner, *merged]
        return self._orders[owner]


def _merge(lines: list[list[str]]) -> list[str]:
    """Merges lines by C3 linearisation; without an answer returns the order of first mention."""
    mentioned = list(dict.fromkeys(name for line in lines for name in line))
    merged: list[str] = []
    rest = [list(line) for line in lines if line]
    while rest:
        behind = {name for line in rest for name in line[1:]}
        heads = [line[0] for line in rest if line[0] not in behind]
        if not heads:
            return mentioned
        merged.append(heads[0])
        rest = [[name for name in line if name != heads[0]] for line in rest]
        rest = [line for line in rest if line]
    return merged
