"""What lies in a folder of scenes: layout, bands, types, codes, places, gaps, names and overlaps."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lib.errors import BadInput, first_ten
from lib.report.progress import counted
from lib.text import aligned
from workloads.glacier import arrangement, lists
from workloads.glacier.arrangement import MOST_CODES
from workloads.glacier.data import layout, lossy, rasters, readers, windows
from workloads.glacier.data.homes import home
from workloads.glacier.data.readers import Unusable
from workloads.glacier.data.scenes import Scene
from workloads.glacier.data.tiles import strange_units
from workloads.glacier.settings import Source

MOST_CLASSES = 60
_MOST_SCENES = 400  # that are read; evenly out of more
_NO_DATA = (-999, -9999, -32767, -32768, -99999)  # usual marks of pixels without data
_WINDOW = 1024  # pixels on a side that are read at once


@dataclass
class Seen:
    """What one scene's files hold."""

    scene: Scene
    height: int
    width: int
    crs: str | None
    bounds: tuple[float, float, float, float]
    types: tuple[str, ...]
    pixels: np.ndarray  # all, with data
    moments: np.ndarray  # (bands, 4): sum, sum of squares, least and most over the pixels with data
    codes: Counter[float] = field(default_factory=Counter)
    mask: str = ""  # type of the mask, and how many bands it has
    is_coloured: bool = False
    is_in_three: bool = False  # bands, so that codes are of colours
    layers: int = 0  # of a mask of several layers
    planes: list[Counter[float]] = field(default_factory=list)  # how often each value is in bands that differ
    nodata: float | None = None  # that the mask's file names
    hashes: np.ndarray | None = None  # where there is no place on the map

    @property
    def means(self) -> np.ndarray:
        return self.moments[:, 0] / max(1, self.pixels[1])

    @property
    def of_grey(self) -> Counter[float]:
        """Returns how often each grey comes, of codes of colours."""
        return Counter({code % 256: number for code, number in self.codes.items()})

    @property
    def sizes(self) -> np.ndarray:
        """Returns (bands) root mean squares."""
        return np.sqrt(self.moments[:, 1] / max(1, self.pixels[1]))


@dataclass
class Found:
    """All that was seen below a folder."""

    root: Path
    source: Source  # that reads the layout; its classes stand for nothing yet
    scenes: list[Scene]
    lacking: list[str]  # sentences on scenes with something missing
    seen: list[Seen]
    broken: list[str]  # sentences on scenes that cannot be read
    others: list[str] = field(default_factory=list)  # sentences on files that could be taken in the place of these
    parts: dict[str, str] = field(default_factory=dict)  # of scenes, by lists of names

    @property
    def is_lossy(self) -> bool:
        """Says whether a mask is compressed so that its values are only nearly those that were meant."""
        return any(one.scene.mask and lossy.is_lossy(one.scene.mask) for one in self.seen)

    @functools.cached_property
    def planes(self) -> list[Counter[float]]:
        """Returns how often each value is in each band of the masks, where a mask's bands differ."""
        several = [one.planes for one in self.seen if one.planes]
        return [sum(counts, Counter()) for counts in zip(*several, strict=False)]

    @property
    def layers(self) -> int:
        """Returns how many layers a mask has: bands, or channels of an array, with one value beside 0 each."""
        return 0 if self.mask_band else max(one.layers for one in self.seen)

    @functools.cached_property
    def mask_band(self) -> int:
        """Returns the first band of the masks that has classes, where bands differ and are no layers; 0 without."""
        if all(len(set(counts) - {0}) < 2 for counts in self.planes):
            return 0
        fitting = [1 < len(counts) <= MOST_CLASSES and not any(value % 1 for value in counts) for counts in self.planes]
        return next((number for number, fits in enumerate(fitting, 1) if fits), 1)

    @functools.cached_property
    def codes(self) -> Counter[float]:
        if self.mask_band:
            return self.planes[self.mask_band - 1]
        total: Counter[float] = Counter()
        for one in self.seen:
            total += one.codes if self.is_coloured or not one.is_in_three else one.of_grey
        return lossy.merged(total) if self.is_lossy else total

    @property
    def is_coloured(self) -> bool:
        return any(one.is_coloured for one in self.seen)


