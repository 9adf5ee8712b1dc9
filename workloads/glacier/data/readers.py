"""Reads scenes in windows: rasters by GDAL, or arrays of NumPy.

A window is float32 with NaN where there is no data, and classes with IGNORE where no label is. Files are other
people's: a name decides the one format that is read, only the file itself is read, and memory is bounded by refusals.
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

# GDAL would open any format, one that names other files too, such as .vrt
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
_MOST_PIXELS = 2**31  # of a scene, 46,340 on a side; a Sentinel-2 tile has 10,980
_MOST_ON_A_SIDE = 2**20
_MOST_BYTES_AT_ONCE = (
    2**29
)  # that GDAL unpacks for one pixel: a block of all bands that lie interleaved
_MOST_HEADER = (
    10_000  # bytes of a .npy, NumPy's own limit, which it checks after reading all of them
)
_COLOUR = np.array((65536, 256, 1))  # times red, green and blue is a code
_MOST_QUOTED = 200  # characters of what a file says

# An image without a place on the map is fine; only the mask that comes out has none either
warnings.filterwarnings("ignore", category=rasterio.errors.NotGeoreferencedWarning)

Window = tuple[int, int, int, int]  # row, column, height, width


class Unusable(BadInput):
    """One scene that cannot be used: the sentence names its file."""


@dataclass(frozen=True)
class Scene:
    """One image: a file for each band or one with all of them; `mask` is None without a label.

    `group` is what must not be split. `part` is train, validation or test if a folder says so, else "".
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
    """A scene whose files are open: `height`, `width` in pixels, `crs` (text) and `transform` (affine), or None."""

    def __init__(self, scene: Scene, source: Source, files: Sequence[Any]):
        """`files` are those of the scene, rasters or arrays, which must fit together. Raises Unusable."""
        first = files[0]
        path = scene.images[0]
        if scene.mask and scene.mask.suffix.lower() in _LOSSY:
            how = "Save the masks as PNG or GeoTIFF from where they were drawn."
            raise Unusable(
                f"The mask {scene.mask} is a JPEG, which blurs the codes of classes. {how}"
            )
        self.scene = scene
        self.source = source
        self.files = files
        self.height = first.height
        self.width = first.width
        self.crs, self.transform = (
            (first.crs.to_string(), first.transform) if first.crs else (None, None)
        )
        self.scalings = self._scalings()
        if len(scene.images) == 1 and first.count < max(source.chosen):
            what = f"{path} has {first.count} bands; the settings read band {max(source.chosen)}"
            raise Unusable(f"{what}. Set workload.source.bands and workload.source.channels.")
        left, bottom, right, top = self.bounds((0, 0, self.height, self.width))
        if not (0 < right - left < np.inf and 0 < top - bottom < np.inf):
            raise Unusable(
                f"{path} has no place on the map. Correct its transform, or remove its CRS."
            )
        for other, data in zip(scene.files[1:], files[1:], strict=True):
            if other != scene.mask and len(_opaque(data)) > 1:
                raise Unusable(
                    f"{other} has several bands, and each band is a file of its own. Export the band."
                )
            if (data.height, data.width) != (self.height, self.width):
                sizes = (
                    f"{data.height} x {data.width} pixels and {path} {self.height} x {self.width}"
                )
                raise Unusable(f"{other} has {sizes}. Resample them to one grid.")
            if other == scene.mask and not (
                data.crs and first.crs
            ):  # often exported without a georeference
                continue
            if data.crs != first.crs:
                raise Unusable(
                    f"{other} is in {data.crs} and {path} in {first.crs}. Project them to one of these."
                )
            if data.transform and not data.transform.almost_equals(
                first.transform, 1e-6 * abs(first.transform.a)
            ):
                what = f"{other} and {path} have the same size but cover other ground"
                raise Unusable(f"{what}. Resample them to one grid.")

    @property
    def places(self) -> list[tuple[int, int]]:
        """The file of each band, and its number in it."""
        files = range(len(self.scene.images))
        if len(files) == 1:
            return [(0, number) for number in self.source.chosen]
        return [(file, 1) for file in files]

    def _scalings(self) -> list[tuple[float, float]]:
        """Returns the scale and the offset that each band's tags state. Raises Unusable for those that are no unit."""
        scalings = []
        for file, number in self.places:
            scale = _tag(self.files[file], "scales", number, 1.0)
            offset = _tag(self.files[file], "offsets", number, 0.0)
            if scale == 0 or not np.isfinite([scale, offset]).all():
                what = f"{self.scene.images[file]} states the scale {scale:g} and the offset {offset:g}"
                raise Unusable(
                    f"{what}. Correct or remove these tags (gdal_edit.py -unsetscale -unsetoffset)."
                )
            scalings.append((scale, offset))
        return scalings

    def bands(self, window: Window) -> np.ndarray:
        """Reads (bands, h, w) float32, with NaN in every band where one has no data, and beyond the scene's end.

        Scale and offset that a file's tags state are applied; numbers of no data are those before that.
        """
        paths = self.scene.images
        places = self.places
        image = np.full((len(places), *window[2:]), np.nan, np.float32)
        for whole, (file, number), (scale, offset) in zip(
            image, places, self.scalings, strict=True
        ):
            values = _read_window(paths[file], self.files[file], number, window)
            plane = whole[: values.shape[0], : values.shape[1]]
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # a number that float32 lacks becomes no data
                plane[:] = values
                if (scale, offset) != (1, 0):
                    plane[:] = values * scale + offset
            for nodata in (self.files[file].nodatavals[number - 1], *self.source.nodata):
                if nodata is not None:
                    plane[values == nodata] = np.nan
        image[:, ~np.isfinite(image).all(0)] = np.nan
        return image

    def _mask(self, window: Window) -> np.ndarray:
        """Reads (h, w) codes, with NaN for no data, or (h, w, layers). Raises Unusable for bands that differ.

        Colours of three bands of bytes are the codes red * 65536 + green * 256 + blue if a code is above 255.
        """
        path = self.scene.files[-1]
        data = self.files[-1]
        source = self.source
        planes = np.stack([_read_window(path, data, number, window) for number in _opaque(data)], 2)
        if getattr(data, "has_layers", False):
            return planes
        is_coloured = planes.shape[2] == 3 and planes.dtype == np.uint8
        first = planes[..., 0]
        if is_coloured and max(*source.codes, *source.ignored_codes) > 255:
            return planes @ _COLOUR
        if not np.array_equal(
            planes, np.broadcast_to(first[..., None], planes.shape), equal_nan=True
        ):
            what = f"{planes.shape[2]} bands that differ"
            how = "Export the one that has the codes."
            if is_coloured:
                colour = planes[(planes != first[..., None]).any(2)][0]
                what = f"colours, such as {tuple(colour.tolist())}"
                how = f"Give red * 65536 + green * 256 + blue in workload.source.codes (here {colour @ _COLOUR})."
            raise Unusable(f"The mask {path} has {what}. {how}")
        nodata = data.nodatavals[0]
        is_marked = (
            nodata is not None and nodata not in source.codes
        )  # a class with this code stays a class
        if is_marked:
            return np.where(first == nodata, np.nan, first)
        return first

    def read(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Reads bands, and (h, w) classes with IGNORE where there is no data or no label. Raises Unusable."""
        image = self.bands(window)
        classes = _decode(self._mask(window), self.source, self.scene.mask)
        target = np.full(window[2:], IGNORE, np.uint8)
        target[: classes.shape[0], : classes.shape[1]] = classes
        target[np.isnan(image[0])] = IGNORE
        return image, target

    def bounds(self, window: Window) -> tuple[float, float, float, float]:
        """Returns left, bottom, right, top in the units of `crs`, or in pixels of the scene where there is none."""
        row, column, h, w = window
        a, b, c, d, e, f = (self.transform or rasterio.Affine.identity())[:6]
        ends = (column, row), (min(column + w, self.width), min(row + h, self.height))
        xs = [a * x + b * y + c for x, y in ends]
        ys = [d * x + e * y + f for x, y in ends]
        return min(xs), min(ys), max(xs), max(ys)


@contextlib.contextmanager
def opened(scene: Scene, source: Source) -> Iterator[Opened]:
    """Opens a scene and checks that its files fit together. Raises Unusable, which names the file."""
    with contextlib.ExitStack() as stack:
        arrays = {
            path: _Array(path, path == scene.mask) for path in scene.files if path.suffix == ".npy"
        }
        yield Opened(
            scene,
            source,
            [arrays.get(path) or stack.enter_context(raster(path)) for path in scene.files],
        )


def _tag(data: Any, name: str, number: int, default: float) -> float:
    """Returns what a tag of a raster states of a band; an array has no tags."""
    values = getattr(data, name, ())
    if number <= len(values):
        return float(values[number - 1])
    return default


def _opaque(data: Any) -> list[int]:
    """Returns the numbers of a file's bands but for the one that says how opaque a pixel is."""
    return [number for number, kind in enumerate(data.colorinterp, 1) if kind != ColorInterp.alpha]


class _Array:
    """A .npy as a raster: an image (h, w, bands) or (bands, h, w); a mask of codes, or of layers (h, w, layers)."""

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
        array = array[..., None] if array.ndim == 2 else array
        self.array = (
            array if is_mask or array.shape[2] <= array.shape[0] else np.moveaxis(array, 0, 2)
        )
        self.height, self.width, self.count = self.array.shape
        self.nodatavals = self.colorinterp = [None] * self.count
        _check_size(path, self.height, self.width)

    def read(self, number: int, window: Any) -> np.ndarray:
        rows, columns = window.toslices()
        return np.asarray(self.array[rows, columns, number - 1])


def _decode(mask: np.ndarray, source: Source, path: Path | None) -> np.ndarray:
    """Returns (h, w) uint8 classes with IGNORE, from (h, w) codes or (h, w, layers) of zeros and ones.

    Of layers, the last that is set decides (debris lies on ice). Raises Unusable, which names `path`.
    """
    if mask.ndim == 3:
        if (layers := mask.shape[2]) != len(source.classes) - 1:
            beside = f"there are {len(source.classes) - 1} classes beside {source.classes[0]}"
            raise Unusable(
                f"The mask {path} has {layers} layers, and {beside}. Correct workload.source.classes."
            )
        return ((mask > 0) * np.arange(1, layers + 1)).max(2).astype(np.uint8)
    target = np.full(mask.shape, IGNORE, np.uint8)
    for index, code in enumerate(source.codes):
        target[mask == code] = index
    unknown = (target == IGNORE) & ~np.isin(mask, source.ignored_codes) & np.isfinite(mask)
    if unknown.any():
        codes = np.unique(mask[unknown]).tolist()
        values = f"{'values' if len(codes) > 1 else 'the value'} {', '.join(f'{code:g}' for code in codes[:5])}"
        what = f"{values} in {int(unknown.sum()):,} pixels of a window; its coding is {list(source.codes)}"
        raise Unusable(
            f"The mask {path} holds {what}. Correct workload.source.codes or ignored_codes."
        )
    return target


@contextlib.contextmanager
def raster(path: Path) -> Iterator[Any]:
    """Opens one raster in the format that its name says. Raises Unusable, also where reading takes too much memory."""
    driver = DRIVERS.get(path.suffix.lower())
    name = os.fspath(path.absolute())
    if (
        driver is None or not path.is_file() or name.startswith("/vsi")
    ):  # by which GDAL opens archives and addresses
        raise Unusable(
            f"{path} is no file named {', '.join(DRIVERS)}. Export it to a GeoTIFF on this disk."
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(rasterio.Env(**_GDAL))
        with _naming(
            path,
            f"cannot be opened as {'a GeoTIFF' if driver == 'GTiff' else path.suffix[1:].upper()}",
        ):
            data = stack.enter_context(rasterio.open(name, driver=driver))
            _check_size(path, data.height, data.width)
            if strange := [
                name for name in data.dtypes if not name.startswith(("int", "uint", "float"))
            ]:
                raise Unusable(
                    f"{path} holds numbers of the type {strange[0]}. Convert it to real numbers."
                )
            is_whole = driver in ("PNG", "JPEG")  # unpacked at once
            rows, columns = (data.height, data.width) if is_whole else data.block_shapes[0]
            if is_whole or str(data.interleaving).lower().endswith("pixel"):
                planes = data.count
            else:
                planes = 1
            if (
                size := rows * columns * planes * np.dtype(data.dtypes[0]).itemsize
            ) > _MOST_BYTES_AT_ONCE:
                what = f"{path} can only be read in pieces of {amount(size)}"
                raise Unusable(f"{what}. Run gdal_translate -co TILED=YES.")
        yield data


def _check_size(path: Path, height: int, width: int) -> None:
    if height * width > _MOST_PIXELS or max(height, width) > _MOST_ON_A_SIDE:
        most = f"at most {_MOST_PIXELS:,} are read, and {_MOST_ON_A_SIDE:,} on a side"
        raise Unusable(
            f"{path} states {height:,} x {width:,} pixels; {most}. Cut it (gdal_translate -srcwin)."
        )


def _read_window(path: Path, data: Any, number: int, window: Window) -> np.ndarray:
    row, column, h, w = window
    with _naming(path, f"ends or breaks in the middle, at row {row}"):
        return data.read(number, window=rasterio.windows.Window(column, row, w, h))


@contextlib.contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    """Raises Unusable, which names the file, for what rasterio and GDAL raise."""
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
    """Maps a .npy of numbers. Raises Unusable for anything else, without unpickling or reading it."""
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        with path.open("rb") as file:
            size = int.from_bytes(
                file.read(2 if np.lib.format.read_magic(file) == (1, 0) else 4), "little"
            )
        if size > _MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        array = np.lib.format.open_memmap(path, mode="r")
    except (
        Exception
    ) as error:  # whatever NumPy's parser of headers raises, from OSError to tokenize.TokenError
        why = str(error)[:_MOST_QUOTED]
        raise Unusable(
            f"{path} cannot be read as a NumPy array ({why}). Copy or download it again."
        ) from None
    if array.dtype.kind not in "biuf":
        kind = str(array.dtype)[:_MOST_QUOTED]
        raise Unusable(
            f"{path} holds {kind}, which are no numbers. Save the pixels as float32 or uint8."
        )
    return array
