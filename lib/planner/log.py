"""Logs a traced step, and holds the prediction made of it: the peak by category and layer, and times."""

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from lib.machine.memory import GIB
from lib.planner.allocator import Allocator, Block
from lib.planner.card import CONTEXT_BYTES, FITS

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "temporaries", "workspace")
OUTSIDE = "(outside of layers)"
Sizes = dict[str, int]  # bytes by category


@dataclass(eq=False, slots=True)
class Storage:
    """One allocation: bytes, category and module; category and module may become known later."""

    size: int
    category: str
    module: str  # its whole dotted name; empty outside of all modules
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
    # The same if cuDNN takes all possible workspaces of convolutions; 0 without any
    most_peak_bytes: int = 0
    most_reserved_bytes: int = 0

    @property
    def share(self) -> float:
        return self.peak_bytes / self.usable_bytes

    @property
    def driver_bytes(self) -> tuple[int, int]:
        """Bytes that nvidia-smi shows, allocator and CUDA context: least, and with all workspaces."""
        most = max(self.reserved_bytes, self.most_reserved_bytes)
        return self.reserved_bytes + CONTEXT_BYTES, most + CONTEXT_BYTES

    def of_driver(self) -> str:
        """Returns the GiB that nvidia-smi will show; an interval if cuDNN may set workspaces aside."""
        least, most = (f"{size / GIB:.2f}" for size in self.driver_bytes)
        if most == least:
            return f"{least} GiB"
        return f"{least} to {most} GiB, by the workspaces that cuDNN sets aside for convolutions"

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        allocated = f"{self.peak_bytes / GIB:6.2f} GiB allocated"
        reserved = f"{self.reserved_bytes / GIB:.2f} GiB reserved"
        usable = f"{self.usable_bytes / GIB:.2f} GiB after the context"
        share = f"{self.share:.0%}, at most {FITS:.0%}"
        lines = [f"{name:>12}: {size / GIB:6.2f} GiB" for name, size in self.by_category.items()]
        lines.append(f"{'peak':>12}: {allocated}, {reserved}")
        lines.append(f"{'card':>12}: {self.card}, {usable}: {verdict} ({share})")
        lines.append(f"{'nvidia-smi':>12}: {self.of_driver()}")
        lines += [f"Not seen: {sentence}" for sentence in self.unseen]
        return "\n".join(lines)


@dataclass(frozen=True)
class Followed(Prediction):
    """A prediction of a user's step with its sources: `Log.stretches`, and costs for `kernels.bounds`."""

    stretches: Mapping[tuple[str, int], Sizes] = field(default_factory=dict)
    pass_cost: tuple[float, ...] = ()
    rest_cost: tuple[float, ...] = ()


class Log:
    """Records what an allocator did: ("alloc" or "free", storage), and ("workspace", bytes taken for a moment)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.marks: dict[str, int] = {}  # the last moment of each name, as a number of events
        self.peak = 0  # the highest moment, as a number of events

    def with_workspaces(self, capacity: int | None) -> Allocator | None:
        """Replays the events with every workspace taken; returns None if there is none."""
        if not any(action == "workspace" for action, _ in self.events):
            return None
        allocator = Allocator(capacity)
        blocks: dict[Storage, Block | None] = {}
        for action, subject in self.events:
            if action == "alloc":
                blocks[subject] = allocator.allocate(subject.size)
            elif action == "free":
                allocator.release(blocks.pop(subject))
            else:
                allocator.release(allocator.allocate(subject))
        return allocator

    def alive(self, end: int) -> list[Storage]:
        """Returns the storages alive after the first `end` events, in the order of allocation."""
        storages: dict[Storage, None] = {}
        for action, subject in self.events[:end]:
            if action == "alloc":
                storages[subject] = None
            elif action == "free":
                del storages[subject]
        return list(storages)

    def at_peak(self) -> Sizes:
        sizes: Counter[str] = Counter()
        for storage in self.alive(self.peak):
            sizes[storage.category] += storage.size
        return {name: sizes[name] for name in CATEGORIES if sizes[name]}

    def stretches(self) -> dict[tuple[str, int], Sizes]:
        """Returns the bytes by category at the highest moment of each stretch of the last step.

        A stretch is the time after a mark while one layer runs: (mark, number of the layer, -1 before any).
        """
        moments = {number: name for name, number in self.marks.items()}
        sizes: Counter[str] = Counter()
        totals: Counter[tuple[str, int]] = Counter()
        highest: dict[tuple[str, int], Sizes] = {}
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
            if total > totals[moment, layer]:
                totals[moment, layer] = total
                highest[moment, layer] = dict(sizes)
        return highest

    def layers(self) -> tuple[Layer, ...]:
        marks = self.marks
        end = len(self.events)
        moments = {
            "weights": marks.get("after load", end),
            "gradients": marks.get("after backward", 0),
            "optimizer": end,
            "activations": marks.get("after forward", 0),
        }
        columns = {name: _by_layer(self.alive(at), name) for name, at in moments.items()}
        columns["at_peak"] = _by_layer(self.alive(self.peak))
        names = dict.fromkeys(itertools.chain(*columns.values()))
        names.pop(OUTSIDE, None)
        layers = []
        for name in [*names, OUTSIDE]:
            held = {column: sizes[name] for column, sizes in columns.items()}
            if any(held.values()):
                layers.append(Layer(name, **held))
        return tuple(layers)


def _number(module: str, default: int) -> int:
    return next((int(part) for part in module.split(".") if part.isdigit()), default)


def _by_layer(storages: Iterable[Storage], category: str = "") -> Counter[str]:
    """Sums bytes by layer.

    A layer's name is that of its modules up to the first number, else their first two parts.
    """
    sizes: Counter[str] = Counter()
    for storage in storages:
        if category in ("", storage.category):
            parts = storage.module.split(".")
            end = next((place + 1 for place, part in enumerate(parts) if part.isdigit()), 2)
            sizes[".".join(parts[:end]) or OUTSIDE] += storage.size
    return sizes


def folded(layers: Iterable[Layer]) -> Iterator[tuple[str, Layer]]:
    """Yields names and sums of consecutive, equally large layers whose names differ by number."""

    def kind(layer: Layer) -> tuple[str, int, int]:
        return re.sub(r"\d+$", "", layer.name), layer.weights, layer.optimizer

    for _, group in itertools.groupby(layers, key=kind):
        alike = list(group)
        name = alike[0].name
        if len(alike) > 1:
            name = f"{name} ... {alike[-1].name} ({len(alike)})"
        columns = zip(*(astuple(layer)[1:] for layer in alike), strict=True)
        yield name, Layer(name, *map(sum, columns))
