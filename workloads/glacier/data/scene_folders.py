"""Scenes that have a folder each, with a file for each band and perhaps a mask: S1/B02.tif, S1/B03.tif, S1/mask.tif.

So Sentinel and Landsat scenes are delivered. A file stands for a band by a word of its name, such as B02 in
T43SDT_20200801_B02_10m.jp2. The bands are `workload.source.band_files`, or the names in `bands` where files are called
so, or all files with a word such as B02, B8A or band_3, in the order of their numbers.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lib.errors import BadInput
from workloads.glacier.data import naming
from workloads.glacier.data.scenes import Scene, group_of
from workloads.glacier.settings import Source

_BAND = re.compile(r"(?:(?<=[^0-9A-Za-z])|^)(?:B|band[_-]?)\d{1,2}A?(?=$|[^0-9A-Za-z])", re.IGNORECASE)
_MASK_FOLDERS = ("label", "labels", "mask", "masks", "Label", "Labels", "Mask", "Masks")


def band_of(stem: str) -> str:
    """Returns the word of a file's name that says which band it is; "" where none does."""
    return next(reversed(_BAND.findall(stem)), "")


def has_word(stem: str, word: str) -> bool:
    """Says whether a file's name is a word, or has it between its separators, in capitals or not."""
    return bool(re.search(rf"(?:^|[^0-9A-Za-z]){re.escape(word)}(?=$|[^0-9A-Za-z])", stem, re.IGNORECASE))


def _rasters(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if naming.is_raster(path.name) and path.is_file())


def _number(word: str) -> tuple[int, str]:
    """Returns what band words are sorted by: B8, B8A, B9, B10."""
    digits = re.search(r"\d+", word)
    return int(digits[0]) if digits else 0, word.upper()


def words(folder: Path) -> list[str]:
    """Returns the band words of a folder's rasters, sorted; none unless there are two, and each once."""
    found = [band_of(path.stem) for path in _rasters(folder) if not naming.is_mask(path.stem)]
    found = sorted(filter(None, found), key=_number)
    return found if 1 < len(found) == len({word.upper() for word in found}) else []


def is_scene(folder: Path, root: Path) -> bool:
    """Says whether a folder has bands by their words, and a mask among them or in a folder of masks."""
    if not words(folder):
        return False
    return any(naming.is_mask(path.stem) for path in _rasters(folder)) or bool(_beside(root, folder))


def _beside(root: Path, folder: Path) -> list[Path]:
    """Returns the masks of a scene's name in folders of masks, beside its own folder or in the root."""
    places = [above / name for above in (folder.parent, root) for name in _MASK_FOLDERS]
    return [path for place in places if place.is_dir() for path in _rasters(place) if path.stem == folder.name]


def find(
    root: Path, folders: Sequence[Path], source: Source, labelled: bool
) -> tuple[list[Scene], list[str], tuple[str, ...]] | None:
    """Returns the scenes among some folders, a sentence for each that lacks something, and the words of their bands.

    None where no folder is a scene. Without labels only bands that are named make one: files called B01, B02, ... may
    as well be scenes. Raises BadInput where `band_files` names bands that no folder has, and there are labels.
    """
    named = source.band_files or source.bands
    chosen = [folder for folder in folders if _has(folder, named, every=not source.band_files)]
    chosen = chosen if source.band_files or len(named) > 1 else []  # one band alone tells too little
    if not chosen and source.band_files and labelled:
        raise BadInput(
            f"No folder in {root} has files called {', '.join(source.band_files)}, one a band. Correct "
            "workload.source.band_files."
        )
    if not chosen and labelled:
        chosen = [folder for folder in folders if is_scene(folder, root)]
        found = words(chosen[0]) if chosen else []
        if found and max(source.chosen) > len(found):
            raise BadInput(
                f"{chosen[0]} has the bands {', '.join(found)}; the settings read number {max(source.chosen)} of them. "
                "Name those that you want in workload.source.band_files, and set workload.source.bands."
            )
        named = tuple(found[number - 1] for number in source.chosen) if found else ()
    if not chosen:
        return None
    scenes, problems = [], []
    for folder in chosen:
        try:
            scenes.append(_scene(root, folder, named, source, labelled))
        except BadInput as problem:
            problems.append(str(problem))
    return scenes, problems, named


def _has(folder: Path, named: Iterable[str], every: bool) -> bool:
    """Says whether a folder has a file for each of some bands, or for one of them at least."""
    stems = [path.stem for path in _rasters(folder)]
    found = [any(has_word(stem, word) for stem in stems) for word in named]
    return len(stems) > 1 and (all(found) if every else any(found))


def _scene(root: Path, folder: Path, named: Sequence[str], source: Source, labelled: bool) -> Scene:
    """Returns the scene of a folder. Raises BadInput, which says what is missing."""
    files, images = _rasters(folder), []
    for word in named:
        fitting = [path for path in files if has_word(path.stem, word) and not _is_mask(path, named)]
        if not fitting:
            raise BadInput(f"{folder} has no file called {word}: a band is missing. Add it, or remove the folder.")
        if len(fitting) > 1:
            raise BadInput(
                f"{fitting[0]} and {fitting[1].name} are both called {word}. Name one of them by more of its name in "
                "workload.source.band_files, or remove the other."
            )
        images.append(fitting[0])
    inside = folder.relative_to(root)
    name = inside.as_posix() if inside.parts else folder.name
    mask = _mask(root, folder, [path for path in files if path not in images], source) if labelled else None
    return Scene(name, group_of(name, name, source), tuple(images), mask, naming.part_of(inside.parts))


def _is_mask(path: Path, named: Sequence[str]) -> bool:
    """Says whether a file is a mask by its name, unless a band is called so."""
    return naming.is_mask(path.stem) and path.stem not in named


def _mask(root: Path, folder: Path, files: Sequence[Path], source: Source) -> Path:
    """Returns the mask among a scene's other files, or in a folder of masks by the scene's name. Raises BadInput."""
    pattern = naming.Pattern(source.masks) if source.masks else None
    found = [
        path for path in files
        if (pattern.name(path.relative_to(root).as_posix()) if pattern else naming.is_mask(path.stem))
    ]  # fmt: skip
    if len(found) > 1:
        raise BadInput(
            f"{folder} has several masks: {', '.join(path.name for path in found)}. Say which one counts in "
            f"workload.source.masks, such as */{found[0].name}."
        )
    found += _beside(root, folder)
    if not found:
        raise BadInput(
            f"{folder} has no mask: no file in it is called mask or label, and no folder of masks beside it has "
            f"{folder.name}.tif. Add one, or remove the folder."
        )
    return found[0]
