"""Pictures and masks as arrays, decoded within limits and by what their values mean.

In a picture values are colours: grey of more than 8 bits is scaled, EXIF turns it, white lies behind what is
transparent, and of an animation the first frame counts. In a mask values are numbers of classes: the index of a
palette, a grey, or red * 65536 + green * 256 + blue. Neither is changed by a colour.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from trainbook.supervised.files import other_kind
from trainbook.supervised.samples import IGNORED

# What Pillow opens here by the content of a file: none that runs a program or fetches another file, as EPS and WMF do
_FORMATS = (
    "JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "ICNS", "PCX", "SGI", "SUN",
    "DDS", "PSD", "QOI", "FITS", "MSP", "XBM", "XPM",
)  # fmt: skip
_UNSIGNED = {
    "TGA": (".tga", ".icb", ".vda", ".vst")
}  # formats that no first bytes tell: by their suffix alone
_LOSSY = (
    "JPEG",
    "MPO",
    "JPEG2000",
    "AVIF",
)  # which blur the numbers of a mask; so does WebP, unless it is lossless
MOST_BYTES = 2**28
_MOST_PIXELS = 2**26  # of a file
_ORIENTATION = 0x0112  # the number of that tag in EXIF
_BANDS = 277  # the number of the tag in TIFF
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip
COLOUR = np.array((65536, 256, 1))  # times red, green and blue is the code of a colour
_FEW = 5  # values of a mask in a sentence
_GREY = int(COLOUR.sum())  # times a grey is its code
_DRIVERS = {"TIFF": "GTiff", "PNG": "PNG"}  # of GDAL, for 16 bits a colour
_RANGES = (1.0, 255.0, 4095.0, 65535.0)
_STEPS = {"L;2": 85, "L;4": 17}  # between the greys that Pillow makes of numbers of 2 and 4 bits
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_NUMBERED = ("1", "P", "L", "F", "I", "I;16", "I;16B", "I;16L", "I;16N", "RGB", "RGBX", *_ALPHA)

Image.init()
_OPENED = [name for name in _FORMATS if name in Image.OPEN]  # an older Pillow has no AVIF
_NAMED = {*_OPENED, *_UNSIGNED, "MPO"}
SUFFIXES = {suffix for suffix, name in Image.registered_extensions().items() if name in _NAMED}


class Unfit(Exception):
    """What a file holds cannot be used: the text goes on after its name."""


class Picture(PosixPath):
    """The path of a picture that `picture` reads."""


class Mask(Picture):
    """The path of a mask that `mask` reads."""


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(source: Any, size: int = 0) -> np.ndarray:
    """Returns (height, width, 3) uint8 of red, green, blue: of a file, or of an image of Pillow.

    With `size` it is scaled to a square of that many pixels, whatever its shape. Raises BadInput.
    """
    with naming_file(source):
        image = as_rgb(opened(source), size)
    if size:
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(image)


def opened(source: Any) -> Image.Image:
    """Returns an image whose pixels are not decoded yet; of 16 bits a colour one of 8, scaled."""
    if isinstance(source, Image.Image):
        return source
    content = read_bytes(Path(source), MOST_BYTES)
    image = _identified(content, Path(source))
    if image is None:
        return _of_planes(*_planes(content, "GTiff"))
    _check_size(image.width, image.height)
    if not _is_deep(image):
        return image
    whole = _of_planes(*_planes(content, _DRIVERS[str(image.format)]))
    return _turned(whole, orientation_of(image))


def _identified(content: bytes, path: Path) -> Image.Image | None:
    """Returns an image of one of the formats; None for a TIFF whose numbers Pillow does not read."""
    suffix = path.suffix.lower()
    unsigned = [name for name, suffixes in _UNSIGNED.items() if suffix in suffixes]
    try:
        return Image.open(io.BytesIO(content), formats=[*_OPENED, *unsigned])
    except UnidentifiedImageError:
        if content[:2] in (b"II", b"MM"):
            return None
        if not content:
            raise Unfit("is empty. Download it again, or remove it.") from None
        if what := other_kind(content):
            raise Unfit(f"{what}.") from None
        first = printable(repr(content[:12]), most=60)
        raise ValueError(f"it begins with {first}, as no picture of a known format does") from None


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        size = f"{width:,} x {height:,} pixels, and {_MOST_PIXELS:,} are the most"
        raise Unfit(f"has {size}. Scale it down, or cut it to tiles.")


def _raw_mode(image: Image.Image) -> str:
    """Returns how the file has its pixels, such as RGB;16B, before they are decoded."""
    tiles = getattr(image, "tile", None)
    if tiles:
        return str(tiles[0][3])
    return ""


def _is_deep(image: Image.Image) -> bool:
    """Returns whether colours have 16 bits, of which Pillow would take the upper 8: all black where 12 are used."""
    is_colour = image.mode[0] not in "IF"
    return is_colour and ";16" in _raw_mode(image) and image.format in _DRIVERS


def _planes(content: bytes, driver: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns (height, width, 1 or 3) of a TIFF or PNG in memory, and (height, width) how opaque it is, if it says."""
    import rasterio
    from rasterio.enums import ColorInterp

    with rasterio.Env(GDAL_PAM_ENABLED="NO"), rasterio.MemoryFile(content) as memory:
        file = memory.open(driver=driver)
        _check_size(file.width, file.height)
        kinds = dict(enumerate(file.colorinterp, 1))
        opaque = [number for number, kind in kinds.items() if kind == ColorInterp.alpha]
        bands = [number for number in kinds if number not in opaque]
        if len(bands) not in (1, 3):
            raise Unfit(
                f"has {len(bands)} bands, and a picture has one or three. "
                "Save those of red, green and blue, or read it in your own task."
            )
        planes = np.moveaxis(file.read(bands), 0, 2)
        return planes, file.read(opaque[0]) if opaque else None


