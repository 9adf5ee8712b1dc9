"""Cuts scenes into tiles once, one after another, into a store on disk; an interrupted cut is resumed.

Archives are never unpacked as a whole: masks are unpacked before images, and a scene is cut, and its files are emptied,
as soon as all of them are there.

A store is a folder with two files a scene: `NAME.tiles` is one tile after another, (bands, S, S) floats with NaN for no
data, then their classes, (S, S) bytes with IGNORE; `NAME.json` is a record of the scene and its tiles.
"""

import contextlib
import hashlib
import json
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from lib.errors import BadInput, check_limit, first_ten
from lib.machine import disk
from lib.report.progress import counted
from workloads.glacier.data import layout, readers
from workloads.glacier.data.readers import Opened, Scene, Unusable, Window
from workloads.glacier.settings import IGNORE, Cut, Settings, Source

VERSION = 10  # format of the store's files
_FLOAT16_MAX = 65_504.0
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)
SIDE = 8  # pixels of a window
_ONE_IN = 64  # windows are hashed
_KEPT = 512  # hashes of a scene
_VALUES = 16  # different values that a window needs: poorer windows are in many places
_SHARED = 3  # hashes that make a pair
_MOST_SCENES = 20  # with the same hash: beyond, it is a pattern of the sensor or a filled gap
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Table(NamedTuple):
    """Facts of each of n tiles, in the order of scenes and places."""

    scene: np.ndarray  # (n) index into the store's records
    place: np.ndarray  # (n) index within the scene's files
    # (n) coordinate system of the bounds: two tiles of one space can show the same ground
    space: list[str]
    corner: np.ndarray  # (n, 2) row and column of the scene
    counts: np.ndarray  # (n, classes) valid pixels of each class
    valid: np.ndarray  # (n) pixels with data, labelled or not
    mean: np.ndarray  # (n, bands) over these
    squares: np.ndarray  # (n, bands) sum of squared differences from the mean
    bounds: np.ndarray  # (n, 4) left, bottom, right, top in `space`


class Store:
    """The tiles of all scenes, whose images are (bands, size, size)."""

    def __init__(
        self, folder: Path, scenes: Sequence[dict[str, Any]], bands: int, size: int, storage: str
    ):
        self.folder = folder
        self.size = size
        image = ("image", storage, (bands, size, size))
        self._form = np.dtype([image, ("target", np.uint8, (size, size))])
        self.names = [scene["name"] for scene in scenes]
        self.groups = [scene["group"] for scene in scenes]
        self.parts = [scene["part"] for scene in scenes]
        self.digests = [scene["digest"] for scene in scenes]
        self.files = [scene["file"] for scene in scenes]
        self.sketches = [scene["sketch"] for scene in scenes]
        self.scalings = [scene["scalings"] for scene in scenes]
        sizes = [len(scene["tiles"]) for scene in scenes]
        tiles = [tile for scene in scenes for tile in scene["tiles"]]
        number = np.repeat(np.arange(len(scenes)), sizes)
        place = np.concatenate([np.arange(0), *map(np.arange, sizes)])
        spaces = [scenes[scene]["space"] for scene in number.tolist()]
        facts = [np.array([tile[key] for tile in tiles]) for key in Table._fields[3:]]
        self.table = Table(number, place, spaces, *facts)

    def __len__(self) -> int:
        return len(self.table.scene)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (bands, S, S) float32 with NaN for no data, and (S, S) uint8 classes with IGNORE."""
        path = self.folder / f"{self.files[self.table.scene[index]]}.tiles"
        offset = int(self.table.place[index]) * self._form.itemsize
        tile = np.fromfile(path, self._form, 1, offset=offset)[0]
        return tile["image"].astype(np.float32), tile["target"]

    def fingerprint(self) -> str:
        text = "".join(sorted(self.digests))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def cut(
    match: layout.Match,
    folder: Path,
    source: Source,
    tiles: Cut,
    limit: int = 0,
    unpacked: Any = None,
) -> Store:
    """Cuts the scenes into a store's folder, each once; prints progress, and adds to the match's problems.

    `unpacked` yields scenes of archives while their files exist, each with a stamp that changes with these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if unpacked is None:
        unpacked = ((scene, None) for scene in counted(match.scenes, "scenes cut"))
    records = list[dict[str, Any]]()
    for scene, given in unpacked:
        try:
            stamp = given or _stamp(scene)
            record = earlier(folder, file_name(scene), stamp)
            records.append(record or _cut_one(scene, stamp, folder, source, tiles))
        except Unusable as problem:
            match.problems.append(str(problem))
    records.sort(key=itemgetter("name"))  # an archive has scenes in any order
    return stored(records, match.problems, folder, source, tiles, limit)


