"""Finds the files of scenes by patterns of the configuration or of the documented layouts.

    Band1/NAME.tif ... BandN/NAME.tif    label/NAME.tif           one file a band (GlacierHack, and generated scenes)
    images/NAME.tif                      masks/NAME.tif           one file with all bands
    slice_0_img_001.npy                  slice_0_mask_001.npy     (H, W, bands) and (H, W, classes) (HKH)

Each may lie in folders called train, validation and test. `workload.source.images` and `masks` name any other layout:
{scene} matches the scene's name, {band} a band that is a file, {part} train, validation or test, and *, ? and [0-9] are
as in a shell. Without {scene} the text that *, ? and [0-9] match is the name. Rasters are GeoTIFF, JPEG 2000, PNG or
JPEG.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lib.errors import BadInput, printable
from workloads.glacier.data.readers import DRIVERS, Scene
from workloads.glacier.settings import BAND, Source

PARTS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test", "hold": "test", "holdout": "test",
}  # fmt: skip
_PATCHES = "*_img_*.npy"  # patches of one image overlap: slice_0/001 is of the group slice_0
_LAYOUTS = (  # images and masks
    ("Band{band}/{scene}.*", "label/{scene}.*"), (_PATCHES, "*_mask_*.npy"), ("images/{scene}.*", "masks/{scene}.*"),
)  # fmt: skip
_PART = f"(?P<part>(?i:{'|'.join(sorted(PARTS, key=len, reverse=True))}))"
_TOKEN = re.compile(r"(\{scene\}|\{part\}|\[[^]]+\]|[*?])")
_HOW_TO_NAME = (
    "Write {scene} for their common part: workload.source.images 'Band{band}/*_{scene}.tif', masks "
    "'label/*_{scene}.tif' and band_files ['1', '2', ...]."
)


class Match(NamedTuple):
    """The scenes of a folder, a sentence for each incomplete one, and a text on matched and other files."""

    scenes: list[Scene]
    problems: list[str]
    text: str


class File(NamedTuple):
    """A file that a pattern matches, and the split that its folder names."""

    part: str
    path: Path


def find(root: Path, source: Source, labelled: bool = True) -> Match:
    """Finds scenes, if `labelled` scenes with a mask. Raises BadInput if the folder has no scene."""
    if not root.is_dir():
        raise BadInput(
            f"{root} is not a folder. Give the folder that holds Band1, Band2, ... or the images."
        )
    rows = [(source.images, source.masks)] if source.images else []
    if not rows or not labelled:  # new scenes may lie in any layout, or without a folder
        for up in ("", "{part}/"):
            rows += [(up + images, up + masks) for images, masks in _LAYOUTS]
    if not labelled:
        rows.append(("{scene}.*", ""))
    folder: Path | None = root
    while folder:  # archives often hold a single folder in a folder
        for images, masks in rows:
            match = _match(folder, images, masks, source, labelled)
            if match:
                return match
        inner = [path for path in folder.iterdir() if not path.name.startswith(".")]
        is_one = len(inner) == 1 and inner[0].is_dir()
        folder = inner[0] if is_one else None
    names = ", ".join(_unmatched(root, ())[:3])
    there = f"Files there: {names}." if names else "No raster and no .npy lies there."
    wanted = "scene with a mask" if labelled else "image"
    patterns = [f"{images} with {masks}" if labelled else images for images, masks in rows]
    raise BadInput(
        f"{root} has no {wanted} by {'; '.join(patterns)}. {there} Set workload.source.images "
        "and masks to patterns of your files (docs/glacier.md has examples), or name the folder that holds Band1 or "
        "images."
    )


def _match(root: Path, images: str, masks: str, source: Source, labelled: bool) -> Match | None:
    """Returns the scenes of two patterns, or None if one of them matches no file."""
    mask_of = matching(root, masks) if masks else {}
    by_band = _by_band(root, images, source, {file.path for file in mask_of.values()})
    files, problems = _joined(by_band)
    if not files or (labelled and not mask_of):
        return None
    scenes = []
    for name, bands in files.items():
        group = name
        if images != source.images and images.endswith(_PATCHES):
            group = name.split("/")[-2:][0]
        mask = mask_of[name].path if labelled and name in mask_of else None
        paths = tuple(band.path for band in bands)
        scenes.append(Scene(name, group, paths, mask, bands[0].part))
    facts = []
    if labelled:  # images of a folder without masks are for prediction
        labels = {scene.images[0].parent for scene in scenes if scene.mask}
        if not labels:
            raise BadInput(
                f"In {root} no mask has the name of an image (names: {min(files)} by {images}, {min(mask_of)} by "
                f"{masks}). {_HOW_TO_NAME}"
            )
        unlabelled = [scene for scene in scenes if not scene.mask]
        other = Counter(scene.images[0].parent for scene in unlabelled)
        for folder, number in other.items():
            if folder not in labels:
                facts.append(f"{number:,} images in {folder} have no masks and are left out")
        for scene in unlabelled:
            path = scene.images[0]
            if path.parent in labels:
                problems.append(f"{path} has no mask by {masks}. Add it, or remove the image.")
        scenes = [scene for scene in scenes if scene.mask]
    patterns = f"{images} and {masks}" if labelled else images
    matched = {file.path for bands in (*files.values(), mask_of.values()) for file in bands}
    names = _unmatched(root, matched)
    if names:
        facts.append(
            f"{len(names):,} files do not match {patterns}, such as {', '.join(names[:3])}"
        )
    text = "; ".join([f"{root}: {len(scenes):,} scenes by {patterns}", *facts])
    return Match(scenes, problems, f"{text}.")


def _by_band(
    root: Path, images: str, source: Source, others: Collection[Path]
) -> dict[str, dict[str, File]]:
    """Returns the files of each band by scene, by the band's pattern. Raises BadInput if some bands lack files."""
    words = tuple(map(str, source.chosen))
    if images == source.images:
        words = source.band_files or source.bands
    patterns = [images.replace(BAND, word) for word in words] if BAND in images else [images]
    by_band = {pattern: matching(root, pattern, others) for pattern in patterns}
    empty = [pattern for pattern, files in by_band.items() if not files]
    if empty and len(empty) < len(by_band):
        raise BadInput(
            f"{root} has no file {empty[0]}. Correct workload.source.images, or name the bands as the files do in "
            "workload.source.band_files."
        )
    return by_band


