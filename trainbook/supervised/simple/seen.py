"""What a simple method sees of a batch: texts, words with their neighbours, pooled pictures, surroundings, numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput
from lib.task import Batch

_SIDES = (5, 15)  # of squares around a pixel
_MOST_SIDE = 128  # of pictures: larger ones are scaled to it
_GRIDS = (1, 2, 4)  # cells a side that pictures are pooled to
_ANGLES = 8  # directions of their gradients


def seen(task: Any, batch: Batch) -> tuple[str, np.ndarray] | None:
    """Returns the rows of a batch, a row a target, with the name of their form; None for another form. Raises BadInput.

    A row is a text, of a position its word and the words around it, or numbers.
    """
    x = task.features(batch)
    kind = task._kind
    if not isinstance(x, Tensor):
        if kind.has_positions:
            return _seen_words(kind, x, batch["labels"])
        if not all(isinstance(text, str) for text in x):
            return None
        return "texts", np.array([text.replace("\0", " ") for text in x], object)
    is_ids = x.dim() == 2 and not x.is_floating_point()
    if kind.has_positions:
        return _seen_around(kind, x, batch["labels"], is_ids)
    if is_ids:
        return "ids", np.array([" ".join(map(str, row)) for row in x.tolist()], object)
    x = x.float()
    if x.dim() == 4:
        return "pooled pixels", _pooled(x).numpy()
    if x.dim() < 3:
        return "numbers", x.view(len(x), -1).numpy()
    return None


def _seen_words(kind: Any, rows: Sequence[Any], labels: Tensor) -> tuple[str, np.ndarray] | None:
    """Returns each position's word with its neighbours; None for texts other than lists of words."""
    is_listed = all(isinstance(row, list | tuple) for row in rows)
    if not is_listed or labels.dim() != 2 or len(rows) != len(labels):
        return None
    width = labels.shape[1]
    is_known = kind.known(labels)
    words = []
    for row, known in zip(rows, is_known, strict=True):
        if known[len(row) :].any():
            needed = 1 + int(known.nonzero().max())
            raise BadInput(
                f"features() returned {len(row)} words of a sample whose labels need {needed}. "
                "Return a word for each position."
            )
        words.append([*row[:width], *[None] * (width - len(row))])
    return "neighbours", _neighbours(words, kind.neighbours)


def _seen_around(
    kind: Any, x: Tensor, labels: Tensor, is_ids: bool
) -> tuple[str, np.ndarray] | None:
    """Returns what is seen of each token or pixel, with its name; None for another form."""
    if is_ids:
        if x.shape != labels.shape:
            return None
        return "neighbours", _neighbours(x.tolist(), kind.neighbours)
    x = x.float()
    if x.dim() != 4 or x.shape[2:] != labels.shape[1:]:
        return None
    means = [F.avg_pool2d(x, side, 1, side // 2, count_include_pad=False) for side in _SIDES]
    planes = torch.cat([x, *means], 1)
    return "surroundings", planes.movedim(1, -1).flatten(0, -2).numpy()


def _neighbours(rows: Sequence[Sequence[Any]], offsets: Sequence[int]) -> np.ndarray:
    """Returns (positions, offsets) the words, texts or ids, at `offsets` from each; None beyond the ends."""
    most = max(map(abs, offsets))
    outside = [None] * most
    around = []
    for row in rows:
        padded = [*outside, *row, *outside]
        places = range(most, most + len(row))
        around += [[padded[place + offset] for offset in offsets] for place in places]
    return np.array(around, object).reshape(-1, len(offsets))


def _pooled(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, numbers) means and squares of colours, and shares of directions of gradients, in grids."""
    if max(x.shape[2:]) > _MOST_SIDE:
        x = F.adaptive_avg_pool2d(x, _MOST_SIDE)
    down, across = torch.gradient(x.mean(1, keepdim=True), dim=(2, 3))
    turns = torch.atan2(down, across) % torch.pi * (_ANGLES / torch.pi)
    angle = turns.long().clamp(max=_ANGLES - 1)
    edges = torch.zeros(len(x), _ANGLES, *x.shape[2:])
    edges.scatter_(1, angle, torch.hypot(down, across))
    strength = edges.mean((1, 2, 3), keepdim=True).clamp(min=1e-9)
    planes = torch.cat([x, x * x, edges / strength], 1)
    return torch.cat([F.adaptive_avg_pool2d(planes, cells).flatten(1) for cells in _GRIDS], 1)
