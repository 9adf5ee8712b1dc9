"""What runs on this machine took, beside what was forecast: kept in the cache for each card, and correcting the next
plan of that card.
"""

import dataclasses
import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.config import Config
from lib.config.files import read_bytes
from lib.errors import printable
from lib.machine import disk, platform
from lib.planner.card import Target
from lib.planner.search import Option, Plan
from lib.text import computed

_MOST_BYTES = 2**20
_MOST = 50  # measurements of a card; older ones go
_RECENT = 5  # of a task, whose median counts
_WIDEST = 8.0  # a measurement farther off than this says something else: a machine busy with other work, say


@dataclass(frozen=True)
class Measured:
    """A few steps of a run as they were measured, and as they had been forecast without any correction."""

    run: str
    task: str
    precision: str
    steps_per_second: float
    predicted_steps_per_second: float
    peak_bytes: int
    predicted_peak_bytes: int

    @property
    def is_likely(self) -> bool:
        sizes = dataclasses.astuple(self)[3:]
        if not all(math.isfinite(size) and size > 0 for size in sizes):
            return False
        return all(1 / _WIDEST < ratio < _WIDEST for ratio in (self.slower, self.larger))

    @property
    def slower(self) -> float:
        return self.predicted_steps_per_second / self.steps_per_second

    @property
    def larger(self) -> float:
        return self.peak_bytes / self.predicted_peak_bytes


def measured(config: Config, plan: Plan, option: Option, steps_per_second: float, peak_bytes: int) -> Measured:
    """Returns what was measured beside the forecast of `plan`, which may have been corrected."""
    return Measured(
        config.run.name, config.task, plan.precision, steps_per_second, plan.slower / option.expected_seconds,
        peak_bytes, option.prediction.peak_bytes,
    )  # fmt: skip


def keep(card: str, new: Measured) -> Path | None:
    """Writes a measurement of a card into the cache, as the newest; returns the file, None for one that cannot be."""
    if not new.is_likely:
        return None
    path = _path(card)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(row) for row in [*of_card(card), new][-_MOST:]]
    with disk.whole(path, cache=True) as aside:
        aside.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return path


def of_card(card: str) -> list[Measured]:
    """Returns the measurements of a card on this machine, the newest last; none, and a line, where they are damaged."""
    path = _path(card)
    if not path.is_file():
        return []
    try:
        return [_row(values) for values in json.loads(read_bytes(path, _MOST_BYTES))]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or error, most=200)
        print(f"{printable(path)} is not read, so plans of {card} are not corrected by it ({why}). It may be removed.")
        return []


def corrected(target: Target, config: Config) -> Target:
    """Returns a card with what was measured on it: of the same task, else of all tasks in the same precision for speed.

    Its plans multiply times by how much slower the steps were than forecast, and leave more room where the peak of
    this task was larger.
    """
    rows = of_card(target.card.name)
    same = [row for row in rows if row.task == config.task][-_RECENT:]
    alike = same or [row for row in rows if config.training.precision in ("auto", row.precision)][-_RECENT:]
    if not alike:
        return target
    slower = statistics.median(row.slower for row in alike)
    larger = max(1.0, statistics.median(row.larger for row in same)) if same else 1.0
    newest = alike[-1]
    said = (
        f"Measured on this {target.card.name}: {computed(newest.steps_per_second)} steps/s of {newest.run}, where "
        f"{computed(newest.predicted_steps_per_second)} were predicted. Times are multiplied by {slower:.2f}, the "
        f"median of {len(alike)} smoke test{'s' * (len(alike) > 1)}"
    )
    more = (
        f"; its peaks were {larger - 1:.0%} above the prediction, and so much more room is left." if larger > 1 else "."
    )
    return dataclasses.replace(target, slower=slower, larger=larger, measured=said + more)


def _path(card: str) -> Path:
    return platform.detect().scratch_dir / "measured" / f"{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-').lower()}.json"


def _row(values: Any) -> Measured:
    """Raises ValueError, TypeError or KeyError for what is no measurement."""
    kinds = {field.name: field.type for field in dataclasses.fields(Measured)}
    found = Measured(**{name: _as(kind, values[name]) for name, kind in kinds.items()})
    if not found.is_likely:
        raise ValueError(f"a run of {found.run} is {_WIDEST:g} times off its forecast, or more")
    return found


def _as(kind: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
