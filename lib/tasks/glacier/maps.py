"""Masks of whole scenes by one model or several: in overlapping windows, over all flips and turns."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.report.progress import counted
from lib.tasks.glacier.augment import undo, view
from lib.tasks.glacier.data import layout, readers
from lib.tasks.glacier.data.readers import Opened
from lib.tasks.glacier.settings import Source

_VIEWS = 8  # the flips and quarter turns of a square


def masks(
    models: Sequence[nn.Module], where: Path | Mapping[str, Path], source: Source, size: int, out: Path | None
) -> dict[str, np.ndarray]:
    """Predicts every scene of a folder, or of folders by band ({"Band1": path, ...}): (h, w) uint8 of the mask's codes.

    Where `out` is given, each is written there as NAME.tif with its scene's georeference, and only the masks written
    now are returned. Pixels without data become the first class. A scene that cannot be read is named and left out;
    raises BadInput where that leaves none.
    """
    if isinstance(where, Mapping):
        folders = {number: Path(where[f"Band{number}"]) for number in source.chosen if f"Band{number}" in where}
        if len(folders) < len(source.bands):
            raise BadInput(f"The model reads the bands {list(source.chosen)}; given are {', '.join(sorted(where))}.")
        scenes, problems = layout.find_bands(folders, source, None)
    else:
        scenes, problems = layout.find(where, source, labelled=False)
    predicted: dict[str, np.ndarray] = {}
    for scene in counted(scenes, "scenes predicted"):
        try:
            with readers.opened(scene, source) as opened:
                predicted[scene.name] = _mask(models, opened, size)
                if out:
                    path = out / f"{scene.name}.tif"
                    readers.write_tiff(path, predicted[scene.name], opened.crs, opened.transform)
        except readers.Unusable as problem:
            problems.append(str(problem))
    for problem in problems:
        print(f"Left out: {problem}")
    if not predicted:
        raise BadInput("No scene could be predicted; the lines above say why.")
    return predicted


def _mask(models: Sequence[nn.Module], opened: Opened, size: int) -> np.ndarray:
    """Predicts (h, w) codes. Of each window the middle half is taken: a pixel is judged with its surroundings."""
    result = np.full((opened.height, opened.width), opened.source.codes[0], np.uint8)
    codes = np.asarray(opened.source.codes, np.uint8)
    for window, (rows, columns) in windows(opened.height, opened.width, size):
        image = opened.bands(window)
        missing = [size - length for length in image.shape[1:]]
        padded = np.pad(image, ((0, 0), (0, missing[0]), (0, missing[1])), constant_values=np.nan)
        classes = probabilities(models, torch.from_numpy(padded)[None])[0].argmax(0).numpy()
        top, left = window[:2]
        inner = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
        known = ~np.isnan(image[0][inner])
        result[rows, columns] = np.where(known, codes[classes[inner]], codes[0])
    return result


def windows(height: int, width: int, size: int) -> Iterator[tuple[tuple[int, int, int, int], tuple[slice, slice]]]:
    """Yields (row, column, h, w) windows of at most `size`, each with the part of the scene that is taken from it."""
    for top, rows in _cores(height, size):
        for left, columns in _cores(width, size):
            yield (top, left, min(size, height), min(size, width)), (rows, columns)


def _cores(length: int, size: int) -> list[tuple[int, slice]]:
    """Starts of windows along a side, each with the stretch that is taken from it; the stretches tile the side."""
    if length <= size:
        return [(0, slice(0, length))]
    starts = [*range(0, length - size, size // 2), length - size]
    borders = [0, *((a + b + size) // 2 for a, b in itertools.pairwise(starts)), length]
    return [(start, slice(a, b)) for start, (a, b) in zip(starts, itertools.pairwise(borders), strict=True)]


@torch.inference_mode()
def probabilities(models: Sequence[nn.Module], image: Tensor, views: int = _VIEWS) -> Tensor:
    """(B, bands, S, S) -> (B, classes, S, S) on the CPU: averages over the models and over flips and turns."""
    total: Tensor | None = None
    for model in models:
        device = next(model.parameters()).device
        model.eval()
        for number in range(views):
            with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
                logits = model(view(image.to(device), number))
            p = undo(logits.float().softmax(1), number)
            total = p if total is None else total + p.to(total.device)
    assert total is not None
    return (total / (len(models) * views)).cpu()
