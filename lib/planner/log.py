"""The log of a traced step: what was allocated and freed, of which layer and line, and who is alive at the peak."""

import re
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from lib.planner.allocator import Allocator, Block

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "temporaries", "workspace")
SIZES = ("weights", "gradients", "optimizer", "activations", "at_peak")  # of a layer
OUTSIDE = "(outside of layers)"
_LARGEST = 20  # groups of tensors that are alive at the peak
Line = tuple[str, int, str]  # file, number, function


@dataclass(eq=False, slots=True)
class Storage:
    """One allocation: bytes, category, module and line that made it; category and module may become known later."""

    size: int
    category: str
    module: str  # its whole dotted name; empty outside of all
    block: Block | None
    line: Line | None = None
    what: str = ""  # the parameter, or the operator
    shape: tuple[int, ...] = ()
    alive: weakref.ref | None = None


@dataclass(frozen=True)
class Layer:
    """The bytes of one layer, or of several alike that follow one another (`count`)."""

    name: str
    count: int
    weights: int
    gradients: int
    optimizer: int
    activations: int  # that wait for the backward pass
    at_peak: int  # all of it that is alive then


@dataclass(frozen=True)
class Alive:
    """Tensors of one line that are alive at the peak; a star in `module` stands for the numbers of several layers."""

    module: str
    what: str
    category: str
    line: str
    count: int
    size: int  # bytes of all
    shape: tuple[int, ...]  # of the largest


class Log:
    """Records everything that an allocator did: events are (action, what).

    `what` is the storage for "alloc" and "free", and bytes for "workspace", which may be taken there for a moment.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.marks: dict[str, int] = {}  # the last moment of each name in a step, and how many events were before it
        self.peak = 0  # how many events were before the highest moment

    def with_workspaces(self, capacity: int | None) -> Allocator | None:
        """Replays the events with every workspace taken; returns None if there is none."""
        if not any(action == "workspace" for action, _ in self.events):
            return None
        allocator = Allocator(capacity)
        blocks: dict[Storage, Block | None] = {}
        for action, what in self.events:
            if action == "alloc":
                blocks[what] = allocator.allocate(what.size)
            else:
                allocator.release(blocks.pop(what) if action == "free" else allocator.allocate(what))
        return allocator

    def alive(self, end: int) -> list[Storage]:
        """Returns the storages that are alive after the first `end` events, in the order of their allocation."""
        storages: dict[Storage, None] = {}
        for action, what in self.events[:end]:
            if action == "alloc":
                storages[what] = None
            elif action == "free":
                storages.pop(what, None)
        return list(storages)

    def at_peak(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the bytes by category and by top-level submodule at the peak, largest first."""
        categories: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for storage in self.alive(self.peak):
            categories[storage.category] += storage.size
            top = "" if storage.category == "optimizer" else storage.module.partition(".")[0]
            modules[top or storage.category] += storage.size
        return dict(categories.most_common()), dict(modules.most_common())

    def layers(self) -> tuple[Layer, ...]:
        """Returns the bytes of each layer, in the model's order; what belongs to none comes last."""
        marks, end = self.marks, len(self.events)
        columns = {
            "weights": _by_layer(self.alive(marks.get("after load", end)), "weights"),
            "gradients": _by_layer(self.alive(marks.get("after backward", 0)), "gradients"),
            "optimizer": _by_layer(self.alive(end), "optimizer"),
            "activations": _by_layer(self.alive(marks.get("after forward", 0)), "activations"),
            "at_peak": _by_layer(self.alive(self.peak)),
        }
        names = dict.fromkeys(name for column in columns.values() for name in column if name != OUTSIDE)
        return tuple(
            Layer(name, 1, **{column: sizes[name] for column, sizes in columns.items()})
            for name in [*names, OUTSIDE]
            if any(sizes[name] for sizes in columns.values())
        )

    def largest_at_peak(self) -> tuple[Alive, ...]:
        """Returns the largest groups of tensors at the peak: those that one line made, in whatever layer."""
        groups: dict[tuple, list[Storage]] = {}
        for storage in self.alive(self.peak):
            module = ".".join("*" if part.isdigit() else part for part in storage.module.split("."))
            by_optimizer = storage.category in ("weights", "gradients", "optimizer")  # whose line says nothing
            file, number, _ = storage.line or ("", 0, "")
            line = "" if by_optimizer or not file else f"{'/'.join(PurePath(file).parts[-2:])}:{number}"
            groups.setdefault((module, storage.what, storage.category, line), []).append(storage)
        alive = [
            Alive(*key, len(some), sum(s.size for s in some), max(some, key=lambda s: s.size).shape)
            for key, some in groups.items()
        ]
        return tuple(sorted(alive, key=lambda group: -group.size)[:_LARGEST])


def _by_layer(storages: Iterable[Storage], category: str = "") -> Counter[str]:
    sizes: Counter[str] = Counter()
    for storage in storages:
        if category in ("", storage.category):
            sizes[_layer_of(storage.module)] += storage.size
    return sizes


def _layer_of(module: str) -> str:
    """Returns the layer that a module belongs to: up to the first number in its name, else its first two parts."""
    parts = module.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1 if numbers else 2]) or OUTSIDE


def folded(layers: Iterable[Layer]) -> list[Layer]:
    """Returns the layers with those alike that follow one another as one row, which has the bytes of all of them."""
    rows: list[list[Layer]] = []
    for layer in layers:
        if rows and _are_alike(rows[-1][-1], layer):
            rows[-1].append(layer)
        else:
            rows.append([layer])
    return [row[0] if len(row) == 1 else summed(f"{row[0].name} ... {row[-1].name}", row) for row in rows]


def _are_alike(layer: Layer, other: Layer) -> bool:
    stem, other_stem = (re.sub(r"\d+$", "", each.name) for each in (layer, other))
    return stem == other_stem != other.name and (layer.weights, layer.optimizer) == (other.weights, other.optimizer)


def summed(name: str, layers: list[Layer]) -> Layer:
    """Returns several layers as one row."""
    sums = (sum(getattr(layer, size) for layer in layers) for size in SIZES)
    return Layer(name, sum(layer.count for layer in layers), *sums)
