"""Scenes cut into tiles once, one scene at a time, into files that are mapped instead of loaded.

A store is a folder with three files a scene: `NAME.image.npy` (tiles, bands, S, S) float with NaN for no data,
`NAME.target.npy` (tiles, S, S) uint8 with IGNORE, and `NAME.json` with what is known of each tile. The JSON is written
last: a scene with one is done, and an interrupted run goes on with the others. Memory does not grow with the data,
except for some hundred bytes a tile.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput
from lib.scores import IGNORE
from lib.tasks.glacier.data import readers
from lib.tasks.glacier.data.readers import Opened, Scene, Unusable
from lib.tasks.glacier.settings import Cut, Source

VERSION = 1  # of the store's files
_SHOWN = 10  # sentences about unusable scenes that are printed
_PROGRESS_SECONDS = 15.0
_COMPLETE = "complete.json"
_FLOAT16_MAX = 65_504.0


@dataclass
class Table:
    """What is known of each of n tiles, in the order of scenes and places."""

    scene: np.ndarray  # (n) index into the store's records
    place: np.ndarray  # (n) index within the scene's files
    corner: np.ndarray  # (n, 2) row and column of the scene
    counts: np.ndarray  # (n, classes) valid pixels of each class
    valid: np.ndarray  # (n) pixels with data, labelled or not
    mean: np.ndarray  # (n, bands) over these
    squares: np.ndarray  # (n, bands) sum of squared differences from the mean
    bounds: np.ndarray  # (n, 4) left, bottom, right, top in `space`
    space: list[str]  # (n) coordinate system of the bounds: two tiles of one space can show the same ground

    def __len__(self) -> int:
        return len(self.scene)


class Store:
    """The tiles of all scenes. Reading maps the scene's file and copies one tile out of it."""

    def __init__(self, folder: Path, records: Sequence[dict[str, Any]]):
        self.folder = folder
        self.names = [record["name"] for record in records]
        self.groups = [record["group"] for record in records]
        self.digests = [record["digest"] for record in records]
        self.files = [record["file"] for record in records]
        self.table = _table(records)

    def __len__(self) -> int:
        return len(self.table)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(bands, S, S) float32 with NaN for no data, and (S, S) uint8 classes with IGNORE."""
        name, place = self.files[self.table.scene[index]], self.table.place[index]
        image = np.load(self.folder / f"{name}.image.npy", mmap_mode="r")[place]
        target = np.load(self.folder / f"{name}.target.npy", mmap_mode="r")[place]
        return image.astype(np.float32), np.array(target)

    @property
    def tile_size(self) -> int:
        """S, the pixels on a side."""
        return int(np.load(self.folder / f"{self.files[self.table.scene[0]]}.target.npy", mmap_mode="r").shape[1])

    def fingerprint(self) -> str:
        """A hash of what the tiles hold, whatever the files are called."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()[:32]


