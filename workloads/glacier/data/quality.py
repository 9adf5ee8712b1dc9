"""Cloud and quality bands, whose pixels are no data: Landsat's QA_PIXEL or BQA by bits, Sentinel-2's SCL by classes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workloads.glacier.data import naming
from workloads.glacier.data.scene_folders import has_word
from workloads.glacier.data.scenes import Scene
from workloads.glacier.settings import Source


def hidden(values: np.ndarray, codes: Sequence[int], bits: Sequence[int]) -> np.ndarray:
    """(h, w) of a quality band -> (h, w) bool: where it is one of some codes, or has one of some bits."""
    found = np.isin(values, codes)
    whole = np.nan_to_num(values).astype(np.int64)
    for bit in bits:
        found |= (whole >> bit & 1).astype(bool)
    return found


def attach(scenes: Sequence[Scene], problems: list[str], root: Path, source: Source) -> tuple[list[Scene], list[str]]:
    """Returns the scenes with the files of their quality bands, and a sentence more for each that has none."""
    where = source.quality.files
    if not where:
        return list(scenes), problems
    named = dict(naming.Pattern(where).files(root)) if "*" in where else {}
    found, lacking = [], []
    for scene in scenes:
        path = named.get(scene.name) or _by_pattern(named, scene, source) if named else _beside(scene, where, source)
        if path:
            found.append(replace(scene, quality=path))
        else:
            lacking.append(
                f"{scene.images[0]} has no file of quality, {where}. Add it, correct workload.source.quality.files, or "
                "remove the image."
            )
    return found, [*problems, *lacking]


def _called(name: str, source: Source) -> str:
    match = re.search(source.name_pattern, name) if source.name_pattern else None
    return match[1] if match else name


def _by_pattern(named: dict[str, Path], scene: Scene, source: Source) -> Path | None:
    """Returns the file whose stars stand for the scene's name, with or without the folders above it."""
    last = scene.name.rpartition("/")[2]
    return next((path for name, path in named.items() if _called(name.rpartition("/")[2], source) == last), None)


def _beside(scene: Scene, where: str, source: Source) -> Path | None:
    """Returns the file in the scene's own folder with this word in its name, or in the folder `where` beside it."""
    own, last = scene.images[0].parent, scene.name.rpartition("/")[2]
    inside = [path for path in sorted(own.iterdir()) if naming.is_raster(path.name) and has_word(path.stem, where)]
    is_own = len(scene.images) > 1 and scene.images[1].parent == own
    beside = naming.rasters(own.parent / where) or naming.rasters(own / where)
    return next(iter(inside if is_own else [path for path in beside if _called(path.stem, source) == last]), None)
