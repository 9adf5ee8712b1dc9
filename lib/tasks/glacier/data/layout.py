"""Scenes found on disk by their layout.

Three layouts are known:

    Band1/NAME.tif ... BandN/NAME.tif    label/NAME.tif           one file a band (GlacierHack)
    images/NAME.tif                      masks/NAME.tif           one file with all bands
    slice_0_img_001.npy                  slice_0_mask_001.npy     (H, W, bands) and (H, W, classes) (HKH)
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.errors import BadInput
from lib.machine import inputs
from lib.tasks.glacier.settings import Source

_MASK_FOLDERS = ("label", "labels", "mask", "masks", "Label", "Labels", "Mask", "Masks")
_IMAGE_FOLDERS = ("images", "image", "Images", "Image")
_DEPTH = 3  # folders below the data's root that are searched for a layout
_TIFFS = (".tif", ".tiff", ".TIF", ".TIFF")
_BAND = re.compile(r"Band\d+")
_PARTS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")  # folders of a fixed split


@dataclass(frozen=True)
class Scene:
    """One image: a file for each band or one with all of them; `mask` None where there is no label."""

    name: str
    group: str
    images: tuple[Path, ...]
    mask: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.images, self.mask) if self.mask else self.images


def homes(folders: Sequence[Path]) -> list[Path]:
    """Returns the data's own folders, each once, where a search by file names stopped at these.

    One with masks goes before all others; of train and test, both with masks, it is the folder above them, which `find`
    refuses by their names. What a run has written is no data.
    """
    own = dict.fromkeys(folder.parent if _is_part(folder) else folder for folder in folders)
    own = {folder: None for folder in own if not _is_written_by_a_run(folder)}
    labelled = [folder for folder in own if _is_labelled(folder)]
    parts = [folder for folder in labelled if folder.name.lower() in _PARTS and not _patches_of(folder)]
    beside = {folder for folder in parts if any(folder.parent == other.parent for other in parts if other != folder)}
    return list(dict.fromkeys(folder.parent if folder in beside else folder for folder in labelled)) or list(own)


def _is_labelled(folder: Path) -> bool:
    has_bands = any(_BAND.fullmatch(inner.name) for inner in folder.iterdir() if inner.is_dir())
    return bool(_patches_of(folder) or (_masks_of(folder) and (has_bands or _images_of(folder, labelled=True))))


def _is_part(folder: Path) -> bool:
    """Says whether a folder holds one kind of files: a band, the images or the masks."""
    return bool(_BAND.fullmatch(folder.name) or folder.name in (*_IMAGE_FOLDERS, *_MASK_FOLDERS))


def _is_written_by_a_run(folder: Path) -> bool:
    """Says whether a folder lies in the output of this program, which has masks and figures but no data."""
    above = (folder, *folder.parents[:3])
    return any(all((place / name).is_file() for name in names) for place in above for names in inputs.WRITTEN_BY_A_RUN)


def home(folder: Path) -> Path:
    """Returns the data's own folder, where a search by file names stopped at one of those in it."""
    if not _is_part(folder):
        return folder
    parent = folder.parent  # may be Test, beside Train with the masks
    beside = any(_masks_of(other) for other in parent.parent.iterdir() if other.is_dir())
    return parent.parent if beside and not _masks_of(parent) else parent


def find(root: Path, source: Source, labelled: bool = True) -> tuple[list[Scene], list[str]]:
    """Returns the scenes below a folder, sorted by name, and a sentence for each that lacks a band or its mask.

    With `labelled`, a scene without a mask is such a problem; without, masks are not looked for. Raises BadInput where
    no known layout exists.
    """
    if not root.is_dir():
        raise BadInput(f"{root} is no folder. Give the folder that holds Band1, Band2, ... or the images.")
    folders = [root, *_below(root, _DEPTH)]
    banded = [folder for folder in folders if (folder / f"Band{source.chosen[0]}").is_dir()]
    if banded:  # where there are several (Train, Test), the one that has labels
        banded = [folder for folder in banded if labelled and _masks_of(folder)] or banded
        if len(banded) > 1:
            names = ", ".join(str(folder.relative_to(root)) for folder in banded)
            raise BadInput(f"{root} holds bands in {len(banded)} folders: {names}. Name one of them in data.dir.")
        folder = banded[0]
        masks = _masks_of(folder) if labelled else None
        if labelled and masks is None:
            raise BadInput(
                f"{folder} has bands but no masks. Put them in {folder / _MASK_FOLDERS[0]}, by the same names."
            )
        return find_bands({number: folder / f"Band{number}" for number in source.chosen}, source, masks)
    if patches := [patch for folder in folders for patch in _patches_of(folder)]:
        return _find_patches(patches, source, labelled)
    if imaged := [(folder, paths) for folder in folders if (paths := _images_of(folder, labelled))]:
        if labelled and len(imaged) > 1 and imaged[0][0] != root:  # the named folder itself goes first
            names = ", ".join(str(folder.relative_to(root)) for folder, _ in imaged)
            raise BadInput(
                f"{root} holds images with masks in {len(imaged)} folders: {names}. Name one of them in data.dir; its "
                "scenes are split into training, validation and test by workload.split."
            )
        folder, paths = imaged[0]
        images = {name: (path,) for name, path in _by_name(paths, source).items()}
        return _pair(images, source, _masks_of(folder) if labelled else None)
    raise BadInput(
        f"{root} holds no images in a known layout: folders Band1 to Band{source.chosen[-1]} with one GeoTIFF a scene, "
        "a folder images with multi-band GeoTIFFs, or patches named *_img_*.npy; masks lie in a folder label or "
        "masks beside them, or are named *_mask_*.npy."
    )


