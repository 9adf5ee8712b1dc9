"""Scenes read in windows, out of rasters of one band or of several, or of NumPy patches, and masks written.

Whatever the layout, a window is float32 with NaN where there is no data, and classes with IGNORE where no label is.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.scores import IGNORE
from workloads.glacier.data.rasters import (
    GDAL,
    Unusable,
    check_size,
    coded,
    import_rasterio,
    load_array,
    open_raster,
    planes_of,
    read_window,
)  # fmt: skip
from workloads.glacier.data.scenes import Scene
from workloads.glacier.settings import Source


class Opened:
    """A scene whose files are open: `height`, `width` in pixels, `crs` (text) and `transform` (affine), or None."""

    def __init__(self, scene: Scene, source: Source, height: int, width: int):
        self.scene, self.source = scene, source
        self.height, self.width = height, width
        self.crs: str | None = None
        self.transform: Any = None

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """Reads (bands, h, w) float32 of (row, column, h, w), with NaN in every band where one has no data."""
        image = self._planes(window)
        image[:, ~np.isfinite(image).all(0)] = np.nan
        return image

    def _planes(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """Reads (bands, h, w) float32 as they are in the files, with NaN for no data."""
        raise NotImplementedError

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """Reads (h, w) or (h, w, layers) of the mask as it is on disk."""
        raise NotImplementedError

    def read(self, window: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Reads bands, and (h, w) classes with IGNORE where there is no data or no label. Raises Unusable."""
        image = self.bands(window)
        target = decode(self.mask(window), self.source, self.scene.mask)
        target[np.isnan(image[0])] = IGNORE
        return image, target

    def bounds(self, window: tuple[int, int, int, int]) -> tuple[float, float, float, float]:
        """Returns left, bottom, right, top in the units of `crs`, or in pixels of the scene where there is none."""
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
        stack.enter_context(rasterio.Env(**GDAL))
        images = [stack.enter_context(open_raster(path)) for path in scene.images]
        mask = stack.enter_context(open_raster(scene.mask)) if scene.mask else None
        yield _Tiffs(scene, source, images, mask)


def decode(mask: np.ndarray, source: Source, path: Path | None) -> np.ndarray:
    """Returns (h, w) uint8 classes with IGNORE, from (h, w) codes or (h, w, layers) of zeros and ones.

    Of layers, the last that is set decides (debris lies on ice). Raises Unusable, which names `path`.
    """
    if mask.ndim == 3:
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
    target = np.full(mask.shape, IGNORE, np.uint8)
    for index, code in enumerate(source.codes):
        target[mask == code] = index
    unknown = (target == IGNORE) & ~np.isin(mask, source.ignored_codes) & np.isfinite(mask)
    if unknown.any():
        codes = np.unique(mask[unknown]).tolist()
        raise Unusable(
            f"The mask {path} holds {'values' if len(codes) > 1 else 'the value'} "
            f"{', '.join(f'{code:g}' for code in codes[:5])} in {int(unknown.sum()):,} pixels of a window; its coding "
            f"is {list(source.codes)}. Correct workload.source.codes, or name them in workload.source.ignored_codes."
        )
    return target


class _Tiffs(Opened):
    def __init__(self, scene: Scene, source: Source, images: Sequence[Any], mask: Any):
        first = images[0]
        super().__init__(scene, source, first.height, first.width)
        self.images, self._mask = images, mask
        if several := [path for path, data in zip(scene.images, images, strict=True) if len(planes_of(data)) > 1][1:]:
            raise Unusable(f"{several[0]} has several bands, and each band is a file of its own. Export the band.")
        if len(images) == 1 and first.count < max(source.chosen):
            raise Unusable(
                f"{scene.images[0]} has {first.count} bands; the settings read band {max(source.chosen)}. Add the "
                "missing ones, or set workload.source.bands and workload.source.channels."
            )
        if first.crs:
            self.crs, self.transform = first.crs.to_string(), first.transform
            left, bottom, right, top = self.bounds((0, 0, self.height, self.width))
            if not (0 < right - left < np.inf and 0 < top - bottom < np.inf):
                raise Unusable(f"{scene.images[0]} has no place on the map. Correct its transform, or remove its CRS.")
        for path, other in zip(scene.files[1:], [*images[1:], *([mask] if mask else [])], strict=True):
            self._refuse_other_grid(path, other, is_mask=other is mask)

    def _refuse_other_grid(self, path: Path, other: Any, is_mask: bool) -> None:
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

    def _planes(self, window: tuple[int, int, int, int]) -> np.ndarray:
        files = list(zip(self.scene.images, self.images, strict=True))
        planes = [(*file, 1) for file in files] if files[1:] else [(*files[0], number) for number in self.source.chosen]
        return np.stack([self._plane(*plane, window) for plane in planes])

    def _plane(self, path: Path, data: Any, number: int, window: tuple[int, int, int, int]) -> np.ndarray:
        values = read_window(path, data, number, window)
        with np.errstate(over="ignore", invalid="ignore"):  # a number that float32 lacks becomes no data
            plane = values.astype(np.float32)
        for nodata in (data.nodatavals[number - 1], *self.source.nodata):
            if nodata is not None and not np.isnan(nodata):
                plane[values == nodata] = np.nan
        return plane

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        assert self.scene.mask
        return read_mask(self.scene.mask, self._mask, self.source, window)


