"""Scenes that `workload.source.images` and `masks` name: patterns in which * stands for a part of a scene's name.

In a pattern of images {band} stands for the name of a band, where each band is a file.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lib.errors import BadInput
from workloads.glacier.data import naming
from workloads.glacier.data.scenes import Scene, group_of
from workloads.glacier.settings import BAND, Source

_PART = re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(naming.PARTS)})(?![0-9A-Za-z])", re.IGNORECASE)
Files = dict[str, tuple[str, Path]]  # what the * stand for and the path of each file, by the name of its scene


class NoSuchFiles(BadInput):
    """A pattern that no file has."""


def find(root: Path, source: Source, labelled: bool) -> tuple[list[Scene], list[str]] | None:
    """Returns the scenes that the patterns name, and a sentence for each that lacks a file.

    Without labels it is None where there are none. Raises BadInput where no file is an image, or where none has a mask.
    """
    masks = _by_pattern(root, source.masks, source) if source.masks else {}
    taken = {path for _, path in masks.values()}
    images, problems = _images(root, source, taken)
    if not images and not labelled:
        return _new_by_band(root, source)  # or None: they may lie in a known layout
    if not images or (labelled and not masks):
        what, text = ("images", source.images) if not images else ("masks", source.masks)
        raise NoSuchFiles(f"{root} has no file {text or '(empty)'}. Correct workload.source.{what}.")
    if not labelled:
        return [_scene(called, name, paths, None, source) for called, (name, paths) in images.items()], problems
    scenes = [
        _scene(called, name, paths, masks[called][1], source)
        for called, (name, paths) in images.items() if called in masks
    ]  # fmt: skip
    if not scenes:
        sides = [[name for name, _ in images.values()], [name for name, _ in masks.values()]]
        raise naming.NamesDiffer(sides, [source.images, source.masks])
    lacking = {called: paths[0] for called, (_, paths) in images.items() if called not in masks}
    for called, path in _left_out(root, scenes, lacking).items():
        problems.append(f"{path} has no mask: {source.masks} of {called} is not there. Add it, or remove the image.")
    return scenes, problems


def _new_by_band(root: Path, source: Source) -> tuple[list[Scene], list[str]] | None:
    """Returns new scenes of a file a band, in folders called as those of the training but for its part's name.

    The folder that holds them may be any on the way to the files.
    """
    parts = source.images.split("/") if BAND in source.images else []
    for start in range(len(parts)):
        folders = ["*".join(_PART.split(name)) if BAND in name else "*" for name in parts[start:-1]]
        changed = replace(source, images="/".join([*folders, parts[-1]]), masks="")
        with contextlib.suppress(NoSuchFiles):
            images, problems = _images(root, changed, set())
            if images:
                return [_scene(called, name, paths, None, source) for called, (name, paths) in images.items()], problems
    return None


def _scene(called: str, name: str, paths: tuple[Path, ...], mask: Path | None, source: Source) -> Scene:
    return Scene(called, group_of(name, called, source), paths, mask, naming.part_of(name.split("/")[:-1]))


def _images(root: Path, source: Source, masks: set[Path]) -> tuple[dict[str, tuple[str, tuple[Path, ...]]], list[str]]:
    """Returns what the * stand for and the files of each scene, and a sentence for each that lacks a band."""
    if BAND not in source.images:
        found = _by_pattern(root, source.images, source, masks)
        return {called: (name, (path,)) for called, (name, path) in found.items()}, []
    by_band = {
        band: _by_pattern(root, source.images.replace(BAND, band), source, masks) for band in source.words_of_bands
    }
    if empty := [band for band, files in by_band.items() if not files]:
        if len(empty) == len(by_band):
            return {}, []
        raise NoSuchFiles(
            f"{root} has no file {source.images.replace(BAND, empty[0])}. Correct workload.source.images, or name the "
            "bands in workload.source.band_files as the files do."
        )
    images, problems = {}, []
    for called in sorted(set().union(*by_band.values())):
        if lacking := [band for band, files in by_band.items() if called not in files]:
            problems.append(
                f"{called} has no file {source.images.replace(BAND, lacking[0])}: a band is missing. Add it."
            )
        else:
            files = [files[called] for files in by_band.values()]
            images[called] = files[0][0], tuple(path for _, path in files)
    return images, problems


def _left_out(root: Path, scenes: Sequence[Scene], lacking: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the images without a mask that are a mistake, and says how many others there are.

    No mistake are those of a folder without any mask, which can be predicted, and files called as a scene and more.
    """
    labelled = {scene.images[0].parent for scene in scenes}
    stems = {(scene.images[0].parent, scene.images[0].stem) for scene in scenes}
    others: Counter[Path] = Counter()
    more: list[Path] = []
    mistakes = {}
    for called, path in lacking.items():
        if path.parent not in labelled:
            others[path.parent] += 1
        elif any((path.parent, path.stem[: end.start()]) in stems for end in re.finditer(r"[_\-. ]", path.stem)):
            more.append(path)
        else:
            mistakes[called] = path
    for folder, number in others.items():
        print(f"{folder}: its {number:,} images have no masks, so they are left out. They can be predicted.")
    if more:
        print(f"{root}: {len(more):,} files called as a scene and more are left out, such as {more[0].name}.")
    return mistakes


def _by_pattern(root: Path, text: str, source: Source, others: Collection[Path] = ()) -> Files:
    """Returns the files of a pattern that are none of some others, sorted by path.

    Raises BadInput where `name_pattern` gives two files one name.
    """
    found: Files = {}
    for name, path in naming.Pattern(text).files(root):
        match = re.search(source.name_pattern, name) if source.name_pattern else None
        called = match[1] if match else name
        if path in others:
            continue
        if called in found:
            raise naming.same_name(found[called][1], path, called)
        found[called] = name, path
    naming.printable(path for _, path in found.values())
    return found
