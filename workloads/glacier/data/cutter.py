"""Scenes cut into tiles once, one after another, into a store (see `tiles`); an interrupted cut is resumed."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, check_limit, first_ten
from lib.machine import disk
from lib.report.progress import counted
from lib.scores import IGNORE
from workloads.glacier.data import readers, records, windows
from workloads.glacier.data.readers import Opened, Scene, Unusable, Window
from workloads.glacier.data.tiles import Store
from workloads.glacier.settings import Cut, Source

_VERSION = 5  # of the store's files
_COMPLETE = "complete.json"
_FLOAT16_MAX = 65_504.0


@dataclass
class Cutter:
    """Cuts scenes into a store's folder, each of them once, and collects sentences on those that cannot be used."""

    folder: Path
    source: Source
    cut: Cut
    limit: int = 0  # unusable scenes that are left out; one more refuses the data

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._verified = records.Verified(self.folder, "such scenes are cut again")
        self.folder.mkdir(parents=True, exist_ok=True)

    def all(self, scenes: Sequence[Scene], problems: Sequence[str]) -> Store:
        """Cuts every scene and prints progress. Raises BadInput past the limit of unusable scenes."""
        self.problems += problems
        for scene in counted(scenes, "scenes cut"):
            self.add(scene)
        return self.finish()

    def add(self, scene: Scene, stamp: list[Any] | None = None) -> None:
        """Cuts a scene unless it was cut before, by its files' `stamp`; notes a problem where it is unusable."""
        try:
            stamp = stamp or stamp_of(scene.files)
            if not self.take(scene, stamp):
                self.records.append(self._make(scene, stamp))
        except Unusable as problem:
            self.problems.append(str(problem))

    def take(self, scene: Scene, stamp: list[Any]) -> bool:
        """Reuses the verified tiles of a scene that was cut before out of the same files; returns whether it was."""
        record = self._verified.read(f"{_file_name(scene)}.json", stamp)
        self.records += [record] if record else []
        return record is not None

    def finished(self) -> Store | None:
        """Returns the store if `finish(complete=True)` was reached before: then the data is no longer needed."""
        index = self._verified.read(_COMPLETE)
        cut = [self._verified.read(f"{file}.json") for file in index["scenes"]] if index else [None]
        if not all(cut):
            return None
        self.records, self.problems = cut, index["problems"]
        return self.finish()

    def finish(self, complete: bool = False) -> Store:
        """Returns the store of all scenes added, noted as `complete` for `finished`. Raises BadInput past the limit."""
        check_limit("Scenes that cannot be used", self.problems, self.limit)
        if self.problems:
            print(f"Left out {len(self.problems)} unusable scenes (workload.bad_input_limit {self.limit}):")
            print(first_ten(self.problems))
        self.records.sort(key=lambda record: record["name"])  # whatever the order in which they came
        store = Store(self.folder, self.records)
        invalid, unlabelled = (sum(record[key] for record in self.records) for key in ("invalid", "unlabelled"))
        summary = (
            f"{len(store):,} tiles of {self.cut.size} x {self.cut.size} from {len(self.records):,} scenes; left out "
            f"{invalid:,} with fewer than {self.cut.min_valid_share:.0%} valid pixels and {unlabelled:,} with fewer "
            f"than {self.cut.min_label_share:.0%} labelled other than {self.source.classes[0]}."
        )
        print(summary)
        if not len(store):
            raise BadInput(f"No tile is left. {summary} Lower the shares in workload.tiles.")
        if complete:
            index = {"scenes": [record["file"] for record in self.records], "problems": self.problems}
            self._verified.write(_COMPLETE, index)
        return store

    def _make(self, scene: Scene, stamp: list[Any]) -> dict[str, Any]:
        """Cuts a scene into its two files and then writes its record: a scene with a record is done."""
        file, size, step = _file_name(scene), self.cut.size, self.cut.stride or self.cut.size
        paths = [self.folder / f"{file}.{kind}.npy" for kind in ("image", "target")]
        bands = (len(self.source.bands), size, size)
        with (
            readers.opened(scene, self.source) as opened,
            growing_array(paths[0], self.cut.storage, bands) as append_image,
            growing_array(paths[1], "uint8", bands[1:]) as append_target,
        ):
            places = [(row, column, min(size, opened.height), min(size, opened.width))
                      for row in starts(opened.height, size, step)
                      for column in starts(opened.width, size, step)]  # fmt: skip
            tiles, facts = self._write(opened, places, append_image, append_target)
        digest = hashlib.blake2b(digest_size=16)
        for tile in tiles:
            digest.update(bytes.fromhex(tile.pop("digest")))
        record = {
            "name": scene.name, "group": scene.group, "file": file, "stamp": stamp, "part": scene.part,
            "space": opened.crs or (f"{scene.part}/{scene.name}" if scene.part else scene.name),
            "digest": digest.hexdigest(), "tiles": tiles, **facts,
        }  # fmt: skip
        return self._verified.write(f"{file}.json", record, paths)

    def _write(
        self, opened: Opened, places: Sequence[Window], append_image: Callable, append_target: Callable
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Appends each tile that is kept to the scene's two files. Raises Unusable without data or label."""
        tiles: list[dict[str, Any]] = []
        facts: dict[str, Any] = {"invalid": 0, "unlabelled": 0}
        if not opened.crs and opened.scene.images[0].suffix != ".npy":  # patches have groups by their names
            facts["sketch"] = []
        classes, pixels = len(self.source.classes), 0
        labels = np.zeros(classes, np.int64)
        for window in places:
            image, target = self._tile(opened, window)
            if "sketch" in facts and not any(start % self.cut.size for start in window[:2]):
                facts["sketch"] = windows.sketch(image, facts["sketch"])
            tile = tile_facts(image, target, classes)
            tile |= {"bounds": [float(value) for value in opened.bounds(window)], "corner": window[:2]}
            labels, pixels = labels + tile["counts"], pixels + tile["valid"]
            if sum(tile["counts"]) < max(1, self.cut.min_valid_share * target.size):
                facts["invalid"] += 1
            elif sum(tile["counts"][1:]) < self.cut.min_label_share * sum(tile["counts"]):
                facts["unlabelled"] += 1
            else:
                append_image(image)
                append_target(target)
                tiles.append(tile)
        if not pixels:
            raise Unusable(f"{opened.scene.images[0]} holds no data at all: every pixel is NaN or nodata.")
        if not labels.sum():
            raise Unusable(f"{opened.scene.mask} labels none of the pixels that have data.")
        return tiles, facts

    def _tile(self, opened: Opened, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Reads one tile; where the scene is smaller than a tile, the rest has no data."""
        image, target = opened.read(window)
        image, target = padded(image, self.cut.size), padded(target, self.cut.size, IGNORE)
        if self.cut.storage == "float16" and np.nanmax(np.abs(image), initial=0) > _FLOAT16_MAX:
            above = f"holds values above {_FLOAT16_MAX:,.0f}, which float16 cannot hold"
            raise Unusable(f"{opened.scene.images[0]} {above}. Set workload.tiles.storage to float32.")
        return np.ascontiguousarray(image, self.cut.storage), target


def padded(array: np.ndarray, size: int, value: float = np.nan) -> np.ndarray:
    """(..., h, w) -> (..., size, size), filled up at the end."""
    widths = [(0, 0)] * (array.ndim - 2) + [(0, size - length) for length in array.shape[-2:]]
    return np.pad(array, widths, constant_values=value) if any(map(any, widths)) else array


@contextlib.contextmanager
def growing_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that appends an array of `shape` to a .npy file, which has its name only once it is whole."""
    count = 0

    def write_header() -> None:
        # NumPy pads the header for the first dimension to grow, so a later one fits where the first one stood.
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, header)

    def append(array: np.ndarray) -> None:
        nonlocal count
        file.write(array.data)
        count += 1

    with disk.whole(path, cache=True) as aside, aside.open("wb") as file:
        write_header()
        yield append
        file.seek(0)
        write_header()


def stamp_of(files: Sequence[Path]) -> list[list[object]]:
    """Returns what changes with some files. Raises Unusable."""
    try:
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be read ({error.strerror}). Copy or download it again.") from None


def folder_for(cache: Path, root: Path, source: Source, cut: Cut) -> Path:
    """Returns where the tiles of these settings lie."""
    facts = json.dumps([_VERSION, str(root.resolve()), asdict(source), asdict(cut)], sort_keys=True)
    return cache / f"tiles-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def starts(length: int, size: int, step: int) -> list[int]:
    """Returns where tiles begin along one side; the last one ends with the side."""
    if length <= size:
        return [0]
    regular = list(range(0, length - size + 1, step))
    return regular if regular[-1] + size == length else [*regular, length - size]


def tile_facts(image: np.ndarray, target: np.ndarray, classes: int) -> dict[str, Any]:
    """Returns class counts over labelled pixels; mean and squared differences of each band over pixels with data.

    `image` is (bands, S, S) with NaN for no data, `target` (S, S) with IGNORE.
    """
    valid = image[:, ~np.isnan(image[0])].astype(np.float64)
    mean = valid.mean(1) if valid.size else np.zeros(len(image))
    digest = hashlib.blake2b(image.tobytes() + target.tobytes(), digest_size=16).hexdigest()
    counts, squares = np.bincount(target[target != IGNORE], minlength=classes), ((valid - mean[:, None]) ** 2).sum(1)
    return {"counts": counts.tolist(), "valid": valid.shape[1], "mean": mean.tolist(), "squares": squares.tolist(),
            "digest": digest}  # fmt: skip


def _file_name(scene: Scene) -> str:
    """Returns a file name that no other scene has, and that a person recognises."""
    digest = hashlib.sha256(str(scene.images[0]).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', scene.name)[:60]}-{digest}"
