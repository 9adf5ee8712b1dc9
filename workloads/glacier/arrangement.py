"""By which settings a folder of scenes is read: a known layout, or patterns for what its files are called and hold."""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.errors import BadInput
from lib.text import aligned
from workloads.glacier.data import layout, lossy, naming, pairing, rasters
from workloads.glacier.data.naming import NamesDiffer
from workloads.glacier.data.pairing import Pair
from workloads.glacier.data.scenes import Scene
from workloads.glacier.settings import BAND, Source

MOST_CODES = 1_000  # different values of the masks that are counted
_ANY = {"classes": ("background", "other"), "codes": (0, 1)}  # of a source whose masks are looked at as they are
_FEW_CODES = 64  # what has more different values is no mask
_LOOKED_AT = 6  # scenes of a pair
_MOST_PAIRS = 40
_SIDE = 1024  # pixels that are looked at
_WORD = re.compile("[0-9A-Za-z]+")
_NO_CLASSES = {  # words of files that look like masks: numbers of things, or how much a label is to be trusted
    "instance", "instances", "object", "objects", "map", "eroded", "boundary", "boundaries", "conf", "confidence",
    "valid", "quality", "qmask", "edge", "edges", "hydro", "parcel",
}  # fmt: skip
_OTHER_FORMATS = (
    ".h5", ".hdf5", ".nc", ".mat", ".npz", ".zip", ".tar", ".gz", ".vrt", ".bmp", ".gif", ".webp", ".hdf", ".geojson",
    ".shp", ".gpkg",
)  # fmt: skip


def settings(root: Path) -> tuple[Source, list[str]]:
    """Returns the settings by which a folder is read, with all of its bands, and a sentence on each other choice.

    Raises BadInput, with what lies in the folder.
    """
    numbers = next((found for folder in layout.folders(root) if (found := layout.band_numbers(folder))), [])
    names = tuple(f"band{number}" for number in numbers)
    source = Source(bands=names or ("band1",), channels=tuple(numbers), **_ANY)
    if not numbers and (words := layout.scene_words(root)):
        return replace(source, bands=tuple(word.lower() for word in words), band_files=tuple(words)), []
    source, scenes, others = _readable(root, source)
    if (words := naming.shared_bands(layout.listed(root))) and source.images and _are_bands(root, words):
        return replace(source, bands=tuple(words), band_files=tuple(words), images="", masks=""), others
    if numbers or not scenes or BAND in source.images:
        return source, others
    count = bands_of(scenes[0].images[0])
    return replace(source, bands=tuple(f"band{number}" for number in range(1, count + 1))), others


def _are_bands(root: Path, words: Sequence[str]) -> bool:
    """Says whether the files of these names in the first scene's folder have one band each."""
    folder = next(path.parent for path in (root / name for name in layout.listed(root)) if path.stem == words[0])
    return all(bands_of(path) == 1 for path in folder.iterdir() if path.stem in words and naming.is_raster(path.name))


def _readable(root: Path, source: Source) -> tuple[Source, list[Scene], list[str]]:
    """Returns the settings under which the most scenes are found, those of a known layout where they find as many.

    The sentences are on other files that could be the images or the masks.
    """
    known = _known(root, source)
    found = _by_patterns(root, source, known)
    if found and len(found[1]) > (len(known[1]) if known else 0):
        return found
    if known:
        return *known, []
    try:
        layout.find(root, source)
    except NamesDiffer:
        raise
    except BadInput:
        pass
    what = "no images in a known layout, and no files of which some could be the masks of others"
    raise BadInput(f"{root} holds {what}.{_problem(root, source)}\n{_listing(root)}")


def _problem(root: Path, source: Source) -> str:
    """Returns a sentence on a file that cannot be read though its name is that of a scene's; "" where there is none."""
    for pair in pairing.guess(layout.listed(root))[:1]:
        try:
            for scene in _tried(root, replace(source, images=pair.images, masks=pair.masks, channels=()))[:1]:
                for path in scene.files:
                    bands_of(path)
        except BadInput as problem:
            return f" {problem}"
    return ""


def _known(root: Path, source: Source) -> tuple[Source, list[Scene]] | None:
    """Returns the settings and the scenes of a known layout, with a pattern of names where that is needed."""
    try:
        return source, _tried(root, source)
    except NamesDiffer as differ:
        if differ.pattern:
            changed = replace(source, name_pattern=differ.pattern)
            return changed, _tried(root, changed)
    except BadInput:
        pass
    return None


