"""Maps of whole scenes by one model or several: in overlapping windows, over all flips and turns."""

import hashlib
import itertools
import json
import math
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.report.progress import counted
from workloads.glacier import geotiff
from workloads.glacier.augment import undo, view
from workloads.glacier.data import layout, rasters, readers
from workloads.glacier.data.cutter import padded, stamp_of
from workloads.glacier.data.readers import Opened
from workloads.glacier.data.scenes import Scene
from workloads.glacier.settings import Prediction, Source

_VIEWS = 8  # the flips and quarter turns of a square
_USUAL = Prediction()
_PERCENT_NODATA = 255  # in maps of percent
_MADE_BY = "MADE_BY"  # the tag of a map by which it is known as done


@dataclass
class Answer:
    """What was predicted of a scene: (h, w) codes, and where they are wanted (classes, h, w) and (h, w) percent."""

    codes: np.ndarray
    probabilities: np.ndarray | None
    uncertainty: np.ndarray | None


class Written(UserDict[str, Any]):
    """The maps in a folder, by the names of their scenes; each is read when it is asked for."""

    def __getitem__(self, name: str) -> np.ndarray:
        with rasters.raster(self.data[name]) as file:
            return file.read(1)


def masks(
    models: Sequence[nn.Module],
    where: Path | Mapping[str, Path],
    source: Source,
    size: int,
    out: Path | None,
    options: Prediction = _USUAL,
) -> Mapping[str, np.ndarray]:
    """Predicts every scene of a folder, or of folders by band ({"Band1": path, ...}): (h, w) of the mask's codes.

    Pixels without data hold a number that is no code (see `geotiff.coding`). In `out` each map is written as NAME.tif
    with its scene's georeference, with the rasters of `options` beside it, one scene after another in memory; a map
    that these models and options have made of the same files is kept. A scene that cannot be read is named and left
    out; raises BadInput if that leaves none.
    """
    scenes, problems = _scenes(where, source)
    made = _digest([asdict(source), asdict(options), size], models) if out else ""
    predicted: dict[str, Any] = {}
    done = 0
    for scene in counted(scenes, "scenes predicted"):
        try:
            stamp = _digest([made, stamp_of(scene.images)])
            if out and _is_done(scene, out, options, stamp):
                done += 1
            else:
                with readers.opened(scene, source) as opened:
                    codes = _predict(models, opened, size, out, options, stamp)
            predicted[scene.name] = out / f"{scene.name}.tif" if out else codes
        except rasters.Unusable as problem:
            problems.append(str(problem))
    for problem in problems:
        print(f"Left out: {problem}")
    if done:
        print(f"{done:,} of {len(predicted):,} maps were there already, made by the same models of the same files.")
    if not predicted:
        raise BadInput("No scene could be predicted; the lines above say why.")
    return Written(predicted) if out else predicted


def _predict(
    models: Sequence[nn.Module], opened: Opened, size: int, out: Path | None, options: Prediction, stamp: str
) -> np.ndarray:
    """Predicts one scene; returns its codes, and writes its maps into `out`."""
    answer = _answer(models, opened, size, options)
    if out:
        _write(answer, opened, out, options, stamp)
    return answer.codes


def _scenes(where: Path | Mapping[str, Path], source: Source) -> tuple[list[Scene], list[str]]:
    if not isinstance(where, Mapping):
        return layout.find(where, source, labelled=False)
    folders = {number: Path(where[f"Band{number}"]) for number in source.chosen if f"Band{number}" in where}
    if len(folders) < len(source.bands):
        raise BadInput(f"The model reads the bands {list(source.chosen)}; given are {', '.join(sorted(where))}.")
    return layout.of_folders(folders, source)


