"""The workload's data: tiles cut from what was given, downloaded or generated, split into three parts.

Unpacked archives never lie on disk as a whole: masks are unpacked first, then images; as soon as all files of a scene
are there it is cut into tiles, and its files are emptied. What was cut before is not unpacked again.
"""

import contextlib
import hashlib
import json
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from lib.errors import BadInput
from lib.machine import platform
from lib.report.progress import counted
from lib.text import aligned
from workloads.glacier.augment import ANYWHERE, corner
from workloads.glacier.data import folds, layout, records, sampling, terrain
from workloads.glacier.data.cutter import VERSION, Cutter, Store
from workloads.glacier.data.folds import Parts
from workloads.glacier.data.sampling import Draws, reached, tile_statistics
from workloads.glacier.model import difference
from workloads.glacier.scores import IGNORE
from workloads.glacier.settings import BAND, Settings

_LEAST_SHARE = 1e-6  # of a class, in a logarithm
_INDEX_TILES = 200  # over which the indices' mean and deviation are taken
_DRAWN = 2_000  # crops by which the shares of classes are estimated
_CHUNK = 2**20
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)


def cut_archives(addresses: Sequence[str], folder: Path, cutter: Cutter) -> Store:
    """Returns the tiles of all scenes in some archives; `folder` holds what is deleted at the end. Raises BadInput."""
    if earlier := cutter.finished():
        return earlier
    archives = [fetch(address, folder) for address in addresses]
    unpacked = folder / "unpacked"
    stamps = {unpacked / name: [name, size] for archive in archives for name, size, _ in _members(archive)}
    for path in stamps:  # empty files of the right names: the layout is found before anything is unpacked
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    match = layout.find(unpacked, cutter.source)
    print(match.text, flush=True)
    cutter.problems += match.problems
    stamp_of = {scene: [stamps[path] for path in scene.files] for scene in match.scenes}
    missing = {scene: set(scene.files) for scene in match.scenes if not cutter.take(scene, stamp_of[scene])}
    print(f"{len(match.scenes) - len(missing):,} scenes were cut before; {len(missing):,} are to be cut.", flush=True)
    scene_of = {path: scene for scene in missing for path in scene.files}
    masks = {scene.mask for scene in missing}
    for path in counted(_unpacked(archives, unpacked, masks, scene_of.keys() - masks), "files unpacked", len(scene_of)):
        scene = scene_of[path]
        missing[scene].discard(path)
        if not missing[scene]:
            cutter.add(scene, stamp_of[scene])
            for done in scene.files:
                done.write_bytes(b"")
    store = cutter.finish(complete=True)
    shutil.rmtree(unpacked)
    for archive in archives:
        if archive.parent == folder:  # one that was given by its path is not ours
            archive.unlink(missing_ok=True)
    return store


def _unpacked(archives: Sequence[Path], folder: Path, *wanted: set[Path]) -> Iterator[Path]:
    """Unpacks the files of each set in turn and yields their paths."""
    for files in wanted:
        for archive in archives if files else ():
            for name, _, content in _members(archive):
                if (path := folder / name) in files:
                    with _naming_damage(archive), path.open("wb") as file:
                        shutil.copyfileobj(content(), file, _CHUNK)
                    yield path


