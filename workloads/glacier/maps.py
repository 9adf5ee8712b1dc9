"""Maps of whole scenes by one model or several: in overlapping windows, over all flips and turns.

They are cloud-optimised GeoTIFFs: tiles and overviews, with the colours and the names of the classes.
"""

import hashlib
import itertools
import json
import math
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rasterio.io import MemoryFile
from rasterio.shutil import copy
from torch import Tensor, nn

from lib.errors import BadInput
from lib.machine import disk
from lib.report.progress import counted
from workloads.glacier.data import layout, readers
from workloads.glacier.data.cutter import padded, stamp_of
from workloads.glacier.data.readers import Opened, Unusable, Window
from workloads.glacier.judging import COLOURS
from workloads.glacier.settings import Prediction, Source

_NODATA = 255  # in maps of percent, and in those of classes wherever no class has this code
_TYPES = ("uint8", "uint16", "int16", "int32")  # of a map of classes: the smallest that holds all codes
_MADE_BY = "MADE_BY"  # the tag of a map by which it is known as done


class Written(UserDict[str, Any]):
    """The maps in a folder, by the names of their scenes; each is read when it is asked for."""

    def __getitem__(self, name: str) -> np.ndarray:
        with readers.raster(self.data[name]) as file:
            return file.read(1)


def masks(
    models: Sequence[nn.Module], where: Path | Mapping[str, Path], source: Source, size: int, out: Path | None,
    options: Prediction,
) -> Mapping[str, np.ndarray]:  # fmt: skip
    """Predicts every scene of a folder, or of folders by band ({"Band1": path, ...}): (h, w) of the mask's codes.

    Pixels without data hold a number that is no code (see `coding`). In `out` each map is written as NAME.tif with its
    scene's georeference, with the rasters of `options` beside it, one scene after another in memory; a map that these
    models and options have made of the same files is kept. A scene that cannot be read is named and left out; raises
    BadInput if that leaves none.
    """
    if isinstance(where, Mapping):
        scenes, problems, _ = layout.of_folders(where, source)
    else:
        scenes, problems, _ = layout.find(where, source, labelled=False)
    made_by = _digest([asdict(source), asdict(options), size], models if out else ())
    predicted: dict[str, Any] = {}
    done = 0
    for scene in counted(scenes, "scenes predicted"):
        try:
            stamp = _digest([made_by, stamp_of(scene.images)])
            if out and _is_done(_paths(scene.name, out, options), stamp):
                done += 1
            else:
                with readers.opened(scene, source) as opened:
                    planes = _predicted(models, opened, size, options)
                    if out:
                        _write(planes, opened, out, options, stamp)
            predicted[scene.name] = out / f"{scene.name}.tif" if out else planes["map"][0]
        except Unusable as problem:
            problems.append(str(problem))
    for problem in problems:
        print(f"Left out: {problem}")
    if done:
        print(f"{done:,} of {len(predicted):,} maps were there already, made by the same models of the same files.")
    if not predicted:
        raise BadInput("No scene could be predicted; the lines above say why.")
    return Written(predicted) if out else predicted