def _stamp(scene: Scene) -> list[Any]:
    """Returns path, size and time of each file of a scene."""
    stamp = []
    for path in scene.files:
        status = path.stat()
        stamp.append([str(path), status.st_size, status.st_mtime_ns])
    return stamp


def stored(
    scenes: Any, problems: list[str], folder: Path, source: Source, tiles: Cut, limit: int
) -> Store:
    """Returns the store of some records. Raises BadInput for too many problems, or without a tile."""
    check_limit("Scenes that cannot be used", problems, limit)
    if problems:
        print(
            f"Left out {len(problems)} unusable scenes (workload.bad_input_limit {limit}):\n{first_ten(problems)}"
        )
    store = Store(folder, scenes, len(source.bands), tiles.size, tiles.storage)
    invalid = sum(scene["invalid"] for scene in scenes)
    unlabelled = sum(scene["unlabelled"] for scene in scenes)
    summary = (
        f"{len(store):,} tiles of {tiles.size} x {tiles.size} from {len(scenes):,} scenes; left out {invalid:,} "
        f"with too few valid pixels and {unlabelled:,} with too few other than {source.classes[0]}."
    )
    print(summary)
    small = _smaller_scenes(scenes, tiles.size)
    if not len(store):
        advice = small or "Lower the shares in workload.tiles."
        raise BadInput(f"No tile is left. {summary} {advice}")
    if small:
        print(f"Warning: {small}")
    return store


def _smaller_scenes(scenes: Sequence[Mapping[str, Any]], size: int) -> str:
    """Returns a sentence on scenes that are smaller than a tile and give no tile; "" without such scenes."""
    small = [scene for scene in scenes if not scene["tiles"] and min(scene["pixels"]) < size]
    if not small:
        return ""
    height, width = small[0]["pixels"]
    more = ""
    if len(small) > 1:
        more = f" ({len(small):,} such scenes give no tile)"
    return (
        f"The scene {small[0]['name']} has {height} x {width} pixels, and a tile {size} x {size}{more}. "
        f"Set workload.tiles.size to {min(height, width)} or less, or leave them out."
    )


def earlier(folder: Path, file: str, stamp: list[Any] | None = None) -> dict[str, Any] | None:
    """Returns the intact record of a scene cut earlier from files of this `stamp`, or None."""
    try:
        record = json.loads((folder / f"{file}.json").read_bytes())
        is_whole = (folder / f"{file}.tiles").stat().st_size == record["size"]
    except FileNotFoundError:
        return None
    except ValueError:
        is_whole = False
    if not is_whole:
        print(f"The cache {folder} is damaged ({file}): this scene is cut again.", flush=True)
        return None
    return record if stamp in (None, record["stamp"]) else None


def _cut_one(
    scene: Scene, stamp: list[Any], folder: Path, source: Source, tiles: Cut
) -> dict[str, Any]:
    """Cuts a scene into its file, then writes its record, which marks the scene as done."""
    file = file_name(scene)
    size = tiles.size
    step = tiles.stride or size
    path = folder / f"{file}.tiles"
    with (
        readers.opened(scene, source) as opened,
        disk.whole(path, cache=True) as aside,
        aside.open("wb") as out,
    ):
        rows = starts(opened.height, size, step)
        columns = starts(opened.width, size, step)
        windows = [(row, column, size, size) for row, column in product(rows, columns)]
        facts = _written(opened, windows, tiles, out)
    space = opened.crs or f"{scene.part}/{scene.name}".lstrip("/")
    record = {"name": scene.name, "group": scene.group, "part": scene.part, "space": space}
    record |= {"file": file, **facts, "stamp": stamp, "size": path.stat().st_size}
    record |= {"pixels": [opened.height, opened.width], "scalings": opened.scalings}
    with disk.whole(folder / f"{file}.json", cache=True) as aside:
        aside.write_text(json.dumps(record), "utf-8")
    return record