def _tried(root: Path, source: Source) -> list[Scene]:
    """Returns the scenes that settings find, without a word on what they leave out."""
    with contextlib.redirect_stdout(io.StringIO()):
        return layout.find(root, source)[0]


def _by_patterns(
    root: Path, source: Source, known: tuple[Source, list[Scene]] | None
) -> tuple[Source, list[Scene], list[str]] | None:
    """Returns the settings and the scenes of the best patterns whose files are images and masks indeed.

    Of pairs with nearly as many scenes it is the best by `_rank`. None where none has more than the known layout.
    """
    pairs = [pair for pair in pairing.guess(layout.listed(root)) if not known or pair.scenes > len(known[1])]
    fitting: list[tuple[tuple[int, ...], Pair, Source, list[Scene]]] = []
    most = 0
    for pair in pairs[:_MOST_PAIRS]:
        changed = replace(source, images=pair.images, masks=pair.masks, channels=(), bands=("band1",))
        with contextlib.suppress(BadInput):
            scenes = _tried(root, changed)
            if rank := _rank(scenes, pair):
                fitting.append((rank, pair, changed, scenes))
                most = max(most, pair.scenes * rank[0])
    nearly = [one for one in fitting if one[1].scenes >= 0.9 * most]
    if not nearly:
        return None
    rank, best, changed, scenes = max(nearly, key=lambda one: one[0])
    single = [pair.images for rank, pair, *_ in nearly if rank[:2] == (1, 1) and pair.masks == best.masks]
    if joined := _joined(root, changed, single if rank[1] == 1 else []):
        return *joined, _others(best, [pair for _, pair, *_ in fitting if pair.images not in single])
    return changed, scenes, _others(best, [pair for _, pair, *_ in fitting])


def _others(chosen: Pair, pairs: Sequence[Pair]) -> list[str]:
    """Returns a sentence on the other images of the masks that were chosen, and on the other masks of the images."""
    images = [pair for pair in pairs if pair.masks == chosen.masks and pair.images != chosen.images]
    masks = [pair for pair in pairs if pair.images == chosen.images and pair.masks != chosen.masks]
    found = []
    for what, side in (("images", images), ("masks", masks)):
        if side:
            named = ", ".join(f"{getattr(pair, what)} ({pair.scenes:,} scenes)" for pair in side[:5])
            found.append(f"The {what} may also be {named}: change workload.source.{what}.")
    return found


def _joined(root: Path, source: Source, images: Sequence[str]) -> tuple[Source, list[Scene]] | None:
    """Returns the settings under which files of one band are read together; None where their names do not allow it."""
    for pattern, words in bands_in(images):
        changed = replace(source, images=pattern, bands=words, band_files=words)
        try:
            return changed, _tried(root, changed)
        except BadInput:
            continue
    return None


