"""What a row of `make published` measures: an answer with a published model beside the best one without it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench.record import rounded


class Missing(Exception):
    """Data that a row needs and that is not at hand; the sentence says where it is looked for."""


class Row(NamedTuple):
    """A row of the record.

    `measured` takes a seed and a folder that a killed run of the same row left, and returns a `gain` with any more
    figures. It raises Missing. `about` names the data, `model` the published model, for the table of the documents.
    """

    about: str
    model: str
    metric: str
    seeds: tuple[int, ...]
    measured: Callable[[int, Path], Mapping[str, Any]]


def gain(
    without: float, with_it: float, interval: tuple[float, float], seconds: float, where: str
) -> dict[str, Any]:
    """Returns the figures of a run: both scores, the paired gain with its 95 % interval, and what it takes."""
    return {
        **rounded({"without": without, "with": with_it, "gain": with_it - without}),
        "interval": [round(end, 4) for end in interval],
        "seconds": round(seconds),
        "where": where,
    }


def summed_up(rows: Mapping[str, Row], runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a table by row: means over seeds, of the interval the lowest and the highest end."""
    tables = {}
    for name, row in rows.items():
        seeds = [run for key, run in runs.items() if key.rpartition(", seed")[0] == name]
        if not seeds:
            continue
        means = {key: np.mean([run[key] for run in seeds]) for key in ("without", "with", "gain")}
        lows, highs = zip(*(run["interval"] for run in seeds), strict=True)
        tables[name] = {
            "data": row.about, "model": row.model, "metric": row.metric, "seeds": len(seeds), **rounded(means),
            "interval": [min(lows), max(highs)], "seconds": max(run["seconds"] for run in seeds),
            "where": seeds[0]["where"],
        }  # fmt: skip
    return tables
