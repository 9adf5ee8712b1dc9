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
from trainbook.supervised import dates
from trainbook.supervised.names import listed
from trainbook.supervised.notes import note
from trainbook.supervised.tables import number_of

BINS = 12  # of a column of numbers
_STEPS = 8  # quantiles in a bin: numbers keep their order inside it
_MOST_WORDS = 1000  # of a column: the commonest ones
_MOST_SHOWN = 50  # of them that the simple method sees
_EMBEDDED = 8  # numbers for a word
_FARTHEST = 4  # deviations from the mean: an outlier counts no more in the network
_MOST = 1e6  # deviations that are told apart


def learned(rows: Sequence[Mapping[str, Any]], words: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what rows teach of their columns, values that JSON has; those in `words` hold names, never numbers.

    A column of dates becomes those of `dates.parts`. Raises BadInput for a column of numbers with other cells, and
    without a column.
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
    forms = _forms(rows, [name for name in names if name not in words])
    rows = _with_parts(rows, forms)
    numbers = {}
    texts = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row.get(name) for row in rows]
        known = [cell for cell in cells if not is_gap(cell)]
        values = [number_of(cell) for cell in known]
        if name in words or not any(map(math.isfinite, values)):
            texts[name] = _common(known)
            continue
        _check_numbers(name, known, values)
        has_gaps = len(known) < len(cells)
        numbers[name] = _scale(values, has_gaps)
    return {"numbers": numbers, "words": texts, **({"dates": forms} if forms else {})}


def _forms(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, str]:
    """Returns the columns of dates, each with the form of its cells."""
    forms = {}
    for name in names:
        texts = {_word(row[name]) for row in rows if not is_gap(row.get(name))}
        if form := dates.form_of([*texts]):
            forms[name] = form
    return forms


def _with_parts(
    rows: Sequence[Mapping[str, Any]], forms: Mapping[str, str]
) -> Sequence[Mapping[str, Any]]:
    """Returns rows with the numbers of their dates in the place of these."""
    if not forms:
        return rows
    made = []
    for row in rows:
        numbers = {name: cell for name, cell in row.items() if name not in forms}
        for name, form in forms.items():
            if name in row:
                cell = None if is_gap(row[name]) else row[name]
                numbers |= dates.parts(name, form, cell)
        made.append(numbers)
    return made


def is_gap(cell: Any) -> bool:
    """Returns whether a cell is empty."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or cell != cell


def _check_numbers(name: str, cells: Sequence[Any], numbers: Sequence[float]) -> None:
    pairs = zip(cells, numbers, strict=True)
    others = [repr(cell) for cell, number in pairs if not math.isfinite(number)]
    if others:
        shown = listed(dict.fromkeys(others))
        raise BadInput(
            f"The column {printable(name)} has numbers, and in {len(others):,} of {len(cells):,} "
            f"training rows others: {shown}. Correct or empty these cells, or list the column in "
            "workload.words, whose cells are names."
        )


def _common(cells: Sequence[Any]) -> list[str]:
    """Returns the commonest words first. A word of one row is left out: no other row tells what it is worth."""
    counts = Counter(map(_word, cells))
    common = [word for word in sorted(counts) if counts[word] > 1]
    common.sort(key=counts.__getitem__, reverse=True)
    return common[:_MOST_WORDS]


def _word(cell: Any) -> str:
    return str(cell).strip()


def _scale(numbers: Sequence[float], has_gaps: bool) -> dict[str, Any]:
    """Returns mean, deviation and, counted in deviations, quantiles of a column's numbers."""
    mean, deviation = spread(numbers)
    shares = np.linspace(0, 1, BINS * _STEPS + 1)
    distances = (np.array(numbers, np.float64) - mean) / deviation
    quantiles = np.quantile(distances, shares)
    return {
        "mean": mean,
        "deviation": deviation,
        "gaps": has_gaps,
        "quantiles": quantiles.astype(np.float32).tolist(),
    }


def spread(numbers: Sequence[float]) -> tuple[float, float]:
    """Returns mean and deviation of numbers; the latter is 1 where all are the same."""
    values = np.array(numbers, np.float64)
    mean = float(values.mean())
    deviation = float(values.std())
    if deviation <= 1e-9 * abs(values).max():
        deviation = 1.0
    return mean, deviation


def described(columns: Mapping[str, Any]) -> str:
    """Returns a sentence on what each column was taken for."""
    forms = columns.get("dates", {})
    made = {f"{name} {part}" for name, form in forms.items() for part in dates.names(form)}
    numbers = [name for name in columns["numbers"] if name not in made]
    words = [f"{name} ({len(known):,} words)" for name, known in columns["words"].items() if known]
    nothing = [name for name, known in columns["words"].items() if not known]
    parts = []
    if numbers:
        parts.append(f"numbers in {listed(numbers)}")
    for name, form in forms.items():
        parts.append(f"dates in {name} ({form}: {listed(dates.names(form))})")
    if words:
        parts.append(f"words in {listed(words)}")
    if nothing:  # texts, and names of rows
        parts.append(f"nothing in {listed(nothing)}, where no cell comes twice")
    return f"Columns: {'; '.join(parts)}."


