"""Checks every picture and sound once before training, and caches the result until the file changes."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL

from lib.config.files import absolute, read_bytes
from lib.errors import BadInput, check_limit, first_ten, printable
from lib.machine import disk, platform
from lib.report.progress import counted
from trainbook.supervised.names import listed
from trainbook.supervised.notes import note
from trainbook.supervised.pictures import (
    MOST_BYTES,
    Mask,
    Picture,
    Unfit,
    as_rgb,
    classes_of,
    coded,
    is_transparent,
    naming_file,
    numbers_of,
    opened,
    orientation_of,
    unused_bands,
)
from trainbook.supervised.sounds import Sound, wave

# Checked if a task reads files by itself: it may read formats that Pillow cannot
_COMMON = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif")
_SMALL = 32  # pixels a side at which a picture is decoded for the check
_RATE = 8000  # at which a sound is read for the check
_VALUES = 300  # cached for each mask
_VERSION = 2  # of the cache
_REMARKS = {
    "exif": "EXIF that cannot be read, and are taken as they lie",
    "alpha": "transparent pixels, and are laid on white",
    "bands": "bands beside their colours, which are not used",
    "frames": "several frames, of which the first is used",
    "deep": "more than 8 bits, and are scaled from their least to their greatest value",
}


class Look(NamedTuple):
    """The result of checking a file: `wrong` is why it cannot be used."""

    digest: str = ""
    wrong: str = ""
    width: int = 0
    height: int = 0
    remarks: tuple[str, ...] = ()
    kind: str = ""  # for a mask: numbers, greys or colours
    values: tuple[int, ...] = ()  # for a mask: the first _VALUES


def check(paths: Iterable[str | Path]) -> dict[str | Path, Look]:
    """Decodes files, `Mask` paths as masks, `Sound` paths as sounds and others as pictures.

    The machine's cache keeps the results by path, size and time.
    """
    places = {path: str(absolute(Path(path))) for path in dict.fromkeys(paths)}
    stamps = {path: _stamp(path) for path in places}
    file = _cache_file(places.values())
    earlier = _remembered(file)
    looks = {}
    for path, place in places.items():
        stamp, look = earlier.get(place, ([], Look()))
        if stamp and stamp == stamps[path]:
            looks[path] = look
    rest = [path for path in places if path not in looks]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        fresh = counted(threads.map(_look, rest), f"Looking at the {_word(rest)}s", len(rest))
        looks |= zip(rest, fresh, strict=True)
    whole = [path for path in rest if not looks[path].wrong]
    if whole:
        for path in whole:
            earlier[places[path]] = (stamps[path], looks[path])
        _remember(file, earlier)
    return {path: looks[path] for path in places}


def _word(paths: Iterable[Any]) -> str:
    return "sound" if any(isinstance(path, Sound) for path in paths) else "picture"


def _look(path: str | Path) -> Look:
    if isinstance(path, Mask):
        kind = "mask"
        decode = _of_mask
    elif isinstance(path, Sound):
        kind = "sound"
        decode = _of_sound
    else:
        kind = "picture"
        decode = _of_picture
    try:
        with naming_file(path, kind):
            digest = hashlib.sha256(read_bytes(Path(path), MOST_BYTES)).hexdigest()
            return decode(path)._replace(digest=digest[:20])
    except BadInput as error:
        return Look(wrong=str(error))


def _of_picture(path: str | Path) -> Look:
    image = opened(path)
    width, height = image.size
    orientation = orientation_of(image)
    if orientation and orientation > 4:
        width, height = height, width
    remarks = []
    if orientation is None:
        remarks.append("exif")
    if image.format != "MPO" and getattr(image, "is_animated", False):
        remarks.append("frames")
    if image.mode[0] in "IF" or not image.format:
        remarks.append("deep")
    if unused_bands(image):
        remarks.append("bands")
    if is_transparent(image):
        remarks.append("alpha")
    as_rgb(image, _SMALL)
    return Look("", "", width, height, tuple(remarks))


def _of_mask(path: str | Path) -> Look:
    numbers, kind = numbers_of(path)
    height, width = numbers.shape
    values = np.unique(numbers[np.isfinite(numbers)])
    parts = values[values != np.floor(values)]
    if len(parts):
        raise Unfit(f"holds {parts[0]:g}. Classes are whole numbers: export them so.")
    remembered = values[:_VALUES].astype(np.int64)
    return Look("", "", width, height, (), kind, tuple(remembered.tolist()))


def _of_sound(path: str | Path) -> Look:
    wave(path, _RATE)
    return Look()


def _stamp(path: str | Path) -> list[int]:
    """Returns the size, time and kind of a file; [] if it is missing."""
    with suppress(OSError):
        status = Path(path).stat()
        return [status.st_size, status.st_mtime_ns, int(isinstance(path, Mask))]
    return []


def _cache_file(places: Collection[str]) -> Path:
    folders = [os.path.dirname(place) for place in places]  # noqa: PTH120  # quicker
    shared = os.path.commonpath(folders) if folders else ""
    facts = f"{_VERSION} {PIL.__version__} {shared}".encode("utf-8", "surrogateescape")
    name = hashlib.sha256(facts).hexdigest()
    return platform.detect().scratch_dir / "pictures" / f"{name[:16]}.json"


def _remembered(file: Path) -> dict[str, tuple[list[int], Look]]:
    records = {}
    with suppress(OSError, ValueError, TypeError):  # missing or damaged
        for path, (stamp, fields) in json.loads(file.read_bytes()).items():
            look = Look(*fields)
            remarks = tuple(look.remarks)
            values = tuple(look.values)
            records[path] = (stamp, look._replace(remarks=remarks, values=values))
    return records


def _remember(file: Path, records: Mapping[str, tuple[list[int], Look]]) -> None:
    with suppress(OSError):  # a cache: without room the next run checks again
        file.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(file, cache=True) as aside:
            aside.write_text(json.dumps(records), "utf-8")


# --- the files of a task's samples ---------------------------------------------------------------------------------


class Coding(NamedTuple):
    """The values of classes in masks, by the settings of a task."""

    names: Sequence[str]
    codes: Sequence[int]
    ignored: Sequence[int]


def check_samples(task: Any, parts: Mapping[str, Any]) -> None:
    """Checks every picture of the samples in some parts; leaves out samples with unusable ones.

    Raises BadInput for more than the setting `bad_input_limit` allows, with the first ten by name.
    """
    listed = [part for part in parts.values() if isinstance(part.samples, list | tuple)]
    paths = {}
    for part in listed:
        for sample in part.samples:
            paths[id(sample)] = _inputs_of(sample)
    if not any(paths.values()):
        return
    looks = check(path for several in paths.values() for path in several)
    coding = _coding(task, looks)
    problems = {}
    for number, several in paths.items():
        wrong = [_wrong(path, several[0], looks, coding) for path in several]
        if any(wrong):
            problems[number] = next(filter(None, wrong))
    _leave_out(task.settings, listed, problems, _word(looks))
    _note_missing(looks.values(), coding)
    note_remarks(looks.values())


def _inputs_of(sample: Any) -> list[Path]:
    """Returns the paths of pictures and sounds in a sample, its input first."""
    paths = paths_in(sample)
    known = (Picture, Sound)
    return [path for path in paths if isinstance(path, known) or path.suffix.lower() in _COMMON]


def paths_in(sample: Any) -> list[Path]:
    if isinstance(sample, Mapping):
        return [value for value in sample.values() if isinstance(value, Path)]
    values = sample if isinstance(sample, tuple | list) else [sample]
    return [value for value in values if isinstance(value, Path)]


def _coding(task: Any, paths: Iterable[Any]) -> Coding:
    # As in the settings: names from the data are not known yet
    if any(isinstance(path, Mask) for path in paths):
        names = task._given_names()
    else:
        names = []
    codes = getattr(task.settings, "codes", ()) or range(len(names))
    return Coding(names, tuple(codes), tuple(getattr(task.settings, "ignored_codes", ())))


def _wrong(path: Path, first: Path, looks: Mapping[Any, Look], coding: Coding) -> str:
    """Returns why a picture or mask of a sample cannot be used, or ""; `first` is the input."""
    look = looks[path]
    whole = looks[first]
    if look.wrong or not isinstance(path, Mask):
        return look.wrong
    try:
        with naming_file(path, "mask"):
            values = coded(np.array(look.values), look.kind, coding.codes)
            classes_of(values, coding.codes, coding.ignored)
    except BadInput as error:
        return str(error)
    if whole.wrong or _are_alike(whole, look):
        return ""
    shown = printable(path, most=200)
    return (
        f"The mask {shown} has {look.width} x {look.height} pixels, and its picture "
        f"{whole.width} x {whole.height}. Export both in one shape, or turn one of them."
    )


def _are_alike(one: Look, other: Look) -> bool:
    """Returns whether two images have the same ratio of sides, to a pixel."""
    difference = one.width * other.height - one.height * other.width
    return abs(difference) <= max(one.width, one.height, other.width, other.height)


def _leave_out(settings: Any, parts: Sequence[Any], problems: Mapping[int, str], word: str) -> None:
    if not problems:
        return
    what = f"Samples whose {word}s cannot be used"
    lines = [*problems.values()]
    if not hasattr(settings, "bad_input_limit"):
        raise BadInput(f"{what}: {len(lines):,}. Correct or remove them.\n{first_ten(lines)}")
    check_limit(what, lines, settings.bad_input_limit)
    note(f"{what}, and are left out: {len(lines):,}.\n{first_ten(lines)}")
    for part in parts:
        part.samples = [sample for sample in part.samples if id(sample) not in problems]


def _note_missing(looks: Iterable[Look], coding: Coding) -> None:
    """Notes classes that no mask shows."""
    shown: set[int] = set()
    for look in looks:
        with suppress(Unfit):  # its sample is left out
            values = coded(np.array(look.values), look.kind, coding.codes)
            shown.update(values.tolist())
    pairs = zip(coding.names, coding.codes, strict=False)
    missing = [name for name, code in pairs if code not in shown]
    if missing:
        note(f"No mask shows the class {listed(missing)}.")


def note_remarks(looks: Collection[Look]) -> None:
    """Notes how many pictures are changed when they are read, by reason."""
    counts = Counter(remark for look in looks for remark in look.remarks)
    for remark, number in counts.items():
        note(f"{number:,} of {len(looks):,} pictures have {_REMARKS[remark]}.")
