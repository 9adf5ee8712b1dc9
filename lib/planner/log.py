"""The log of a traced step, and the prediction that follows from it: the peak, who has it, and its time."""

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Any

from lib.machine.memory import GIB
from lib.planner.allocator import Allocator, Block
from lib.planner.card import CONTEXT_BYTES, FITS

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "temporaries", "workspace")
OUTSIDE = "(outside of layers)"


@dataclass(eq=False, slots=True)
class Storage:
    """One allocation: bytes, category and module that made it; category and module may become known later."""

    size: int
    category: str
    module: str  # its whole dotted name; empty outside of all
    block: Block | None
    alive: weakref.ref | None = None


@dataclass(frozen=True)
class Layer:
    """The bytes of one layer."""

    name: str
    weights: int
    gradients: int
    optimizer: int
    activations: int  # that wait for the backward pass
    at_peak: int  # all of it that is alive then


@dataclass(frozen=True)
class Prediction:
    """The peak of a training step in bytes, which the categories sum to."""

    card: str
    usable_bytes: int
    limit_bytes: int
    peak_bytes: int  # torch.cuda.max_memory_allocated
    reserved_bytes: int  # torch.cuda.max_memory_reserved
    fits: bool
    by_category: dict[str, int]
    moments: dict[str, int]  # allocated after load, forward, backward and the optimizer's step
    parameters: int
    pass_seconds: tuple[float, float]  # forward and backward of one micro-batch, between two bounds
    rest_seconds: tuple[float, float]  # clipping and the optimizer
    pass_kernels: int  # that the CPU launches for it
    pass_flops: float
    attention: dict[str, int]
    unseen: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    trained: int = 0  # parameters
    # The same where cuDNN sets aside all that it may for convolutions; 0 without any
    most_peak_bytes: int = 0
    most_reserved_bytes: int = 0

    @property
    def share(self) -> float:
        return self.peak_bytes / self.usable_bytes

    @property
    def driver_bytes(self) -> tuple[int, int]:
        """What nvidia-smi shows of the process, allocator and CUDA context: least, and with all workspaces."""
        return self.reserved_bytes + CONTEXT_BYTES, max(
            self.reserved_bytes, self.most_reserved_bytes
        ) + CONTEXT_BYTES

    def of_driver(self) -> str:
        """Returns what nvidia-smi will show, as an interval where cuDNN may set workspaces aside."""
        least, most = (f"{size / GIB:.2f}" for size in self.driver_bytes)
        interval = (
            f"{least} to {most} GiB, by the workspaces that cuDNN sets aside for convolutions"
        )
        if most == least:
            return f"{least} GiB"
        return interval

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return "\n".join([
            *(f"{name:>12}: {size / GIB:6.2f} GiB" for name, size in self.by_category.items()),
            f"{'peak':>12}: {self.peak_bytes / GIB:6.2f} GiB allocated, {self.reserved_bytes / GIB:.2f} GiB reserved",
            f"{'card':>12}: {self.card}, {self.usable_bytes / GIB:.2f} GiB after the context: {verdict} "
            f"({self.share:.0%}, at most {FITS:.0%})",
            f"{'nvidia-smi':>12}: {self.of_driver()}",
            *(f"Not seen: {sentence}" for sentence in self.unseen),
        ])  # fmt: skip


@dataclass(frozen=True)
class Followed(Prediction):
    """A prediction of a user's own step with what it follows from: `Log.stretches`, and what `kernels.bounds` takes."""

    stretches: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)
    pass_cost: tuple[float, ...] = ()
    rest_cost: tuple[float, ...] = ()


class Log:
    """Records what an allocator did: ("alloc" or "free", storage), and ("workspace", bytes taken for a moment)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.marks: dict[
            str, int
        ] = {}  # the last moment of each name in a step, and how many events were before it
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
                allocator.release(
                    blocks.pop(what) if action == "free" else allocator.allocate(what)
                )
        return allocator

    def alive(self, end: int) -> list[Storage]:
        """Returns the storages that are alive after the first `end` events, in the order of their allocation."""
        events = self.events[:end]
        freed = {what for action, what in events if action == "free"}
        return [what for action, what in events if action == "alloc" and what not in freed]

    def at_peak(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for storage in self.alive(self.peak):
            sizes[storage.category] += storage.size
        return {name: sizes[name] for name in CATEGORIES if sizes[name]}

    def stretches(self) -> dict[tuple[str, int], dict[str, int]]:
        """Returns the bytes by category at the highest moment of each stretch of the last step.

        A stretch is what happens after a mark while one layer runs, by that layer's number, -1 before any runs.
        """
        moments = {number: name for name, number in self.marks.items()}
        sizes: Counter[str] = Counter()
        highest: dict[tuple[str, int], tuple[int, dict[str, int]]] = {}
        total = 0
        moment = ""
        layer = -1
        for number, (action, storage) in enumerate(self.events):
            moment = moments.get(number, moment)
            if action == "workspace":
                continue
            change = storage.size if action == "alloc" else -storage.size
            total += change
            sizes[storage.category] += change
            if action == "free" or number < self.marks.get("start", 0):
                continue
            layer = _number(storage.module, layer)
            if total > highest.get((moment, layer), (0, {}))[0]:
                highest[moment, layer] = total, dict(sizes)
        return {stretch: by_category for stretch, (_, by_category) in highest.items()}

    def layers(self) -> tuple[Layer, ...]:
        marks = self.marks
        end = len(self.events)
        columns = {
            "weights": _by_layer(self.alive(marks.get("after load", end)), "weights"),
            "gradients": _by_layer(self.alive(marks.get("after backward", 0)), "gradients"),
            "optimizer": _by_layer(self.alive(end), "optimizer"),
            "activations": _by_layer(self.alive(marks.get("after forward", 0)), "activations"),
            "at_peak": _by_layer(self.alive(self.peak)),
        }
        names = dict.fromkeys(
            name for column in columns.values() for name in column if name != OUTSIDE
        )
        rows = (
            Layer(n, **{column: sizes[n] for column, sizes in columns.items()})
            for n in [*names, OUTSIDE]
        )
        return tuple(row for row in rows if any(columns[column][row.name] for column in columns))


def _number(module: str, default: int) -> int:
    return next((int(part) for part in module.split(".") if part.isdigit()), default)


def _by_layer(storages: Iterable[Storage], category: str = "") -> Counter[str]:
    """Sums bytes by layer: the name of a module up to its first number, else its first two parts."""
    sizes: Counter[str] = Counter()
    for storage in storages:
        if category in ("", storage.category):
            parts = storage.module.split(".")
            end = next((place + 1 for place, part in enumerate(parts) if part.isdigit()), 2)
            sizes[".".join(parts[:end]) or OUTSIDE] += storage.size
    return sizes


def folded(layers: Iterable[Layer]) -> Iterator[tuple[str, Layer]]:
    """Yields names and sums of layers that follow one another and have one name but for its number, equally heavy."""
    for _, run in groupby(
        layers, key=lambda layer: (re.sub(r"\d+$", "", layer.name), layer.weights, layer.optimizer)
    ):
        (first, *sizes), *rest = [astuple(layer) for layer in run]
        if rest:
            name = f"{first} ... {rest[-1][0]} ({1 + len(rest)})"
        else:
            name = first
        yield name, Layer(name, *map(sum, zip(sizes, *(more[1:] for more in rest), strict=True)))
