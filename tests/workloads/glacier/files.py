"""Small scenes on disk, for the tests of glacier's data side."""

from pathlib import Path

import numpy as np
import rasterio

from workloads.glacier.settings import Source

TWO = Source(bands=("red", "nir"))
PATCHES = Source(
    bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2)
)


def coded(classes):
    """The mask of classes 0 to 3."""
    return np.asarray(TWO.codes, np.uint8)[classes]


def write_tiff(path: Path, values, origin=(0, 0), crs="EPSG:32643", nodata=None, **options):
    transform = rasterio.Affine(30.0, 0, origin[0], 0, -30.0, origin[1])
    place = {"crs": crs, "transform": transform} if crs else {}
    return write_image(path, values, "GTiff", nodata=nodata, **place, **options)


def write_image(path: Path, values, driver="PNG", **options):
    """(h, w) or (bands, h, w) values in a format of one's choice, without a place on the map if none is given."""
    planes = np.asarray(values)
    if planes.ndim == 2:
        planes = planes[None]
    path.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = planes.shape
    shape = {"height": height, "width": width, "count": count, "dtype": planes.dtype.name}
    with rasterio.open(path, "w", driver=driver, **{**shape, **options}) as file:
        file.write(planes)
    path.with_name(f"{path.name}.aux.xml").unlink(missing_ok=True)
    return path


def scene(seed=0, size=(64, 64), bands=2):
    """(bands, h, w) float32 and (h, w) classes 0 to 3: every quarter of the image holds one."""
    draw = np.random.default_rng(seed)
    image = draw.normal(100, 10, (bands, *size)).astype(np.float32)
    rows, columns = np.mgrid[: size[0], : size[1]]
    classes = 2 * (rows * 2 // size[0]) + columns * 2 // size[1]
    return image, classes.astype(np.uint8)


def write_bands(folder: Path, name: str, image, classes, origin=(0, 0), **options):
    """BandN/NAME.tif and label/NAME.tif."""
    for number, plane in enumerate(image, 1):
        write_tiff(folder / f"Band{number}" / f"{name}.tif", plane, origin, **options)
    if classes is not None:
        write_tiff(folder / "label" / f"{name}.tif", coded(classes), origin)


def write_scenes(folder: Path, count=6, size=(64, 64), bands=2, classes=4):
    """Scenes that lie apart on the map; with three classes, without a lake."""
    for number in range(count):
        image, target = scene(number, size, bands)
        target = np.minimum(target, classes - 1)
        write_bands(folder, f"img{number:03d}", image, target, origin=(number * 100_000, 0))
    return folder


def write_patches(folder: Path, sources=3, patches=2, size=32, bands=5):
    """HKH-style patches: slice_S_img_PPP.npy (h, w, bands) and slice_S_mask_PPP.npy (h, w, 2)."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, patch in np.ndindex(sources, patches):
        image, classes = scene(10 * source + patch, (size, size), bands)
        layers = np.stack([classes == 1, classes >= 2], 2)
        np.save(folder / f"slice_{source}_img_{patch:03d}.npy", image.transpose(1, 2, 0))
        np.save(folder / f"slice_{source}_mask_{patch:03d}.npy", layers)
    return folder
