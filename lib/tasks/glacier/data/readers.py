"""Scenes read in windows, out of rasters of one band or of several, or of NumPy patches, and masks written.

Whatever the layout, a window is float32 with NaN where there is no data, and classes with IGNORE where no label is.
Files are other people's: a name decides the one format that is read, only the file itself is read, and what would take
memory without bounds is refused by the sizes that it states.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput
from lib.machine import disk
from lib.scores import IGNORE
from lib.tasks.glacier.data.scenes import Scene
from lib.tasks.glacier.settings import Source
from lib.text import amount

# GDAL would open any format, one that names other files too, such as .vrt
_DRIVERS = {".tif": "GTiff", ".tiff": "GTiff", ".jp2": "JP2OpenJPEG", ".img": "HFA", ".png": "PNG"}
_GDAL = {
    "GDAL_CACHEMAX": 64,  # MB; GDAL's own default is 5 % of the machine's RAM
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",  # no files beside it: world files, overviews, masks
    "GDAL_PAM_ENABLED": "NO",  # no .aux.xml
    "PROJ_NETWORK": "OFF",
}
_MOST_PIXELS = 2**31  # of a scene, 46,340 on a side; a Sentinel-2 tile has 10,980
_MOST_ON_A_SIDE = 2**20
_MOST_BYTES_AT_ONCE = 2**29  # that GDAL unpacks for one pixel: a block of all bands that lie interleaved
_MOST_HEADER = 10_000  # bytes of a .npy, NumPy's own limit, which it checks after reading all of them
_MOST_QUOTED = 200  # characters of what a file says
_NUMBERS = "biuf"  # kinds of NumPy types


class Unusable(BadInput):
    """One scene that cannot be used: the sentence names its file."""


class Opened:
    """A scene whose files are open: `height`, `width` in pixels, `crs` (text) and `transform` (affine), or None."""

    def __init__(self, scene: Scene, source: Source, height: int, width: int):
        self.scene, self.source = scene, source
        self.height, self.width = height, width
        self.crs: str | None = None
        self.transform: Any = None

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        """Reads (bands, h, w) float32 of (row, column, h, w), with NaN in every band where one has no data."""
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
        stack.enter_context(rasterio.Env(**_GDAL))
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


def write_tiff(
    path: Path, values: np.ndarray, crs: str | None, transform: Any, nodata: int | None = None, cache: bool = False
) -> None:
    """Writes (h, w) values as a GeoTIFF of one band, whole or not at all; without `crs`, with no place on the map."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = {"crs": crs, "transform": transform} if crs else {}
    shape = {"height": values.shape[0], "width": values.shape[1], "count": 1, "dtype": values.dtype.name}
    options = {"driver": "GTiff", "compress": "deflate", "nodata": nodata, **shape, **place}
    with import_rasterio().MemoryFile() as memory:  # GDAL does not report a full disk in every case
        with memory.open(**options) as file:
            file.write(values, 1)
        with disk.whole(path, cache) as aside:
            aside.write_bytes(memory.getbuffer())


class _Tiffs(Opened):
    def __init__(self, scene: Scene, source: Source, images: Sequence[Any], mask: Any):
        first = images[0]
        super().__init__(scene, source, first.height, first.width)
        several = [path for path, data in zip(scene.images, images, strict=True) if len(planes_of(data)) > 1]
        if source.band_files and several:
            raise Unusable(
                f"{several[0]} has several bands, and workload.source.band_files are of one each. Leave that file out "
                "there, or export the band."
            )
        self.images, self._mask = images, mask
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

    Colours of three bands of bytes are the codes red * 65536 + green * 256 + blue, where a code is above 255. Raises
    Unusable where several bands differ and nothing says which of them counts.
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


def planes_of(data: Any) -> list[int]:
    """Returns the numbers of a file's bands without the one that says how opaque a pixel is."""
    alpha = import_rasterio().enums.ColorInterp.alpha
    return [number for number, kind in enumerate(data.colorinterp, 1) if kind != alpha]


def coded(planes: Sequence[Any]) -> Any:
    """Returns red * 65536 + green * 256 + blue of three numbers or arrays."""
    red, green, blue = (plane.astype(np.int32) if isinstance(plane, np.ndarray) else plane for plane in planes)
    return red * 65536 + green * 256 + blue


