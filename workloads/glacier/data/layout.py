"""Finds the files of scenes by patterns: those of the configuration, or those of the documented layouts.

    Band1/NAME.tif ... BandN/NAME.tif    label/NAME.tif           one file a band (GlacierHack, and generated scenes)
    images/NAME.tif                      masks/NAME.tif           one file with all bands
    slice_0_img_001.npy                  slice_0_mask_001.npy     (H, W, bands) and (H, W, classes) (HKH)

Each may lie in folders called train, validation and test. `workload.source.images` and `masks` name any other layout:
{scene} stands for the scene's name, {band} for a band that is a file, {part} for train, validation or test, and *, ?
and [0-9] are as in a shell. Without {scene} the name is what *, ? and [0-9] stand for. Rasters are GeoTIFF, JPEG 2000,
ERDAS Imagine (.img), PNG or JPEG.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.errors import BadInput
from workloads.glacier.data.scenes import PARTS, RASTERS, Scene
from workloads.glacier.settings import BAND, Source

_OF_PATCH = r"([^/]*)/[^/]*$"  # the group of slice_0/001: patches of one image overlap
_LAYOUTS = (  # images, masks and the pattern of a group
    ("Band{band}/{scene}.*", "label/{scene}.*", ""),
    ("*_img_*.npy", "*_mask_*.npy", _OF_PATCH),
    ("images/*_img_*.npy", "masks/*_mask_*.npy", _OF_PATCH),
    ("images/{scene}.*", "masks/{scene}.*", ""),
)
_PART = f"(?P<part>(?i:{'|'.join(sorted(PARTS, key=len, reverse=True))}))"
_TOKEN = re.compile(r"(\{scene\}|\{part\}|\[[^]]+\]|[*?])")
_MOST_LISTED = 20_000  # files that are looked at for those that no pattern matches
_SHOWN = 3  # names
_HOW_TO_NAME = (
    "Let {scene} in workload.source.images and masks stand for what they share, or give workload.source.name_pattern, "
    r"a regular expression whose group is that, for example 'img(\d+)'."
)


@dataclass
class Match:
    """The scenes of a folder, a sentence for each that lacks a file, and what was matched and what was not."""

    scenes: list[Scene]
    problems: list[str]
    text: str = ""


@dataclass(frozen=True)
class File:
    """A file that a pattern matches, with the scene's name in it and the split that its folder stands for."""

    name: str
    part: str
    path: Path


Files = dict[str, File]  # by the name of the scene
Images = dict[str, list[File]]  # the bands of each scene


class Pattern:
    """A path below a folder with placeholders, such as S1Hand/{scene}_S1Hand.tif."""

    def __init__(self, text: str):
        self._glob = re.sub(r"\{(scene|part)\}", "*", text)
        pieces, seen = [], set[str]()
        for token in _TOKEN.split(text):
            pieces.append(_expression(token, token in seen, "{scene}" in text))
            seen.add(token)
        try:
            self._regex = re.compile("".join(pieces))
        except re.error as error:
            raise BadInput(f"The pattern {text} cannot be used ({error}). Correct workload.source.") from None

    def files(self, root: Path) -> Iterator[File]:
        """Yields the files below a folder, sorted by path."""
        for path in sorted(root.glob(self._glob)):
            match = self._regex.fullmatch(path.relative_to(root).as_posix())
            if match and has_pixels(path.name) and path.is_file():
                _refuse_unprintable(path)
                pieces = [piece for piece in match.groups() if piece]
                words = [match["part"]] if "part" in match.re.groupindex else pieces[:-1]
                part = next((PARTS[word.lower()] for word in words if word.lower() in PARTS), "")
                yield File("/".join(pieces) or "scene", part, path)


def _expression(token: str, again: bool, is_named: bool) -> str:
    """Returns the regular expression of a part of a pattern; `is_named` says that {scene} is the name."""
    if token in ("{scene}", "{part}"):
        name = token[1:-1]
        return f"(?P={name})" if again else {"scene": "(?P<scene>[^/]+)", "part": _PART}[name]
    if _TOKEN.fullmatch(token):
        text = {"*": "[^/]*", "?": "[^/]"}.get(token, token.replace("[!", "[^"))
        return text if is_named else f"({text})"
    return re.escape(token)


