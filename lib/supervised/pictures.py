"""Pictures and masks as arrays, decoded within limits and by what their values mean; looked at once before training.

In a picture values are colours: grey of more than 8 bits is scaled, EXIF turns it, white lies behind what is
transparent, and of an animation the first frame counts. In a mask values are numbers of classes: the index of a
palette, a grey, or red * 65536 + green * 256 + blue. Neither is changed by a colour.
"""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, UnidentifiedImageError

from lib.config.files import absolute, read_bytes
from lib.errors import BadInput, check_limit, first_ten, printable
from lib.machine import disk, platform
from lib.report.progress import counted
from lib.supervised.samples import IGNORED
from lib.task.notes import note

# What Pillow opens here by the content of a file: none that runs a program or fetches another file, as EPS and WMF do
_FORMATS = (
    "JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "ICNS", "PCX", "SGI", "SUN",
    "DDS", "PSD", "QOI", "FITS", "MSP", "XBM", "XPM",
)  # fmt: skip
_UNSIGNED = {"TGA": (".tga", ".icb", ".vda", ".vst")}  # formats that no first bytes tell: by their suffix alone
_LOSSY = ("JPEG", "MPO", "JPEG2000", "AVIF")  # which blur the numbers of a mask; so does WebP, unless it is lossless
# Of files that a class reads by itself these alone are looked at: of the others it may read what Pillow does not
COMMON = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif")
_MOST_BYTES, _MOST_PIXELS = 2**28, 2**26  # of a file
_SMALL = 32  # pixels on a side, to which a picture is decoded that is only checked
_ORIENTATION = 0x0112  # the number of that tag in EXIF
_TURNS = dict(enumerate(("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE",
                         "ROTATE_90"), 2))  # fmt: skip
COLOUR = np.array((65536, 256, 1))  # times red, green and blue is the code of a colour
_GREY = int(COLOUR.sum())  # times a grey is its code
_DRIVERS = {"TIFF": "GTiff", "PNG": "PNG"}  # of GDAL, for 16 bits a colour
_STEPS = {"L;2": 85, "L;4": 17}  # between the greys that Pillow makes of numbers of 2 and 4 bits
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_NUMBERED = ("1", "P", "L", "F", "I", "I;16", "I;16B", "I;16L", "I;16N", "RGB", "RGBX", *_ALPHA)
_VALUES = 300  # of a mask that are remembered
_VERSION = 1  # of what is remembered


Image.init()
_OPENED = [name for name in _FORMATS if name in Image.OPEN]  # an older Pillow has no AVIF
_NAMED = {*_OPENED, *_UNSIGNED, "MPO"}
SUFFIXES = tuple(sorted(suffix for suffix, name in Image.registered_extensions().items() if name in _NAMED))


class _Unfit(Exception):
    """What a file holds cannot be used: the text goes on after its name."""


class Picture(PosixPath):
    """The path of a picture that `picture` reads."""


class Mask(Picture):
    """The path of a mask that `mask` reads."""


class Look(NamedTuple):
    """What was seen of a file: `wrong` says why it cannot be used."""

    digest: str = ""  # of its bytes
    wrong: str = ""
    width: int = 0
    height: int = 0
    remarks: tuple[str, ...] = ()
    kind: str = ""  # of a mask: numbers, greys or colours
    values: tuple[int, ...] = ()  # of a mask, the first _VALUES


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(source: Any, size: int = 0) -> np.ndarray:
    """Returns (height, width, 3) uint8 of red, green, blue: of a file, or of an image of Pillow.

    With `size` it is scaled to a square of that many pixels, whatever its shape. Raises BadInput.
    """
    with _naming(source):
        image = _as_rgb(_opened(source), size)
    if size:
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(image)


def _opened(source: Any) -> Image.Image:
    """Returns an image whose pixels are not decoded yet; of 16 bits a colour one of 8, scaled."""
    if isinstance(source, Image.Image):
        return source
    content = read_bytes(Path(source), _MOST_BYTES)
    image = _identified(content, Path(source))
    if image is None:
        return _of_planes(*_planes(content, "GTiff"))
    if image.width * image.height > _MOST_PIXELS:
        raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
    if not _is_deep(image):
        return image
    return _turned(_of_planes(*_planes(content, _DRIVERS[image.format or ""])), _orientation(image))