def _joined(by_band: Mapping[str, Mapping[str, File]]) -> tuple[dict[str, list[File]], list[str]]:
    """Returns the bands of each scene, and a sentence for each incomplete scene; keys are patterns of bands."""
    images: dict[str, list[File]] = {}
    problems = []
    for name in sorted(set().union(*by_band.values())):
        lacking = [place for place, files in by_band.items() if name not in files]
        if lacking:
            places = ", ".join(lacking)
            problems.append(f"{name} has no file by {places}: a band is missing. Add it.")
        else:
            images[name] = [files[name] for files in by_band.values()]
    if problems and not images:
        examples = [f"{min(files)} by {place}" for place, files in by_band.items() if files]
        raise BadInput(
            f"No scene has all of its bands by one name (names: {', '.join(examples)}). {_HOW_TO_NAME}"
        )
    return images, problems


def matching(root: Path, pattern: str, others: Collection[Path] = ()) -> dict[str, File]:
    """Returns the files of a pattern with placeholders by scene, sorted by path, without `others`.

    Raises BadInput for an unusable pattern, and if two files have one scene's name.
    """
    files: dict[str, File] = {}
    regex = _regex(pattern)
    for path in sorted(root.glob(re.sub(r"\{(scene|part)\}", "*", pattern))):
        match = regex.fullmatch(path.relative_to(root).as_posix())
        if not match or path in others or not has_pixels(path.name) or not path.is_file():
            continue
        if not str(path).isprintable():
            raise BadInput(
                f"The name {str(path)!a} has control characters, which steer a terminal. Rename it."
            )
        groups = [group for group in match.groups() if group]
        folders = [match["part"]] if "part" in regex.groupindex else groups[:-1]
        parts = [PARTS[folder.lower()] for folder in folders if folder.lower() in PARTS]
        name = "/".join(groups) or "scene"
        if name in files:
            raise BadInput(
                f"{files[name].path} and {path} are both called {name} by {pattern}. Correct workload.source.images "
                "or masks."
            )
        files[name] = File(parts[0] if parts else "", path)
    return files


def _regex(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern with placeholders. Raises BadInput if that fails."""
    is_named = "{scene}" in pattern
    groups = {"{scene}": "(?P<scene>[^/]+)", "{part}": _PART}
    pieces = []
    for token in _TOKEN.split(pattern):
        if token in groups:
            pieces.append(groups[token])
            groups[token] = f"(?P={token[1:-1]})"  # repeated, it matches the same text
        elif _TOKEN.fullmatch(token):
            shell = {"*": "[^/]*", "?": "[^/]"}.get(token, token.replace("[!", "[^"))
            pieces.append(shell if is_named else f"({shell})")
        else:
            pieces.append(re.escape(token))
    try:
        return re.compile("".join(pieces))
    except re.error as error:
        raise BadInput(
            f"The pattern {pattern} cannot be used ({error}). Correct workload.source."
        ) from None


def _unmatched(root: Path, matched: Collection[Path]) -> list[str]:
    paths = [path for path in root.rglob("*") if has_pixels(path.name) and path not in matched]
    return [printable(path.relative_to(root).as_posix()) for path in sorted(paths)]


def has_pixels(name: str) -> bool:
    """Returns whether a file name is a raster's or an array's; macOS writes ._NAME beside each."""
    suffix = PurePosixPath(name).suffix.lower()
    return suffix in (*DRIVERS, ".npy") and not name.startswith("._")