def find_bands(folders: Mapping[int, Path], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Returns scenes of one GeoTIFF a band, and a sentence for each that lacks a file.

    `folders` maps the number of a band to its folder. Raises BadInput where no scene has all of its bands.
    """
    by_band = {number: _by_name(_tiffs(folder), source) for number, folder in folders.items()}
    if not set.intersection(*map(set, by_band.values())):
        examples = ", ".join(next(iter(sorted(paths)), "nothing") for paths in by_band.values())
        raise BadInput(
            f"No scene has all of its bands in {', '.join(map(str, folders.values()))} (names there: {examples}). "
            "Where a scene's files are named differently in each folder, give workload.source.name_pattern, for "
            r"example '(\d+_\d+)' or 'img(\d+)'."
        )
    images: dict[str, tuple[Path, ...]] = {}
    problems = []
    for name in sorted(set().union(*by_band.values())):
        if missing := [str(folders[number]) for number, paths in by_band.items() if name not in paths]:
            where = ", ".join(missing)
            problems.append(f"{name} has no file in {where}: a band is missing. Add it, or remove its other bands.")
        else:
            images[name] = tuple(paths[name] for paths in by_band.values())
    scenes, unlabelled = _pair(images, source, masks)
    return scenes, problems + unlabelled


def summary(scenes: Sequence[Scene], problems: Sequence[str]) -> str:
    """Says how many scenes there are, and how many files for each band."""
    if not scenes:
        return f"No scene is whole; {len(problems)} have something missing."
    kinds = Counter(
        path.parent.name if path.suffix != ".npy" else "masks" if path == scene.mask else "patches"
        for scene in scenes
        for path in scene.files
    )
    files = ", ".join(f"{kind} {number:,}" for kind, number in sorted(kinds.items()))
    return f"{len(scenes):,} scenes (files: {files}); {len(problems):,} with something missing"


def _below(folder: Path, depth: int) -> Iterator[Path]:
    inner = _named(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    for path in inner:
        yield path
        if depth > 1:
            yield from _below(path, depth - 1)


def _patches_of(folder: Path) -> list[Path]:
    return _named(path for path in folder.glob("*img*.npy") if path.is_file())


def _images_of(folder: Path, labelled: bool) -> list[Path]:
    """Returns the images of one file a scene, in a folder of their own or not; with `labelled`, none without masks."""
    if labelled and not _masks_of(folder):
        return []
    return next((paths for name in _IMAGE_FOLDERS if (paths := _tiffs(folder / name))), _tiffs(folder))


def _masks_of(folder: Path) -> Path | None:
    return next((folder / name for name in _MASK_FOLDERS if (folder / name).is_dir()), None)


def _tiffs(folder: Path) -> list[Path]:
    return _named(p for p in folder.iterdir() if p.suffix in _TIFFS and p.is_file()) if folder.is_dir() else []


def _named(paths: Iterable[Path]) -> list[Path]:
    """Sorts paths. Raises BadInput where a name would steer the terminal that it is printed on."""
    paths = sorted(paths)
    for path in paths:
        if not path.name.isprintable():
            raise BadInput(f"{path.parent} holds a name with control characters, {path.name!a}. Rename it.")
    return paths


def _by_name(paths: Sequence[Path], source: Source) -> dict[str, Path]:
    """Returns files by the name of their scene. Raises BadInput where the pattern gives two files one name."""
    by_name: dict[str, Path] = {}
    for path in paths:
        match = re.search(source.name_pattern, path.stem) if source.name_pattern else None
        name = match[1] if match else path.stem
        if name in by_name:
            raise BadInput(
                f"{by_name[name]} and {path} are both called {name} by workload.source.name_pattern. Change it so that "
                "their names differ."
            )
        by_name[name] = path
    return by_name


def _pair(images: Mapping[str, tuple[Path, ...]], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Returns scenes with their masks by name; without a folder of masks, scenes without."""
    mask_of = _by_name(_tiffs(masks), source) if masks else {}
    scenes, problems = [], []
    for name, paths in sorted(images.items()):
        mask = mask_of.get(name) or mask_of.get(f"{name}_mask")
        if masks and mask is None:
            problems.append(f"{paths[0]} has no mask in {masks}. Add {name}.tif there, or remove the image.")
        else:
            scenes.append(Scene(name, _group(name, name, source), paths, mask))
    return scenes, problems


def _find_patches(paths: Sequence[Path], source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    """Pairs NumPy patches with masks; those of one image (`slice_0_img_001`, `..._002`) are one group: they overlap."""
    scenes, problems = [], []
    for path in paths:
        head, _, tail = path.stem.rpartition("img")
        mask = path.with_name(f"{head}mask{tail}.npy")
        if not mask.is_file():  # or in a folder of its own
            mask = path.parent.parent / "masks" / mask.name
        if not labelled or mask.is_file():
            group = _group(path.stem, head.strip("_-") or path.stem, source)
            scenes.append(Scene(path.stem, group, (path,), mask if labelled else None))
        else:
            problems.append(f"{path} has no mask {head}mask{tail}.npy beside it: add it, or remove the patch.")
    return scenes, problems


def _group(name: str, default: str, source: Source) -> str:
    match = re.search(source.group_pattern, name) if source.group_pattern else None
    return match[1] if match else default