def tensors(columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Returns tensors (rows, columns): `numbers` in deviations, 0 in `gaps`, and `words` by codes, others 0.

    Raises BadInput for a cell that is no number in a column of numbers.
    """
    rows = _with_parts(rows, columns.get("dates", {}))
    numbers = np.zeros((len(rows), len(columns["numbers"])))
    for place, (name, scale) in enumerate(columns["numbers"].items()):
        values = np.array([_number(name, cell) for cell in _cells(rows, name)])
        distances = (values - scale["mean"]) / scale["deviation"]
        numbers[:, place] = distances.clip(-_MOST, _MOST)
    codes = np.zeros((len(rows), len(columns["words"])), np.int64)
    for place, (name, known) in enumerate(columns["words"].items()):
        code = {word: number for number, word in enumerate(known, 1)}
        codes[:, place] = [code.get(_word(cell), 0) for cell in _cells(rows, name)]
    return {
        "numbers": torch.from_numpy(np.nan_to_num(numbers)).float(),
        "gaps": torch.from_numpy(np.isnan(numbers)),
        "words": torch.from_numpy(codes),
    }


def _cells(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Returns the cells of a column; notes one that rows lack altogether, as those of a plan do."""
    if any(rows) and not any(name in row for row in rows):
        note(f"Rows have no column {printable(name)}: its numbers or words count as unknown.")
    return [row.get(name) for row in rows]


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
    """Returns (rows, numbers) what a simple method sees: numbers, marks for gaps and common words, and words' ranks.

    By the rank in the alphabet a tree parts many words at once, and some names are in their order: grades, sizes,
    years. Boosting of 6,000 diamonds has an rmse of 665 with it, and of 708 without.
    """
    has_gaps = [scale["gaps"] for scale in columns["numbers"].values()]
    parts = [batch["numbers"], batch["gaps"][:, torch.tensor(has_gaps, dtype=torch.bool)]]
    for place, known in enumerate(columns["words"].values()):
        size = min(len(known), _MOST_SHOWN)
        codes = batch["words"][:, place]
        shown = codes.where(codes <= size, 0)
        marks = F.one_hot(shown, size + 1)
        parts.append(marks[:, 1:])
        if len(known) > 2:  # of two words the marks say all
            parts.append(_ranks(known)[codes, None])
    return torch.cat(parts, 1)


def _ranks(known: Sequence[str]) -> Tensor:
    """Returns (1 + words) the rank of each code's word in the alphabet, from -1 to 1; 0 of an unknown one."""
    ranks = torch.zeros(1 + len(known))
    order = np.argsort(np.array(known, object), kind="stable")
    ranks[1 + torch.from_numpy(order)] = torch.linspace(-1, 1, len(known))
    return ranks


class Encoder(nn.Module):
    """Numbers by deviations from the mean, by rank as in a normal distribution, and by their places in bins; words by

    embeddings. A gap has the mean, and a mark of its own in columns where training rows have gaps.
    """

    quantiles: Tensor
    has_gaps: Tensor

    def __init__(self, columns: Mapping[str, Any]):
        super().__init__()
        scales = list(columns["numbers"].values())
        quantiles = torch.tensor([scale["quantiles"] for scale in scales])
        quantiles = quantiles.view(len(scales), BINS * _STEPS + 1)
        has_gaps = torch.tensor([scale["gaps"] for scale in scales], dtype=torch.bool)
        self.register_buffer("quantiles", quantiles)
        self.register_buffer("has_gaps", has_gaps)
        self.embeddings = nn.ModuleList()
        self.width = len(scales) * (BINS + 3)
        for known in columns["words"].values():
            size = 1 + len(known)
            embedding = nn.Embedding(size, min(size, _EMBEDDED))
            self.embeddings.append(embedding)
            self.width += embedding.embedding_dim

    def forward(self, numbers: Tensor, gaps: Tensor, words: Tensor) -> Tensor:
        """(rows, columns) each -> (rows, width)"""
        bins = self._bins(numbers)
        rank = 0.5 + 0.998 * (bins.mean(-1) - 0.5)  # within (0, 1)
        parts = [numbers.clamp(-_FARTHEST, _FARTHEST), torch.special.ndtri(rank)]
        parts.append((gaps & self.has_gaps).float())
        parts.append((bins - 0.5).flatten(1))
        for place, embedding in enumerate(self.embeddings):
            parts.append(embedding(words[:, place]))
        return torch.cat(parts, 1)

    def _bins(self, values: Tensor) -> Tensor:
        """(rows, columns) -> (rows, columns, bins) how much of a bin, between two quantiles, lies below each value."""
        low = self.quantiles[:, :-1]
        size = self.quantiles[:, 1:] - low
        distance = values[..., None] - low
        share = distance / size.clamp(min=1e-9)
        at_once = (distance.sign() + 1) / 2  # where both quantiles are the same
        steps = share.clamp(0, 1).where(size > 0, at_once)
        return steps.unflatten(-1, (BINS, _STEPS)).mean(-1)