def find(root: Path, source: Source, labelled: bool = True) -> tuple[list[Scene], list[str]]:
    """Returns the scenes below a folder, sorted by name, and a sentence for each that lacks a file.

    With `labelled`, a scene without a mask is such a problem; otherwise masks are ignored. Raises BadInput if the
    patterns match no scene.
    """
    match = look(root, source, labelled)
    return match.scenes, match.problems


def look(root: Path, source: Source, labelled: bool = True) -> Match:
    """Does what `find` does, and describes what was matched and what was not."""
    if not root.is_dir():
        raise BadInput(f"{root} is no folder. Give the folder that holds Band1, Band2, ... or the images.")
    candidates = _candidates(source, labelled)
    for folder in _inner(root):
        for images, masks, group in candidates:
            if match := _look_for(folder, images, masks, group, source, labelled):
                return match
    held = "; ".join(f"{images} with {masks}" if labelled else images for images, masks, _ in candidates)
    raise BadInput(
        f"{root} has no {'scene with a mask' if labelled else 'image'} by {held}.{_names(root)} Set "
        "workload.source.images and masks to patterns of your files (docs/glacier.md has examples), or name the folder "
        "that holds Band1 or images."
    )


def _candidates(source: Source, labelled: bool) -> list[tuple[str, str, str]]:
    """Returns the patterns of images, masks and groups that are tried: the configured ones, or the layouts.

    New scenes may lie in any of these, or without a folder.
    """
    rows = [(source.images, source.masks, "")] if source.images else []
    if source.images and labelled:
        return rows
    rows += [(above + images, above + masks, group) for above in ("", "{part}/") for images, masks, group in _LAYOUTS]
    return rows if labelled else [*rows, ("{scene}.*", "", "")]


def _inner(root: Path) -> list[Path]:
    """Returns a folder, and the single folders in it, one in another, as archives have them."""
    folders = [root]
    while True:
        inner = [path for path in folders[-1].iterdir() if not path.name.startswith(".")]
        if len(inner) != 1 or not inner[0].is_dir():
            return folders
        folders.append(inner[0])


def _look_for(root: Path, images: str, masks: str, group: str, source: Source, labelled: bool) -> Match | None:
    """Returns the scenes of two patterns; None if one matches nothing."""
    mask_of = _files(root, masks, source) if masks else {}
    words = source.words_of_bands if images == source.images else tuple(map(str, source.chosen))
    files, problems = _images(root, images, words, source, {file.path for file in mask_of.values()})
    if not files or (labelled and not mask_of):
        return None
    named = {name: mask_of[name].path for name in files if name in mask_of} if labelled else {}
    if labelled and not named:
        examples = f"{min(files)} by {images}, {min(mask_of)} by {masks}"
        raise BadInput(f"In {root} no mask has the name of an image (names: {examples}). {_HOW_TO_NAME}")
    scenes = [_scene(name, files[name], named.get(name), group, source) for name in sorted(files)]
    unlabelled = [scene for scene in scenes if labelled and not scene.mask]
    left_out, lacking = _unlabelled(unlabelled, {path.images[0].parent for path in scenes if path.mask}, masks)
    chosen = [scene for scene in scenes if scene.mask or not labelled]
    matched = {file.path for bands in files.values() for file in bands} | {file.path for file in mask_of.values()}
    text = [
        f"{root}: {len(chosen):,} scenes by {images}{f' and {masks}' if labelled else ''}", *left_out,
        *([f"{len(mask_of) - len(named):,} masks have no image"] if labelled and len(mask_of) > len(named) else []),
        *_unmatched(root, matched, f"{images} and {masks}" if labelled else images),
    ]  # fmt: skip
    return Match(chosen, problems + lacking, "; ".join(text) + ".")


def _scene(name: str, files: list[File], mask: Path | None, group: str, source: Source) -> Scene:
    pattern = source.group_pattern or group
    found = re.search(pattern, files[0].name) if pattern else None
    return Scene(name, found[1] if found else name, tuple(file.path for file in files), mask, files[0].part)