def _written(opened: Opened, places: Sequence[Window], cut: Cut, out: BinaryIO) -> dict[str, Any]:
    """Appends a scene's tiles to its file; returns facts. Raises Unusable without data or label."""
    tiles: list[dict[str, Any]] = []
    invalid = unlabelled = labels = pixels = 0
    digest = hashlib.blake2b(digest_size=16)
    hashes = list[int]()
    path = opened.scene.images[0]
    has_place = bool(opened.crs) or path.suffix == ".npy"  # patches have groups by their names
    for window in places:
        image, target = opened.read(window)
        if cut.storage == "float16" and np.nanmax(np.abs(image), initial=0) > _FLOAT16_MAX:
            raise Unusable(
                f"{path} holds values above {_FLOAT16_MAX:,.0f}, which float16 cannot hold. "
                "Set workload.tiles.storage to float32."
            )
        image = np.ascontiguousarray(image, cut.storage)
        if not has_place and not any(start % cut.size for start in window[:2]):
            hashes = sketch(image, hashes)
        values = image[:, ~np.isnan(image[0])].astype(np.float64)
        counts = np.bincount(target[target != IGNORE], minlength=len(opened.source.classes))
        labelled = counts.sum()
        labels += labelled
        pixels += values.shape[1]
        if labelled < max(1, cut.min_valid_share * target.size):
            invalid += 1
        elif counts[1:].sum() < cut.min_label_share * labelled:
            unlabelled += 1
        else:
            tile = image.tobytes() + target.tobytes()
            out.write(tile)
            digest.update(hashlib.blake2b(tile, digest_size=16).digest())
            facts = {"corner": window[:2], "counts": counts.tolist(), **_moments(values)}
            tiles.append({**facts, "bounds": opened.bounds(window)})
    if not pixels:
        raise Unusable(f"{path} holds no data at all: every pixel is NaN or nodata.")
    if not labels:
        raise Unusable(f"{opened.scene.mask} labels no pixel that has data.")
    facts = {"tiles": tiles, "invalid": invalid, "unlabelled": unlabelled, "sketch": hashes}
    return {**facts, "digest": digest.hexdigest()}


def _moments(values: np.ndarray) -> dict[str, Any]:
    """(bands, N) pixels -> their number, mean, and sum of squared differences from it."""
    mean = values.mean(1)
    squares = ((values - mean[:, None]) ** 2).sum(1)
    return {"valid": values.shape[1], "mean": mean.tolist(), "squares": squares.tolist()}


def starts(length: int, size: int, step: int) -> list[int]:
    """Returns the first pixel of each tile along a side; the last tile ends with the side."""
    last = max(0, length - size)
    return [*range(0, last, step), last]


