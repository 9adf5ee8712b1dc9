"""Columns of a table as tensors: what training rows teach of them, and rows by that. One holds numbers or words."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput, printable
from trainbook.supervised.names import listed
from trainbook.supervised.tables import number_of

BINS = 12  # of a column of numbers
_STEPS = 8  # quantiles in a bin: numbers keep their order inside it
_MOST_WORDS = 1000  # of a column: the commonest ones
_MOST_SHOWN = 50  # of them that the simple method sees
_EMBEDDED = 8  # numbers for a word
_FARTHEST = 4  # deviations from the mean: an outlier counts no more


def learned(rows: Sequence[Mapping[str, Any]], words: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what rows teach of their columns, values that JSON has; those in `words` hold names, never numbers.

    Raises BadInput for a column of numbers with other cells, and without a column.
    """
    names = [*dict.fromkeys(name for row in rows for name in row)]
    if not names:
        raise BadInput(
            "There are no columns to learn from. Name them in workload.features: a plan without data "
            "needs them too."
        )
    if absent := [name for name in words if name not in names]:
        raise BadInput(
            f"workload.words names {listed(absent)}, and the columns are {listed(names)}. Correct "
            "the names, or leave them out."
        )
    values: dict[str, Any] = {"numbers": {}, "words": {}}
    for name in names:
        cells = [cell for row in rows if not is_gap(cell := row.get(name))]
        numbers = [number_of(cell) for cell in cells]
        if name in words or not any(map(math.isfinite, numbers)):
            values["words"][name] = _common(cells)
            continue
        _check_numbers(name, cells, numbers)
        values["numbers"][name] = _scale(numbers, has_gaps=len(cells) < len(rows))
    return values


def is_gap(cell: Any) -> bool:
    """Returns whether a cell is empty."""
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def _check_numbers(name: str, cells: Sequence[Any], numbers: Sequence[float]) -> None:
    others = [
        cell for cell, number in zip(cells, numbers, strict=True) if not math.isfinite(number)
    ]
    if others:
        shown = listed([repr(cell) for cell in dict.fromkeys(others)])
        raise BadInput(
            f"The column {printable(name)} has numbers, and in {len(others):,} of {len(cells):,} "
            f"training rows others: {shown}. Correct or empty these cells, or list the column in "
            "workload.words, whose cells are names."
        )


def _common(cells: Sequence[Any]) -> list[str]:
    """Returns the commonest words first. A word of one row is left out: no other row tells what it is worth."""
    counts = Counter(str(cell).strip() for cell in cells)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [word for word, count in ordered[:_MOST_WORDS] if count > 1]


def _scale(numbers: Sequence[float], has_gaps: bool) -> dict[str, Any]:
    """Returns mean, deviation and, counted in deviations, quantiles of a column's numbers."""
    values = np.array(numbers, np.float64)
    mean, deviation = spread(numbers)
    shares = np.linspace(0, 1, BINS * _STEPS + 1)
    quantiles = np.quantile((values - mean) / deviation, shares).astype(np.float32)
    return {
        "mean": mean,
        "deviation": deviation,
        "gaps": has_gaps,
        "quantiles": quantiles.tolist(),
    }


def spread(numbers: Sequence[float]) -> tuple[float, float]:
    """Returns mean and deviation of numbers; the latter is 1 where all are the same."""
    values = np.array(numbers, np.float64)
    deviation = float(values.std())
    return float(values.mean()), deviation if deviation > 1e-9 * abs(values).max() else 1.0


def described(columns: Mapping[str, Any]) -> str:
    """Returns a sentence on what each column was taken for."""
    words = [f"{name} ({len(known):,} words)" for name, known in columns["words"].items()]
    parts = []
    if columns["numbers"]:
        parts.append(f"numbers in {listed([*columns['numbers']])}")
    if words:
        parts.append(f"words in {listed(words)}")
    return f"Columns: {'; '.join(parts)}."


