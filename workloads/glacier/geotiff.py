"""Maps as cloud-optimised GeoTIFFs: tiles and overviews, with the colours and the names of the classes."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk
from workloads.glacier.data import rasters

COLOURS = ("#6b5b4b", "#7fc8f8", "#e0a030", "#1f3fbf", "#4f9d4f", "#b04fb0", "#d04f4f", "#404040")  # of classes, again
_USUAL = 255  # that stands for no data wherever no class has this code
_TYPES = ("uint8", "uint16", "int16", "int32")  # the smallest that holds all codes is taken


def coding(codes: Sequence[int]) -> tuple[np.dtype, int]:
    """Returns the type of a map of these codes, and the number in it that stands for no data."""
    for name in _TYPES:
        limits = np.iinfo(name)
        numbers = itertools.chain([_USUAL], range(limits.max, limits.min - 1, -1))
        if limits.min <= min(codes) and max(codes) <= limits.max:
            return np.dtype(name), next(number for number in numbers if number not in codes)
    raise ValueError(f"The codes {min(codes)} to {max(codes)} need more than 32 bits.")


def write(
    path: Path,
    planes: np.ndarray,
    place: tuple[str | None, Any],
    nodata: int,
    names: Sequence[str],
    tags: Mapping[str, str],
    colours: Mapping[int, str] | None = None,
) -> None:
    """Writes (bands, h, w) with the bands' `names`, whole or not at all.

    `place` is the CRS and the transform; without a CRS there is neither. `colours` are those of the values of a band of
    8 or 16 bits, and overviews then hold values that are there, not means of them.
    """
    rasterio = rasters.import_rasterio()
    from rasterio.shutil import copy  # once it is known to be there

    path.parent.mkdir(parents=True, exist_ok=True)
    crs, transform = place
    where = {"crs": crs, "transform": transform} if crs else {}
    count, height, width = planes.shape
    shape = {"height": height, "width": width, "count": count, "dtype": planes.dtype.name, "nodata": nodata}
    options = {"compress": "DEFLATE", "blocksize": 512, "overview_resampling": "NEAREST" if colours else "AVERAGE"}
    with rasterio.MemoryFile() as plain, rasterio.MemoryFile() as optimised:
        with plain.open(driver="GTiff", tiled=True, blockxsize=512, blockysize=512, **shape, **where) as file:
            file.write(planes)
            file.descriptions = tuple(names)
            file.update_tags(**tags)
            if colours and planes.dtype in (np.uint8, np.uint16):
                file.write_colormap(1, {value: _channels(colour) for value, colour in colours.items()})
        with plain.open() as file:
            copy(file, optimised.name, driver="COG", **options)
        with disk.whole(path) as aside:  # GDAL does not report a full disk in every case
            aside.write_bytes(optimised.getbuffer())


def tags_of(path: Path) -> dict[str, str]:
    """Returns the tags of a map that was written; none where there is no whole one."""
    if not path.is_file():
        return {}
    try:
        with rasters.raster(path) as file:
            return file.tags()
    except rasters.Unusable:
        return {}


def _channels(colour: str) -> tuple[int, int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue, 255
