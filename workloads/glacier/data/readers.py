"""Reads scenes in windows: rasters by GDAL, or arrays of NumPy.

A window has float32 bands with NaN for no data, and classes with IGNORE for no label. Files are untrusted: the name
decides the format, no other file is read, and too large files are refused.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.enums import ColorInterp

from lib.errors import BadInput
from lib.text import amount
from workloads.glacier.settings import IGNORE, Source

# GDAL would open any format, even one that refers to other files, such as .vrt
DRIVERS = {
    ".tif": "GTiff",
    ".tiff": "GTiff",
    ".jp2": "JP2OpenJPEG",
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
}
_LOSSY = (".jpg", ".jpeg")
_GDAL = {
    "GDAL_CACHEMAX": 64,  # MB; GDAL's own default is 5 % of the machine's RAM
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # no files beside it: world files, overviews, masks
    "GDAL_PAM_ENABLED": "NO",  # no .aux.xml
    "PROJ_NETWORK": "OFF",
}
_MOST_PIXELS = 2**31  # a scene of 46,340 on a side; a Sentinel-2 tile has 10,980
_MOST_ON_A_SIDE = 2**20
# GDAL unpacks a block for one pixel, with all bands if they are interleaved
_MOST_BYTES_AT_ONCE = 2**29
# Bytes of the header of a .npy, NumPy's own limit, which it checks after reading all of them
_MOST_HEADER = 10_000
_COLOUR = np.array((65536, 256, 1))  # times red, green and blue is a code
_MOST_QUOTED = 200  # characters of a file's content

# An image without a georeference is fine; its predicted mask lacks it too
warnings.filterwarnings("ignore", category=rasterio.errors.NotGeoreferencedWarning)

Window = tuple[int, int, int, int]  # row, column, height, width


class Unusable(BadInput):
    """An unusable scene; the message names its file."""


@dataclass(frozen=True)
class Scene:
    """One image: a file for each band or one with all bands; `mask` is None without a label.

    Scenes of one `group` must not be split. `part` is train, validation, test or "", by the name of a folder.
    """

    name: str
    group: str
    images: tuple[Path, ...]
    mask: Path | None
    part: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        if self.mask:
            return (*self.images, self.mask)
        return self.images


class Opened:
    """A scene with open files: `height` and `width` in pixels, `crs` (text) and `transform` (affine) or None."""

    def __init__(self, scene: Scene, source: Source, files: Sequence[Any]):
        """`files` are the scene's open rasters or arrays. Raises Unusable if they do not fit together."""
        first = files[0]
        path = scene.images[0]
        if scene.mask and scene.mask.suffix.lower() in _LOSSY:
            raise Unusable(
                f"The mask {scene.mask} is a JPEG, which blurs the codes of classes. Save the masks as PNG or GeoTIFF "
                "from where they were drawn."
            )
        self.scene = scene
        self.source = source
        self.files = files
        self.height = first.height
        self.width = first.width
        self.crs = first.crs.to_string() if first.crs else None
        self.transform = first.transform if first.crs else None
        self.scalings = self._scalings()
        most = max(source.chosen)
        if len(scene.images) == 1 and first.count < most:
            raise Unusable(
                f"{path} has {first.count} bands; the settings read band {most}. Set workload.source.bands and "
                "workload.source.channels."
            )
        left, bottom, right, top = self.bounds((0, 0, self.height, self.width))
        if not (0 < right - left < np.inf and 0 < top - bottom < np.inf):
            raise Unusable(
                f"{path} has no place on the map. Correct its transform, or remove its CRS."
            )
        for other, data in zip(scene.files[1:], files[1:], strict=True):
            self._check_grid(other, data)

    def _check_grid(self, other: Path, data: Any) -> None:
        """Raises Unusable if another file of the scene differs from the first in bands, size or ground."""
        first = self.files[0]
        path = self.scene.images[0]
        is_mask = other == self.scene.mask
        if not is_mask and len(_opaque(data)) > 1:
            raise Unusable(
                f"{other} has several bands, and each file must hold one. Export the band."
            )
        if (data.height, data.width) != (self.height, self.width):
            raise Unusable(
                f"{other} has {data.height} x {data.width} pixels and {path} {self.height} x {self.width}. Resample "
                "them to one grid."
            )
        if is_mask and not (
            data.crs and first.crs
        ):  # masks are often exported without a georeference
            return
        if data.crs != first.crs:
            raise Unusable(
                f"{other} is in {data.crs} and {path} in {first.crs}. Project them to one of these."
            )
        if not data.transform:
            return
        tolerance = 1e-6 * abs(first.transform.a)
        if not data.transform.almost_equals(first.transform, tolerance):
            raise Unusable(
                f"{other} and {path} have the same size but cover other ground. Resample them to one grid."
            )

    @property
    def places(self) -> list[tuple[int, int]]:
        """The file of each band, and its number in it."""
        files = range(len(self.scene.images))
        if len(files) == 1:
            return [(0, number) for number in self.source.chosen]
        return [(file, 1) for file in files]

    def _scalings(self) -> list[tuple[float, float]]:
        """Returns scale and offset of each band by its tags. Raises Unusable unless they are usable numbers."""
        scalings = []
        for file, number in self.places:
            scale = _tag(self.files[file], "scales", number, 1.0)
            offset = _tag(self.files[file], "offsets", number, 0.0)
            if scale == 0 or not np.isfinite([scale, offset]).all():
                raise Unusable(
                    f"{self.scene.images[file]} states the scale {scale:g} and the offset {offset:g}. Correct or "
                    "remove these tags (gdal_edit.py -unsetscale -unsetoffset)."
                )
            scalings.append((scale, offset))
        return scalings

    def bands(self, window: Window) -> np.ndarray:
        """Reads (bands, h, w) float32: pixels that lack a band, or are beyond the scene's end, are NaN in all bands.

        Applies scale and offset of the file's tags; nodata values are compared before.
        """
        places = self.places
        image = np.full((len(places), *window[2:]), np.nan, np.float32)
        for whole, (file, number), scaling in zip(image, places, self.scalings, strict=True):
            data = self.files[file]
            values = _read_window(self.scene.images[file], data, number, window)
            plane = whole[: values.shape[0], : values.shape[1]]
            # Numbers beyond float32 become nodata
            with np.errstate(over="ignore", invalid="ignore"):
                plane[:] = values
                if scaling != (1, 0):
                    scale, offset = scaling
                    plane[:] = values * scale + offset
            for nodata in (data.nodatavals[number - 1], *self.source.nodata):
                if nodata is not None:
                    plane[values == nodata] = np.nan
        is_known = np.isfinite(image).all(0)
        image[:, ~is_known] = np.nan
        return image

    def _mask(self, window: Window) -> np.ndarray:
        """Reads (h, w) codes, with NaN for nodata, or (h, w, layers). Raises Unusable for different bands.

        If a code is above 255, three bands of bytes are the code red * 65536 + green * 256 + blue.
        """
        path = self.scene.files[-1]
        data = self.files[-1]
        source = self.source
        layers = [_read_window(path, data, number, window) for number in _opaque(data)]
        planes = np.stack(layers, 2)
        if getattr(data, "has_layers", False):
            return planes
        is_coloured = planes.shape[2] == 3 and planes.dtype == np.uint8
        if is_coloured and max(*source.codes, *source.ignored_codes) > 255:
            return planes @ _COLOUR
        first = planes[..., 0]
        repeated = np.broadcast_to(first[..., None], planes.shape)
        if not np.array_equal(planes, repeated, equal_nan=True):
            if not is_coloured:
                raise Unusable(
                    f"The mask {path} has {planes.shape[2]} bands that differ. Export the one that has the codes."
                )
            colour = planes[(planes != repeated).any(2)][0]
            raise Unusable(
                f"The mask {path} has colours, such as {tuple(colour.tolist())}. Give red * 65536 + green * 256 + "
                f"blue in workload.source.codes (here {colour @ _COLOUR})."
            )
        nodata = data.nodatavals[0]
        if nodata is None or nodata in source.codes:  # the code of a class is not nodata
            return first
        return np.where(first == nodata, np.nan, first)

    def read(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Reads bands, and (h, w) classes with IGNORE for missing data or label. Raises Unusable."""
        image = self.bands(window)
        classes = _decode(self._mask(window), self.source, self.scene.mask)
        target = np.full(window[2:], IGNORE, np.uint8)
        target[: classes.shape[0], : classes.shape[1]] = classes
        target[np.isnan(image[0])] = IGNORE
        return image, target

    def bounds(self, window: Window) -> tuple[float, float, float, float]:
        """Returns left, bottom, right, top in the units of `crs`, or in pixels of the scene without one."""
        row, column, h, w = window
        a, b, c, d, e, f = (self.transform or rasterio.Affine.identity())[:6]
        end = min(column + w, self.width), min(row + h, self.height)
        ends = (column, row), end
        xs = [a * x + b * y + c for x, y in ends]
        ys = [d * x + e * y + f for x, y in ends]
        return min(xs), min(ys), max(xs), max(ys)


@contextlib.contextmanager
def opened(scene: Scene, source: Source) -> Iterator[Opened]:
    """Opens the files of a scene. Raises Unusable if they do not fit together."""
    with contextlib.ExitStack() as stack:
        files: list[Any] = []
        for path in scene.files:
            if path.suffix == ".npy":
                files.append(_Array(path, path == scene.mask))
            else:
                files.append(stack.enter_context(raster(path)))
        yield Opened(scene, source, files)


def _tag(data: Any, name: str, number: int, default: float) -> float:
    """Returns the value of a raster's tag for a band, or the default."""
    values = getattr(data, name, ())
    if number <= len(values):
        return float(values[number - 1])
    return default


def _opaque(data: Any) -> list[int]:
    """Returns the numbers of a file's bands without the alpha band."""
    return [number for number, kind in enumerate(data.colorinterp, 1) if kind != ColorInterp.alpha]


class _Array:
    """A .npy as a raster: an image (h, w, bands) or (bands, h, w), or a mask (h, w) of codes or (h, w, layers)."""

    crs = transform = None

    def __init__(self, path: Path, is_mask: bool):
        array = _load_array(path)
        if array.ndim != 3 and not (is_mask and array.ndim == 2):
            raise Unusable(
                f"{path} has the shape {array.shape}. A patch is (height, width, bands)."
            )
        if is_mask and array.ndim == 3 and array.shape[0] == 1:
            array = array[0]
        self.has_layers = is_mask and array.ndim == 3
        if array.ndim == 2:
            array = array[..., None]
        if not is_mask and array.shape[2] > array.shape[0]:
            array = np.moveaxis(array, 0, 2)
        self.array = array
        self.height, self.width, self.count = array.shape
        self.nodatavals = [None] * self.count
        self.colorinterp = self.nodatavals
        _check_size(path, self.height, self.width)

    def read(self, number: int, window: Any) -> np.ndarray:
        rows, columns = window.toslices()
        return np.asarray(self.array[rows, columns, number - 1])


def _decode(mask: np.ndarray, source: Source, path: Path | None) -> np.ndarray:
    """Returns (h, w) uint8 classes with IGNORE, from (h, w) codes or (h, w, layers) of zeros and ones.

    The last set layer decides (debris lies on ice). Raises Unusable, which names `path`.
    """
    if mask.ndim == 3:
        layers = mask.shape[2]
        wanted = len(source.classes) - 1
        if layers != wanted:
            raise Unusable(
                f"The mask {path} has {layers} layers, and there are {wanted} classes beside {source.classes[0]}. "
                "Correct workload.source.classes."
            )
        numbered = (mask > 0) * np.arange(1, layers + 1)
        return numbered.max(2).astype(np.uint8)
    target = np.full(mask.shape, IGNORE, np.uint8)
    for index, code in enumerate(source.codes):
        target[mask == code] = index
    is_named = np.isin(mask, source.ignored_codes)
    unknown = (target == IGNORE) & ~is_named & np.isfinite(mask)
    if unknown.any():
        codes = np.unique(mask[unknown]).tolist()
        values = ", ".join(f"{code:g}" for code in codes[:5])
        kind = "values" if len(codes) > 1 else "the value"
        raise Unusable(
            f"The mask {path} holds {kind} {values} in {int(unknown.sum()):,} pixels of a window; its coding is "
            f"{list(source.codes)}. Correct workload.source.codes or ignored_codes."
        )
    return target


@contextlib.contextmanager
def raster(path: Path) -> Iterator[Any]:
    """Opens a raster in the format of its name. Raises Unusable, also if reading would take too much memory."""
    driver = DRIVERS.get(path.suffix.lower())
    name = os.fspath(path.absolute())
    # /vsi: GDAL opens archives and addresses by it
    if driver is None or not path.is_file() or name.startswith("/vsi"):
        raise Unusable(
            f"{path} is not a file named {', '.join(DRIVERS)}. Export it to a GeoTIFF on this disk."
        )
    kind = "a GeoTIFF" if driver == "GTiff" else path.suffix[1:].upper()
    with contextlib.ExitStack() as stack:
        stack.enter_context(rasterio.Env(**_GDAL))
        with _naming(path, f"cannot be opened as {kind}"):
            data = stack.enter_context(rasterio.open(name, driver=driver))
            _check_size(path, data.height, data.width)
            for dtype in data.dtypes:
                if not dtype.startswith(("int", "uint", "float")):
                    raise Unusable(
                        f"{path} holds numbers of the type {dtype}. Convert it to real numbers."
                    )
            _check_blocks(path, data, driver in ("PNG", "JPEG"))
        yield data


def _check_blocks(path: Path, data: Any, is_whole: bool) -> None:
    """Raises Unusable for large blocks; a raster that `is_whole` is unpacked at once."""
    rows, columns = (data.height, data.width) if is_whole else data.block_shapes[0]
    planes = 1
    if is_whole or str(data.interleaving).lower().endswith("pixel"):
        planes = data.count
    size = rows * columns * planes * np.dtype(data.dtypes[0]).itemsize
    if size > _MOST_BYTES_AT_ONCE:
        raise Unusable(
            f"{path} can only be read in pieces of {amount(size)}. Run gdal_translate -co TILED=YES."
        )


def _check_size(path: Path, height: int, width: int) -> None:
    if height * width > _MOST_PIXELS or max(height, width) > _MOST_ON_A_SIDE:
        raise Unusable(
            f"{path} states {height:,} x {width:,} pixels; at most {_MOST_PIXELS:,} are read, and "
            f"{_MOST_ON_A_SIDE:,} on a side. Cut it (gdal_translate -srcwin)."
        )


def _read_window(path: Path, data: Any, number: int, window: Window) -> np.ndarray:
    row, column, h, w = window
    with _naming(path, f"ends or breaks in the middle, at row {row}"):
        return data.read(number, window=rasterio.windows.Window(column, row, w, h))


@contextlib.contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    """Turns errors of rasterio and GDAL into Unusable, which names the file."""
    try:
        yield
    except Unusable:
        raise
    except (
        rasterio.errors.RasterioError,
        rasterio._err.CPLE_BaseError,
        ValueError,
        OverflowError,
    ) as error:
        raise Unusable(f"{path} {what} ({error}). Copy or download it again.") from None


def _load_array(path: Path) -> np.ndarray:
    """Maps a .npy of numbers, without unpickling. Raises Unusable for other content."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            is_short = np.lib.format.read_magic(file) == (1, 0)
            size = int.from_bytes(file.read(2 if is_short else 4), "little")
        if size > _MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        array = np.lib.format.open_memmap(path, mode="r")
    # NumPy's parser of headers raises anything from OSError to tokenize.TokenError
    except Exception as error:
        reason = str(error)[:_MOST_QUOTED]
        raise Unusable(
            f"{path} cannot be read as a NumPy array ({reason}). Copy or download it again."
        ) from None
    if array.dtype.kind not in "biuf":
        kind = str(array.dtype)[:_MOST_QUOTED]
        raise Unusable(
            f"{path} holds {kind} instead of numbers. Save the pixels as float32 or uint8."
        )
    return array