def fetch(address: str, folder: Path) -> Path:
    """Returns the path of an archive, fetched if it is an address. Raises BadInput if it cannot be fetched."""
    if not urlsplit(address).scheme:
        path = Path(address).expanduser()
        if not path.is_file():
            raise BadInput(f"workload.download names {address}, which is no file. Give a path or an address.")
        return path
    path = folder / (PurePosixPath(unquote(urlsplit(address).path)).name or "archive")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not path.is_file():
            torch.hub.download_url_to_file(address, str(path))
    except OSError as error:
        how = "Switch the internet on (Kaggle: Settings > Internet), or fetch it by wget -c and name its path there."
        raise BadInput(f"workload.download: {address} could not be fetched ({error}). {how}") from None
    return path


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields name, size and a function that opens it of each image and mask. Raises BadInput for a damaged archive."""
    with _naming_damage(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for info in opened.infolist():
                    if _is_data(info.filename, archive):
                        yield info.filename, info.file_size, lambda info=info: opened.open(info)
            return
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile() and _is_data(member.name, archive):
                    yield member.name, member.size, lambda member=member: packed.extractfile(member)
            # tarfile takes a broken header in the middle for the end of the archive and raises nothing
            packed.fileobj.seek(packed.offset)
            if packed.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError("a header in the middle is broken")
            while packed.fileobj.read(_CHUNK):  # up to the checksum of the compression
                pass


def _is_data(name: str, archive: Path) -> bool:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BadInput(f"{archive} holds {name}, which points outside of the archive. Do not unpack it.")
    return layout.has_pixels(PurePosixPath(name).name)


@contextlib.contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the archive
            raise
        raise BadInput(f"The archive {archive} is damaged ({error}). Delete it, and fetch it again.") from error


class Sample(NamedTuple):
    """A tile as it lies on disk, and whether it is to be augmented."""

    image: np.ndarray  # (bands, S, S) float32 with NaN for no data
    target: np.ndarray  # (S, S) uint8 with IGNORE
    training: bool
    around: int = ANYWHERE  # the class of which a crop shows a pixel


class Tiles:
    """The tiles of one part of the data; `weights` says how often each is trained on.

    With `draws` it has the tiles as these do: several times if a crop may lie around a rare class. Where tiles overlap,
    every pixel of a held-out part counts in one of them alone.
    """

    def __init__(
        self, store: Store, chosen: np.ndarray, part: str, weights: np.ndarray | None = None, draws: Draws | None = None
    ):
        self.store, self.part, self.draws, self.weights = store, part, draws, draws.weights if draws else weights
        self.chosen, self.new_in = chosen, dict[int, np.ndarray]()
        if part != "train":
            self.chosen, self.new_in = sampling.once(store.table, chosen, store.shape[1])

    def __len__(self) -> int:
        return len(self.draws.tiles if self.draws else self.chosen)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.chosen[self.draws.tiles[index] if self.draws else index])
        image, target = self.store.read(number)
        if (bits := self.new_in.get(number)) is not None:
            target[~np.unpackbits(bits, count=target.size).view(bool).reshape(target.shape)] = IGNORE
        around = int(self.draws.classes[index]) if self.draws else ANYWHERE
        return Sample(image, target, self.part == "train", around)


def _hashed(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Data:
    """The tiles of all scenes and their parts. Each is read or computed once, when it is first needed."""

    def __init__(self, settings: Settings, source: Path | None):
        """`source` is the folder of the scenes; without one they are downloaded or generated."""
        self.settings, self.source = settings, source
        self.is_generated, self._matched = source is None and not settings.download, ""  # what the patterns matched
        self.cache = platform.detect().scratch_dir / "glacier"

    @cached_property
    def store(self) -> Store:
        """All tiles. Raises BadInput where the data cannot be used, or the cache not be written to."""
        settings = self.settings
        archives = () if self.source else settings.download
        with records.writing(self.cache):
            origin = Path("|".join(archives)) if archives else self.root
            facts = [VERSION, str(origin.resolve()), asdict(settings.source), asdict(settings.tiles)]
            folder = self.cache / f"tiles-{_hashed(facts)[:16]}"
            cutter = Cutter(folder, settings.source, settings.tiles, settings.bad_input_limit)
            if archives:
                return cut_archives(archives, self.cache / "downloads", cutter)
            match = layout.find(origin, settings.source)
            self._matched = match.text if self.source else ""
            print(match.text)
            return cutter.all(match)

    @cached_property
    def root(self) -> Path:
        """The folder of the given scenes, or above it the one that the pattern starts from; else of generated ones."""
        settings, inputs = self.settings, platform.detect().input_dir
        if self.source:
            pattern = settings.source.images.replace(BAND, "*") if inputs in self.source.parents else ""
            folders = [self.source, *(f for f in self.source.parents if inputs in f.parents)] if pattern else []
            return next((folder for folder in folders if any(layout.matching(folder, pattern))), self.source)
        folder = self.cache / f"generated-whole-{self._generator_key}"
        terrain.write(folder, settings.generator, settings.source)
        return folder

    @property
    def _generator_key(self) -> str:
        source, generator = self.settings.source, asdict(self.settings.generator)
        return _hashed([terrain.VERSION, generator, source.bands, source.classes, source.codes])[:16]

    def fingerprint(self) -> str:
        """Hashes the generator's settings, else the content; and the split, a given one by its content."""
        split = {name: value for name, value in asdict(self.settings.split).items() if name != "names"}
        if self.settings.split.names or (not self.is_generated and any(self.store.parts)):
            fixed = folds.given(self.store, self.settings.split)
            split["given"] = sorted(zip(self.store.digests, fixed.parts, fixed.groups, strict=True))
        content = self._generator_key if self.is_generated else self.store.fingerprint()
        return _hashed([content, asdict(self.settings.tiles), split])[:32]

    @cached_property
    def parts(self) -> Parts:
        return folds.parts(self.store, self.settings.split, self.settings.source.classes)

    @cached_property
    def counts(self) -> np.ndarray:
        """(training tiles, classes) valid pixels."""
        return self.store.table.counts[self.parts.train]

    @cached_property
    def weights(self) -> np.ndarray | None:
        """(training tiles) how often each is drawn, ground of n scenes as that of root n; None for an even draw."""
        weights, table = sampling.tile_weights(self.counts, self.settings.sampling), self.store.table
        group = self.parts.groups[self.parts.train]
        scenes = np.array(self.store.groups)[table.scene[self.parts.train]]  # patches of an image count as one
        shown = Counter(ground for ground, _ in {*zip(group.tolist(), scenes.tolist(), strict=True)})
        if self.settings.split.by == "map" or {*shown.values()} == {1}:
            return weights
        weights = (1.0 if weights is None else weights) / np.sqrt([shown[ground] for ground in group.tolist()])
        return weights / weights.mean()

    @cached_property
    def draws(self) -> Draws | None:
        """What crops are drawn from; None where whole tiles are trained on."""
        sampling, classes = self.settings.sampling, self.settings.source.classes
        centred = {classes.index(name): share for name, share in sampling.centred.items()}
        return Draws.of(self.counts, self.weights, centred, sampling.crop) if sampling.crop else None

    @cached_property
    def drawn_shares(self) -> np.ndarray:
        """(classes) shares of the pixels that training draws; of crops estimated by some, drawn as training draws."""
        draws, size = self.draws, self.settings.sampling.crop
        if draws is None:
            return reached(self.counts, self.weights)
        generator = torch.Generator().manual_seed(0)
        order = np.random.default_rng(0).choice(len(draws.tiles), _DRAWN, p=draws.weights / draws.weights.sum())
        counts, tile = np.zeros(self.counts.shape[1]), -1
        for index in order[np.argsort(draws.tiles[order], kind="stable")]:
            if draws.tiles[index] != tile:
                tile = draws.tiles[index]
                target = torch.from_numpy(self.store.target(int(self.parts.train[tile])))
            top, left = corner(target, size, int(draws.classes[index]), generator)
            crop = target[top : top + size, left : left + size].flatten()
            counts += torch.bincount(crop, minlength=256)[: len(counts)].numpy()
        return counts / max(1, counts.sum())

    @property
    def prior(self) -> np.ndarray:
        """(classes) what is added to logits: log of the true share in the training, less log of the drawn one."""
        true, drawn = (np.log(np.maximum(shares, _LEAST_SHARE)) for shares in (reached(self.counts), self.drawn_shares))
        return true - drawn

    @cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each input of the network: bands, and indices over some training tiles."""
        places, train = self.settings.index_places, self.parts.train
        bands = tile_statistics(self.store.table, train)
        if not places:
            return bands
        planes = []
        for number in train[:: max(1, len(train) // _INDEX_TILES)]:
            image = torch.from_numpy(self.store.read(int(number))[0])
            planes.append(torch.cat([difference(image, *pair) for pair in places]).flatten(1).double().numpy())
        values = np.concatenate(planes, 1)
        deviation = np.nanstd(values, 1)
        indices = np.nanmean(values, 1), np.where(deviation > 0, deviation, 1.0)
        return np.concatenate([bands[0], indices[0]]), np.concatenate([bands[1], indices[1]])

    @property
    def whole_tiles(self) -> Tiles:
        return Tiles(self.store, self.parts.train, "train")

    def tiles(self) -> dict[str, Tiles]:
        held = {name: Tiles(self.store, getattr(self.parts, name), name) for name in ("validation", "test")}
        return {"train": Tiles(self.store, self.parts.train, "train", self.weights, self.draws), **held}

    def describe(self) -> str:
        """Says where the data comes from, how it is split, and which shares the classes have."""
        settings, parts, counts = self.settings, self.parts, self.store.table.counts
        drawn, split = settings.generator, settings.split
        where = f"Data: {self.source or 'the archives ' + ', '.join(settings.download)}"
        if self.is_generated:
            where = "No data was given or found mounted. The embedded default is used: "
            where += f"{drawn.scenes} generated scenes of {drawn.size} x {drawn.size} pixels"
        fold = f"fold {split.fold + 1} of {split.folds} validates; " if split.folds else ""
        sizes = f"{len(parts.train):,} tiles train, {len(parts.validation):,} validate, {len(parts.test):,} test"
        rows = {
            "training": reached(self.counts), "training, wanted": settings.sampling.target_shares,
            "training, as drawn": self.drawn_shares, "validation": reached(counts[parts.validation]),
            "test": reached(counts[parts.test]),
        }  # fmt: skip
        table = [[name, *(f"{share:.2%}" for share in shares)] for name, shares in rows.items() if len(shares)]
        lines = [f"{where}.", *filter(None, [self._matched]), f"{fold}{sizes}.", *parts.notes]
        lines += [*sampling.other_units(self.store), *sampling.unnamed_nodata(self.store, settings.source.bands)]
        lines.append(aligned([["share of pixels", *settings.source.classes], *table], left=[0]))
        means = enumerate(zip(*tile_statistics(self.store.table, parts.train), strict=True), 1)
        bands = ", ".join(f"{number}: {mean:.4g} ± {deviation:.3g}" for number, (mean, deviation) in means)
        return "\n".join([*lines, f"Bands (mean ± deviation of the training): {bands}"])