class _Patch(Opened):
    def __init__(self, scene: Scene, source: Source):
        image = _load_array(scene.images[0])
        if image.ndim != 3:
            raise Unusable(f"{scene.images[0]} has the shape {image.shape}. A patch is (height, width, bands).")
        self._image = image if image.shape[2] <= image.shape[0] else np.moveaxis(image, 0, 2)
        super().__init__(scene, source, *self._image.shape[:2])
        if self._image.shape[2] < max(source.chosen):
            raise Unusable(
                f"{scene.images[0]} has {self._image.shape[2]} bands; the settings read band {max(source.chosen)}. Set "
                "workload.source.bands and workload.source.channels."
            )
        self._mask = _load_array(scene.mask) if scene.mask else None
        _check_size(scene.images[0], self.height, self.width)
        if self._mask is not None and (self._mask.ndim > 3 or self._mask.shape[:2] != self._image.shape[:2]):
            raise Unusable(f"{scene.mask} has the shape {self._mask.shape} and its patch {self._image.shape}.")

    def bands(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        chosen = [number - 1 for number in self.source.chosen]
        values = np.asarray(self._image[row : row + h, column : column + w])[..., chosen]
        with np.errstate(over="ignore", invalid="ignore"):
            image = np.moveaxis(values, 2, 0).astype(np.float32)
        for nodata in self.source.nodata:
            image[image == np.float32(nodata)] = np.nan
        return _joined(image)

    def mask(self, window: tuple[int, int, int, int]) -> np.ndarray:
        row, column, h, w = window
        return np.asarray(self._mask[row : row + h, column : column + w])  # type: ignore[index]


def _joined(image: np.ndarray) -> np.ndarray:
    """Sets every band to NaN where one band has no finite value: a pixel is known as a whole or not at all."""
    image[:, ~np.isfinite(image).all(0)] = np.nan
    return image


@functools.cache
def import_rasterio() -> Any:
    """Imports rasterio when the first GeoTIFF is met; NumPy patches do without. Raises BadInput if it is missing."""
    try:
        import rasterio
    except ImportError:
        raise BadInput("GeoTIFFs are read by rasterio, which is missing: pip install rasterio.") from None
    # An image without a place on the map is fine; only the mask that comes out has none either.
    warnings.filterwarnings("ignore", category=rasterio.errors.NotGeoreferencedWarning)
    return rasterio


@contextlib.contextmanager
def raster(path: Path) -> Iterator[Any]:
    """Opens one raster by itself. Raises Unusable."""
    with import_rasterio().Env(**_GDAL), open_raster(path) as data:
        yield data


def shape_of(path: Path) -> tuple[int, ...]:
    """Returns the shape of a .npy. Raises Unusable."""
    return _load_array(path).shape


@contextlib.contextmanager
def open_raster(path: Path) -> Iterator[Any]:
    """Opens a file in the format that its name says. Raises Unusable, also where reading would take too much memory."""
    driver, name = _DRIVERS.get(path.suffix.lower()), os.fspath(path.absolute())
    if driver is None or not path.is_file() or name.startswith("/vsi"):  # by which GDAL opens archives and addresses
        raise Unusable(f"{path} is no file named {', '.join(_DRIVERS)}. Export it to a GeoTIFF on this disk.")
    with contextlib.ExitStack() as stack:
        with _naming(path, f"cannot be opened as {'a GeoTIFF' if driver == 'GTiff' else path.suffix[1:].upper()}"):
            data = stack.enter_context(import_rasterio().open(name, driver=driver))
            _check_size(path, data.height, data.width)
            _check_blocks(path, data)
            others = [name for name in data.files if Path(name) != Path(data.name)] if driver == "HFA" else []
            if others:
                raise Unusable(f"{path} takes its pixels from {others[0]}. Export it to a file of its own.")
        yield data


def _check_size(path: Path, height: int, width: int) -> None:
    if height * width > _MOST_PIXELS or max(height, width) > _MOST_ON_A_SIDE:
        raise Unusable(
            f"{path} states {height:,} x {width:,} pixels; at most {_MOST_PIXELS:,} are read, and {_MOST_ON_A_SIDE:,} "
            "on a side. Cut it into scenes (gdal_translate -srcwin)."
        )


def _check_blocks(path: Path, data: Any) -> None:
    """Refuses complex numbers, and blocks that no memory holds."""
    if strange := sorted({name for name in data.dtypes if not name.startswith(("int", "uint", "float"))}):
        raise Unusable(f"{path} holds numbers of the type {strange[0]}. Convert it to real numbers.")
    rows, columns = (data.height, data.width) if data.driver == "PNG" else data.block_shapes[0]
    planes = data.count if data.driver == "PNG" or str(data.interleaving).lower().endswith("pixel") else 1
    size = rows * columns * planes * np.dtype(data.dtypes[0]).itemsize
    if size > _MOST_BYTES_AT_ONCE:
        raise Unusable(
            f"{path} can only be read in pieces of {amount(size)}. Write it in tiles: gdal_translate -co TILED=YES."
        )


def read_window(path: Path, data: Any, number: int, window: tuple[int, int, int, int]) -> np.ndarray:
    row, column, h, w = window
    with _naming(path, f"ends or breaks in the middle, at row {row}"):
        return data.read(number, window=import_rasterio().windows.Window(column, row, w, h))


@contextlib.contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    """Raises Unusable, which names the file, for what rasterio and GDAL raise."""
    rasterio = import_rasterio()
    try:
        yield
    except Unusable:
        raise
    except (rasterio.errors.RasterioError, rasterio._err.CPLE_BaseError, ValueError, OverflowError) as error:
        raise Unusable(f"{path} {what} ({error}). Copy or download it again.") from None


def _load_array(path: Path) -> np.ndarray:
    """Maps a .npy of numbers. Raises Unusable for anything else, without unpickling or reading it."""
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            size = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
        if size > _MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # whatever NumPy's parser of headers raises, from OSError to tokenize.TokenError
        why = str(error)[:_MOST_QUOTED]
        raise Unusable(f"{path} cannot be read as a NumPy array ({why}). Copy or download it again.") from None
    if array.dtype.kind not in _NUMBERS:
        kind = str(array.dtype)[:_MOST_QUOTED]
        raise Unusable(f"{path} holds {kind}, which are no numbers. Save the pixels as float32 or uint8.")
    return array
