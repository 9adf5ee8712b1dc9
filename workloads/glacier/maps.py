"""Predicts maps of whole scenes, cloud-optimised GeoTIFFs with colours and names of the classes."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rasterio.io import MemoryFile
from torch import Tensor, nn

from lib.errors import BadInput
from lib.machine import disk
from lib.report.progress import counted
from workloads.glacier.baselines import EVERYWHERE
from workloads.glacier.data import layout, readers
from workloads.glacier.data.cutter import starts
from workloads.glacier.data.readers import Opened, Unusable
from workloads.glacier.judging import COLOURS
from workloads.glacier.settings import UNLIKE, Source

_NODATA = 255  # unless a class has this code
_FORM = {"driver": "COG", "compress": "DEFLATE", "blocksize": 512, "overview_resampling": "NEAREST"}


def masks(
    models: Sequence[nn.Module],
    where: Path,
    source: Source,
    size: int,
    out: Path | None,
    views: int = 8,
) -> dict[str, Any]:
    """Predicts every scene of a folder; returns (h, w) mask codes by name, or with `out` the paths of maps.

    Pixels without data get a nodata number (see `coding`). `out` gets NAME.tif with the scene's georeference. One scene
    is in memory at a time. Prints and leaves out unreadable scenes; raises BadInput if all are.
    """
    match = layout.find(where, source, labelled=False)
    predicted = dict[str, Any]()
    for scene in counted(match.scenes, "scenes predicted"):
        try:
            with readers.opened(scene, source) as opened:
                mask = _predicted(models, opened, size, views)
                predicted[scene.name] = mask
                if out:
                    path = out / f"{scene.name}.tif"
                    _write(mask, opened, path)
                    predicted[scene.name] = path
        except Unusable as error:
            match.problems.append(str(error))
    for problem in match.problems:
        print(f"Left out: {problem}")
    if not predicted:
        raise BadInput("No scene could be predicted, for the reasons above.")
    return predicted


def coding(codes: Sequence[int]) -> tuple[np.dtype, int]:
    """Returns dtype and nodata number of a map of these codes."""
    types = [np.min_scalar_type(code) for code in (_NODATA, *codes)]
    dtype = np.result_type(*types)
    numbers = (_NODATA, *range(np.iinfo(dtype).max, 0, -1))
    return dtype, next(number for number in numbers if number not in codes)


def _predicted(models: Sequence[nn.Module], opened: Opened, size: int, views: int) -> np.ndarray:
    """Returns (h, w) codes, each from the middle half of a window."""
    dtype, nodata = coding(opened.source.codes)
    codes = np.asarray(opened.source.codes, dtype)
    mask = np.full((opened.height, opened.width), nodata, dtype)
    squares = np.zeros(len(opened.source.bands))
    pixels = 0
    cores = [_cores(length, size) for length in mask.shape]
    for (top, rows), (left, columns) in itertools.product(*cores):
        image = opened.bands((top, left, size, size))
        squares += np.nansum(image.astype(np.float64) ** 2, (1, 2))
        pixels += np.isfinite(image[0]).sum()
        inner_rows = slice(rows.start - top, rows.stop - top)
        inner_columns = slice(columns.start - left, columns.stop - left)
        part = inner_rows, inner_columns
        p = probabilities(models, torch.from_numpy(image)[None], views, part)[0]
        is_seen = ~np.isnan(image[0][part])
        classes = codes[p.argmax(0).numpy()]
        mask[rows, columns] = np.where(is_seen, classes, np.asarray(nodata, dtype))
    _compare_units(models[0], np.sqrt(squares / max(pixels, 1)), opened)
    return mask


def _compare_units(model: nn.Module, levels: np.ndarray, opened: Opened) -> None:
    """Warns of a scene in other units than the training data, such as 2000 for 0.2."""
    if not hasattr(model, "mean"):
        return
    trained = torch.hypot(model.mean, model.deviation).flatten().tolist()  # type: ignore[operator, arg-type]
    for name, level, usual in zip(opened.source.bands, levels, trained, strict=False):
        if level and usual and max(level / usual, usual / level) > UNLIKE:
            print(
                f"Warning: the band {name} of {opened.scene.name} is {level:.3g}, and {usual:.3g} in the training. "
                "Bring it to that unit; scale and offset tags are applied."
            )
            return


def _write(mask: np.ndarray, opened: Opened, path: Path) -> None:
    source = opened.source
    dtype = mask.dtype.name
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = {"height": mask.shape[0], "width": mask.shape[1], "count": 1, "dtype": dtype}
    shape["nodata"] = coding(source.codes)[1]
    if opened.crs:
        shape |= {"crs": opened.crs, "transform": opened.transform}
    names = zip(source.codes, source.classes, strict=True)
    with MemoryFile() as memory:
        with memory.open(**_FORM, **shape) as file:
            file.write(mask, 1)
            file.descriptions = ("class",)
            file.update_tags(**{f"CLASS_{code}": name for code, name in names})
            if dtype in ("uint8", "uint16"):
                file.write_colormap(1, _colours(source.codes))
        with disk.whole(path) as aside:  # GDAL does not report a full disk in every case
            aside.write_bytes(memory.getbuffer())


def _colours(codes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Returns (red, green, blue, opacity) by code."""
    colours = {}
    for code, text in zip(codes, itertools.cycle(COLOURS), strict=False):
        colours[code] = (*bytes.fromhex(text[1:]), 255)
    return colours


def _cores(length: int, size: int) -> list[tuple[int, slice]]:
    """Returns starts of windows along a side, with the stretch of the map that each fills."""
    begins = starts(length, size, size // 2)
    middles = [(a + b + size) // 2 for a, b in itertools.pairwise(begins)]
    stretches = itertools.pairwise([0, *middles, length])
    return [(begin, slice(a, b)) for begin, (a, b) in zip(begins, stretches, strict=True)]


@torch.inference_mode()
def probabilities(
    models: Sequence[nn.Module],
    image: Tensor,
    views: int = 8,
    places: tuple[slice, slice] = EVERYWHERE,
) -> Tensor:
    """(B, bands, S, S) -> (B, classes, s, s) on the CPU: averages over models, flips and turns.

    Boosting has no direction, so it answers once.
    """
    total: Tensor | float = 0.0
    devices = [next(model.parameters()).device for model in models]
    for model, device in zip(models, devices, strict=True):
        model.eval()
        boosted: Any = getattr(model, "boosted", None)
        mean: Tensor | float = 0.0
        if boosted is None or boosted.weight > 0:
            for number in range(views):
                mean = mean + _viewed(model, image.to(device), number)[..., *places] / views
        if boosted is not None:
            network = torch.as_tensor(mean, device=device).clamp_min(1e-9).log()
            mean = boosted.answer(image.to(device), network, places).softmax(1)
        total = total + torch.as_tensor(mean).to(devices[0])
    return (total / len(models)).cpu()  # type: ignore[union-attr]


def _viewed(model: nn.Module, image: Tensor, number: int) -> Tensor:
    """Returns (B, classes, S, S) probabilities by one of 8 views: turned by its number, from the 4th flipped."""
    device = image.device.type
    flipped = [-1] * (number >= 4)
    turn = number % 4
    sides = (-2, -1)
    with torch.autocast(device, torch.float16, enabled=device == "cuda"):
        logits = model(image.flip(flipped).rot90(turn, sides))
    p = logits.float().softmax(1)
    return p.rot90(-turn, sides).flip(flipped)
