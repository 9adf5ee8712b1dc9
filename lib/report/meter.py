"""Measures mean losses, speed and memory between two logged rows."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import torch
from torch import Tensor

from lib import ranks
from lib.errors import BadInput
from lib.machine import memory
from lib.report.metrics import FIRST_COLUMNS, LAST_COLUMNS, MACHINE_COLUMNS

Item = TypeVar("Item")
Exact = Fraction | float  # a float where it is not finite, or larger than a checkpoint takes
_MOST = 1e290
_ORDER = "order of terms"  # in `pending`


@dataclass
class Total:
    """A figure times its samples, added up: exactly, or in fp64 on the device for what comes from there.

    fp64 has 29 bits more than a figure in fp32, so that sum too is hardly ever rounded: it is the same in any order.
    """

    exact: Exact = Fraction()
    on_device: Tensor | None = None  # ()
    samples: int = 0

    def add(self, other: "Total") -> None:
        """Adds another total, without waiting for the device."""
        self.exact += other.exact
        self.samples += other.samples
        if self.on_device is None or other.on_device is None:
            self.on_device = other.on_device if self.on_device is None else self.on_device
        else:
            self.on_device = self.on_device + other.on_device

    def sum(self) -> Exact:
        return self.exact if self.on_device is None else self.exact + _exact(float(self.on_device))

    def facts(self) -> list[Any]:
        """Returns what `of` needs, as JSON has it: [floats that add up exactly, the part on the device, samples]."""
        own = None if self.on_device is None else float(self.on_device)
        return [_floats(self.exact), own if own is None or abs(own) < _MOST else str(own), self.samples]

    @classmethod
    def of(cls, facts: list[Any], device: torch.device) -> "Total":
        exact, own, samples = facts
        total = cls(sum(map(Fraction, exact), Fraction()) if isinstance(exact, list) else float(exact), None, samples)
        if own is not None:
            total.on_device = torch.tensor(float(own), dtype=torch.float64, device=device)
        return total


def _exact(value: float) -> Exact:
    return Fraction(value) if abs(value) < _MOST else value


def _floats(exact: Exact) -> list[float] | str:
    """Returns floats whose sum is this number, each of them the rest that those before it leave; else the text."""
    if isinstance(exact, float) or abs(exact) >= _MOST:
        return str(float(exact))
    parts = []
    while exact:
        parts.append(float(exact))
        exact -= Fraction(parts[-1])
    return parts


# What `Task.loss` returns beside its losses, by name.
Logged = dict[str, Total]


def add_figures(
    logged: Logged,
    figures: Mapping[str, float | Tensor],
    size: int,
    terms: Collection[str],
    columns: Collection[str] = (),
) -> None:
    """Adds the figures of a micro-batch of `size` samples to `logged`; the trainer itself fills these `columns`.

    Raises BadInput for a name that metrics.csv has another use for, and for what is no single number.
    """
    for name, value in figures.items():
        if name in _TAKEN or name in columns or name in (f"loss_{term}" for term in terms):
            raise BadInput(f"Task.loss returned a figure {name!r}, a column that metrics.csv fills itself. Rename it.")
        is_tensor = isinstance(value, Tensor)
        if is_tensor and value.numel() != 1:
            raise BadInput(
                f"Task.loss returned a figure {name!r} of shape {tuple(value.shape)}. Return a single number for it, "
                "the mean over the samples of the micro-batch."
            )
        own = size * value.detach().double().reshape(()) if is_tensor else None
        exact = Fraction() if is_tensor else size * _exact(float(value))
        logged.setdefault(name, Total()).add(Total(exact, own, size))


_TAKEN = {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS}


class Meter:
    """Sums losses on the device, so that only a logged row waits for it, and times training without its pauses.

    `pending` is part of a checkpoint: a row that began before a resume is the same as without one.
    """

    def __init__(self, pending: Mapping[str, Any], device: torch.device):
        terms = {k: v for k, v in pending.items() if k not in ("steps", "figures", "rested", _ORDER)}
        order = [name for name in pending.get(_ORDER, ()) if name in terms]
        self._sums = {k: torch.tensor(terms[k], device=device) for k in dict.fromkeys([*order, *terms])}
        self._steps = int(pending.get("steps", 0))
        self._logged = _restored(pending.get("figures", []), device)
        self._begin = self._mark = time.perf_counter()
        self._timed_steps = self._window_steps = 0
        self._seconds = self._window_seconds = self._window_waited = 0.0
        self._peak = self._save_peak = 0
        self.allocated: dict[str, int] = {}  # bytes at named moments of the first step
        memory.reset_peak()

    def allocated_at(self, moment: str) -> None:
        """Notes the bytes allocated now, at the first call for this `moment`."""
        if moment not in self.allocated:
            self.allocated[moment] = memory.allocated_bytes()

    def add(self, losses: Mapping[str, Tensor]) -> None:
        """Counts a step that has just ended, with its losses as scalars, or none if it was skipped."""
        now = time.perf_counter()
        self._window_seconds += now - self._mark
        self._mark = now
        self._steps += bool(losses)  # a skipped step has none
        self._window_steps += 1
        for term, value in losses.items():
            self._sums[term] = self._sums[term] + value if term in self._sums else value

    def log(self, logged: Logged) -> None:
        """Counts the figures of a step that has just ended."""
        for name, total in logged.items():
            self._logged.setdefault(name, Total()).add(total)

    def _figures(self) -> dict[str, float]:
        """Returns means since the last row, over all ranks, which must all call this."""
        together: Logged = {}
        for mine in ranks.gathered({name: Total(t.sum(), None, t.samples) for name, t in self._logged.items()}):
            for name, total in mine.items():
                together.setdefault(name, Total()).add(total)
        return {name: float(total.exact / total.samples) for name, total in together.items()}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time of the block, such as an evaluation, out of training time."""
        yield
        self._mark = time.perf_counter()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Pauses for a save and measures its peak of memory for the next row: it may be the highest of all."""
        self._peak = self.peak_bytes()
        memory.reset_peak()
        yield
        self._save_peak = memory.peak_bytes()
        self._mark = time.perf_counter()

    def waiting(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yields the same batches, and counts the time until each one comes as waiting for data."""
        iterator = iter(batches)
        begin = time.perf_counter()
        for batch in iterator:
            self._window_waited += time.perf_counter() - begin
            yield batch
            begin = time.perf_counter()

    def peak_bytes(self) -> int:
        """Returns the most bytes since this meter was made."""
        return max(self._peak, memory.peak_bytes())

    def pending(self) -> dict[str, Any]:
        """Returns what `__init__` needs to resume in the middle of a row; sums survive JSON exactly.

        Of figures each rank has its own, which goes on as if it had not been interrupted. All ranks must call it.
        """
        sums = {term: float(value) for term, value in self._sums.items()}
        figures = ranks.gathered({name: total.facts() for name, total in self._logged.items()})
        order = list(sums) if len(sums) > 2 else None  # JSON sorts them; three add up to other bits in another order
        more = {"figures": figures if any(figures) else None, _ORDER: order}
        return {"steps": self._steps, **sums, **{name: value for name, value in more.items() if value}}

    def row(self, effective_batch: int) -> dict[str, float]:
        """Returns means since the last row, speed and memory; no `loss` and `loss_<term>` if every step was skipped.

        A single term of the name `loss` has that one column.

        All ranks must call it.
        """
        terms = {f"loss_{term}": float(value) / self._steps for term, value in self._sums.items()}
        means = {"loss": sum(terms.values())} if terms else {}
        means |= {} if self._sums.keys() == {"loss"} else terms
        means |= self._figures()
        rate = self._window_steps / self._window_seconds
        waited = self._window_waited / self._window_seconds
        saved = {"save_peak_memory_bytes": self._save_peak} if self._save_peak else {}
        self._timed_steps += self._window_steps
        self._seconds += self._window_seconds
        self._sums, self._steps, self._logged = {}, 0, {}
        self._window_steps, self._window_seconds, self._window_waited, self._save_peak = 0, 0.0, 0.0, 0
        return {
            **means,
            "samples_per_second": round(rate * effective_batch, 4),
            "peak_memory_bytes": self.peak_bytes(),
            "elapsed_seconds": round(time.perf_counter() - self._begin, 3),
            "data_wait_share": round(min(1.0, waited), 4),
            **saved,
        }

    def steps_per_second(self) -> float:
        """Returns the mean speed over all rows of this session; 0 before the first."""
        return self._timed_steps / self._seconds if self._seconds else 0.0

    def pace(self) -> float:
        """Returns the mean speed of this session so far, the unfinished row included; 0 before the first step."""
        seconds = self._seconds + self._window_seconds
        return (self._timed_steps + self._window_steps) / seconds if seconds else 0.0


def _restored(figures: list[Mapping[str, Any]] | Mapping[str, Any], device: torch.device) -> Logged:
    """Returns this rank's figures of a row that began before; the first rank has those of ranks that are gone, too."""
    if isinstance(figures, Mapping):  # of an earlier version, which kept the sums over all ranks
        figures = [{name: ["nan" if v is None else [v], None, samples] for name, (v, samples) in figures.items()}]
    mine, gone = figures[ranks.rank() : ranks.rank() + 1], figures[ranks.world() :] if ranks.is_first() else []
    logged = {name: Total.of(facts, device) for named in mine for name, facts in named.items()}
    for name, facts in (item for named in gone for item in named.items()):
        total = Total.of(facts, torch.device("cpu"))
        logged.setdefault(name, Total()).add(Total(total.sum(), None, total.samples))
    return logged
