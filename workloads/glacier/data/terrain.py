"""Draws plausible glacier scenes: terrain, ice, debris, lakes and snow with their spectra at a sensor.

It simulates no physics, but keeps the hard parts of the task: debris has the spectrum of rock and differs by place and
shape; seasonal snow has the spectrum of ice; shadow darkens both; clouds are as bright as snow; some ground is missing.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio
import yaml

from lib.errors import BadInput
from lib.machine import disk
from workloads.glacier.settings import Generator, Source

VERSION = 1  # raised with every change of the drawn scenes
METRES = 30.0  # a pixel, as in Landsat
BANDS = ("blue", "green", "red", "nir", "swir1", "thermal", "swir2")
_OPTICAL = [index for index, name in enumerate(BANDS) if name != "thermal"]
CLASSES = ("background", "glacier", "debris", "lake")
_SCALE = 10_000  # reflectance to whole numbers; temperature is stored in hundredths of a kelvin
_NODATA = 0
_CRS = "EPSG:32643"  # UTM zone 43 north

# Reflectance in the order of BANDS, with the temperature in kelvin at 4,500 m in the place of the thermal band.
_SPECTRA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def write(folder: Path, options: Generator, source: Source) -> None:
    """Makes a whole folder with Band1/img001.tif ... and label/img001.tif. Raises BadInput for unknown names."""
    _check_names(source.bands, BANDS, "band", "bands")
    _check_names(source.classes, CLASSES, "class", "classes")
    if folder.is_dir():
        return
    code_of = dict(zip(source.classes, source.codes, strict=True))
    codes = np.array([code_of.get(name, source.codes[0]) for name in CLASSES], np.uint8)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with disk.whole(folder, cache=True) as aside:
            for index in range(options.scenes):
                image, classes = scene(options.seed, index, options.size)
                # Scenes are apart on the map, so that their ground does not overlap
                apart = options.size * METRES * 1.25
                x = 300_000 + index % 10 * apart
                y = 4_000_000 - index // 10 * apart
                name = f"img{index + 1:03d}.tif"
                for number, band in enumerate(source.bands, 1):
                    plane = image[BANDS.index(band)]
                    _write_tiff(aside / f"Band{number}" / name, plane, x, y)
                _write_tiff(aside / "label" / name, codes[classes], x, y)
    except OSError:  # another process may have been first
        if not folder.is_dir():
            raise


def _check_names(names: Sequence[str], drawn: Sequence[str], kind: str, key: str) -> None:
    for name in names:
        if name not in drawn:
            raise BadInput(
                f"The generated scenes have no {kind} {name}, only {', '.join(drawn)}. Correct workload.source.{key}, "
                "or name your data in data.dir."
            )


def _write_tiff(path: Path, values: np.ndarray, x: float, y: float) -> None:
    """Writes (h, w) values as a GeoTIFF with its corner at (x, y)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = values.shape
    shape = {"height": height, "width": width, "count": 1, "dtype": values.dtype.name}
    place = rasterio.Affine(METRES, 0, x, 0, -METRES, y)
    form = {"driver": "GTiff", "compress": "deflate", "crs": _CRS, "nodata": _NODATA}
    with rasterio.MemoryFile() as memory:  # GDAL does not report a full disk in every case
        with memory.open(**form, **shape, transform=place) as file:
            file.write(values, 1)
        path.write_bytes(memory.getbuffer())


