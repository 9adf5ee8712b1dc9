"""Measures mean losses, speed and memory between two logged rows."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lib import ranks
from lib.errors import BadInput
from lib.machine import memory
from lib.report.metrics import FIRST_COLUMNS, LAST_COLUMNS, MACHINE_COLUMNS

Item = TypeVar("Item")
# What `Task.loss` returns beside its losses, by name: sums over samples, and their number. What
# comes from the device is added there in fp64, which has 29 bits more than a figure in fp32.
Logged = dict[str, tuple[float | Tensor, int]]
_MOST = 1e290  # of a number in a checkpoint
_ORDER = "order of terms"  # in `pending`


def add_figures(
    logged: Logged,
    figures: Mapping[str, Any],
    size: int,
    terms: Iterable[str],
    columns: Iterable[str] = (),
) -> None:
    """Adds a micro-batch's figures to `logged`.

    Raises BadInput for a taken name or several numbers.
    """
    taken = {*FIRST_COLUMNS, *LAST_COLUMNS, *MACHINE_COLUMNS, *columns}
    taken |= {f"loss_{term}" for term in terms}
    for name, value in figures.items():
        if name in taken:
            raise BadInput(
                f"Task.loss returned a figure {name!r}, a column that metrics.csv fills itself. Rename it."
            )
        _add(logged, {name: (size * _figure(name, value), size)})


def _figure(name: str, value: Any) -> float | Tensor:
    """Returns a figure as a scalar of fp32's precision. Raises BadInput for several numbers."""
    if not isinstance(value, Tensor):
        # fp32 leaves fp64 29 bits: sums are exact over any number of ranks
        return float(np.float32(value)) if abs(value) < 1e38 else float(value)
    if value.numel() == 1:
        return value.detach().double().reshape(())
    raise BadInput(
        f"Task.loss returned a figure {name!r} of shape {tuple(value.shape)}. "
        "Return a single number for it, the mean over the samples of the micro-batch."
    )


def _add(logged: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, (total, samples) in more.items():
        before, count = logged.get(name, (0.0, 0))
        logged[name] = before + total, count + samples


def _for_json(total: float) -> float | str:
    """Returns a sum, as text if JSON or the bounds of a checkpoint do not take it."""
    return total if abs(total) < _MOST else str(total)


class Meter:
    """Sums losses on the device, read once a row, and times training without its pauses."""

    def __init__(self, pending: Mapping[str, Any], device: torch.device):
        others = ("steps", "figures", _ORDER)
        terms = {name: value for name, value in pending.items() if name not in others}
        order = [name for name in pending.get(_ORDER, ()) if name in terms]
        self._sums: dict[str, Tensor] = {}
        for name in [*order, *terms]:
            self._sums[name] = torch.tensor(terms[name], device=device)
        self._steps = int(pending.get("steps", 0))
        self._logged: Logged = {}
        saved = pending.get("figures", []) if ranks.is_first() else []
        for figures in saved:
            for name, (total, samples) in figures.items():
                self.log({name: (float(total), samples)})
        self._begin = self._mark = time.perf_counter()
        # steps, their seconds, and the seconds of waiting for data, in this session
        self._timed = np.zeros(3)
        self._row_begin = self._timed.copy()
        self._first = self._timed.copy()
        self.allocated: dict[str, int] = {}  # bytes at named moments of the first step
        memory.reset_peak()

    def allocated_at(self, moment: str) -> None:
        """Notes the bytes allocated now, at the first call for this `moment`."""
        if moment not in self.allocated:
            self.allocated[moment] = memory.allocated_bytes()

    def add(self, losses: Mapping[str, Tensor]) -> None:
        """Counts a step that has just ended, with its losses as scalars, {} if it was skipped."""
        now = time.perf_counter()
        self._timed += (1, now - self._mark, 0)
        self._mark = now
        if self._timed[0] == 1:
            self._first = self._timed.copy()
        self._steps += bool(losses)
        for term, value in losses.items():
            before = self._sums.get(term)
            self._sums[term] = value if before is None else before + value

    def log(self, logged: Logged) -> None:
        _add(self._logged, logged)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time of the block, such as an evaluation or a save, out of training time."""
        yield
        self._mark = time.perf_counter()

    def waiting(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yields the same batches, and counts the time until each one comes as waiting for data."""
        begin = time.perf_counter()
        for batch in batches:
            self._timed[2] += time.perf_counter() - begin
            yield batch
            begin = time.perf_counter()

    def pending(self) -> dict[str, Any]:
        """Returns the state to resume within a row, exact in JSON. All ranks call it."""
        state: dict[str, Any] = {"steps": self._steps}
        state |= {term: float(value) for term, value in self._sums.items()}
        figures = {name: [_for_json(total), n] for name, (total, n) in self._figures().items()}
        if figures:
            state["figures"] = [figures]
        if len(self._sums) > 2:  # JSON sorts terms; three add up to other bits in another order
            state[_ORDER] = list(self._sums)
        return state

    def _figures(self) -> dict[str, tuple[float, int]]:
        """Returns the figures since the last row, of all ranks together."""
        local = {name: (float(total), n) for name, (total, n) in self._logged.items()}
        figures: dict[str, tuple[float, int]] = {}
        for of_rank in ranks.gathered(local):
            _add(figures, of_rank)
        return figures

    def row(self, effective_batch: int) -> dict[str, float]:
        """Returns means since the last row, speed and memory; no losses if every step was skipped.

        For all ranks.
        """
        terms = {}
        for term, value in self._sums.items():
            terms[f"loss_{term}"] = float(value) / self._steps
        row = {"loss": sum(terms.values())} if terms else {}
        if self._sums.keys() != {"loss"}:
            row |= terms
        for name, (total, samples) in self._figures().items():
            row[name] = total / samples
        steps, seconds, waited = (self._timed - self._row_begin).tolist()
        self._row_begin = self._timed.copy()
        self._sums = {}
        self._steps = 0
        self._logged = {}
        row["samples_per_second"] = round(steps / seconds * effective_batch, 4)
        row["peak_memory_bytes"] = memory.peak_bytes()
        row["elapsed_seconds"] = round(time.perf_counter() - self._begin, 3)
        row["data_wait_share"] = round(min(1.0, waited / seconds), 4)
        return row

    def steps_per_second(self) -> float:
        """Returns the mean speed of this session, without its first step after the second; 0 before."""
        # the first one loads kernels: 1 to 6 s on a GPU whose other steps took 10 ms
        timed = self._timed - self._first if self._timed[0] > 1 else self._timed
        steps, seconds, _ = timed.tolist()
        return steps / seconds if seconds else 0.0
