"""A store of tiles on disk, mapped instead of loaded, and what is known of each tile.

A store is a folder with three files a scene: `NAME.image.npy` (tiles, bands, S, S) float with NaN for no data,
`NAME.target.npy` (tiles, S, S) uint8 with IGNORE, and `NAME.json` with a record of the scene and its tiles.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_OTHER_UNITS = 50  # times the median scene


class Table(NamedTuple):
    """What is known of each of n tiles, in the order of scenes and places."""

    scene: np.ndarray  # (n) index into the store's records
    place: np.ndarray  # (n) index within the scene's files
    space: list[str]  # (n) coordinate system of the bounds: two tiles of one space can show the same ground
    corner: np.ndarray  # (n, 2) row and column of the scene
    counts: np.ndarray  # (n, classes) valid pixels of each class
    valid: np.ndarray  # (n) pixels with data, labelled or not
    mean: np.ndarray  # (n, bands) over these
    squares: np.ndarray  # (n, bands) sum of squared differences from the mean
    bounds: np.ndarray  # (n, 4) left, bottom, right, top in `space`


class Store:
    """The tiles of all scenes. A read maps the scene's file and copies one tile out of it."""

    def __init__(self, folder: Path, records: Sequence[dict[str, Any]]):
        self.folder = folder
        self.names, self.groups, self.parts, self.digests, self.files = (
            [record[key] for record in records] for key in ("name", "group", "part", "digest", "file")
        )
        self.sketches = [record.get("sketch") for record in records]  # of scenes without a place on the map, else None
        tiles = [(number, place, tile) for number, r in enumerate(records) for place, tile in enumerate(r["tiles"])]
        self.table = Table(
            np.array([number for number, _, _ in tiles], np.int64),
            np.array([place for _, place, _ in tiles], np.int64),
            [records[number]["space"] for number, _, _ in tiles],
            *(np.array([tile[key] for _, _, tile in tiles]) for key in Table._fields[3:]),
        )

    def __len__(self) -> int:
        return len(self.table.scene)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (bands, S, S) float32 with NaN for no data, and (S, S) uint8 classes with IGNORE."""
        image = np.load(self._path(index, "image"), mmap_mode="r")[self.table.place[index]]
        return image.astype(np.float32), self.target(index)

    def target(self, index: int) -> np.ndarray:
        """Returns (S, S) uint8 classes with IGNORE."""
        return np.array(np.load(self._path(index, "target"), mmap_mode="r")[self.table.place[index]])

    def _path(self, index: int, kind: str) -> Path:
        return self.folder / f"{self.files[self.table.scene[index]]}.{kind}.npy"

    def fingerprint(self) -> str:
        """Returns a hash of what the tiles hold, whatever the files are called."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()[:32]


def once(table: Table, chosen: np.ndarray, size: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Returns tiles that together show each pixel of the chosen ones, and which pixels of a tile are new.

    Tiles side by side come first. The second value holds (S * S / 8) bits by index, for tiles that overlap earlier
    ones. Metrics must not count a pixel twice.
    """
    needed: list[int] = []
    new_in: dict[int, np.ndarray] = {}
    corners = table.corner[chosen]
    off_grid = (corners % size).any(1)  # the grid of tiles that do not overlap
    covered: np.ndarray = np.zeros((0, 0), bool)
    current = -1
    for index in chosen[np.lexsort((corners[:, 1], corners[:, 0], off_grid, table.scene[chosen]))]:
        if table.scene[index] != current:
            current = table.scene[index]
            covered = np.zeros(table.corner[table.scene == current].max(0) + size, bool)
        row, column = table.corner[index]
        new = ~covered[row : row + size, column : column + size]
        if new.any():
            covered[row : row + size, column : column + size] = True
            needed.append(index)
            if not new.all():
                new_in[int(index)] = np.packbits(new)
    return np.array(needed, dtype=chosen.dtype), new_in


class Statistics(NamedTuple):
    """Mean and standard deviation of each band over pixels with data, (bands) float64."""

    mean: np.ndarray
    deviation: np.ndarray


def tile_statistics(table: Table, chosen: np.ndarray) -> Statistics:
    """Merges the moments of the chosen tiles (Chan, Golub and LeVeque, 1983, equation 2.1)."""
    valid = table.valid[chosen].astype(np.float64)[:, None]  # (n, 1)
    total = max(valid.sum(), 1.0)
    mean = (valid * table.mean[chosen]).sum(0) / total
    between = valid * (table.mean[chosen] - mean) ** 2
    variance = (table.squares[chosen] + between).sum(0) / total
    return Statistics(mean, np.where(variance > 0, np.sqrt(variance), 1.0))


def other_units(store: Store) -> list[str]:
    """Returns a sentence on scenes of whose bands half or more are far larger or smaller than the median scene's."""
    table, count = store.table, len(store.names)
    valid = table.valid.astype(np.float64)[:, None]
    pixels, total = np.zeros((count, 1)), np.zeros((count, table.mean.shape[1]))
    np.add.at(pixels, table.scene, valid)
    np.add.at(total, table.scene, valid * table.mean**2 + table.squares)
    seen = np.flatnonzero(pixels[:, 0])
    sizes = np.sqrt(total[seen] / pixels[seen])  # (scenes, bands) root mean squares
    median = np.sort(sizes, 0)[(len(sizes) - 1) // 2]
    ratio = np.maximum(sizes, 1e-30) / np.maximum(median, 1e-30)
    strange = np.flatnonzero(((ratio > _OTHER_UNITS) | (ratio < 1 / _OTHER_UNITS)).mean(1) >= 0.5)
    if not len(strange):
        return []
    return [
        f"Warning: {len(strange):,} of {len(sizes):,} scenes seem to be in other units: the bands of "
        f"{store.names[seen[strange[0]]]} are {_OTHER_UNITS} times larger or smaller than the median scene's, or more. "
        "Bring all scenes to one unit."
    ]
