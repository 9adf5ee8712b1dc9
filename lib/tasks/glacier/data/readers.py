"""Scenes as they lie on disk, read in windows: single-band GeoTIFFs, multi-band GeoTIFFs, and NumPy patches.

Three layouts are known:

    Band1/NAME.tif ... BandN/NAME.tif    label/NAME.tif           one file a band (GlacierHack)
    images/NAME.tif                      masks/NAME.tif           one file with all bands
    slice_0_img_001.npy                  slice_0_mask_001.npy     (H, W, bands) and (H, W, classes) (HKH)

Whatever the layout, a window comes out as float32 with NaN where there is no data, and as classes with IGNORE where
nothing is known.
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput
from lib.scores import IGNORE
from lib.tasks.glacier.settings import Source

_MASK_FOLDERS = ("label", "labels", "mask", "masks", "Label", "Labels", "Mask", "Masks")
_IMAGE_FOLDERS = ("images", "image", "Images", "Image")
_DEPTH = 3  # folders below the data's root that are searched for a layout
_GDAL_CACHE_MB = 64  # GDAL's own default is 5 % of the machine's RAM
_TIFFS = (".tif", ".tiff", ".TIF", ".TIFF")
_BAND = re.compile(r"Band(\d+)")


class Unusable(BadInput):
    """One scene that cannot be used: the sentence names its file."""


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


# --- finding scenes ---------------------------------------------------------------------------------------------------


def home(found: Path) -> Path:
    """The data's own folder, where a search by file names stopped at one of those in it."""
    if not (_BAND.fullmatch(found.name) or found.name in (*_IMAGE_FOLDERS, *_MASK_FOLDERS)):
        return found
    inner = found.parent  # may be Test, beside Train with the masks
    return inner if _masks_of(inner) or not _masks_of_neighbours(inner) else inner.parent


def _masks_of_neighbours(folder: Path) -> bool:
    return any(_masks_of(other) for other in folder.parent.iterdir() if other.is_dir())


def find(root: Path, source: Source, labelled: bool = True) -> tuple[list[Scene], list[str]]:
    """The scenes below a folder in the order of their names, and a sentence for each that lacks a band or its mask.

    With `labelled`, a scene without a mask is such a problem; without, masks are not looked for. Raises BadInput where
    no known layout is found.
    """
    if not root.is_dir():
        raise BadInput(f"{root} is no folder. Give the folder that holds Band1, Band2, ... or the images.")
    folders = [root, *_below(root, _DEPTH)]
    banded = [folder for folder in folders if (folder / f"Band{source.chosen[0]}").is_dir()]
    if banded:
        folder = _the_one(banded, root, labelled)
        masks = _masks_of(folder) if labelled else None
        if labelled and masks is None:
            raise BadInput(
                f"{folder} has bands but no masks. Put them in {folder / _MASK_FOLDERS[0]}, by the same names."
            )
        return find_bands({number: folder / f"Band{number}" for number in source.chosen}, source, masks)
    if any(_patches(folder) for folder in folders):
        return _find_patches([patch for folder in folders for patch in _patches(folder)], source, labelled)
    for folder in folders:
        images = next((folder / name for name in _IMAGE_FOLDERS if _tiffs(folder / name)), folder)
        masks = _masks_of(folder) if labelled else None
        if _tiffs(images) and (masks or not labelled):
            named = _named(_tiffs(images), source)
            return _pair({name: (path,) for name, path in named.items()}, source, masks)
    raise BadInput(
        f"{root} holds no images in a known layout: folders Band1 to Band{source.chosen[-1]} with one GeoTIFF a scene, "
        "a folder images with multi-band GeoTIFFs, or patches named *_img_*.npy; masks lie in a folder label or "
        "masks beside them, or are named *_mask_*.npy."
    )


