"""A run's answers to its test, kept beside its weights: `held.safetensors`, which the runs of a queue are joined by."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk
from trainbook.supervised.scoring import Judged

FILE = "held.safetensors"
METHODS = ("network", "simple")
_FIELDS = ("true", "guess", "counts", "shares", "sample")


class Held(NamedTuple):
    """Answers of "network" and perhaps "simple" to the samples of a test, and what a table says of each sample.

    `numbers` are those in all of the data, `units` the names of groups, `cells` the first columns.
    """

    rows: dict[str, Judged]
    numbers: list[int]
    units: list[str]
    cells: list[dict[str, Any]]
    names: list[str]  # of the classes


def write(task: Any, rows: Mapping[str, Judged], simple: Judged | None, folder: Path) -> None:
    """Writes the answers of a tested run into its folder. `rows` are by method, the task's answer last.

    Answers that are texts are not written.
    """
    *_, answer = rows.values()
    chosen = {"network": answer}
    if simple is not None:
        chosen["simple"] = simple
    if _has_values(task, rows.get("network"), simple):  # they are mixed for all runs together
        chosen["network"] = rows["network"]
    if any(judged.true.dtype.kind not in "biuf" for judged in chosen.values()):
        return
    arrays = {}
    for method, judged in chosen.items():
        for field in _FIELDS:
            value = getattr(judged, field)
            if value is not None:
                arrays[f"{method}.{field}"] = np.ascontiguousarray(value)
    part = task.parts["test"]
    is_read = isinstance(part.samples, list | tuple) or task._has_own_cells
    numbers = [part.number(place) for place in range(len(part))]
    cells = []
    for place, number in enumerate(numbers):
        cells.append(dict(task.cells(part.samples[place] if is_read else None, number)))
    units = task._groups("test") if task._has_groups else [str(number) for number in numbers]
    about = {"numbers": numbers, "units": units, "cells": cells, "names": task._known_names()}
    with disk.whole(folder / FILE) as aside:
        save_file(arrays, aside, {"about": json.dumps(about, default=str)})


def _has_values(task: Any, *rows: Judged | None) -> bool:
    """Returns whether answers have one number, or probabilities, for each target of a sample."""
    if task._kind.has_positions or None in rows:
        return False
    return not task._kind.has_probabilities or all(row and row.shares is not None for row in rows)


def read(folder: Path) -> Held | None:
    """Returns the answers in a run's folder, None without any. Raises BadInput for a damaged file."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            names = [*file.keys()]
            arrays = {name: file.get_tensor(name) for name in names}
            about = untrusted.objects(file.metadata()["about"])
        rows = {}
        for method in METHODS:
            fields = {field: arrays.get(f"{method}.{field}") for field in _FIELDS}
            if fields["true"] is not None:
                rows[method] = Judged(**fields)
        return Held(rows, **{name: about[name] for name in Held._fields[1:]})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{printable(path)} cannot be read ({printable(error, most=200)}). Delete the folder's "
            "summary.json, and run the queue again: the run is tested anew."
        ) from None