def _of_planes(planes: np.ndarray, opaque: np.ndarray | None) -> Image.Image:
    colours = _in_8_bits(planes)
    image = Image.fromarray(colours.repeat(3 // colours.shape[2], 2))
    if opaque is not None:
        if opaque.dtype.kind in "iu":
            most = np.iinfo(opaque.dtype).max
        else:
            most = 1
        shares = opaque.astype(np.float32) / most
        image.putalpha(Image.fromarray((255 * shares).astype(np.uint8)))
    return image


def _in_8_bits(values: np.ndarray) -> np.ndarray:
    """Returns uint8 from the least to the greatest value: of 12 bits in 16 a sixteenth of the range would be used."""
    values = np.asarray(values, np.float32)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise Unfit("has no pixel with a number. Export it again, or remove it.")
    least = finite.min()
    most = finite.max()
    if not least < most:  # one value: where it lies in 8, 12 or 16 bits
        least = 0.0
        most = next((size for size in _RANGES if most <= size), max(most, 1.0))
    scaled = (values - least) * (255 / (most - least))
    whole = np.nan_to_num(scaled, posinf=255, neginf=0)
    return np.clip(whole, 0, 255).astype(np.uint8)


def as_rgb(image: Image.Image, side: int) -> Image.Image:
    """Returns an image in RGB, of at least `side` pixels where the file has as many."""
    if side:
        image.draft(
            "RGB", (side, side)
        )  # a JPEG is decoded at an eighth of its size where that is enough
    image = _turned(image, orientation_of(image))
    if image.mode[0] in "IF":
        image = Image.fromarray(_in_8_bits(np.asarray(image)))
    if "transparency" in image.info or image.mode in _ALPHA:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def is_transparent(image: Image.Image) -> bool:
    """Returns whether white shows through an image."""
    if "transparency" not in image.info and image.mode not in _ALPHA:
        return False
    least, _ = image.convert("RGBA").getchannel("A").getextrema()
    return least < 255


def unused_bands(image: Image.Image) -> int:
    """Returns how many bands a TIFF has beside those that Pillow reads."""
    tags = getattr(image, "tag_v2", {})
    return max(0, tags.get(_BANDS, 1) - len(image.getbands()))


def orientation_of(image: Image.Image) -> int | None:
    """Returns how EXIF turns an image, 1: not at all; None where it has EXIF of which nothing can be read."""
    try:
        tags = image.getexif()
        if image.info.get("exif") and not len(tags):
            return None
        return int(tags.get(_ORIENTATION) or 1)
    except Exception:  # whatever an older Pillow's parser raises
        return None


def _turned(image: Image.Image, orientation: int | None) -> Image.Image:
    turn = _TURNS.get(orientation or 1)
    if turn:
        return image.transpose(Image.Transpose[turn])
    return image


@contextmanager
def naming_file(source: Any, what: str = "picture") -> Iterator[None]:
    """Raises BadInput, which names the file, for what Pillow, NumPy and GDAL raise."""
    shown = printable(source, most=200)
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"There is no {what} {shown}.") from None
    except (BadInput, MemoryError):
        raise
    except Unfit as error:
        raise BadInput(f"The {what} {shown} {error}") from None
    except Exception as error:  # Pillow raises many kinds for broken files
        why = printable(error, most=120)
        raise BadInput(
            f"The {what} {shown} cannot be decoded ({why}). Download it again, or save it anew."
        ) from None


# --- masks ------------------------------------------------------------------------------------------------------------


def mask(
    source: Any, size: int = 0, codes: Sequence[int] = (), ignored: Sequence[int] = ()
) -> np.ndarray:
    """Returns (height, width) int64 numbers of classes, with IGNORED for values in `ignored`.

    `codes` are the values of the classes in their order, by default 0, 1 and so on; a colour's code is
    red * 65536 + green * 256 + blue. With `size` the mask is scaled to a square by its nearest pixels. Raises BadInput
    for a value that is neither, and for what a lossy format has blurred.
    """
    with naming_file(source, "mask"):
        numbers, kind = numbers_of(source)
        classes = classes_of(coded(numbers, kind, codes), codes, ignored)
    if size:
        whole = Image.fromarray(classes.astype(np.int32))
        scaled = whole.resize((size, size), Image.Resampling.NEAREST)
        classes = np.asarray(scaled).astype(np.int64)
    return classes


def numbers_of(source: Any) -> tuple[np.ndarray, str]:
    """Returns (height, width) values of a mask, and whether they are numbers, greys of three bands or colours."""
    if isinstance(source, Image.Image):
        return _of_image(source)
    content = read_bytes(Path(source), MOST_BYTES)
    image = _identified(content, Path(source))
    if image is None or _is_deep(image):
        driver = _DRIVERS[str(image.format)] if image else "GTiff"
        planes, _ = _planes(content, driver)
        return _of_bands(planes)
    _check_size(image.width, image.height)
    is_lossy_webp = image.format == "WEBP" and b"VP8L" not in content[:64]
    if image.format in _LOSSY or is_lossy_webp:
        how = "Save the masks as PNG from where they were drawn."
        raise Unfit(f"is a {image.format}, which blurs the numbers of classes. {how}")
    return _of_image(image)


def _of_image(image: Image.Image) -> tuple[np.ndarray, str]:
    if unused_bands(image):
        raise Unfit("has bands beside the first. Save one band with the numbers of all classes.")
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise Unfit(f"has {frames} pages. Save one mask with the numbers of all classes.")
    step = _STEPS.get(_raw_mode(image), 1)
    image = _turned(image, orientation_of(image))
    if image.mode not in _NUMBERED:
        raise Unfit(
            f"has colours of the kind {image.mode}. Save the numbers of classes as greys in a PNG."
        )
    planes = np.asarray(image)
    if image.mode in _ALPHA:
        planes = _without_alpha(planes)
    if step > 1:
        planes = planes // step
    return _of_bands(planes.reshape(*planes.shape[:2], -1))


def _without_alpha(planes: np.ndarray) -> np.ndarray:
    """Returns the bands before the last. Raises Unfit where pixels differ in that alone."""
    colours = planes[..., :-1]
    alpha = planes[..., -1]
    if np.ptp(alpha) and not np.ptp(colours, (0, 1)).any():
        raise Unfit(
            "has pixels that differ in their transparency alone. Save the numbers of classes as greys."
        )
    return colours


def _of_bands(planes: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns (height, width) values of (height, width, 1, 3 or 4 with an unused one)."""
    planes = planes[..., :3]
    first = planes[..., 0]
    if planes.shape[2] == 1:
        return first * 1, "numbers"  # of bits, too
    if (planes == first[..., None]).all():
        return first, "greys"
    if planes.dtype != np.uint8:
        raise Unfit(
            "has three bands of more than 8 bits that differ. Save the numbers of classes as greys."
        )
    return planes @ COLOUR, "colours"


def coded(numbers: np.ndarray, kind: str, codes: Sequence[int]) -> np.ndarray:
    """Returns the values in which `codes` are: colours if one of them is above 255. Raises Unfit for other colours."""
    has_colours = max(codes, default=0) > 255
    if kind == "greys" and has_colours:
        return numbers.astype(np.int64) * _GREY
    if kind == "colours" and not has_colours:
        code = int(numbers[numbers % _GREY != 0].flat[0])
        red, rest = divmod(code, 65536)
        what = f"has colours, such as {(red, *divmod(rest, 256))}"
        how = "Save the numbers of classes, or give red * 65536 + green * 256 + blue of each class in workload.codes"
        raise Unfit(f"{what}. {how} (here {code}).")
    return numbers


def classes_of(values: np.ndarray, codes: Sequence[int], ignored: Sequence[int]) -> np.ndarray:
    """Returns the class of each value. Raises Unfit for a value that is none."""
    is_ignored = ~np.isfinite(values)
    is_ignored |= np.isin(values, np.asarray(ignored, np.int64))
    classes = np.full(values.shape, IGNORED, np.int64)
    if len(codes):
        is_known = np.isin(values, np.asarray(codes, np.int64))
        for number, code in enumerate(codes):
            classes[values == code] = number
    else:
        is_known = (values >= 0) & (values == np.floor(values))
        classes[is_known] = values[is_known].astype(np.int64)
    classes[is_ignored] = IGNORED
    is_strange = ~(is_known | is_ignored)
    if is_strange.any():
        strange = np.unique(values[is_strange])
        raise Unfit(_not_known(strange.tolist(), codes))
    return classes


def _not_known(values: Sequence[float], codes: Sequence[int]) -> str:
    shown = [f"{value:g}" for value in values[:_FEW]]
    if len(values) > _FEW:
        shown.append(f"{len(values) - _FEW} more")
    blurred = ""
    if len(values) > _FEW:
        blurred = " Many values come of a mask that was scaled smoothly, or was a JPEG before."
    known = (
        f"the classes have {', '.join(map(str, codes))}"
        if codes
        else "classes are numbered 0, 1 and so on"
    )
    how = f"If that is no class, set workload.ignored_codes: [{shown[0]}]; else list the values in workload.codes"
    word = "values" if len(values) > 1 else "value"
    return f"holds the {word} {', '.join(shown)}, and {known}. {how}.{blurred}"