def find_bands(folders: Mapping[int, Path], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Scenes of one GeoTIFF a band. `folders` maps the number of a band to its folder."""
    by_band = {number: _named(_tiffs(folder), source) for number, folder in folders.items()}
    names = sorted(set().union(*by_band.values()))
    if not set.intersection(*(set(found) for found in by_band.values())):
        examples = ", ".join(next(iter(sorted(found)), "nothing") for found in by_band.values())
        raise BadInput(
            f"No scene has all of its bands in {', '.join(map(str, folders.values()))} (names there: {examples}). "
            "Where a scene's files are named differently in each folder, give workload.source.name_pattern, for "
            r"example '(\d+_\d+)' or 'img(\d+)'."
        )
    whole: dict[str, tuple[Path, ...]] = {}
    problems = []
    for name in names:
        if missing := [folders[number] for number, found in by_band.items() if name not in found]:
            listed = ", ".join(str(folder) for folder in missing)
            problems.append(f"{name} has no file in {listed}: a band is missing. Add it, or remove its other bands.")
        else:
            whole[name] = tuple(found[name] for found in by_band.values())
    scenes, unlabelled = _pair(whole, source, masks)
    return scenes, problems + unlabelled


def counts(scenes: Sequence[Scene], problems: Sequence[str]) -> str:
    """How many files there are for each band, for printing."""
    if not scenes:
        return f"No scene is whole; {len(problems)} have something missing."
    per_file: dict[str, int] = {}
    for scene in scenes:
        for path in scene.files:
            kind = path.parent.name if path.suffix != ".npy" else "masks" if path == scene.mask else "patches"
            per_file[kind] = per_file.get(kind, 0) + 1
    listed = ", ".join(f"{kind} {number:,}" for kind, number in sorted(per_file.items()))
    return f"{len(scenes):,} scenes (files: {listed}); {len(problems):,} with something missing"


def _below(folder: Path, depth: int) -> Iterator[Path]:
    inner = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    for path in inner:
        yield path
        if depth > 1:
            yield from _below(path, depth - 1)


def _the_one(banded: list[Path], root: Path, labelled: bool) -> Path:
    """The folder with the bands; where there are several (Train, Test), the one that has labels."""
    with_masks = [folder for folder in banded if _masks_of(folder)]
    found = with_masks if labelled and with_masks else banded
    if len(found) > 1:
        listed = ", ".join(str(folder.relative_to(root)) for folder in found)
        raise BadInput(f"{root} holds bands in {len(found)} folders: {listed}. Name one of them in data.dir.")
    return found[0]


def _masks_of(folder: Path) -> Path | None:
    return next((folder / name for name in _MASK_FOLDERS if (folder / name).is_dir()), None)


def _tiffs(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in _TIFFS and p.is_file()) if folder.is_dir() else []


def _patches(folder: Path) -> list[Path]:
    return sorted(folder.glob("*img*.npy"))


def _named(paths: Sequence[Path], source: Source) -> dict[str, Path]:
    """Files by the name of their scene. Raises BadInput where the pattern does not tell two files apart."""
    found: dict[str, Path] = {}
    for path in paths:
        match = re.search(source.name_pattern, path.stem) if source.name_pattern else None
        name = match[1] if match else path.stem
        if name in found:
            raise BadInput(
                f"{found[name]} and {path} are both called {name} by workload.source.name_pattern. Make it tell them "
                "apart."
            )
        found[name] = path
    return found


def _pair(whole: Mapping[str, tuple[Path, ...]], source: Source, masks: Path | None) -> tuple[list[Scene], list[str]]:
    """Scenes with their masks by name; without a folder of masks, scenes without."""
    named = _named(_tiffs(masks), source) if masks else {}
    scenes, problems = [], []
    for name, images in sorted(whole.items()):
        mask = named.get(name) or named.get(f"{name}_mask")
        if masks and mask is None:
            problems.append(f"{images[0]} has no mask in {masks}. Add {name}.tif there, or remove the image.")
        else:
            scenes.append(Scene(name, _group(name, name, source), images, mask))
    return scenes, problems


def _find_patches(paths: Sequence[Path], source: Source, labelled: bool) -> tuple[list[Scene], list[str]]:
    """NumPy patches; those of one source image (`slice_0_img_001`, `slice_0_img_002`) are one group: they overlap."""
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


def _group(name: str, usual: str, source: Source) -> str:
    match = re.search(source.group_pattern, name) if source.group_pattern else None
    return match[1] if match else usual


# --- reading ----------------------------------------------------------------------------------------------------------


class Opened:
    """A scene whose files are open: `height`, `width` in pixels, `crs` (text) and `transform` (affine), or None."""

    def __init__(self, scene: Scene, source: Source, height: int, width: int):
        self.scene, self.source = scene, source
        self.height, self.width = height, width
        self.crs: str | None = None
        self.transform: Any = None

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """(bands, h, w) float32 of (row, column, h, w), with NaN in every band where one has no data."""
        raise NotImplementedError

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """(h, w) or (h, w, layers) of the mask as it is on disk."""
        raise NotImplementedError

    def read(self, window: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Bands, and (h, w) classes with IGNORE where there is no data or no label. Raises Unusable."""
        image = self.bands(window)
        target = decode(self.mask(window), self.source, self.scene.mask)
        target[np.isnan(image[0])] = IGNORE
        return image, target

    def bounds(self, window: tuple[int, int, int, int]) -> tuple[float, float, float, float]:
        """Left, bottom, right, top in the units of `crs`; in pixels of the scene where there is none."""
        row, column, h, w = window
        if self.transform is None:
            return float(column), float(row), float(column + w), float(row + h)
        to = self.transform
        xs = [to.a * x + to.b * y + to.c for x, y in ((column, row), (column + w, row + h))]
        ys = [to.d * x + to.e * y + to.f for x, y in ((column, row), (column + w, row + h))]
        return min(xs), min(ys), max(xs), max(ys)


@contextlib.contextmanager
def opened(scene: Scene, source: Source) -> Iterator[Opened]:
    """Opens a scene and checks that its files fit together. Raises Unusable, which names the file."""
    if scene.images[0].suffix == ".npy":
        yield _Patch(scene, source)
        return
    rasterio = import_rasterio()
    with contextlib.ExitStack() as stack:
        stack.enter_context(rasterio.Env(GDAL_CACHEMAX=_GDAL_CACHE_MB))
        images = [stack.enter_context(_open_tiff(path)) for path in scene.images]
        mask = stack.enter_context(_open_tiff(scene.mask)) if scene.mask else None
        yield _Tiffs(scene, source, images, mask)


def decode(mask: np.ndarray, source: Source, path: Path | None) -> np.ndarray:
    """The classes behind a mask's codes, or behind its layers, as uint8 with IGNORE. Raises Unusable."""
    if mask.ndim == 3:
        return _from_layers(mask, source, path)
    target = np.full(mask.shape, IGNORE, np.uint8)
    for index, code in enumerate(source.codes):
        target[mask == code] = index
    left = target == IGNORE
    if left.any():
        known = np.isin(mask, source.ignored_codes) | ~np.isfinite(mask)
        if strange := np.unique(mask[left & ~known]).tolist():
            shown = ", ".join(f"{value:g}" for value in strange[:5])
            raise Unusable(
                f"The mask {path} holds {'values' if len(strange) > 1 else 'the value'} {shown} in "
                f"{int((left & ~known).sum()):,} pixels of a window; its coding is {list(source.codes)}. Correct "
                "workload.source.codes, or name them in workload.source.ignored_codes."
            )
    return target


def _from_layers(mask: np.ndarray, source: Source, path: Path | None) -> np.ndarray:
    """(h, w, layers) of zeros and ones: the last layer that is set decides (debris lies on ice)."""
    layers = source.mask_layers or tuple(range(1, mask.shape[2] + 1))
    if len(layers) != len(source.classes) - 1 or max(layers) > mask.shape[2]:
        raise Unusable(
            f"The mask {path} has {mask.shape[2]} layers, and there are {len(source.classes) - 1} classes beside "
            f"{source.classes[0]}. Say in workload.source.mask_layers which layers they are."
        )
    target = np.zeros(mask.shape[:2], np.uint8)
    for index, layer in enumerate(layers, 1):
        target[np.nan_to_num(mask[..., layer - 1]) > 0] = index
    return target


class _Tiffs(Opened):
    def __init__(self, scene: Scene, source: Source, images: Sequence[Any], mask: Any):
        first = images[0]
        super().__init__(scene, source, first.height, first.width)
        self.images, self._mask = images, mask
        if len(images) == 1 and first.count < max(source.chosen):
            raise Unusable(
                f"{scene.images[0]} has {first.count} bands; band {max(source.chosen)} is asked for. Add the missing "
                "ones, or set workload.source.bands and workload.source.channels."
            )
        if first.crs:
            self.crs, self.transform = first.crs.to_string(), first.transform
        others = [*zip(scene.images[1:], images[1:], strict=True), *([(scene.mask, mask)] if mask else [])]
        for path, other in others:
            self._refuse_other_grid(path, other, is_mask=other is mask)

    def _refuse_other_grid(self, path: Path | None, other: Any, is_mask: bool) -> None:
        first, reference = self.scene.images[0], self.images[0]
        if (other.height, other.width) != (self.height, self.width):
            raise Unusable(
                f"{path} has {other.height} x {other.width} pixels and {first} {self.height} x {self.width}. Resample "
                "them to one grid."
            )
        if is_mask and not (other.crs and reference.crs):  # masks are often exported without a georeference
            return
        if other.crs != reference.crs:
            raise Unusable(f"{path} is in {other.crs} and {first} in {reference.crs}. Project them to one of these.")
        if not other.transform.almost_equals(reference.transform, 1e-6 * abs(reference.transform.a)):
            raise Unusable(f"{path} and {first} have the same size but cover other ground. Resample them to one grid.")

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        if len(self.images) == 1:
            planes = [(self.scene.images[0], self.images[0], number) for number in self.source.chosen]
        else:
            planes = [(path, data, 1) for path, data in zip(self.scene.images, self.images, strict=True)]
        image = np.stack([self._plane(path, data, number, window) for path, data, number in planes])
        return _joined(image)

    def _plane(self, path: Path, data: Any, number: int, window: tuple[int, int, int, int]) -> np.ndarray:
        values = _read_window(path, data, number, window)
        plane = values.astype(np.float32)
        for nodata in (data.nodatavals[number - 1], *self.source.nodata):
            if nodata is not None and not np.isnan(nodata):
                plane[values == nodata] = np.nan
        return plane

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        assert self.scene.mask
        values = _read_window(self.scene.mask, self._mask, 1, window)
        nodata = self._mask.nodatavals[0]
        if nodata is not None and nodata not in self.source.codes:  # a class whose code is also marked stays a class
            values = np.where(values == nodata, np.nan, values)
        return values


class _Patch(Opened):
    def __init__(self, scene: Scene, source: Source):
        image = _load_array(scene.images[0])
        if image.ndim != 3:
            raise Unusable(f"{scene.images[0]} has the shape {image.shape}. A patch is (height, width, bands).")
        self._image = image if image.shape[2] <= image.shape[0] else np.moveaxis(image, 0, 2)
        super().__init__(scene, source, *self._image.shape[:2])
        if self._image.shape[2] < max(source.chosen):
            raise Unusable(
                f"{scene.images[0]} has {self._image.shape[2]} bands; band {max(source.chosen)} is asked for. Set "
                "workload.source.bands and workload.source.channels."
            )
        self._mask = _load_array(scene.mask) if scene.mask else None
        if self._mask is not None and self._mask.shape[:2] != self._image.shape[:2]:
            raise Unusable(f"{scene.mask} has the shape {self._mask.shape} and its patch {self._image.shape}.")

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        chosen = [number - 1 for number in self.source.chosen]
        values = np.asarray(self._image[row : row + h, column : column + w])[..., chosen]
        image = np.moveaxis(values, 2, 0).astype(np.float32)
        for nodata in self.source.nodata:
            image[image == np.float32(nodata)] = np.nan
        return _joined(image)

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        return np.asarray(self._mask[row : row + h, column : column + w])  # type: ignore[index]


def _joined(image: np.ndarray) -> np.ndarray:
    """NaN in every band wherever one band has no finite value: a pixel is known as a whole or not at all."""
    image[:, ~np.isfinite(image).all(0)] = np.nan
    return image


@functools.cache
def import_rasterio() -> Any:
    """Imported when a GeoTIFF is met: NumPy patches need none of it. Raises BadInput where it is missing."""
    try:
        import rasterio
    except ImportError:
        raise BadInput("GeoTIFFs are read by rasterio, which is missing: pip install rasterio.") from None
    # An image without a place on the map is fine; only the mask that comes out has none either.
    warnings.filterwarnings("ignore", category=rasterio.errors.NotGeoreferencedWarning)
    return rasterio


@contextlib.contextmanager
def _open_tiff(path: Path) -> Iterator[Any]:
    rasterio = import_rasterio()
    try:
        data = rasterio.open(path)
    except rasterio.errors.RasterioError as error:
        raise Unusable(f"{path} cannot be opened as a GeoTIFF ({error}). Copy or download it again.") from None
    with data:
        yield data


def _read_window(path: Path, data: Any, number: int, window: tuple[int, int, int, int]) -> np.ndarray:
    rasterio = import_rasterio()
    row, column, h, w = window
    try:
        return data.read(number, window=rasterio.windows.Window(column, row, w, h))
    except rasterio.errors.RasterioError as error:
        raise Unusable(
            f"{path} ends or breaks in the middle, at row {row} ({error}). Copy or download it again."
        ) from None


def _load_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise Unusable(f"{path} cannot be read as a NumPy array ({error}). Copy or download it again.") from None
