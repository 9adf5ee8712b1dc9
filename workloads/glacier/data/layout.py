"""Scenes found on disk by their layout.

Four layouts are known:

    Band1/NAME.tif ... BandN/NAME.tif    label/NAME.tif           one file a band (GlacierHack)
    images/NAME.tif                      masks/NAME.tif           one file with all bands
    slice_0_img_001.npy                  slice_0_mask_001.npy     (H, W, bands) and (H, W, classes) (HKH)
    NAME/B02.tif, NAME/B03.tif ...       NAME/mask.tif            a folder a scene (see `scene_folders`)

Each may lie in folders called train, validation and test, which then are the split. Any other layout is read by
`workload.source.images` and `masks`, patterns in which * stands for a scene's name. Rasters are GeoTIFF, JPEG 2000,
ERDAS Imagine (.img), PNG or JPEG.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lib.errors import BadInput
from workloads.glacier.data import named, naming, pairing, quality, scene_folders
from workloads.glacier.data.scenes import Scene, group_of
from workloads.glacier.settings import Source

_MASK_FOLDERS = ("label", "labels", "mask", "masks", "Label", "Labels", "Mask", "Masks")
_IMAGE_FOLDERS = ("images", "image", "Images", "Image")
_DEPTH = 3  # folders below the data's root that are searched for a layout
BAND = re.compile(r"Band\d+")
_MOST_LISTED = 20_000  # files of an unknown layout


def find(root: Path, source: Source, labelled: bool = True) -> tuple[list[Scene], list[str]]:
    """Returns the scenes below a folder, sorted by name, and a sentence for each that lacks a file.

    With `labelled`, a scene without a mask is such a problem; without, masks are not looked for. Raises BadInput where
    no known layout exists.
    """
    if not root.is_dir():
        raise BadInput(f"{root} is no folder. Give the folder that holds Band1, Band2, ... or the images.")
    scenes, problems = _found(root, source, labelled)
    return quality.attach(scenes, problems, root, source)


def _found(root: Path, source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    """Does what `find` does, but for quality bands."""
    folders = [root, *_below(root, _DEPTH)]
    if beside := sum(1 for folder in folders for path in folder.glob("._*") if naming.is_raster(path.name[2:])):
        print(
            f"{root}: {beside:,} files named ._* are left out. macOS writes one beside each file; they hold no pixels."
        )
    if source.images and (found := _by_patterns(root, source, labelled)):
        return found
    if source.band_files and (found := scene_folders.find(root, folders, source, labelled)):
        return found[:2]
    if known := _in_known_layout(root, folders, source, labelled):
        return known
    raise BadInput(
        f"{root} holds no images in a known layout: folders Band1 to Band{source.chosen[-1]} with one GeoTIFF a scene, "
        "a folder images with multi-band GeoTIFFs, or patches named *_img_*.npy; masks lie in a folder label or "
        f"masks beside them, or are named *_mask_*.npy. {_advice(root)}"
    )


def _by_patterns(root: Path, source: Source, labelled: bool) -> tuple[list[Scene], list[str]] | None:
    try:
        return named.find(root, source, labelled)
    except named.NoSuchFiles as error:
        raise BadInput(f"{error} {_advice(root)}") from None


def _in_known_layout(
    root: Path, folders: Sequence[Path], source: Source, labelled: bool
) -> tuple[list[Scene], list[str]] | None:
    """Returns what `find` does, by the first layout that is there; None where none is."""
    banded = [folder for folder in folders if (folder / f"Band{source.chosen[0]}").is_dir()]
    if banded:  # where there are several (Train, Test), those that have labels
        banded = [folder for folder in banded if labelled and masks_of(folder)] or banded
        return _joined(root, banded, source, labelled, _banded, "bands")
    if patches := [patch for folder in folders for patch in patches_of(folder)]:
        return _find_patches(root, patches, source, labelled)
    if not labelled and (found := scene_folders.find(root, folders, source, labelled)):
        return found[:2]
    if imaged := [
        folder for folder in folders if images_of(folder, labelled) and (folder == root or not is_part(folder))
    ]:
        imaged = imaged[:1] if imaged[0] == root else imaged  # the named folder itself goes first
        for folder in folders if labelled else ():
            if not masks_of(folder) and any(_rasters(folder / name) for name in _IMAGE_FOLDERS):
                print(f"{folder}: its images have no masks, so they are left out. They can be predicted.")
        return _joined(root, imaged, source, labelled, _imaged, f"images{' with masks' if labelled else ''}")
    if foldered := scene_folders.find(root, folders, source, labelled):
        if list(foldered[2]) != list(source.bands):
            words = ", ".join(foldered[2])
            print(f"{root}: its bands are {words}. For new scenes set workload.source.band_files: [{words}].")
        return foldered[:2]
    return None


def is_part(folder: Path) -> bool:
    """Says whether a folder holds one kind of files: a band, the images or the masks."""
    return bool(BAND.fullmatch(folder.name) or folder.name in (*_IMAGE_FOLDERS, *_MASK_FOLDERS))


def _advice(root: Path) -> str:
    """Returns a sentence with the patterns that fit an unknown layout, where some do, and the command that shows it."""
    look = f"trainbook data {root} shows what is there and prints the settings that read it."
    if found := naming.shared_bands(listed(root)):
        return f"It can be read by workload.source.band_files: [{', '.join(found)}]. {look}"
    for pair in pairing.guess(listed(root)):
        if pair.is_told:
            patterns = f"workload.source.images: {pair.images} and workload.source.masks: {pair.masks}"
            return f"It can be read by {patterns}. {look}"
    return look


def listed(root: Path) -> list[str]:
    """Returns the paths, relative to a folder, of rasters and arrays in it and below, sorted; of very many not all."""
    found: list[str] = []
    for parent, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        above = Path(parent).relative_to(root)
        found += [(above / name).as_posix() for name in sorted(names) if naming.has_pixels(name)]
        if len(found) > _MOST_LISTED:
            break
    if strange := next((path for path in found if not path.isprintable()), None):
        raise BadInput(f"{root} holds a name with control characters, {strange!a}. Rename it.")
    return found[:_MOST_LISTED]


Finder = Callable[[Path, Source, bool], tuple[list[Scene], list[str]]]


def _joined(
    root: Path, folders: Sequence[Path], source: Source, labelled: bool, find_in: Finder, what: str
) -> tuple[list[Scene], list[str]]:
    """Returns the scenes of a folder, or of several that are called train, validation and test, under their names.

    Raises BadInput where there are several others.
    """
    if len(folders) == 1:
        return find_in(folders[0], source, labelled)
    inside = {folder: folder.relative_to(root) for folder in folders}
    if not all(naming.part_of(relative.parts) for relative in inside.values()):
        names = ", ".join(map(str, inside.values()))
        raise BadInput(
            f"{root} holds {what} in {len(folders)} folders: {names}. Name one of them in data.dir; its scenes are "
            "split into training, validation and test by workload.split. Or call them train, validation and test: then "
            "they are the split."
        )
    scenes, problems = [], []
    for folder, relative in inside.items():
        found, lacking = find_in(folder, source, labelled)
        part, above = naming.part_of(relative.parts), relative.as_posix()
        default = {
            scene.name: f"{above}/{scene.group}" if scene.group == scene.name else scene.group for scene in found
        }
        scenes += [
            replace(scene, name=f"{above}/{scene.name}", group=default[scene.name], part=part) for scene in found
        ]
        problems += lacking
    return scenes, problems


def _banded(folder: Path, source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    masks = masks_of(folder) if labelled else None
    if labelled and masks is None:
        raise BadInput(f"{folder} has bands but no masks. Put them in {folder / _MASK_FOLDERS[0]}, by the same names.")
    return find_bands({number: folder / f"Band{number}" for number in source.chosen}, source, masks)


def _imaged(folder: Path, source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    paths, masks = images_of(folder, labelled), masks_of(folder) if labelled else None
    for place in (paths[0].parent, *([masks] if masks else [])):
        if left := naming.others(place):
            print(f"{place}: {len(left):,} files in another format are left out, such as {left[0]}.")
    return _pair({name: (path,) for name, path in _by_name(paths, source).items()}, source, masks)


def find_bands(folders: Mapping[int, Path], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Returns scenes of one GeoTIFF a band, and a sentence for each that lacks a file.

    `folders` maps the number of a band to its folder. Raises BadInput where no scene has all of its bands.
    """
    by_band = {number: _by_name(_rasters(folder), source) for number, folder in folders.items()}
    if not set.intersection(*map(set, by_band.values())):
        sides = [*by_band.values(), *([_by_name(_rasters(masks), source)] if masks else [])]
        raise naming.NamesDiffer([list(side) for side in sides], list(map(str, folders.values())))
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
    kinds = Counter(_kind(scene, path) for scene in scenes for path in scene.files)
    files = ", ".join(f"{kind} {number:,}" for kind, number in sorted(kinds.items()))
    return f"{len(scenes):,} scenes (files: {files}); {len(problems):,} with something missing"