def tensors(columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Returns `numbers` (rows, columns) in deviations, NaN for gaps, and `words` (rows, columns): codes, 0 for others.

    Raises BadInput for a cell that is no number in a column of numbers.
    """
    numbers = np.full((len(rows), len(columns["numbers"])), np.nan)
    for place, (name, scale) in enumerate(columns["numbers"].items()):
        values = np.array([_number(name, row.get(name)) for row in rows])
        numbers[:, place] = (values - scale["mean"]) / scale["deviation"]
    codes = np.zeros((len(rows), len(columns["words"])), np.int64)
    for place, (name, known) in enumerate(columns["words"].items()):
        code = {word: number for number, word in enumerate(known, 1)}
        codes[:, place] = [code.get(str(row.get(name)).strip(), 0) for row in rows]
    return {"numbers": torch.from_numpy(numbers).float(), "words": torch.from_numpy(codes)}


def _number(name: str, cell: Any) -> float:
    """Returns a cell as a number, NaN for an empty one. Raises BadInput for others."""
    if is_gap(cell):
        return math.nan
    number = number_of(cell)
    if not math.isfinite(number):
        raise BadInput(
            f"{printable(repr(cell), most=60)} in the column {printable(name)} is no number, as its "
            "training rows are. Correct the cell, or empty it if it is unknown."
        )
    return number


def plain(batch: Mapping[str, Tensor], columns: Mapping[str, Any]) -> Tensor:
    """Returns (rows, numbers) what a simple method sees: numbers, and marks for gaps and common words."""
    gaps = [scale["gaps"] for scale in columns["numbers"].values()]
    is_gap = batch["numbers"].isnan()
    marks = [is_gap[:, torch.tensor(gaps, dtype=torch.bool)]]
    for place, known in enumerate(columns["words"].values()):
        size = min(len(known), _MOST_SHOWN)
        codes = batch["words"][:, place]
        marks.append(F.one_hot(codes.where(codes <= size, 0), size + 1)[:, 1:])
    return torch.cat([batch["numbers"].nan_to_num(0.0), *marks], 1)


class Encoder(nn.Module):
    """Numbers by deviations from the mean, by rank as in a normal distribution, and by their places in bins; words by

    embeddings. A gap has the mean, and a mark of its own in columns where training rows have gaps.
    """

    def __init__(self, columns: Mapping[str, Any]):
        super().__init__()
        scales = columns["numbers"].values()
        steps = [scale["quantiles"] for scale in scales]
        self.register_buffer("quantiles", torch.tensor(steps).view(len(steps), BINS * _STEPS + 1))
        gaps = torch.tensor([scale["gaps"] for scale in scales], dtype=torch.bool)
        self.register_buffer("gaps", gaps)
        sizes = [1 + len(known) for known in columns["words"].values()]
        self.embeddings = nn.ModuleList(nn.Embedding(n, min(n, _EMBEDDED)) for n in sizes)
        widths = [embedding.embedding_dim for embedding in self.embeddings]
        self.width = len(steps) * (BINS + 3) + sum(widths)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        """(rows, columns), (rows, columns) -> (rows, width)"""
        is_gap = numbers.isnan()
        values = numbers.where(~is_gap, 0.0)
        bins = self._bins(values)
        rank = 0.5 + 0.998 * (bins.mean(-1) - 0.5)
        parts = [values.clamp(-_FARTHEST, _FARTHEST), torch.special.ndtri(rank)]
        parts += [(is_gap & self.gaps).float(), (bins - 0.5).flatten(1)]
        parts += [each(words[:, place]) for place, each in enumerate(self.embeddings)]
        return torch.cat(parts, 1)

    def _bins(self, values: Tensor) -> Tensor:
        """(rows, columns) -> (rows, columns, bins) how much of a bin, between two quantiles, lies below each value."""
        low = self.quantiles[:, :-1]
        size = self.quantiles[:, 1:] - low
        distance = values[..., None] - low
        between = (distance / size.clamp(min=1e-9)).clamp(0, 1)
        at_once = (
            (distance > 0).float() + (distance >= 0).float()
        ) / 2  # where quantiles are equal
        return between.where(size > 0, at_once).unflatten(-1, (BINS, _STEPS)).mean(-1)
