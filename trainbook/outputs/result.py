"""What a test leaves beside its metrics: scores by class, and a confusion matrix."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk
from lib.text import aligned
from trainbook.outputs import figure

_MOST_ROWS = 50  # classes of a table that is still read
_MOST_DRAWN = 20


def write(
    kind: str,
    true: np.ndarray,
    guess: np.ndarray,
    names: Sequence[str],
    classes: int,
    folder: Path,
    counts: np.ndarray | None = None,  # how often each pair of classes came, if not once
) -> str:
    """Writes the figure of classes; returns a line to print. Numbers and over 50 classes have none."""
    if kind == "numbers":
        return ""
    if kind == "labels":
        further = map(str, range(len(names), true.shape[1]))
        shown = [*names, *further]
        return _by_class(kind, (true & guess).sum(0), guess.sum(0), true.sum(0), shown)
    count = max(classes, int(max(true.max(), guess.max())) + 1)
    if count > _MOST_ROWS:
        return ""
    shown = [*names[:count], *map(str, range(len(names), count))]
    matrix = np.zeros((count, count), np.int64)  # rows: the truth
    np.add.at(matrix, (true, guess), 1 if counts is None else counts)
    rows = [[name, *counts] for name, counts in zip(shown, matrix, strict=True)]
    where = write_table(folder / "confusion.csv", [["true class", *shown], *rows])
    if count <= _MOST_DRAWN:
        unit = "samples" if kind == "classes" else "tokens"
        where = figure.confusion(matrix, shown, folder / "plots" / "confusion.png", unit)
    by_class = _by_class(kind, matrix.diagonal(), matrix.sum(0), matrix.sum(1), shown)
    return f"{by_class}\n\nWhich class was taken for which: {where}"


def _by_class(
    kind: str, right: np.ndarray, guess: np.ndarray, true: np.ndarray, names: Sequence[str]
) -> str:
    """Returns a table of precision, recall, F1 and, for tokens, IoU by class."""
    rows = [["class", "number", "precision", "recall", "F1"]]
    if kind == "tokens":
        rows[0].append("IoU")
    for number, name in enumerate(names):
        matches = right[number]
        both = guess[number] + true[number]
        pairs = [(matches, guess[number]), (matches, true[number]), (2 * matches, both)]
        if kind == "tokens":
            pairs.append((matches, both - matches))
        ratios = [f"{part / whole:.3f}" if whole else "-" for part, whole in pairs]
        rows.append([name, str(true[number]), *ratios])
    return aligned(rows, left={0})


def write_table(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    """Writes rows as CSV, whole or not at all; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def write_image(path: Path, classes: np.ndarray) -> Path:
    """Writes an image of class numbers, (height, width) uint8 or uint16, as a PNG, whole or not; returns `path`."""
    from PIL import Image  # which only tasks of images need

    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole(path) as aside:
        Image.fromarray(classes).save(aside, format="PNG")
    return path
