"""Decodes pictures and masks as arrays, within limits of size.

In a picture values are colours: grey of more than 8 bits is scaled, EXIF turns the picture,
transparent pixels are laid on white, and an animation gives its first frame. In a mask values are
numbers of classes: the index of a palette, a grey, or red * 65536 + green * 256 + blue. No colour
changes them.
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

# Formats that Pillow tells by content. EPS and WMF are left out: they run programs or fetch files
_FORMATS = (
    "JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO",
    "ICNS", "PCX", "SGI", "SUN", "DDS", "PSD", "QOI", "FITS", "MSP", "XBM", "XPM",
)  # fmt: skip
# Formats without a signature, told by their suffix
_UNSIGNED = {"TGA": (".tga", ".icb", ".vda", ".vst")}
# These blur the numbers of a mask; so does WebP, unless it is lossless
_LOSSY = ("JPEG", "MPO", "JPEG2000", "AVIF")
MOST_BYTES = 2**28
_MOST_PIXELS = 2**26  # in a file
_ORIENTATION = 0x0112  # the number of that tag in EXIF
_BANDS = 277  # the number of the tag in TIFF
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
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
    """The content of a file cannot be used. The message continues after the file's name."""


class Picture(PosixPath):
    """The path of a picture that `picture` reads."""


class Mask(Picture):
    """The path of a mask that `mask` reads."""


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(source: Any, size: int = 0) -> np.ndarray:
    """Returns (height, width, 3) uint8 of red, green, blue from a file or an image of Pillow.

    `size` scales it to a square with that many pixels a side. Raises BadInput.
    """
    with naming_file(source):
        image = as_rgb(opened(source), size)
    if size:
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(image)


def opened(source: Any) -> Image.Image:
    """Returns an image, its pixels not decoded yet; 16 bits a colour are scaled to 8."""
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
    """Returns an image, or None for a TIFF with a number type that Pillow cannot read."""
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
        raise Unfit(
            f"has {width:,} x {height:,} pixels, and {_MOST_PIXELS:,} are the most. "
            "Scale it down, or cut it to tiles."
        )


def _raw_mode(image: Image.Image) -> str:
    """Returns the layout of the pixels in the file, such as RGB;16B."""
    tiles = getattr(image, "tile", None)
    if tiles:
        return str(tiles[0][3])
    return ""


def _is_deep(image: Image.Image) -> bool:
    """Returns whether colours have 16 bits. Pillow takes the upper 8: black if only 12 are used."""
    is_colour = image.mode[0] not in "IF"
    return is_colour and ";16" in _raw_mode(image) and image.format in _DRIVERS


def _planes(content: bytes, driver: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns (height, width, 1 or 3) bands of a TIFF or PNG, and (height, width) alpha or None."""
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
    """Returns uint8, scaled from the least to the greatest value: 12 bits in 16 would be dark."""
    values = np.asarray(values, np.float32)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise Unfit("has no pixel with a number. Export it again, or remove it.")
    least = finite.min()
    most = finite.max()
    if not least < most:  # one value: relative to 8, 12 or 16 bits
        least = 0.0
        most = next((size for size in _RANGES if most <= size), max(most, 1.0))
    scaled = (values - least) * (255 / (most - least))
    whole = np.nan_to_num(scaled, posinf=255, neginf=0)
    return np.clip(whole, 0, 255).astype(np.uint8)


def as_rgb(image: Image.Image, side: int) -> Image.Image:
    """Returns an image in RGB, with at least `side` pixels a side if the file has as many."""
    if side:
        image.draft("RGB", (side, side))  # a JPEG is decoded at an eighth of its size, if enough
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
    extrema: Any = image.convert("RGBA").getchannel("A").getextrema()  # of one band: two numbers
    return bool(extrema[0] < 255)


def unused_bands(image: Image.Image) -> int:
    """Returns how many bands of a TIFF Pillow does not read."""
    tags = getattr(image, "tag_v2", {})
    return max(0, tags.get(_BANDS, 1) - len(image.getbands()))


def orientation_of(image: Image.Image) -> int | None:
    """Returns the orientation in EXIF, 1: upright; None if EXIF cannot be read."""
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
    """Turns errors of Pillow, NumPy and GDAL into BadInput that names the file."""
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

    `codes` are the values of the classes in their order, by default 0, 1 and so on; a colour's code
    is red * 65536 + green * 256 + blue. `size` scales the mask to a square by its nearest pixels.
    Raises BadInput for other values, and for lossy formats.
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
    """Returns (height, width) values of a mask, and their kind: numbers, greys or colours."""
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
        raise Unfit(
            f"is a {image.format}, which blurs the numbers of classes. "
            "Save the masks as PNG from where they were drawn."
        )
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
    """Returns the bands before alpha. Raises Unfit if pixels differ only in alpha."""
    colours = planes[..., :-1]
    alpha = planes[..., -1]
    if np.ptp(alpha) and not np.ptp(colours, (0, 1)).any():
        raise Unfit(
            "has pixels that differ in their transparency alone. "
            "Save the numbers of classes as greys."
        )
    return colours


def _of_bands(planes: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns (height, width) values from (height, width, 1, 3 or 4), the fourth unused."""
    planes = planes[..., :3]
    first = planes[..., 0]
    if planes.shape[2] == 1:
        return first * 1, "numbers"  # bits become numbers
    if (planes == first[..., None]).all():
        return first, "greys"
    if planes.dtype != np.uint8:
        raise Unfit(
            "has three bands of more than 8 bits that differ. Save the numbers of classes as greys."
        )
    return planes @ COLOUR, "colours"


def coded(numbers: np.ndarray, kind: str, codes: Sequence[int]) -> np.ndarray:
    """Returns values comparable to `codes`, colours if a code exceeds 255. Raises Unfit."""
    has_colours = max(codes, default=0) > 255
    if kind == "greys" and has_colours:
        return numbers.astype(np.int64) * _GREY
    if kind == "colours" and not has_colours:
        code = int(numbers[numbers % _GREY != 0].flat[0])
        red, rest = divmod(code, 65536)
        colour = (red, *divmod(rest, 256))
        raise Unfit(
            f"has colours, such as {colour}. Save the numbers of classes, or give "
            f"red * 65536 + green * 256 + blue of each class in workload.codes (here {code})."
        )
    return numbers


def classes_of(values: np.ndarray, codes: Sequence[int], ignored: Sequence[int]) -> np.ndarray:
    """Returns the class of each value. Raises Unfit for unknown values."""
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
    """Returns the message for values of a mask without a class."""
    shown = [f"{value:g}" for value in values[:_FEW]]
    blurred = ""
    if len(values) > _FEW:
        shown.append(f"{len(values) - _FEW} more")
        blurred = " Many values come of a mask that was scaled smoothly, or was a JPEG before."
    if codes:
        known = f"the classes have {', '.join(map(str, codes))}"
    else:
        known = "classes are numbered 0, 1 and so on"
    word = "values" if len(values) > 1 else "value"
    return (
        f"holds the {word} {', '.join(shown)}, and {known}. If that is no class, set "
        f"workload.ignored_codes: [{shown[0]}]; else list the values in workload.codes.{blurred}"
    )
