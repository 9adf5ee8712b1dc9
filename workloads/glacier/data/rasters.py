"""Files of pixels, opened and read: rasters by GDAL, and arrays of NumPy.

They are other people's: a name decides the one format that is read, only the file itself is read, and what would take
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
from lib.text import amount

# GDAL would open any format, one that names other files too, such as .vrt
_DRIVERS = {
    ".tif": "GTiff", ".tiff": "GTiff", ".jp2": "JP2OpenJPEG", ".img": "HFA", ".png": "PNG", ".jpg": "JPEG",
    ".jpeg": "JPEG",
}  # fmt: skip
GDAL = {
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
    with import_rasterio().Env(**GDAL), open_raster(path) as data:
        yield data


@contextlib.contextmanager
def open_raster(path: Path) -> Iterator[Any]:
    """Opens a file in the format that its name says. Raises Unusable, also where reading would take too much memory."""
    driver, name = _DRIVERS.get(path.suffix.lower()), os.fspath(path.absolute())
    if driver is None or not path.is_file() or name.startswith("/vsi"):  # by which GDAL opens archives and addresses
        raise Unusable(f"{path} is no file named {', '.join(_DRIVERS)}. Export it to a GeoTIFF on this disk.")
    if driver == "HFA" and path.with_suffix(".hdr").is_file():
        raise Unusable(f"{path} is an image of ENVI. Convert it: gdal_translate {path.name} {path.stem}.tif.")
    with contextlib.ExitStack() as stack:
        with _naming(path, f"cannot be opened as {'a GeoTIFF' if driver == 'GTiff' else path.suffix[1:].upper()}"):
            data = stack.enter_context(import_rasterio().open(name, driver=driver))
            check_size(path, data.height, data.width)
            _check_blocks(path, data)
            others = [name for name in data.files if Path(name) != Path(data.name)] if driver == "HFA" else []
            if others:
                raise Unusable(f"{path} takes its pixels from {others[0]}. Export it to a file of its own.")
        yield data


def check_size(path: Path, height: int, width: int) -> None:
    if height * width > _MOST_PIXELS or max(height, width) > _MOST_ON_A_SIDE:
        raise Unusable(
            f"{path} states {height:,} x {width:,} pixels; at most {_MOST_PIXELS:,} are read, and {_MOST_ON_A_SIDE:,} "
            "on a side. Cut it into scenes (gdal_translate -srcwin)."
        )


def _check_blocks(path: Path, data: Any) -> None:
    """Refuses complex numbers, and blocks that no memory holds."""
    if strange := sorted({name for name in data.dtypes if not name.startswith(("int", "uint", "float"))}):
        raise Unusable(f"{path} holds numbers of the type {strange[0]}. Convert it to real numbers.")
    in_one = data.driver in ("PNG", "JPEG")
    rows, columns = (data.height, data.width) if in_one else data.block_shapes[0]
    planes = data.count if in_one or str(data.interleaving).lower().endswith("pixel") else 1
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


def load_array(path: Path) -> np.ndarray:
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


def planes_of(data: Any) -> list[int]:
    """Returns the numbers of a file's bands without the one that says how opaque a pixel is."""
    alpha = import_rasterio().enums.ColorInterp.alpha
    return [number for number, kind in enumerate(data.colorinterp, 1) if kind != alpha]


def coded(planes: Sequence[Any]) -> Any:
    """Returns red * 65536 + green * 256 + blue of three numbers or arrays."""
    red, green, blue = (plane.astype(np.int32) if isinstance(plane, np.ndarray) else plane for plane in planes)
    return red * 65536 + green * 256 + blue


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