def look(folder: Path) -> Found:
    """Reads what lies in a folder. Raises BadInput where it holds no labelled scenes, with what it does hold."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder. Give the folder that holds the images and the masks.")
    root = home(folder)
    source, others = arrangement.settings(root)
    scenes, lacking = layout.find(root, source)
    chosen = scenes[:: max(1, -(-len(scenes) // _MOST_SCENES))]
    parts, sentences = lists.parts(root, scenes)
    found = Found(root, source, scenes, lacking, [], [], [*others, *sentences], parts)
    for scene in counted(chosen, "scenes looked at"):
        try:
            found.seen.append(_seen(scene, source))
        except Unusable as problem:
            found.broken.append(str(problem))
    if not found.seen:
        raise BadInput(f"None of {len(chosen):,} scenes in {root} can be read:\n{first_ten(lacking + found.broken)}")
    return found


def _windows(height: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    for row in range(0, height, _WINDOW):
        for column in range(0, width, _WINDOW):
            yield row, column, min(_WINDOW, height - row), min(_WINDOW, width - column)


def _seen(scene: Scene, source: Source) -> Seen:
    """Reads one scene window by window. Raises Unusable."""
    with readers.opened(scene, source) as opened:
        count = len(source.bands)
        moments = np.tile([0.0, 0.0, np.inf, -np.inf], (count, 1))
        pixels, hashes = np.zeros(2, np.int64), np.empty(0, np.uint64)
        for window in _windows(opened.height, opened.width):
            image = opened.bands(window)
            known = image[:, ~np.isnan(image[0])].astype(np.float64)
            pixels += image[0].size, known.shape[1]
            if known.size:
                moments[:, :2] += np.stack([known.sum(1), (known**2).sum(1)], 1)
                moments[:, 2] = np.minimum(moments[:, 2], known.min(1))
                moments[:, 3] = np.maximum(moments[:, 3], known.max(1))
            if not opened.crs:
                hashes = windows.sketch(image, hashes)
        whole = (0, 0, opened.height, opened.width)
        seen = Seen(
            scene, opened.height, opened.width, opened.crs, opened.bounds(whole), _types(scene), pixels, moments,
            hashes=None if opened.crs else hashes,
        )  # fmt: skip
        _look_at_mask(seen, opened, source)
    return seen


def _types(scene: Scene) -> tuple[str, ...]:
    if scene.images[0].suffix == ".npy":
        return (str(np.load(scene.images[0], mmap_mode="r").dtype),)
    found: list[str] = []
    for path in scene.images:
        with rasters.raster(path) as data:
            found += data.dtypes
    return tuple(dict.fromkeys(found))


def _look_at_mask(seen: Seen, opened: readers.Opened, source: Source) -> None:
    """Counts the values of the mask as they are on disk, colours as the numbers that stand for them."""
    path = seen.scene.mask
    assert path
    if path.suffix == ".npy":
        _look_at_layers(seen, opened)
        return
    with rasters.raster(path) as data:
        kinds = set(data.dtypes)
        seen.mask, seen.nodata = (
            f"{', '.join(sorted(kinds))}{f' x {data.count}' if data.count > 1 else ''}",
            data.nodata,
        )
        numbers = rasters.planes_of(data)
        seen.is_in_three = len(numbers) == 3 and kinds == {"uint8"}
        for window in _windows(data.height, data.width):
            planes = [rasters.read_window(path, data, number, window) for number in numbers]
            if seen.is_in_three:
                seen.is_coloured |= not _is_grey(planes, path)
                _count(seen, rasters.coded(planes))
            elif any(not np.array_equal(planes[0], plane, equal_nan=True) for plane in planes[1:]):
                seen.layers = len(planes)
                seen.planes = seen.planes or [Counter() for _ in planes]
                for counts, plane in zip(seen.planes, planes, strict=True):
                    _add(counts, plane)
            else:
                _count(seen, planes[0])


def _is_grey(planes: Sequence[np.ndarray], path: Path) -> bool:
    if lossy.is_lossy(path):
        return lossy.is_grey(planes)
    return all(np.array_equal(planes[0], plane) for plane in planes[1:])


def _look_at_layers(seen: Seen, opened: readers.Opened) -> None:
    values = opened.mask((0, 0, opened.height, opened.width))
    seen.mask = str(values.dtype)
    if values.ndim == 3:
        seen.layers = values.shape[2]
    else:
        _count(seen, values)


def _count(seen: Seen, values: np.ndarray) -> None:
    if seen.scene.mask and lossy.is_lossy(seen.scene.mask):
        seen.codes.update(lossy.counted(values))
    else:
        _add(seen.codes, values)


def _add(counts: Counter[float], values: np.ndarray) -> None:
    """Counts values, but no more than tell that they are no classes."""
    if len(counts) <= MOST_CODES:
        codes, numbers = np.unique(values, return_counts=True, equal_nan=True)
        counts.update({code: n for code, n in zip(codes.tolist(), numbers.tolist(), strict=True) if code == code})


# --- what it says -----------------------------------------------------------------------------------------------------


def describe(found: Found) -> str:
    """Returns what was seen, a line a fact and a row a band."""
    first = found.seen[0]
    lines = [f"{found.root}: {layout.summary(found.scenes, found.lacking)}."]
    lines += [first_ten(found.lacking)] if found.lacking else []
    lines += [f"{len(found.broken):,} scenes cannot be read:", first_ten(found.broken)] if found.broken else []
    if len(found.seen) + len(found.broken) < len(found.scenes):
        lines.append(f"What follows is of {len(found.seen):,} scenes, evenly out of all.")
    lines += [text] if (text := arrangement.unused(found.root, found.scenes)) else []
    lines += found.others
    parts = Counter(scene.part or "by the shares" for scene in found.scenes)
    if set(parts) != {"by the shares"}:
        lines.append(f"Split by folders: {', '.join(f'{part} {number:,}' for part, number in sorted(parts.items()))}.")
    lines += [
        f"Names: {first.scene.name} is {first.scene.images[0]} with {first.scene.mask}.",
        f"Size: {_counted([f'{one.height} x {one.width}' for one in found.seen])} pixels.",
        f"Types: {_counted([', '.join(one.types) for one in found.seen])}.",
        f"Place: {_counted([one.crs or 'none (no CRS)' for one in found.seen])}.",
        _gaps(found.seen), "", _bands(found.seen, found.source), "", _codes(found),
    ]  # fmt: skip
    if full := [one for one in found.seen if one.pixels[1]]:
        lines += strange_units(np.stack([one.sizes for one in full]), [one.scene.name for one in full])
    return "\n".join([*lines, *_overlaps(found.seen)])


def _counted(values: Sequence[str]) -> str:
    """Returns the most frequent values with their numbers."""
    counts = Counter(values).most_common()
    more = f" and {len(counts) - 4:,} more" if len(counts) > 4 else ""
    return ", ".join(f"{value} ({number:,})" for value, number in counts[:4]) + more


def _gaps(seen: Sequence[Seen]) -> str:
    total = sum(one.pixels for one in seen)
    empty = [one.scene.name for one in seen if not one.pixels[1]]
    text = f"No data (NaN or the file's nodata): {1 - total[1] / total[0]:.2%} of the pixels."
    return f"{text} {len(empty):,} scenes hold none at all, such as {empty[0]}." if empty else text


def _bands(seen: Sequence[Seen], source: Source) -> str:
    pixels = max(1, sum(int(one.pixels[1]) for one in seen))
    total, squares = (sum(one.moments[:, k] for one in seen) / pixels for k in (0, 1))
    least, most = np.min([one.moments[:, 2] for one in seen], 0), np.max([one.moments[:, 3] for one in seen], 0)
    deviation = np.sqrt(np.maximum(squares - total**2, 0))
    columns = zip(source.bands, total, deviation, least, most, strict=True)
    rows = [[name, *(f"{value:.4g}" for value in values)] for name, *values in columns]
    table = aligned([["band", "mean", "deviation", "least", "most"], *rows], left=[0])
    marks = [(name, f"{value:g}") for name, value in zip(source.bands, least, strict=True) if value in _NO_DATA]
    hints = [
        f"{name} has {mark}: if that says no data, write workload.source.nodata: [{mark}]." for name, mark in marks
    ]
    return "\n".join([table, *hints])


def _codes(found: Found) -> str:
    """Returns a row for each value of the masks, or for layers that there are some."""
    masks = _counted([one.mask for one in found.seen])
    if layers := found.layers:
        return f"Masks: {masks}, {layers} layers: the last one that is set is a pixel's class."
    counts = found.codes
    if len(counts) > MOST_CODES:
        return f"Masks: {masks}, with more than {MOST_CODES:,} different values: these are no classes."
    total = sum(counts.values())
    rows = []
    for code, number in sorted(counts.items())[:40]:
        shade = int(code) if found.is_coloured else 0
        colour = f"  ({shade >> 16}, {shade >> 8 & 255}, {shade & 255})" if found.is_coloured else ""
        rows.append([f"{code:g}" if code % 1 else f"{int(code)}", f"{number:,}", f"{number / total:.3%}{colour}"])
    more = f"\nand {len(counts) - 40:,} more" if len(counts) > 40 else ""
    if found.mask_band:
        masks += f", whose bands differ; these are the values of band {found.mask_band} (workload.source.mask_band)"
    more += (
        "\nThe masks are JPEG, which changes values: each pixel is taken for the nearest code."
        if found.is_lossy
        else ""
    )
    return f"Masks: {masks}\n{aligned([['code', 'pixels', 'share'], *rows])}{more}"


def _overlaps(seen: Sequence[Seen]) -> list[str]:
    """Returns sentences on scenes that show the same ground, by their places or by equal windows of pixels."""
    lost, lines = [one for one in seen if not one.crs], []
    placed = _overlapping([one for one in seen if one.crs])
    if placed:
        lines.append(
            f"Overlaps: {len(placed):,} pairs of scenes share ground on the map, such as {placed[0][0]} and "
            f"{placed[0][1]}. Training tiles on held-out ground are left out."
        )
    linked = groups_of(lost)
    if linked:
        lines.append(
            f"Overlaps: {sum(map(len, linked)):,} of {len(lost):,} scenes without a place on the map show ground of "
            f"another one by equal windows of pixels, in {len(linked):,} groups, such as {', '.join(linked[0][:3])}. "
            "--groups FILE writes them; workload.split.file reads that file and keeps each group together."
        )
    elif lost:
        lines.append("Overlaps: no equal windows of pixels in scenes without a place on the map.")
    return lines


def _overlapping(seen: Sequence[Seen]) -> list[tuple[str, str]]:
    """Returns the names of pairs of scenes in one CRS whose boxes share more than a hundredth of the smaller one."""
    found = []
    for number, one in enumerate(seen):
        for other in seen[number + 1 :]:
            a, b = one.bounds, other.bounds
            width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
            if one.crs == other.crs and width > 0 and height > 0 and width * height > 0.01 * smaller:
                found.append((one.scene.name, other.scene.name))
    return found


def groups_of(seen: Sequence[Seen]) -> list[list[str]]:
    """Returns the names of scenes that share windows of pixels, a list a group."""
    hashes = {number: one.hashes for number, one in enumerate(seen) if one.hashes is not None}
    return [[seen[number].scene.name for number in group] for group in windows.groups(windows.pairs(hashes))]