def _images(
    root: Path, pattern: str, words: tuple[str, ...], source: Source, masks: Collection[Path]
) -> tuple[Images, list[str]]:
    """Returns the bands of each scene, and a sentence for each that lacks one. Raises BadInput for a band of none."""
    if BAND not in pattern:
        return {name: [file] for name, file in _files(root, pattern, source, masks).items()}, []
    by_band = {pattern.replace(BAND, word): _files(root, pattern.replace(BAND, word), source, masks) for word in words}
    if (empty := [text for text, files in by_band.items() if not files]) and len(empty) < len(by_band):
        raise BadInput(
            f"{root} has no file {empty[0]}. Correct workload.source.images, or name the bands as the files do in "
            "workload.source.band_files."
        )
    return joined(by_band)


def joined(by_band: Mapping[str, Files]) -> tuple[Images, list[str]]:
    """Returns the bands of each scene, and a sentence for each that lacks one; the keys are the places of bands."""
    images, problems = Images(), []
    for name in sorted(set().union(*by_band.values())):
        if lacking := [place for place, files in by_band.items() if name not in files]:
            problems.append(f"{name} has no file by {', '.join(lacking)}: a band is missing. Add it.")
        else:
            images[name] = [files[name] for files in by_band.values()]
    if problems and not images:
        examples = ", ".join(f"{min(files)} by {place}" for place, files in by_band.items() if files)
        raise BadInput(f"No scene has all of its bands by one name (names: {examples}). {_HOW_TO_NAME}")
    return images, problems


def of_folders(folders: Mapping[int, Path], source: Source) -> tuple[list[Scene], list[str]]:
    """Returns new scenes of a folder for each band's number, and a sentence for each that lacks a band."""
    images, problems = joined({str(folder): _files(folder, "{scene}.*", source) for folder in folders.values()})
    return [_scene(name, files, None, "", source) for name, files in images.items()], problems


def _files(root: Path, pattern: str, source: Source, others: Collection[Path] = ()) -> Files:
    """Returns the files of a pattern but for some others. Raises BadInput if two stand for one scene."""
    files: Files = {}
    for file in Pattern(pattern).files(root):
        match = re.search(source.name_pattern, file.name) if source.name_pattern else None
        name = match[1] if match else file.name
        if file.path in others:
            continue
        if name in files:
            raise BadInput(
                f"{files[name].path} and {file.path} are both called {name} by {pattern}. Correct "
                "workload.source.images, masks or name_pattern so that their names differ."
            )
        files[name] = file
    return files


def _unlabelled(scenes: list[Scene], labelled: Collection[Path], masks: str) -> tuple[list[str], list[str]]:
    """Returns phrases on folders without any mask, which can be predicted, and sentences on other missing masks."""
    others = Counter(scene.images[0].parent for scene in scenes if scene.images[0].parent not in labelled)
    left_out = [f"{number:,} images in {folder} have no masks and are left out" for folder, number in others.items()]
    return left_out, [
        f"{scene.images[0]} has no mask: {masks} of {scene.name} is not there. Add it, or remove the image."
        for scene in scenes
        if scene.images[0].parent in labelled
    ]


def _unmatched(root: Path, matched: Collection[Path], patterns: str) -> list[str]:
    names = [name for name in _listed(root) if root / name not in matched]
    shown = ", ".join(names[:_SHOWN])
    return [f"{len(names):,} files do not match {patterns}, such as {shown}"] if names else []


def _names(root: Path) -> str:
    names = _listed(root)
    return f" Files there: {', '.join(names[:_SHOWN])}." if names else " No raster and no .npy lies there."


def _listed(root: Path) -> list[str]:
    """Returns the paths of rasters and arrays below a folder, sorted; not all of very many."""
    names: list[str] = []
    for parent, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        names += [(Path(parent) / name).relative_to(root).as_posix() for name in sorted(files) if has_pixels(name)]
        if len(names) > _MOST_LISTED:
            break
    for name in names[:_SHOWN]:
        _refuse_unprintable(Path(name))
    return names


def has_pixels(name: str) -> bool:
    """Says whether a file is a raster or an array, by its name; macOS writes ._NAME beside each."""
    return PurePosixPath(name).suffix.lower() in (*RASTERS, ".npy") and not name.startswith("._")


def _refuse_unprintable(path: Path) -> None:
    if not str(path).isprintable():
        raise BadInput(f"The name {str(path)!a} has control characters, which would steer a terminal. Rename it.")