def _kind(scene: Scene, path: Path) -> str:
    """Returns what a file is called in a summary: after its folder, or where a scene has one of its own, its band."""
    if path.suffix == ".npy":
        return "masks" if path == scene.mask else "patches"
    if len(scene.images) > 1 and scene.images[0].parent == scene.images[1].parent:
        return "masks" if path == scene.mask else scene_folders.band_of(path.stem) or path.stem
    return path.parent.name


def scene_words(root: Path) -> list[str]:
    """Returns the words of the bands where each scene has a folder with a file a band; else none."""
    scene = next((folder for folder in folders(root) if scene_folders.is_scene(folder, root)), None)
    return scene_folders.words(scene) if scene and not masks_of(scene) else []


def folders(root: Path) -> list[Path]:
    """Returns the folders that are searched for a layout."""
    return [root, *_below(root, _DEPTH)]


def band_numbers(folder: Path) -> list[int]:
    """Returns the numbers of the folders BandN in a folder, sorted."""
    return sorted(int(inner.name[4:]) for inner in folder.iterdir() if inner.is_dir() and BAND.fullmatch(inner.name))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    inner = naming.printable(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    for path in inner:
        yield path
        if depth > 1:
            yield from _below(path, depth - 1)


def patches_of(folder: Path) -> list[Path]:
    return naming.printable(
        path for path in folder.glob("*img*.npy") if path.is_file() and not path.name.startswith("._")
    )


def images_of(folder: Path, labelled: bool) -> list[Path]:
    """Returns the images of one file a scene, in a folder of their own or not; with `labelled`, none without masks."""
    if labelled and not masks_of(folder):
        return []
    return next((paths for name in _IMAGE_FOLDERS if (paths := _rasters(folder / name))), _rasters(folder))


def masks_of(folder: Path) -> Path | None:
    return next((folder / name for name in _MASK_FOLDERS if (folder / name).is_dir()), None)


def _rasters(folder: Path) -> list[Path]:
    return naming.printable(naming.rasters(folder))


def _by_name(paths: Sequence[Path], source: Source) -> dict[str, Path]:
    """Returns files by the name of their scene. Raises BadInput where the pattern gives two files one name."""
    by_name: dict[str, Path] = {}
    for path in paths:
        match = re.search(source.name_pattern, path.stem) if source.name_pattern else None
        name = match[1] if match else path.stem
        if name in by_name:
            raise naming.same_name(by_name[name], path, name)
        by_name[name] = path
    return by_name


def _pair(images: Mapping[str, tuple[Path, ...]], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Returns scenes with their masks by name; without a folder of masks, scenes without."""
    mask_of = _by_name(_rasters(masks), source) if masks else {}
    scenes, problems = [], []
    for name, paths in sorted(images.items()):
        mask = mask_of.get(name) or mask_of.get(f"{name}_mask")
        if masks and mask is None:
            problems.append(
                f"{paths[0]} has no mask in {masks}. Add {name}{_ending(mask_of)} there, or remove the image."
            )
        else:
            scenes.append(Scene(name, group_of(name, name, source), paths, mask))
    if masks and images and not scenes and mask_of:
        raise naming.NamesDiffer(
            [list(images), list(mask_of)], [str(next(iter(images.values()))[0].parent), str(masks)]
        )
    return scenes, problems


def _ending(masks: Mapping[str, Path]) -> str:
    return next((path.suffix for path in masks.values()), ".tif")


def _find_patches(root: Path, paths: Sequence[Path], source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    """Pairs NumPy patches with masks; those of one image (`slice_0_img_001`, `..._002`) are one group: they overlap."""
    scenes, problems = [], []
    above = {path: path.relative_to(root).parts[:-1] for path in paths}
    for path in paths:
        head, _, tail = path.stem.rpartition("img")
        mask = path.with_name(f"{head}mask{tail}.npy")
        if not mask.is_file():  # or in a folder of its own
            mask = path.parent.parent / "masks" / mask.name
        if not labelled or mask.is_file():
            group = group_of(path.stem, head.strip("_-") or path.stem, source)
            part = naming.part_of(above[path])
            scenes.append(Scene(path.stem, group, (path,), mask if labelled else None, part))
        else:
            problems.append(f"{path} has no mask {head}mask{tail}.npy beside it: add it, or remove the patch.")
    return scenes, problems