def read_mask(path: Path, data: Any, source: Source, window: tuple[int, int, int, int]) -> np.ndarray:
    """Reads (h, w) codes, with NaN for no data, or the (h, w, layers) that `source.mask_layers` choose from.

    Colours of three bands of bytes are the codes red * 65536 + green * 256 + blue if a code is above 255. Raises
    Unusable if several bands differ and no key says which of them counts.
    """
    numbers = planes_of(data)
    if source.mask_band > data.count or (source.mask_layers and max(source.mask_layers) > data.count > 1):
        raise Unusable(f"{path} has {data.count} bands, fewer than workload.source.mask_band or mask_layers say.")
    if source.mask_band or len(numbers) < 2:
        number = source.mask_band or 1
        values = read_window(path, data, number, window)
        nodata = data.nodatavals[number - 1]
        if nodata is not None and nodata not in source.codes:  # a class whose code is also marked stays a class
            values = np.where(values == nodata, np.nan, values)
        return values
    planes = [read_window(path, data, number, window) for number in numbers]
    if source.mask_layers:
        return np.stack(planes, 2)
    coloured = len(planes) == 3 and set(data.dtypes) == {"uint8"}
    if coloured and max(*source.codes, *source.ignored_codes) > 255:
        return coded(planes)
    if all(np.array_equal(planes[0], plane, equal_nan=True) for plane in planes[1:]):
        return planes[0]
    if coloured:
        differ = (planes[0] != planes[1]) | (planes[0] != planes[2])
        colour = [int(plane[differ][0]) for plane in planes]
        raise Unusable(
            f"The mask {path} has colours, such as {tuple(colour)}. Give red * 65536 + green * 256 + blue of each "
            f"class as its code in workload.source.codes (here {coded(colour)}), or the one band that has the codes in "
            "workload.source.mask_band."
        )
    raise Unusable(
        f"The mask {path} has {len(planes)} bands that differ. Say in workload.source.mask_band which one has the "
        "codes, or in workload.source.mask_layers which of them are classes."
    )


class _Patch(Opened):
    def __init__(self, scene: Scene, source: Source):
        image = load_array(scene.images[0])
        if image.ndim != 3:
            raise Unusable(f"{scene.images[0]} has the shape {image.shape}. A patch is (height, width, bands).")
        self._image = image if image.shape[2] <= image.shape[0] else np.moveaxis(image, 0, 2)
        super().__init__(scene, source, *self._image.shape[:2])
        if self._image.shape[2] < max(source.chosen):
            raise Unusable(
                f"{scene.images[0]} has {self._image.shape[2]} bands; the settings read band {max(source.chosen)}. Set "
                "workload.source.bands and workload.source.channels."
            )
        self._mask = load_array(scene.mask) if scene.mask else None
        if self._mask is not None and self._mask.ndim == 3 and self._mask.shape[0] == 1 < self.height:
            self._mask = self._mask[0]
        check_size(scene.images[0], self.height, self.width)
        if self._mask is not None and (self._mask.ndim > 3 or self._mask.shape[:2] != self._image.shape[:2]):
            raise Unusable(f"{scene.mask} has the shape {self._mask.shape} and its patch {self._image.shape}.")

    def _planes(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        chosen = [number - 1 for number in self.source.chosen]
        values = np.asarray(self._image[row : row + h, column : column + w])[..., chosen]
        with np.errstate(over="ignore", invalid="ignore"):
            image = np.moveaxis(values, 2, 0).astype(np.float32)
        for nodata in self.source.nodata:
            image[image == np.float32(nodata)] = np.nan
        return image

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        return np.asarray(self._mask[row : row + h, column : column + w])  # type: ignore[index]