def file_name(scene: Scene) -> str:
    """Returns a unique file name that begins with the scene's name."""
    digest = hashlib.sha256(str(scene.images[0]).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", scene.name)
    return f"{name[:60]}-{digest}"


def sketch(image: np.ndarray, before: Sequence[int] = ()) -> list[int]:
    """Returns the _KEPT smallest hashes of windows of (bands, h, w) and of `before`.

    Hashes choose the windows, so two scenes with equal pixels in a band choose equal windows in their common ground
    (sampling of fingerprints by value, as in Schleimer, Wilkerson and Aiken, SIGMOD 2003).
    """
    hashes = [np.array(before, np.uint64)]
    weights = _mixed(np.arange(1, SIDE**2 + 1, dtype=np.uint64)) | np.uint64(1)
    for plane in np.ascontiguousarray(image, np.float32):
        pixels = _mixed(plane.view(np.uint32).astype(np.uint64))
        below = _ODD * pixels[1 : 2 - SIDE, 2 : 3 - SIDE]
        chooser = _mixed(pixels[: 1 - SIDE, : 1 - SIDE] + below)
        rows, columns = np.nonzero(chooser % np.uint64(_ONE_IN) == 0)
        values = np.sort(_windows(plane, rows, columns), 1)  # NaN last
        different = (values[:, 1:] != values[:, :-1]).sum(1) + 1
        rich = (different >= _VALUES) & ~np.isnan(values[:, -1])
        windows = _windows(pixels, rows[rich], columns[rich])
        hashes.append(_mixed((windows * weights).sum(1, dtype=np.uint64)))
    return np.unique(np.concatenate(hashes))[:_KEPT].tolist()


def _windows(plane: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns (N, SIDE * SIDE) the pixels of windows of (h, w) that begin at rows and columns (N)."""
    windows = np.lib.stride_tricks.sliding_window_view(plane, (SIDE, SIDE))
    return windows[rows, columns].reshape(-1, SIDE**2)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mixes bits so that each depends on all (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def pairs(sketches: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns the sorted pairs of scene numbers whose sketches share ground."""
    having: dict[int, list[int]] = defaultdict(list)
    for scene, hashes in enumerate(sketches):
        for value in hashes:
            having[value].append(scene)
    common = (scenes for scenes in having.values() if len(scenes) <= _MOST_SCENES)
    shared = Counter(pair for scenes in common for pair in combinations(scenes, 2))
    return sorted(pair for pair, number in shared.items() if number >= _SHARED)


def cut_archives(
    addresses: Sequence[str], downloads: Path, folder: Path, settings: Settings
) -> Store:
    """Cuts all scenes of archives into a store's folder, then deletes the archives fetched into `downloads`.

    Later calls need no archive. Raises BadInput if an archive is damaged or cannot be fetched.
    """
    how = (folder, settings.source, settings.tiles)
    complete = folder / "complete.json"
    unpacked = folder / "unpacked"
    if complete.exists():
        known = json.loads(complete.read_bytes())
        records = [earlier(folder, file) for file in known["files"]]
        if all(records):
            return stored(records, known["problems"], *how, settings.bad_input_limit)
    archives = [fetch(address, downloads) for address in addresses]
    stamps = {}
    for archive in archives:
        for name, size, _ in _members(archive):
            stamps[unpacked / name] = [name, size]
    shutil.rmtree(unpacked, ignore_errors=True)
    # Empty files of the same names find the layout before anything is unpacked
    for path in stamps:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    match = layout.find(unpacked, settings.source)
    print(match.text, flush=True)
    scenes = {scene: [stamps[path] for path in scene.files] for scene in match.scenes}
    store = cut(match, *how, settings.bad_input_limit, _whole(scenes, archives, folder))
    facts = {"files": store.files, "problems": match.problems}
    with disk.whole(complete, cache=True) as aside:
        aside.write_text(json.dumps(facts), "utf-8")
    shutil.rmtree(unpacked)
    for archive in archives:
        if archive.parent == downloads:  # a user's archive stays
            archive.unlink()
    return store


def _whole(
    scenes: Mapping[Scene, Any], archives: Sequence[Path], folder: Path
) -> Iterator[tuple[Scene, Any]]:
    """Yields scenes with their stamps, first the scenes cut earlier, then each other one while its files exist."""
    missing = {}
    for scene, stamp in scenes.items():
        if not earlier(folder, file_name(scene), stamp):
            missing[scene] = {*scene.files}
    for scene, stamp in scenes.items():
        if scene not in missing:
            yield scene, stamp
    before = len(scenes) - len(missing)
    print(
        f"{before:,} scenes were cut before; {len(missing):,} are to be cut.",
        flush=True,
    )
    scene_of = {path: scene for scene in missing for path in scene.files}
    masks = {scene.mask for scene in missing if scene.mask}
    files = _unpacked(archives, folder / "unpacked", masks, scene_of.keys() - masks)
    for path in counted(files, "files unpacked", len(scene_of)):
        scene = scene_of[path]
        missing[scene].discard(path)
        if not missing[scene]:
            yield scene, scenes[scene]
            for done in scene.files:
                done.write_bytes(b"")


def _unpacked(archives: Sequence[Path], folder: Path, *wanted: set[Path]) -> Iterator[Path]:
    """Unpacks the files of each set in turn; yields their paths."""
    for files in filter(None, wanted):
        for archive in archives:
            for name, _, content in _members(archive):
                path = folder / name
                if path in files:
                    with _naming_damage(archive), path.open("wb") as file:
                        shutil.copyfileobj(content(), file)
                    yield path


def fetch(address: str, folder: Path) -> Path:
    """Downloads an archive unless it is a path; returns its path. Raises BadInput if that fails."""
    parts = urlsplit(address)
    if not parts.scheme:
        path = Path(address).expanduser()
        if not path.is_file():
            raise BadInput(
                f"workload.download names {address}, which is not a file. Give a path or an address."
            )
        return path
    # Archives of different addresses may share a name
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    path = folder / f"{digest}-{PurePosixPath(unquote(parts.path)).name}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not path.is_file():
            torch.hub.download_url_to_file(address, str(path))
    except OSError as error:
        raise BadInput(
            f"workload.download: {address} could not be fetched ({error}). Switch the internet on "
            "(Kaggle: Settings > Internet), or fetch it by wget -c and name its path there."
        ) from None
    return path


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Yields name, size and opening function of each image and mask. Raises BadInput for a damaged archive."""
    with _naming_damage(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for info in opened.infolist():
                    if _is_data(info.filename, archive):
                        yield info.filename, info.file_size, partial(opened.open, info)
            return
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile() and _is_data(member.name, archive):
                    yield member.name, member.size, partial(packed.extractfile, member)
            # tarfile takes a broken header in the middle for the end of the archive and raises nothing
            file: Any = packed.fileobj
            file.seek(packed.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError("a header in the middle is broken")
            while file.read(2**20):  # up to the checksum of the compression
                pass


def _is_data(name: str, archive: Path) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BadInput(
            f"{archive} holds {name}, which points outside of the archive. Do not unpack it."
        )
    return layout.has_pixels(path.name)


@contextlib.contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # the disk fails, not the archive
            raise
        raise BadInput(
            f"The archive {archive} is damaged ({error}). Delete it, and fetch it again."
        ) from error