def scene(seed: int, index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws (7, size, size) uint16 of BANDS with 0 for no data, and (size, size) uint8 of CLASSES; a pure function."""
    draw = np.random.default_rng([seed, index])
    broad = _noise(draw, size, 4.0)
    folded = _noise(draw, size, 3.4)
    rough = _noise(draw, size, 2.6)
    # the crests of folded noise, on broad mountains
    ridges = 0.9 * broad - 0.8 * np.abs(folded) + 0.06 * rough
    height = 4600 + 520 * (ridges - ridges.mean()) / ridges.std()  # metres
    classes, thickness = _classes(draw, height)
    image = _seen(draw, _ground(draw, height, classes, thickness), height)
    # Ground is missing at a slanting edge of the swath, or in the stripes of Landsat 7
    rows, columns = np.mgrid[:size, :size] / size
    kind = draw.random()
    slope = draw.uniform(0.1, 0.3)
    if kind < 0.2:
        edge = draw.uniform(0.05, 0.2)
        image[:, columns + slope * rows < edge] = _NODATA
    elif kind < 0.35:
        stripes = (rows + slope * columns) * 6 % 1
        width = 0.16 * np.abs(columns - 0.3)
        image[:, stripes < width] = _NODATA
    return image, classes


def _noise(draw: np.random.Generator, size: int, slope: float) -> np.ndarray:
    """Draws (size, size) of mean 0 and deviation 1 whose spectrum falls as frequency^-slope: 2 is rough, 4 smooth."""
    shape = (2 * size, 2 * size)  # twice as large: a quarter has no seam
    frequency = _frequency(size)
    frequency[0, 0] = np.inf
    white = np.fft.rfft2(draw.standard_normal(shape))
    field = np.fft.irfft2(white * frequency ** (-slope / 2), s=shape)[:size, :size]
    return (field - field.mean()) / field.std()


def _frequency(size: int) -> np.ndarray:
    """Returns the frequencies, in cycles a pixel, of the real Fourier transform of 2 * size."""
    rows = np.fft.fftfreq(2 * size)[:, None]
    columns = np.fft.rfftfreq(2 * size)[None]
    return np.hypot(rows, columns)


def _blurred(field: np.ndarray, pixels: float) -> np.ndarray:
    """Blurs (size, size) by a Gaussian with mirrored edges."""
    size = field.shape[0]
    mirrored = np.pad(field, ((0, size), (0, size)), mode="symmetric")
    kernel = np.exp(-2 * (np.pi * pixels * _frequency(size)) ** 2)
    blurred = np.fft.irfft2(np.fft.rfft2(mirrored) * kernel, s=mirrored.shape)
    return blurred[:size, :size]


def _steepness(height: np.ndarray) -> np.ndarray:
    return np.hypot(*np.gradient(height, METRES))


def _classes(draw: np.random.Generator, height: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns classes, and the depth of a pixel below the line of clean ice (0 to 1), which thickens debris."""
    size = height.shape[0]
    steepness = _steepness(height)
    hollow = _blurred(height, size / 24) - height
    hollow /= hollow.std()
    high = (height - height.mean()) / height.std()
    share = draw.uniform(0.18, 0.42)  # ice and debris in the scene
    likely = high + 0.55 * hollow + 0.12 * _noise(draw, size, 3.0)
    potential = _blurred(likely, 1.5)
    is_steep = _blurred(steepness, 2.0) > np.quantile(steepness, 0.93)
    potential -= 0.9 * is_steep
    ice = potential > np.quantile(potential, 1 - share)
    low = np.quantile(high[ice], draw.uniform(0.1, 0.3))
    depth = (low - high) + 0.25 * hollow + 0.18 * _noise(draw, size, 3.0)
    classes = np.zeros(height.shape, np.uint8)
    classes[ice] = 1
    classes[ice & (depth > 0)] = 2
    _add_lakes(draw, classes, high, steepness)
    return classes, np.clip(depth, 0, 1)


def _add_lakes(
    draw: np.random.Generator, classes: np.ndarray, high: np.ndarray, steepness: np.ndarray
) -> None:
    """Adds a few ponds of two to six pixels' radius at the flattest places of debris and of the ground before it."""
    size = classes.shape[0]
    near = _blurred((classes == 2).astype(float), 3.0) > 0.15
    flat = np.where(near & (classes != 1), -steepness, -np.inf)
    flat = flat + 0.02 * draw.standard_normal(classes.shape)
    rows, columns = np.mgrid[:size, :size]
    most = 2 + max(1, size // 128)
    for _ in range(draw.integers(1, most)):
        if not np.isfinite(flat.max()):
            return
        row, column = np.unravel_index(flat.argmax(), flat.shape)
        radius = draw.uniform(1.8, 4.5) * (1 + 0.25 * _noise(draw, size, 3.0))
        across = (columns - column) * draw.uniform(0.7, 1.4)
        distance = np.hypot(rows - row, across)
        classes[distance < radius] = 3
        flat[distance < 8 * radius.max()] = -np.inf


def _ground(
    draw: np.random.Generator, height: np.ndarray, classes: np.ndarray, thickness: np.ndarray
) -> np.ndarray:
    """Returns (7, h, w) reflectance and temperature of the ground, before light and air."""
    size = height.shape[0]
    steepness = _steepness(height)
    spectrum = {name: np.array(values)[:, None, None] for name, values in _SPECTRA.items()}
    below = (height.mean() - 0.4 * height.std() - height) / 250
    green = np.clip(below + 0.4 * _noise(draw, size, 2.5), 0, 0.8)
    image = spectrum["rock"] * (1 - green) + spectrum["vegetation"] * green
    # rock, and so its debris, differs from place to place
    geology = 1 + 0.2 * _noise(draw, size, 3.2) + 0.08 * _noise(draw, size, 1.5)
    image[_OPTICAL] *= geology
    # Seasonal snow
    snowfall = _noise(draw, size, 2.4) + 0.8 * (height - height.mean()) / height.std()
    snowy = (snowfall > 1.9) & (steepness < np.quantile(steepness, 0.8))
    image = np.where(snowy, 0.75 * spectrum["snow"] + 0.25 * image, image)
    fresh = np.clip((height - np.quantile(height, 0.75)) / 300, 0, 1)
    clean = spectrum["ice"] * (1 - fresh) + spectrum["snow"] * fresh
    dirt = np.clip(0.18 + 0.14 * _noise(draw, size, 2.4), 0, 0.7)
    clean = clean * (1 - dirt) + image * dirt
    cover = np.clip(0.72 + 0.5 * thickness, 0, 1)
    rubble = spectrum["debris"] * np.ones_like(image)
    rubble[_OPTICAL] *= geology
    covered = cover * rubble + (1 - cover) * clean
    turbid = 1 + 0.25 * draw.standard_normal()
    water = spectrum["lake"] * np.ones_like(image)
    water[:3] *= turbid
    is_class = [classes == number for number in (1, 2, 3)]
    return np.select(is_class, [clean, covered, water], image)


def _seen(draw: np.random.Generator, image: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Returns (7, h, w) uint16: light from one side, clouds over some scenes, haze and weather, the sensor's noise."""
    light = _light(draw, height)
    # slopes that face away keep the light of the sky, and are colder
    image[_OPTICAL] *= 0.22 + 0.78 * light
    image[5] += 4.0 * (light - 1)
    image[5] -= 6.5e-3 * (height - 4500)
    # Thin to thick clouds over a small part; the label is the ground's
    if draw.random() <= 0.4:
        field = _noise(draw, image.shape[1], 3.2)
        clear = np.quantile(field, 1 - draw.uniform(0.02, 0.1))
        opacity = 0.85 * np.clip((field - clear) / 0.8, 0, 1)
        cloud = np.array(_SPECTRA["cloud"])[:, None, None]
        image = (1 - opacity) * image + opacity * cloud
    haze = draw.uniform(0, 0.06) * np.array([1.0, 0.7, 0.5, 0.2, 0.1, 0.0, 0.05])
    exposure = 1 + 0.1 * draw.standard_normal((len(BANDS), 1, 1))
    noise = draw.standard_normal(image.shape)
    image = image + haze[:, None, None]
    exposed = (image * exposure)[_OPTICAL]
    grain = noise[_OPTICAL]
    image[_OPTICAL] = exposed * (1 + 0.16 * grain) + 0.02 * grain[::-1]
    image[5] += 4.0 * draw.standard_normal() + 2.0 * noise[5]
    image[_OPTICAL] *= _SCALE
    image[5] *= 100
    return np.clip(image.round(), 1, 65_535).astype(np.uint16)  # 0 is nodata


def _light(draw: np.random.Generator, height: np.ndarray) -> np.ndarray:
    """Returns (h, w) light of the morning sun, 1 on flat ground."""
    down, across = np.gradient(height, METRES)
    azimuth = draw.uniform(2.0, 2.9)
    elevation = draw.uniform(0.6, 1.0)  # radians
    rise = across * np.sin(azimuth) - down * np.cos(azimuth)
    towards = np.sin(elevation) - np.cos(elevation) * rise
    steepness = np.hypot(down, across)
    light = towards / np.hypot(1, steepness) / np.sin(elevation)
    return np.clip(light, 0, 1.5)