@dataclass
class Cutter:
    """Cuts scenes into a store's folder, each of them once; collects what cannot be used and what was left out."""

    folder: Path
    source: Source
    cut: Cut
    limit: int = 0  # unusable scenes that are left out; one more refuses the data

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.folder.mkdir(parents=True, exist_ok=True)

    def all(self, scenes: Sequence[Scene], problems: Sequence[str]) -> Store:
        """Cuts every scene, with a line of progress now and then. Raises BadInput past the limit of unusable ones."""
        self.problems += problems
        begin = shown = time.monotonic()
        for number, scene in enumerate(scenes, 1):
            self.add(scene)
            if time.monotonic() - shown > _PROGRESS_SECONDS:
                shown = time.monotonic()
                left = (shown - begin) / number * (len(scenes) - number)
                print(f"Slicing: {number:,} of {len(scenes):,} scenes, about {left:.0f} s left", flush=True)
        return self.finish()

    def add(self, scene: Scene, stamp: list[Any] | None = None) -> None:
        """Cuts one scene unless it was cut before; notes why where it cannot be used.

        `stamp` changes when one of the scene's files changes; by default their paths, sizes and times.
        """
        try:
            stamp = stamp or _stamp(scene)
            if not self.take(scene, stamp):
                self.records.append(self._make(scene, _file_name(scene), stamp))
        except Unusable as problem:
            self.problems.append(str(problem))

    def take(self, scene: Scene, stamp: list[Any]) -> bool:
        """Takes over the tiles of a scene that was cut before out of the same files; whether there are such."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads((self.folder / f"{_file_name(scene)}.json").read_text("utf-8"))
            if record["stamp"] == stamp:
                self.records.append(record)
                return True
        return False

    def finished(self) -> Store | None:
        """The store, if `finish(complete=True)` was reached before: then the data itself is no longer needed."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads((self.folder / _COMPLETE).read_text("utf-8"))
            self.records = [json.loads((self.folder / f"{file}.json").read_text("utf-8")) for file in told["files"]]
            self.problems = told["problems"]
            return self.finish()
        return None

    def finish(self, complete: bool = False) -> Store:
        """The store of all scenes added; prints what was left out. Raises BadInput where too much of it is unusable.

        `complete` notes that there are no others, for `finished`.
        """
        if len(self.problems) > self.limit:
            raise BadInput(
                f"{len(self.problems)} scenes cannot be used, and workload.bad_input_limit allows {self.limit}:\n"
                f"{self._listed()}\nMend them, or leave them out by workload.bad_input_limit: {len(self.problems)}."
            )
        if self.problems:
            print(f"Left out {len(self.problems)} unusable scenes (workload.bad_input_limit {self.limit}):")
            print(self._listed())
        self.records.sort(key=lambda record: record["name"])  # whatever the order in which they came
        store = Store(self.folder, self.records)
        print(self._summary(store))
        if not len(store):
            raise BadInput(f"No tile is left. {self._summary(store)} Lower the shares in workload.tiles.")
        if complete:
            told = {"files": [record["file"] for record in self.records], "problems": self.problems}
            _write_json(self.folder / _COMPLETE, told)
        return store

    def _listed(self) -> str:
        more = len(self.problems) - _SHOWN
        lines = [f"  {sentence}" for sentence in self.problems[:_SHOWN]]
        return "\n".join([*lines, *([f"  ... and {more} more"] if more > 0 else [])])

    def _summary(self, store: Store) -> str:
        left_out = {key: sum(record[key] for record in self.records) for key in ("invalid", "unlabelled")}
        return (
            f"{len(store):,} tiles of {self.cut.size} x {self.cut.size} from {len(self.records):,} scenes; left out "
            f"{left_out['invalid']:,} with fewer than {self.cut.min_valid_share:.0%} valid pixels and "
            f"{left_out['unlabelled']:,} with fewer than {self.cut.min_label_share:.0%} labelled other than "
            f"{self.source.classes[0]}."
        )

    def _make(self, scene: Scene, file: str, stamp: list[Any]) -> dict[str, Any]:
        with readers.opened(scene, self.source) as opened:
            windows = list(_windows(opened, self.cut))
            tiles, left_out = self._write(opened, windows, file)
        digest = hashlib.blake2b(digest_size=16)
        for tile in tiles:
            digest.update(bytes.fromhex(tile.pop("digest")))
        record = {
            "name": scene.name, "group": scene.group, "file": file, "stamp": stamp, "space": opened.crs or scene.name,
            "digest": digest.hexdigest(), "tiles": tiles, **left_out,
        }  # fmt: skip
        _write_json(self.folder / f"{file}.json", record)
        return record

    def _write(
        self, opened: Opened, windows: Sequence[tuple[int, int, int, int]], file: str
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Appends each kept tile to the scene's two files. Raises Unusable where the scene has no data or no label."""
        tiles: list[dict[str, Any]] = []
        left_out = {"invalid": 0, "unlabelled": 0}
        labels, pixels = np.zeros(len(self.source.classes), np.int64), 0
        with (
            _Growing(self.folder / f"{file}.image.npy") as images,
            _Growing(self.folder / f"{file}.target.npy") as targets,
        ):
            for window in windows:
                image, target = self._tile(opened, window)
                tile = _facts(image, target, len(self.source.classes), opened.bounds(window))
                tile["corner"] = window[:2]
                labels, pixels = labels + tile["counts"], pixels + tile["valid"]
                if sum(tile["counts"]) < max(1, self.cut.min_valid_share * target.size):
                    left_out["invalid"] += 1
                elif sum(tile["counts"][1:]) < self.cut.min_label_share * sum(tile["counts"]):
                    left_out["unlabelled"] += 1
                else:
                    images.append(image)
                    targets.append(target)
                    tiles.append(tile)
            if not pixels:
                raise Unusable(f"{opened.scene.images[0]} holds no data at all: every pixel is NaN or nodata.")
            if not labels.sum():
                raise Unusable(f"{opened.scene.mask} labels none of the pixels that have data.")
        return tiles, left_out

    def _tile(self, opened: Opened, window: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        """One tile; where the scene is smaller than a tile, the rest has no data."""
        image, target = opened.read(window)
        missing = [self.cut.size - length for length in target.shape]
        if any(missing):
            image = np.pad(image, ((0, 0), (0, missing[0]), (0, missing[1])), constant_values=np.nan)
            target = np.pad(target, ((0, missing[0]), (0, missing[1])), constant_values=IGNORE)
        if self.cut.storage == "float16" and np.nanmax(np.abs(image), initial=0) > _FLOAT16_MAX:
            raise Unusable(
                f"{opened.scene.images[0]} holds values above {_FLOAT16_MAX:,.0f}, which float16 has not. Set "
                "workload.tiles.storage to float32."
            )
        return np.ascontiguousarray(image, self.cut.storage), target


class _Growing:
    """A .npy file that grows by one array at a time and is there under its name only when it is whole."""

    def __init__(self, path: Path):
        self.path, self.aside = path, _aside(path)
        self.count = 0

    def __enter__(self) -> "_Growing":
        self.file = self.aside.open("wb")
        return self

    def append(self, array: np.ndarray) -> None:
        if not self.count:
            self.shape, self.dtype = array.shape, array.dtype
            self._write_header()
        self.file.write(array.data)
        self.count += 1

    def _write_header(self) -> None:
        # The count is padded, so that the header of the last count fits where that of the first one stood.
        described = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.count:>9}, "
        described += f"{', '.join(map(str, self.shape))}), }}"
        length = -(-(len(described) + 11) // 64) * 64 - 10
        self.file.write(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little"))
        self.file.write(described.ljust(length - 1).encode() + b"\n")

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None and self.count:
            self.file.seek(0)
            self._write_header()
        self.file.close()
        if kind is None and self.count:
            self.aside.replace(self.path)
        else:
            self.aside.unlink()


def _aside(path: Path) -> Path:
    """Where a file is written until it is whole; another process may be cutting the same scene."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def _write_json(path: Path, content: Any) -> None:
    aside = _aside(path)
    aside.write_text(json.dumps(content), "utf-8")
    aside.replace(path)


def folder_for(cache: Path, root: Path, source: Source, cut: Cut) -> Path:
    """Where the tiles of these settings lie."""
    told = json.dumps([VERSION, str(root.resolve()), asdict(source), asdict(cut)], sort_keys=True)
    return cache / f"tiles-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def starts(length: int, size: int, step: int) -> list[int]:
    """Where tiles begin along one side; the last one ends with the side."""
    if length <= size:
        return [0]
    regular = list(range(0, length - size + 1, step))
    return regular if regular[-1] + size == length else [*regular, length - size]


def _windows(opened: Opened, cut: Cut) -> list[tuple[int, int, int, int]]:
    return [
        (row, column, min(cut.size, opened.height), min(cut.size, opened.width))
        for row in starts(opened.height, cut.size, cut.step)
        for column in starts(opened.width, cut.size, cut.step)
    ]


def _facts(image: np.ndarray, target: np.ndarray, classes: int, bounds: tuple[float, ...]) -> dict[str, Any]:
    """Class counts over labelled pixels; mean and squared differences of each band over pixels with data."""
    known = image[:, ~np.isnan(image[0])].astype(np.float64)
    mean = known.mean(1) if known.size else np.zeros(len(image))
    return {
        "counts": np.bincount(target[target != IGNORE], minlength=classes).tolist(),
        "valid": known.shape[1],
        "mean": mean.tolist(),
        "squares": ((known - mean[:, None]) ** 2).sum(1).tolist(),
        "bounds": [float(value) for value in bounds],
        "digest": hashlib.blake2b(image.tobytes() + target.tobytes(), digest_size=16).hexdigest(),
    }


def _file_name(scene: Scene) -> str:
    """A file name that no other scene has, and that a person recognises."""
    told = hashlib.sha256(str(scene.images[0]).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', scene.name)[:60]}-{told}"


def _stamp(scene: Scene) -> list[Any]:
    """What changes when one of a scene's files changes."""
    try:
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in scene.files]
    except OSError as error:
        raise Unusable(f"{error.filename} cannot be read ({error.strerror}). Copy or download it again.") from None


def _table(records: Sequence[dict[str, Any]]) -> Table:
    rows = [(number, place, tile) for number, r in enumerate(records) for place, tile in enumerate(r["tiles"])]
    column = {
        key: np.array([tile[key] for _, _, tile in rows])
        for key in ("corner", "counts", "valid", "mean", "squares", "bounds")
    }
    return Table(
        np.array([number for number, _, _ in rows], np.int64),
        np.array([place for _, place, _ in rows], np.int64),
        **column,
        space=[records[number]["space"] for number, _, _ in rows],
    )


def once(table: Table, chosen: np.ndarray, size: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Tiles that together show each pixel of the chosen ones, those side by side first; and, for those that overlap
    others, which of their pixels are new: (S * S / 8) bits by index. Metrics must not count a pixel twice.
    """
    kept: list[int] = []
    new_in: dict[int, np.ndarray] = {}
    corners = table.corner[chosen]
    aside = (corners % size).any(1)  # not on the grid of tiles that do not overlap
    covered: np.ndarray = np.zeros((0, 0), bool)
    current = -1
    for index in chosen[np.lexsort((corners[:, 1], corners[:, 0], aside, table.scene[chosen]))]:
        if table.scene[index] != current:
            current = table.scene[index]
            height, width = table.corner[table.scene == current].max(0) + size
            covered = np.zeros((height, width), bool)
        row, column = table.corner[index]
        new = ~covered[row : row + size, column : column + size]
        if not new.any():
            continue
        covered[row : row + size, column : column + size] = True
        kept.append(index)
        if not new.all():
            new_in[int(index)] = np.packbits(new)
    return np.array(kept, dtype=chosen.dtype), new_in


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each band over pixels with data, (bands) float64."""

    mean: np.ndarray
    deviation: np.ndarray


def tile_statistics(table: Table, chosen: np.ndarray) -> Statistics:
    """Those of the chosen tiles, merged out of each tile's own (Chan, Golub and LeVeque, 1983, equation 2.1)."""
    valid = table.valid[chosen].astype(np.float64)[:, None]  # (n, 1)
    total = max(valid.sum(), 1.0)
    mean = (valid * table.mean[chosen]).sum(0) / total
    between = valid * (table.mean[chosen] - mean) ** 2
    variance = (table.squares[chosen] + between).sum(0) / total
    return Statistics(mean, np.where(variance > 0, np.sqrt(variance), 1.0))
