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
_STATES = ("weights", "gradients", "optimizer")
SIZES = ("weights", "gradients", "optimizer", "activations", "at_peak")  # of a layer
OUTSIDE = "(outside of layers)"
_POINTS = 240  # of a timeline: as many as a picture has room for
_LARGEST = 20  # groups of tensors that are alive at the peak
_Line = tuple[str, int, str]  # file, number, function


@dataclass(eq=False, slots=True)
class Storage:
    """One allocation: bytes, category, module and line that made it; category and module may become known later."""

    size: int
    category: str
    module: str  # its whole dotted name; empty outside of all
    block: Block | None
    address: int = 0
    line: _Line | None = None
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


@dataclass(frozen=True)
class Timeline:
    """The step with the peak in at most 240 points, each the highest of a stretch."""

    points: tuple[tuple[int, ...], ...]  # bytes of each of CATEGORIES
    reserved: tuple[int, ...]
    peak: int  # the number of the highest point
    moments: tuple[tuple[str, int], ...]  # name, and number of the point at its end


class Log:
    """Everything that an allocator did, in order: events are (action, what, bytes reserved after it).

    `what` is the storage for "alloc" and "free", (address, bytes) for "segment_alloc" and "segment_free", and bytes for
    "workspace", which may be taken there for a moment.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, Any, int]] = []
        self.marks: list[tuple[str, int]] = []  # moments of a step, and how many events were before them
        self.peak = 0  # how many events were before the highest moment

    def add(self, action: str, what: Storage | tuple[int, int] | int, reserved: int) -> None:
        self.events.append((action, what, reserved))

    def mark(self, moment: str) -> None:
        self.marks.append((moment, len(self.events)))

    def with_workspaces(self, capacity: int | None) -> Allocator | None:
        """Returns what an allocator has after the same events where every workspace is taken; None without any."""
        if not any(action == "workspace" for action, _, _ in self.events):
            return None
        allocator = Allocator(capacity)
        blocks: dict[Storage, Block | None] = {}
        for action, what, _ in self.events:
            if action == "alloc":
                blocks[what] = allocator.allocate(what.size)
            elif action == "free":
                allocator.release(blocks.pop(what))
            elif action == "workspace":
                allocator.release(allocator.allocate(what))
        return allocator

    def alive(self, end: int) -> list[Storage]:
        """Returns the storages that are alive after the first `end` events, in the order of their allocation."""
        found: dict[Storage, None] = {}
        for action, what, _ in self.events[:end]:
            if action == "alloc":
                found[what] = None
            elif action == "free":
                found.pop(what, None)
        return list(found)

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
        """Returns what each layer takes, in the model's order; what belongs to none stands at the end."""
        marks = dict(self.marks)  # of the last step
        end = len(self.events)
        taken = {
            "weights": _by_layer(self.alive(marks.get("after load", end)), "weights"),
            "gradients": _by_layer(self.alive(marks.get("after backward", 0)), "gradients"),
            "optimizer": _by_layer(self.alive(end), "optimizer"),
            "activations": _by_layer(self.alive(marks.get("after forward", 0)), "activations"),
            "at_peak": _by_layer(self.alive(self.peak)),
        }
        names = dict.fromkeys(name for column in taken.values() for name in column if name != OUTSIDE)
        return tuple(
            Layer(name, 1, **{column: sizes[name] for column, sizes in taken.items()})
            for name in [*names, OUTSIDE]
            if any(sizes[name] for sizes in taken.values())
        )

    def largest_at_peak(self) -> tuple[Alive, ...]:
        """Returns the largest groups of tensors at the peak: those that one line made, in whatever layer."""
        groups: dict[tuple, list[Storage]] = {}
        for storage in self.alive(self.peak):
            module = ".".join("*" if part.isdigit() else part for part in storage.module.split("."))
            line = "" if storage.category in _STATES else _short(storage.line)  # that of the optimizer says nothing
            groups.setdefault((module, storage.what, storage.category, line), []).append(storage)
        found = [
            Alive(*key, len(some), sum(s.size for s in some), max(some, key=lambda s: s.size).shape)
            for key, some in groups.items()
        ]
        return tuple(sorted(found, key=lambda group: -group.size)[:_LARGEST])

    def timeline(self) -> Timeline | None:
        """Returns the course of the step that has the peak; None where nothing was allocated."""
        begin = max((at for name, at in self.marks if name == "start" and at <= self.peak), default=0)
        end = min((at for name, at in self.marks if name == "start" and at > self.peak), default=len(self.events))
        stretch = max(1, -(-(end - begin) // _POINTS))
        points: list[tuple[int, tuple[int, ...], int]] = []  # total, by category, reserved
        now = Counter(dict.fromkeys(CATEGORIES, 0))
        for storage in self.alive(begin):
            now[storage.category] += storage.size
        for number, (action, what, reserved) in enumerate(self.events[begin:end]):
            if action in ("alloc", "free"):
                now[what.category] += what.size if action == "alloc" else -what.size
            here = (now.total(), tuple(now[name] for name in CATEGORIES), reserved)
            if number % stretch == 0:
                points.append(here)
            elif here[0] > points[-1][0]:
                points[-1] = here
        if not points:
            return None
        last = len(points) - 1
        moments = ((name, min(last, (at - begin) // stretch)) for name, at in self.marks if begin < at <= end)
        peak = max(range(len(points)), key=lambda number: points[number][0])
        return Timeline(
            tuple(by for _, by, _ in points), tuple(reserved for _, _, reserved in points), peak,
            tuple(dict(moments).items()),
        )  # fmt: skip


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


def _short(line: _Line | None) -> str:
    return f"{'/'.join(PurePath(line[0]).parts[-2:])}:{line[1]}" if line else ""


def folded(layers: Iterable[Layer]) -> list[Layer]:
    """Returns the layers with those alike that follow one another as one row, which has the bytes of all of them."""
    rows: list[list[Layer]] = []
    for layer in layers:
        if rows and _alike(rows[-1][-1], layer):
            rows[-1].append(layer)
        else:
            rows.append([layer])
    return [_sum(row) for row in rows]


def _alike(one: Layer, other: Layer) -> bool:
    stems = [re.sub(r"\d+$", "", layer.name) for layer in (one, other)]
    return stems[0] == stems[1] != other.name and (one.weights, one.optimizer) == (other.weights, other.optimizer)


def _sum(row: list[Layer]) -> Layer:
    if len(row) == 1:
        return row[0]
    sums = (sum(getattr(layer, name) for layer in row) for name in SIZES)
    return Layer(f"{row[0].name} ... {row[-1].name}", len(row), *sums)