def _digest(facts: object, models: Sequence[nn.Module] = ()) -> str:
    """Hashes facts, and the weights of models."""
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _paths(name: str, out: Path, options: Prediction) -> dict[str, Path]:
    """Returns the files of a scene, the map last: it is written when all others are there."""
    beside = [kind for kind in ("probabilities", "uncertainty") if getattr(options, kind)]
    return {**{kind: out / f"{name}_{kind}.tif" for kind in beside}, "map": out / f"{name}.tif"}


def _is_done(scene: Scene, out: Path, options: Prediction, stamp: str) -> bool:
    paths = _paths(scene.name, out, options)
    return all(path.is_file() for path in paths.values()) and geotiff.tags_of(paths["map"]).get(_MADE_BY) == stamp


def _write(answer: Answer, opened: Opened, out: Path, options: Prediction, stamp: str) -> None:
    """Writes a scene's files, the map last."""
    source, place = opened.source, (opened.crs, opened.transform)
    paths = _paths(opened.scene.name, out, options)
    names = dict(zip(source.codes, source.classes, strict=True))
    shades = itertools.cycle(geotiff.COLOURS)
    colours = {code: next(shades) for code in source.codes}
    for kind, planes in (("probabilities", answer.probabilities), ("uncertainty", answer.uncertainty)):
        if planes is not None:
            bands = source.classes if kind == "probabilities" else ["uncertainty"]
            planes = planes.reshape(len(bands), opened.height, opened.width)
            geotiff.write(paths[kind], planes, place, _PERCENT_NODATA, bands, {"UNIT": "percent"})
    tags = {f"CLASS_{code}": name for code, name in names.items()} | {_MADE_BY: stamp}
    _, nodata = geotiff.coding(source.codes)
    geotiff.write(paths["map"], answer.codes[None], place, nodata, ["class"], tags, colours)


def filled(mask: np.ndarray, source: Source) -> np.ndarray:
    """Returns a mask in which no data is the first class, for who takes no other codes than those of the classes."""
    return np.where(mask == geotiff.coding(source.codes)[1], source.codes[0], mask).astype(mask.dtype)


def _answer(models: Sequence[nn.Module], opened: Opened, size: int, options: Prediction) -> Answer:
    """Predicts a scene. Of each window the middle half is taken: a pixel is judged with its surroundings."""
    dtype, nodata = geotiff.coding(opened.source.codes)
    codes, shape = np.asarray(opened.source.codes, dtype), (opened.height, opened.width)
    result = Answer(
        np.full(shape, nodata, dtype),
        np.full((len(codes), *shape), _PERCENT_NODATA, np.uint8) if options.probabilities else None,
        np.full(shape, _PERCENT_NODATA, np.uint8) if options.uncertainty else None,
    )
    places = windows(*shape, size)
    while batch := list(itertools.islice(places, options.batch)):
        images = [padded(opened.bands(window), size) for window, _ in batch]
        predicted = probabilities(models, torch.from_numpy(np.stack(images)), options.views)
        for image, p, (window, part) in zip(images, predicted, batch, strict=True):
            inner = tuple(
                slice(cut.start - start, cut.stop - start) for cut, start in zip(part, window[:2], strict=True)
            )
            known = ~np.isnan(image[0][inner])
            result.codes[part] = np.where(known, codes[p.argmax(0).numpy()[inner]], np.asarray(nodata, dtype))
            if result.probabilities is not None:
                percent = (100 * p[(slice(None), *inner)]).round().byte().numpy()
                result.probabilities[(slice(None), *part)] = np.where(known, percent, _PERCENT_NODATA)
            if result.uncertainty is not None:
                result.uncertainty[part] = np.where(known, _entropy(p)[inner], _PERCENT_NODATA)
    return result


def _entropy(p: Tensor) -> np.ndarray:
    """(classes, S, S) -> (S, S) uint8: the entropy in percent of that of equal chances."""
    entropy = -torch.xlogy(p, p).sum(0) / math.log(len(p))
    return (100 * entropy.clamp(0, 1)).round().byte().numpy()


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