def _identified(content: bytes, path: Path) -> Image.Image | None:
    """Returns an image of one of the formats; None for a TIFF whose numbers Pillow does not read."""
    more = [name for name, suffixes in _UNSIGNED.items() if path.suffix.lower() in suffixes]
    try:
        return Image.open(io.BytesIO(content), formats=[*_OPENED, *more])
    except UnidentifiedImageError:
        if content[:2] in (b"II", b"MM"):
            return None
        raise ValueError(f"it is no picture of a known format: {_beginning(content)}") from None


def _beginning(content: bytes) -> str:
    if not content:
        return "it has no bytes"
    return f"it begins with {printable(repr(content[:12]), most=60)}"


def _is_deep(image: Image.Image) -> bool:
    """Returns whether colours have 16 bits, of which Pillow would take the upper 8: all black where 12 are used."""
    raw = str(image.tile[0][3]) if getattr(image, "tile", None) else ""
    return ";16" in raw and image.mode[0] not in "IF" and image.format in _DRIVERS


def _planes(content: bytes, driver: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns (height, width, 1 or 3) of a TIFF or PNG in memory, and (height, width) how opaque it is, if it says."""
    import rasterio
    from rasterio.enums import ColorInterp

    with (
        rasterio.Env(GDAL_PAM_ENABLED="NO"),
        rasterio.MemoryFile(content) as memory,
        memory.open(driver=driver) as file,
    ):
        if file.width * file.height > _MOST_PIXELS:
            raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
        opaque = [number for number, kind in enumerate(file.colorinterp, 1) if kind == ColorInterp.alpha]
        bands = [number for number in range(1, file.count + 1) if number not in opaque]
        if len(bands) not in (1, 3):
            raise ValueError(f"it has {len(bands)} bands, and a picture has one or three")
        return np.moveaxis(file.read(bands), 0, 2), file.read(opaque[0]) if opaque else None


def _of_planes(planes: np.ndarray, opaque: np.ndarray | None) -> Image.Image:
    image = Image.fromarray(_in_8_bits(planes).repeat(3 // planes.shape[2], 2))
    if opaque is not None:
        most = np.iinfo(opaque.dtype).max if opaque.dtype.kind in "iu" else 1
        image.putalpha(Image.fromarray((opaque * (255 / most)).astype(np.uint8)))
    return image


def _in_8_bits(values: np.ndarray) -> np.ndarray:
    """Returns uint8 from the least to the greatest value: of 12 bits in 16 a sixteenth of the range would be used."""
    values = np.asarray(values, np.float32)
    finite = values[np.isfinite(values)]
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    scaled = (values - least) * (255 / max(most - least, 1e-9))
    return np.clip(np.nan_to_num(scaled, posinf=255, neginf=0), 0, 255).astype(np.uint8)


def _as_rgb(image: Image.Image, side: int) -> Image.Image:
    """Returns an image in RGB, of at least `side` pixels where the file has as many."""
    if side:
        image.draft("RGB", (side, side))  # a JPEG is decoded at an eighth of its size where that is enough
    image = _turned(image, _orientation(image))
    if image.mode[0] in "IF":
        image = Image.fromarray(_in_8_bits(np.asarray(image)))
    if "transparency" in image.info or image.mode in _ALPHA:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _orientation(image: Image.Image) -> int | None:
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
    return image.transpose(Image.Transpose[turn]) if turn else image


@contextmanager
def _naming(source: Any, what: str = "picture") -> Iterator[None]:
    """Raises BadInput, which names the file, for what Pillow, NumPy and GDAL raise."""
    shown = printable(source, most=200)
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"There is no {what} {shown}.") from None
    except (BadInput, MemoryError):
        raise
    except _Unfit as error:
        raise BadInput(f"The {what} {shown} {error}") from None
    except Exception as error:  # Pillow raises many kinds for broken files
        why = printable(error, most=120)
        raise BadInput(f"The {what} {shown} cannot be decoded ({why}). Download it again, or save it anew.") from None


# --- masks ------------------------------------------------------------------------------------------------------------


def mask(source: Any, size: int = 0, codes: Sequence[int] = (), ignored: Sequence[int] = ()) -> np.ndarray:
    """Returns (height, width) int64 numbers of classes, with IGNORED for values in `ignored`.

    `codes` are the values of the classes in their order, by default 0, 1 and so on; a colour's code is
    red * 65536 + green * 256 + blue. With `size` the mask is scaled to a square by its nearest pixels. Raises BadInput
    for a value that is neither, and for what a lossy format has blurred.
    """
    with _naming(source, "mask"):
        numbers, kind = _numbers(source)
        classes = _classes(_coded(numbers, kind, codes), codes, ignored)
    if size:
        small = Image.fromarray(classes.astype(np.int32)).resize((size, size), Image.Resampling.NEAREST)
        classes = np.asarray(small).astype(np.int64)
    return classes


def _numbers(source: Any) -> tuple[np.ndarray, str]:
    """Returns (height, width) values of a mask, and whether they are numbers, greys of three bands or colours."""
    if isinstance(source, Image.Image):
        return _of_image(source)
    content = read_bytes(Path(source), _MOST_BYTES)
    image = _identified(content, Path(source))
    if image is None or _is_deep(image):
        planes, _ = _planes(content, _DRIVERS[image.format or ""] if image else "GTiff")
        return _of_bands(planes[..., 0] if planes.shape[2] == 1 else planes)
    if image.width * image.height > _MOST_PIXELS:
        raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
    if image.format in _LOSSY or (image.format == "WEBP" and b"VP8L" not in content[:64]):
        how = "Save the masks as PNG from where they were drawn."
        raise _Unfit(f"is a {image.format}, which blurs the numbers of classes. {how}")
    return _of_image(image)


def _of_image(image: Image.Image) -> tuple[np.ndarray, str]:
    raw = str(image.tile[0][3]) if getattr(image, "tile", None) else ""
    step = _STEPS.get(raw, 1)
    image = _turned(image, _orientation(image))
    if image.mode not in _NUMBERED:
        raise _Unfit(f"has colours of the kind {image.mode}. Save the numbers of classes as greys in a PNG.")
    planes = np.asarray(image)
    if image.mode in _ALPHA:
        planes = _without_alpha(planes)
    if planes.ndim == 3:
        return _of_bands(planes[..., :3])
    return _of_bands(planes // step if step > 1 else planes)


def _without_alpha(planes: np.ndarray) -> np.ndarray:
    colours, alpha = planes[..., :-1], planes[..., -1]
    if len(np.unique(alpha)) > 1 and all(len(np.unique(band)) == 1 for band in np.moveaxis(colours, 2, 0)):
        raise _Unfit("has pixels that differ in their transparency alone. Save the numbers of classes as greys.")
    return colours[..., 0] if colours.shape[2] == 1 else colours


def _of_bands(planes: np.ndarray) -> tuple[np.ndarray, str]:
    if planes.ndim == 2:
        return planes.astype(np.uint8) if planes.dtype == bool else planes, "numbers"
    first = planes[..., 0]
    if (planes == first[..., None]).all():
        return first, "greys"
    if planes.dtype != np.uint8:
        raise _Unfit("has three bands of more than 8 bits that differ. Save the numbers of classes as greys.")
    return planes @ COLOUR, "colours"


def _coded(numbers: np.ndarray, kind: str, codes: Sequence[int]) -> np.ndarray:
    """Returns the values in which `codes` are: colours if one of them is above 255. Raises _Unfit for other colours."""
    has_colours = max(codes, default=0) > 255
    if kind == "greys" and has_colours:
        return numbers.astype(np.int64) * _GREY
    if kind == "colours" and not has_colours:
        colour = int(numbers[numbers % _GREY != 0].flat[0])
        what = f"has colours, such as ({colour >> 16}, {colour >> 8 & 255}, {colour & 255})"
        how = "Save the numbers of classes, or give red * 65536 + green * 256 + blue of each class in workload.codes"
        raise _Unfit(f"{what}. {how} (here {colour}).")
    return numbers


def _classes(values: np.ndarray, codes: Sequence[int], ignored: Sequence[int]) -> np.ndarray:
    """Returns the class of each value. Raises _Unfit for a value that is none."""
    is_ignored = np.isin(values, np.asarray(ignored, np.int64)) | ~np.isfinite(values)
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
        raise _Unfit(_not_known(np.unique(values[is_strange]).tolist(), codes))
    return classes


def _not_known(values: Sequence[float], codes: Sequence[int]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:5])
    more = f" and {len(values) - 5} more" if len(values) > 5 else ""
    known = f"the classes have {_shown(codes)}" if len(codes) else "classes are numbered 0, 1 and so on"
    example = f"[{values[0]:g}]"
    how = f"If that is no class, set workload.ignored_codes: {example}; else list the values in workload.codes"
    return f"holds the value{'s' * (len(values) > 1)} {shown}{more}, and {known}. {how}."


def _shown(codes: Sequence[int]) -> str:
    if list(codes) == [*range(len(codes))] and len(codes) > 2:
        return f"0 to {len(codes) - 1}"
    return ", ".join(map(str, codes))


# --- a look at all of them --------------------------------------------------------------------------------------------


def check(paths: Iterable[str | Path]) -> dict[str | Path, Look]:
    """Decodes files once and returns what was seen of each; those of `Mask` as masks, others as pictures.

    A machine keeps what it saw in its cache, by path, size and time, and does not look again.
    """
    wanted = list(dict.fromkeys(paths))
    places = {path: absolute(Path(path)) for path in wanted}
    stamps = {path: _stamp(places[path], isinstance(path, Mask)) for path in wanted}
    file = _cache_file(places.values())
    looks = {}
    earlier = _remembered(file)
    for path in wanted:
        record = earlier.get(str(places[path]))
        if record and stamps[path] and record[0] == stamps[path]:
            looks[path] = record[1]
    rest = [path for path in wanted if path not in looks]
    if rest:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            looks |= zip(rest, counted(threads.map(_look, rest), "Looking at the pictures", len(rest)), strict=True)
        fresh = {str(places[path]): (stamps[path], looks[path]) for path in wanted if not looks[path].wrong}
        _remember(file, {**earlier, **fresh})
    return {path: looks[path] for path in wanted}


def _look(path: str | Path) -> Look:
    is_mask = isinstance(path, Mask)
    try:
        with _naming(path, "mask" if is_mask else "picture"):
            digest = hashlib.sha256(read_bytes(Path(path), _MOST_BYTES)).hexdigest()[:20]
            return _look_at_mask(path, digest) if is_mask else _look_at_picture(path, digest)
    except BadInput as error:
        return Look(wrong=str(error))


def _look_at_picture(path: str | Path, digest: str) -> Look:
    image = _opened(path)
    orientation, remarks = _orientation(image), []
    width, height = image.size if (orientation or 1) < 5 else image.size[::-1]
    if orientation is None:
        remarks.append("exif")
    if image.format != "MPO" and getattr(image, "is_animated", False):
        remarks.append("frames")
    if image.mode[0] in "IF" or not image.format:
        remarks.append("deep")
    _as_rgb(image, _SMALL)
    return Look(digest, "", width, height, tuple(remarks))


def _look_at_mask(path: str | Path, digest: str) -> Look:
    numbers, kind = _numbers(path)
    height, width = numbers.shape
    values = np.unique(numbers[np.isfinite(numbers)])
    if (values != np.floor(values)).any():
        raise _Unfit(f"holds {values[values != np.floor(values)][0]:g}. Classes are whole numbers: export them so.")
    return Look(digest, "", width, height, (), kind, tuple(int(value) for value in values[:_VALUES]))


def _stamp(path: Path, is_mask: bool) -> list[int]:
    with suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns, int(is_mask)]
    return []


def _cache_file(places: Collection[Path]) -> Path:
    shared = os.path.commonpath([place.parent for place in places]) if places else ""
    name = hashlib.sha256(f"{_VERSION} {PIL.__version__} {shared}".encode("utf-8", "surrogateescape")).hexdigest()
    return platform.detect().scratch_dir / "pictures" / f"{name[:16]}.json"


def _remembered(file: Path) -> dict[str, tuple[list[int], Look]]:
    with suppress(OSError, ValueError, TypeError):  # none yet, or a damaged one
        records = json.loads(file.read_bytes())
        return {path: (stamp, _as_look(values)) for path, (stamp, values) in records.items()}
    return {}


def _as_look(values: Sequence[Any]) -> Look:
    look = Look(*values)
    return look._replace(remarks=tuple(look.remarks), values=tuple(look.values))


def _remember(file: Path, records: Mapping[str, tuple[list[int], Look]]) -> None:
    with suppress(OSError):  # a cache: without room the next run looks again
        file.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(file, cache=True) as aside:
            aside.write_text(json.dumps(records), "utf-8")


# --- the pictures of a task's samples ---------------------------------------------------------------------------------

_REMARKS = {
    "exif": "EXIF that cannot be read, and are taken as they lie",
    "frames": "several frames, of which the first is used",
    "deep": "more than 8 bits, and are scaled from their least to their greatest value",
}


def check_samples(task: Any, parts: Mapping[str, Any]) -> None:
    """Looks at every picture of the samples of some parts; leaves samples out whose pictures cannot be used.

    As many are left out as the setting `bad_input_limit` allows; more raise BadInput, with the first ten by name.
    """
    listed = [part for part in parts.values() if isinstance(part.samples, list | tuple)]
    paths = {id(sample): several for part in listed for sample in part.samples if (several := _paths(sample))}
    if not paths:
        return
    looks = check(path for several in paths.values() for path in several)
    has_masks = any(isinstance(path, Mask) for path in looks)
    names = task.names if has_masks else []
    codes = tuple(getattr(task.settings, "codes", ())) or tuple(range(len(names)))
    ignored = tuple(getattr(task.settings, "ignored_codes", ()))
    problems: dict[int, str] = {}
    for number, several in paths.items():
        if wrong := [text for path in several if (text := _wrong(path, looks, several[0], codes, ignored))]:
            problems[number] = wrong[0]
    _leave_out(task.settings, listed, problems)
    if has_masks:
        _note_missing(looks.values(), codes, names)
    note_remarks(looks.values())


def _note_missing(looks: Iterable[Look], codes: Sequence[int], names: Sequence[str]) -> None:
    """Notes classes that no mask shows."""
    shown: set[int] = set()
    for look in looks:
        with suppress(_Unfit):  # one that is left out
            shown.update(_coded(np.array(look.values), look.kind, codes).tolist())
    missing = [name for name, code in zip(names, codes, strict=False) if code not in shown]
    if missing:
        note(f"No mask shows the class {printable(', '.join(missing), most=300)}.")


def _leave_out(settings: Any, parts: Sequence[Any], problems: Mapping[int, str]) -> None:
    what, lines = "Samples whose pictures cannot be used", [*problems.values()]
    if not problems:
        return
    if not hasattr(settings, "bad_input_limit"):
        raise BadInput(f"{what}: {len(lines):,}. Correct or remove them.\n{first_ten(lines)}")
    check_limit(what, lines, settings.bad_input_limit)
    note(f"{what}, and are left out: {len(lines):,}.\n{first_ten(lines)}")
    for part in parts:
        part.samples = [sample for sample in part.samples if id(sample) not in problems]


def note_remarks(looks: Iterable[Look]) -> None:
    """Notes how many pictures are read in another way than as they lie."""
    looks = list(looks)
    counts = Counter(remark for look in looks for remark in look.remarks)
    for remark, number in counts.items():
        note(f"{number:,} of {len(looks):,} pictures have {_REMARKS[remark]}.")


def _paths(sample: Any) -> list[Path]:
    """Returns the paths of pictures in a sample, its input first."""
    return [path for path in paths_in(sample) if isinstance(path, Picture) or path.suffix.lower() in COMMON]


def paths_in(sample: Any) -> list[Path]:
    if isinstance(sample, Mapping):
        return [value for value in sample.values() if isinstance(value, Path)]
    values = sample if isinstance(sample, tuple | list) else [sample]
    return [value for value in values if isinstance(value, Path)]


def _wrong(path: Path, looks: Mapping[Any, Look], first: Path, codes: Sequence[int], ignored: Sequence[int]) -> str:
    """Returns why a picture or a mask of a sample cannot be used, else ""."""
    look = looks[path]
    if look.wrong or not isinstance(path, Mask):
        return look.wrong
    try:
        with _naming(path, "mask"):
            _classes(_coded(np.array(look.values), look.kind, codes), codes, ignored)
    except BadInput as error:
        return str(error)
    whole = looks[first]
    if whole.wrong or _are_alike(whole, look):
        return ""
    sizes = f"{look.width} x {look.height} pixels, and its picture {whole.width} x {whole.height}"
    return f"The mask {printable(path, most=200)} has {sizes}. Export both in one shape, or turn one of them."


def _are_alike(one: Look, other: Look) -> bool:
    """Returns whether two images have one shape, to a pixel, perhaps in two sizes."""
    difference = abs(one.width * other.height - one.height * other.width)
    return difference <= max(one.width, one.height, other.width, other.height)