def _digest(facts: object, models: Sequence[nn.Module] = ()) -> str:
    """Hashes facts, and the weights of models."""
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, value in (pair for model in models for pair in model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def coding(codes: Sequence[int]) -> tuple[np.dtype, int]:
    """Returns the type of a map of these codes, and the number in it that stands for no data."""
    name = next(n for n in _TYPES if np.iinfo(n).min <= min(codes) and max(codes) <= np.iinfo(n).max)
    numbers = itertools.chain([_NODATA], range(np.iinfo(name).max, np.iinfo(name).min - 1, -1))
    return np.dtype(name), next(number for number in numbers if number not in codes)


def filled(mask: np.ndarray, source: Source) -> np.ndarray:
    """Returns a mask in which no data is the first class, for who takes no other codes than those of the classes."""
    return np.where(mask == coding(source.codes)[1], source.codes[0], mask).astype(mask.dtype)


def _paths(name: str, out: Path, options: Prediction) -> dict[str, Path]:
    """Returns the files of a scene, the map last: it is written when all others are there."""
    beside = [kind for kind in ("probabilities", "uncertainty") if getattr(options, kind)]
    return {**{kind: out / f"{name}_{kind}.tif" for kind in beside}, "map": out / f"{name}.tif"}


def _is_done(paths: Mapping[str, Path], stamp: str) -> bool:
    try:
        with readers.raster(paths["map"]) as file:
            return file.tags().get(_MADE_BY) == stamp and all(path.is_file() for path in paths.values())
    except Unusable:
        return False


def _predicted(models: Sequence[nn.Module], opened: Opened, size: int, options: Prediction) -> dict[str, np.ndarray]:
    """Returns (1, h, w) codes as "map", and percent as `options` ask; of each window the middle half is taken."""
    dtype, nodata = coding(opened.source.codes)
    codes, shape = np.asarray(opened.source.codes, dtype), (opened.height, opened.width)
    planes = {"map": np.full((1, *shape), nodata, dtype)}
    if options.probabilities:
        planes["probabilities"] = np.full((len(codes), *shape), _NODATA, np.uint8)
    if options.uncertainty:
        planes["uncertainty"] = np.full((1, *shape), _NODATA, np.uint8)
    places = _windows(*shape, size)
    while batch := list(itertools.islice(places, options.batch)):
        images = [padded(opened.bands(window), size) for window, _ in batch]
        each = probabilities(models, torch.from_numpy(np.stack(images)), options.views)
        for image, p, ((top, left, _, _), part) in zip(images, each, batch, strict=True):
            rows, columns = (slice(cut.start - n, cut.stop - n) for cut, n in zip(part, (top, left), strict=True))
            p, is_seen, part = p[:, rows, columns], ~np.isnan(image[0, rows, columns]), (slice(None), *part)
            planes["map"][part] = np.where(is_seen, codes[p.argmax(0).numpy()], np.asarray(nodata, dtype))
            if options.probabilities:
                planes["probabilities"][part] = np.where(is_seen, (100 * p).round().byte().numpy(), _NODATA)
            if options.uncertainty:  # entropy, in percent of that of equal chances
                entropy = (-torch.xlogy(p, p).sum(0) / math.log(len(p))).clamp(0, 1)
                planes["uncertainty"][part] = np.where(is_seen, (100 * entropy).round().byte().numpy(), _NODATA)
    return planes


def _write(planes: Mapping[str, np.ndarray], opened: Opened, out: Path, options: Prediction, stamp: str) -> None:
    """Writes a scene's files with its place, each whole or not at all, the map last."""
    source = opened.source
    place = {"crs": opened.crs, "transform": opened.transform} if opened.crs else {}
    names = {"probabilities": source.classes, "uncertainty": ("uncertainty",), "map": ("class",)}
    for kind, path in _paths(opened.scene.name, out, options).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        is_map, (count, height, width), dtype = kind == "map", planes[kind].shape, planes[kind].dtype.name
        shape = {"height": height, "width": width, "count": count, "dtype": dtype}
        nodata, tags = _NODATA, {"UNIT": "percent"}
        if is_map:
            nodata, tags = coding(source.codes)[1], {_MADE_BY: stamp}
            tags |= {f"CLASS_{code}": name for code, name in zip(source.codes, source.classes, strict=True)}
        with MemoryFile() as plain, MemoryFile() as optimised:
            tiled = {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512}
            with plain.open(**tiled, **shape, **place, nodata=nodata) as file:
                file.write(planes[kind])
                file.descriptions = names[kind]
                file.update_tags(**tags)
                if is_map and dtype in ("uint8", "uint16"):
                    colours = zip(source.codes, itertools.cycle(COLOURS), strict=False)
                    file.write_colormap(1, {code: (*bytes.fromhex(text[1:]), 255) for code, text in colours})
            with plain.open() as file:
                overviews = {"overview_resampling": "NEAREST" if is_map else "AVERAGE"}
                copy(file, optimised.name, driver="COG", compress="DEFLATE", blocksize=512, **overviews)
            with disk.whole(path) as aside:  # GDAL does not report a full disk in every case
                aside.write_bytes(optimised.getbuffer())


def _windows(height: int, width: int, size: int) -> Iterator[tuple[Window, tuple[slice, slice]]]:
    """Yields (row, column, h, w) windows of at most `size`, each with the part of the scene that is taken from it."""
    for (top, rows), (left, columns) in itertools.product(_cores(height, size), _cores(width, size)):
        yield (top, left, min(size, height), min(size, width)), (rows, columns)


def _cores(length: int, size: int) -> list[tuple[int, slice]]:
    """Starts of windows along a side, each with the stretch that is taken from it; the stretches tile the side."""
    if length <= size:
        return [(0, slice(0, length))]
    starts = [*range(0, length - size, size // 2), length - size]
    borders = [0, *((a + b + size) // 2 for a, b in itertools.pairwise(starts)), length]
    return [(start, slice(a, b)) for start, (a, b) in zip(starts, itertools.pairwise(borders), strict=True)]


@torch.inference_mode()
def probabilities(models: Sequence[nn.Module], image: Tensor, views: int = 8) -> Tensor:
    """(B, bands, S, S) -> (B, classes, S, S) on the CPU: averages over the models and over flips and turns.

    Boosting, which sees no direction, answers once, in its share.
    """
    total: Tensor | float = 0.0
    devices = [next(model.parameters()).device for model in models]
    for model, device in zip(models, devices, strict=True):
        model.eval()
        boosted: Any = getattr(model, "boosted", None)
        mean: Tensor | float = 0.0
        for number in range(views if boosted is None or boosted.weight > 0 else 0):
            flipped, turn, sides = [-1] * (number >= 4), number % 4, (-2, -1)
            with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
                logits = model(image.to(device).flip(flipped).rot90(turn, sides))
            mean = mean + logits.float().softmax(1).rot90(-turn, sides).flip(flipped) / views
        if boosted is not None:
            network = torch.as_tensor(mean, device=device).clamp_min(1e-9).log()
            mean = boosted.answer(image.to(device), network).softmax(1)
        total = total + torch.as_tensor(mean).to(devices[0])
    return (total / len(models)).cpu()  # type: ignore[union-attr]