def bands_in(patterns: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Returns patterns with {band} that stand for two or more of some patterns, the most first, and their words."""
    found: dict[str, list[str]] = {}
    for pattern in patterns:
        for word in dict.fromkeys(_WORD.findall(pattern)):
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", BAND, pattern)
            found.setdefault(text, []).append(word)
    several = [(text, tuple(words)) for text, words in found.items() if len(words) > 1]
    return sorted(several, key=lambda one: (-len(one[1]), -one[0].count(BAND)))


def _rank(scenes: Sequence[Scene], pair: Pair) -> tuple[int, ...] | None:
    """Returns what decides between pairs, the most important first; None where they are no images and masks.

    It is whether the images could be no masks, how many bands they have, whether the masks' name means no classes of
    pixels, how many values they have, and how few words the names of one side alone have. Names that tell the masks are
    believed; each image must have as many bands, and the size of its mask.
    """
    chosen = [scenes[place] for place in sorted(set(np.linspace(0, len(scenes) - 1, _LOOKED_AT).round().astype(int)))]
    values: set[float] = set()
    counts: set[int] = set()
    is_image = False
    for scene in chosen:
        assert scene.mask
        try:
            if _size(scene.images[0]) != _size(scene.mask):
                return None
            counts.add(bands_of(scene.images[0]))
            values |= _values(scene.mask)
            is_image |= len(_values(scene.images[0])) > _FEW_CODES
        except (BadInput, ValueError):
            continue
    are_classes = 1 < len(values) <= _FEW_CODES
    if len(counts) != 1 or not (pair.is_told or (is_image and are_classes)):
        return None
    one, other = (_words(text) for text in (pair.images, pair.masks))
    odd = sum(word.lower() in _NO_CLASSES for word in other)
    return int(is_image), counts.pop(), int(are_classes), -odd, len(values) * are_classes, -len(one ^ other)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(re.sub("(?<=[a-z])(?=[A-Z])", "_", text)))


def _size(path: Path) -> tuple[int, ...]:
    """Returns height and width."""
    if path.suffix == ".npy":
        shape = rasters.shape_of(path)
        return shape if len(shape) == 2 else shape[1:] if shape[0] < min(shape[1:]) else shape[:2]
    with rasters.raster(path) as data:
        return data.height, data.width


def _values(path: Path) -> set[float]:
    """Returns the values of a file's first corner, or more than a mask has where they are no whole numbers."""
    if path.suffix == ".npy":
        array = np.asarray(rasters.load_array(path))
    else:
        with rasters.raster(path) as data:
            window = (0, 0, min(_SIDE, data.height), min(_SIDE, data.width))
            numbers = rasters.planes_of(data)
            planes = [rasters.read_window(path, data, number, window) for number in numbers[:4]]
        if lossy.is_lossy(path):
            values = planes[0] if len(planes) < 3 else rasters.coded(planes[:3])
            return set(lossy.counted(values)) if lossy.is_mask(values) else set(range(_FEW_CODES + 1))
        is_colour = len(planes) == 3 and planes[0].dtype == np.uint8
        array = rasters.coded(planes) if is_colour else np.stack(planes)
    array = array[np.isfinite(array)]
    found = np.unique(array)
    return set(found.tolist()) if not (found % 1).any() else set(range(_FEW_CODES + 1))


def bands_of(path: Path) -> int:
    if path.suffix == ".npy":
        shape = rasters.shape_of(path)
        if len(shape) != 3:
            return 1
        return shape[2] if shape[2] <= shape[0] else shape[0]
    with rasters.raster(path) as data:  # GDAL takes a fourth band of bytes for opacity, which is so in PNG alone
        return len(rasters.planes_of(data)) if data.driver == "PNG" else data.count


def _listing(root: Path) -> str:
    """Returns the folders with rasters, with how many there are and the first name."""
    folders: dict[str, list[str]] = {}
    for path in layout.listed(root):
        above, _, name = path.rpartition("/")
        folders.setdefault(above or ".", []).append(name)
    rows = [[folder, f"{len(names):,}", names[0]] for folder, names in sorted(folders.items())]
    if not rows:
        return f"No file below {root} is called {', '.join(naming.RASTERS)} or .npy.{_other_formats(root)}"
    advice = (
        "Say which of them are images and which are masks: workload.source.images, such as FOLDER/*.tif, and masks."
    )
    table = aligned([["folder", "files", "the first"], *rows[:20]], left=[0, 2])
    return f"{table}\n{_stacks(root)}{advice}{_other_formats(root)}"


def _stacks(root: Path) -> str:
    """Returns a line on the first array that holds many patches; "" where there is none."""
    for name in layout.listed(root):
        if name.endswith(".npy") and len(shape := rasters.shape_of(root / name)) > 3:
            return f"{name} has the shape {shape}. Write each patch to a .npy of its own, (height, width, bands).\n"
    return ""


def _other_formats(root: Path) -> str:
    """Returns a sentence on files that may hold pixels in a format that is not read; "" where there are none."""
    counts = Counter(path.suffix.lower() for path in root.rglob("*") if path.suffix.lower() in _OTHER_FORMATS)
    if not counts:
        return ""
    kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in counts.most_common())
    ways = "unpack archives, write arrays as .npy of (height, width, bands), and draw outlines into masks"
    return f" There are {kinds}, which are not read: {ways} (gdal_rasterize)."


def unused(root: Path, scenes: Sequence[Scene]) -> str:
    """Returns a sentence on the rasters and arrays that no scene uses, a line a folder; "" without any."""
    used = {path.relative_to(root).as_posix() for scene in scenes for path in scene.files}
    others: dict[tuple[str, str], list[str]] = {}
    for path in layout.listed(root):
        if path not in used:
            above, _, name = path.rpartition("/")
            others.setdefault((above or ".", Path(name).suffix), []).append(name)
    if not others:
        return ""
    rows = [f"  {above}: {len(names):,}, such as {names[0]}" for (above, _), names in sorted(others.items())[:10]]
    more = f"\n  and in {len(others) - 10:,} more folders" if len(others) > 10 else ""
    return "Files that no scene uses:\n" + "\n".join(rows) + more
