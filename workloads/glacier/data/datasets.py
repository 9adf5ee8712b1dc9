"""The workload's data: tiles cut from what was given, downloaded or generated, split into three parts."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.config import environment
from lib.errors import BadInput
from lib.machine import platform
from lib.task import Batch
from lib.text import aligned
from workloads.glacier.data import folds, layout, sampling, terrain
from workloads.glacier.data.archives import cut_archives
from workloads.glacier.data.cutter import VERSION, Store, cut
from workloads.glacier.data.folds import Parts
from workloads.glacier.data.sampling import ANYWHERE, Draws, augment, corner, reached, tile_statistics
from workloads.glacier.losses import distance_maps
from workloads.glacier.model import difference
from workloads.glacier.settings import IGNORE, Settings

_LEAST_SHARE = 1e-6  # of a class, in a logarithm
_INDEX_TILES = 200  # over which the indices' mean and deviation are taken
_DRAWN = 2_000  # crops by which the shares of classes are estimated


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


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises BadInput, which names the cache and its setting, where the block cannot write to it."""
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if error.filename else folder
        if not (named.is_relative_to(folder) or folder.is_relative_to(named)):  # a file of the data
            raise
        how = f"Make room on its disk, or name another folder in the environment variable {environment.CACHE}."
        raise BadInput(f"The cache folder {folder} cannot be written to ({error.strerror or error}). {how}") from error


class Data:
    """The tiles of all scenes and their parts. Each is read or computed once, when it is first needed."""

    def __init__(self, settings: Settings, source: Path | None):
        """`source` is the folder of the scenes; without one they are downloaded or generated."""
        self.settings, self.source, self._matched = settings, source, ""  # what the patterns matched
        self.archives = () if source else settings.download
        self.cache = platform.detect().scratch_dir / "glacier"

    @cached_property
    def store(self) -> Store:
        """All tiles. Raises BadInput where the data cannot be used, or the cache not be written to."""
        settings = self.settings
        with _writing(self.cache):
            origin = Path("|".join(self.archives)) if self.archives else self.root
            facts = [VERSION, str(origin.resolve()), asdict(settings.source), asdict(settings.tiles)]
            folder = self.cache / f"tiles-{_hashed(facts)[:16]}"
            if self.archives:
                return cut_archives(self.archives, self.cache / "downloads", folder, settings)
            match = layout.find(origin, settings.source)
            self._matched = match.text if self.source else ""
            print(match.text)
            return cut(match, folder, settings.source, settings.tiles, settings.bad_input_limit)

    @cached_property
    def root(self) -> Path:
        """The folder of the given scenes, else of generated ones."""
        folder = self.source or self.cache / f"generated-whole-{self._generator_key}"
        if not self.source:
            terrain.write(folder, self.settings.generator, self.settings.source)
        return folder

    @property
    def _generator_key(self) -> str:
        source, generator = self.settings.source, asdict(self.settings.generator)
        return _hashed([terrain.VERSION, generator, source.bands, source.classes, source.codes])[:16]

    def fingerprint(self) -> str:
        """Hashes the generator's settings, else the content; and the split, a given one by its content."""
        split, content = asdict(self.settings.split), self._generator_key
        if self.source or self.archives:
            store = self.store
            content = store.fingerprint()
            if any(store.parts):
                split["given"] = sorted(zip(store.digests, folds.given(store)[0], store.groups, strict=True))
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
        """(training tiles) how often each is drawn; None for an even draw."""
        return sampling.tile_weights(self.counts, self.settings.sampling)

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
        counts = np.zeros(self.counts.shape[1])
        for index in order[np.argsort(draws.tiles[order], kind="stable")]:
            target = torch.from_numpy(self.store.target(int(self.parts.train[draws.tiles[index]])))
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

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        images, targets = [], []
        for sample in samples:
            image, target = torch.from_numpy(sample.image), torch.from_numpy(sample.target)
            if sample.training and (size := self.settings.sampling.crop):
                top, left = corner(target, size, sample.around, generator)
                image, target = (plane[..., top : top + size, left : left + size] for plane in (image, target))
            if sample.training:
                deviation = torch.from_numpy(self.statistics[1][: len(image)]).float()
                image, target = augment(image, target, deviation, generator)
            images.append(image)
            targets.append(target)
        batch = {"image": torch.stack(images), "target": torch.stack(targets)}
        if self.settings.loss.boundary:
            maps = [distance_maps(target.numpy(), len(self.settings.source.classes)) for target in targets]
            batch["distances"] = torch.from_numpy(np.stack(maps))
        return batch

    def describe(self) -> str:
        """Says where the data comes from, how it is split, and which shares the classes have."""
        settings, parts, counts = self.settings, self.parts, self.store.table.counts
        drawn, split = settings.generator, settings.split
        generated = f"{drawn.scenes} generated scenes of {drawn.size} x {drawn.size} pixels"
        default = f"No data was given or found mounted. The embedded default is used: {generated}"
        where = f"Data: {self.source or ', '.join(self.archives)}" if self.source or self.archives else default
        fold = f"fold {split.fold + 1} of {split.folds} validates; " if split.folds else ""
        sizes = f"{len(parts.train):,} tiles train, {len(parts.validation):,} validate, {len(parts.test):,} test"
        rows = {
            "training": reached(self.counts), "training, wanted": settings.sampling.target_shares,
            "training, as drawn": self.drawn_shares, "validation": reached(counts[parts.validation]),
            "test": reached(counts[parts.test]),
        }  # fmt: skip
        table = [[name, *(f"{share:.2%}" for share in shares)] for name, shares in rows.items() if len(shares)]
        lines = [f"{where}.", *filter(None, [self._matched]), f"{fold}{sizes}.", *parts.notes]
        lines += sampling.unnamed_nodata(self.store, settings.source.bands)
        lines.append(aligned([["share of pixels", *settings.source.classes], *table], left=[0]))
        means = enumerate(zip(*tile_statistics(self.store.table, parts.train), strict=True), 1)
        bands = ", ".join(f"{number}: {mean:.4g} ± {deviation:.3g}" for number, (mean, deviation) in means)
        return "\n".join([*lines, f"Bands (mean ± deviation of the training): {bands}"])
