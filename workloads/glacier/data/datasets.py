"""The workload's data: tiles cut from what was given, downloaded or generated, dealt to three parts."""

import hashlib
import json
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.machine import platform, records
from lib.scores import IGNORE
from lib.text import aligned
from workloads.glacier.augment import ANYWHERE
from workloads.glacier.data import folds, layout, terrain
from workloads.glacier.data.cutter import Cutter, folder_for
from workloads.glacier.data.download import cut
from workloads.glacier.data.folds import Parts
from workloads.glacier.data.sampling import Draws, reached, shares, tile_weights
from workloads.glacier.data.tiles import Statistics, Store, once, other_units, tile_statistics
from workloads.glacier.model import difference
from workloads.glacier.settings import BAND, Settings

_LEAST_SHARE = 1e-6  # of a class, in a logarithm
_INDEX_TILES = 200  # over which the indices' mean and deviation are taken


class Sample(NamedTuple):
    """A tile as it lies on disk, and whether it is to be augmented."""

    image: np.ndarray  # (bands, S, S) float32 with NaN for no data
    target: np.ndarray  # (S, S) uint8 with IGNORE
    training: bool
    around: int = ANYWHERE  # the class of which a crop shows a pixel


class Tiles:
    """The tiles of one part of the data; `weights` says how often each is trained on.

    Where tiles overlap, every pixel of a held-out part counts in one of them alone.
    """

    def __init__(
        self,
        store: Store,
        chosen: np.ndarray,
        part: str,
        weights: np.ndarray | None = None,
        draws: Draws | None = None,
    ):
        """With `draws` it has the tiles as these do: several times if a crop may lie around a rare class."""
        self.store, self.part, self.draws, self.weights = store, part, draws, draws.weights if draws else weights
        self.chosen, self.new_in = (chosen, {}) if part == "train" else once(store.table, chosen, store.tile_size)

    def __len__(self) -> int:
        return len(self.draws.tiles if self.draws else self.chosen)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.chosen[self.draws.tiles[index] if self.draws else index])
        image, target = self.store.read(number)
        if (bits := self.new_in.get(number)) is not None:
            target[~np.unpackbits(bits, count=target.size).view(bool).reshape(target.shape)] = IGNORE
        around = int(self.draws.classes[index]) if self.draws else ANYWHERE
        return Sample(image, target, self.part == "train", around)


class Data:
    """The tiles of all scenes and their parts. Each is read or computed once, when it is first needed."""

    def __init__(self, settings: Settings, source: Path | None):
        """`source` is the folder of the scenes; without one they are downloaded or generated."""
        self.settings, self.source = settings, source
        self._matched = ""  # what the patterns matched
        self.cache = platform.detect().scratch_dir / "glacier"

    @cached_property
    def store(self) -> Store:
        """All tiles. Raises BadInput where the data cannot be used, or the cache not be written to."""
        with records.writing(self.cache):
            return self._tiles()

    def _tiles(self) -> Store:
        settings = self.settings
        archives = () if self.source else settings.download
        origin = Path("|".join(archives)) if archives else self.root
        folder = folder_for(self.cache, origin, settings.source, settings.tiles)
        cutter = Cutter(folder, settings.source, settings.tiles, settings.bad_input_limit)
        if archives:
            return cut(archives, self.cache / "downloads", cutter)
        match = layout.look(origin, settings.source)
        self._matched = match.text if self.source else ""
        print(match.text)
        return cutter.all(match.scenes, match.problems)

    @cached_property
    def root(self) -> Path:
        """The folder of the scenes: the given one, or one of generated scenes for these settings."""
        if self.source:
            return self._pattern_root() or self.source
        folder = self.cache / f"generated-{self._generator_key()}"
        terrain.write(folder, self.settings.generator, self.settings.source)
        return folder

    def _pattern_root(self) -> Path | None:
        """Returns the folder of a mounted input that the configured pattern starts from: `source`, or one above it."""
        inputs, images = platform.detect().input_dir, self.settings.source.images
        if not (self.source and images and inputs in self.source.parents):
            return None
        above = [folder for folder in self.source.parents if inputs in folder.parents]
        pattern = images.replace(BAND, "*")
        return next((folder for folder in (self.source, *above) if any(layout.Pattern(pattern).files(folder))), None)

    def _generator_key(self) -> str:
        source = self.settings.source
        facts = [terrain.VERSION, asdict(self.settings.generator), source.bands, source.classes, source.codes]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Hashes the generator's settings, as another machine may round a pixel differently, or else the content."""
        settings = self.settings
        generated = self.source is None and not settings.download
        content = self._generator_key() if generated else self.store.fingerprint()
        facts = json.dumps([content, asdict(settings.tiles), self._split_facts(generated)], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def _split_facts(self, generated: bool) -> dict[str, Any]:
        """Returns the settings of the split; what is given of it by its content, and only where it is given."""
        split = self.settings.split
        facts = {name: value for name, value in asdict(split).items() if name != "names"}
        if not split.names and (generated or not any(self.store.parts)):
            return facts
        fixed = folds.given(self.store, split)
        return {**facts, "given": sorted(zip(self.store.digests, fixed.parts, fixed.groups, strict=True))}

    @cached_property
    def parts(self) -> Parts:
        return folds.parts(self.store, self.settings.split, self.settings.source.classes)

    @property
    def is_split(self) -> bool:
        """Whether the parts, and with them the tiles, have been read in this process."""
        return "parts" in self.__dict__

    @cached_property
    def statistics(self) -> Statistics:
        """Mean and deviation of each band over the training tiles."""
        return tile_statistics(self.store.table, self.parts.train)

    @cached_property
    def weights(self) -> np.ndarray | None:
        """(training tiles) how often each is drawn; None for an even draw."""
        return tile_weights(self.store.table.counts[self.parts.train], self.settings.sampling)

    @cached_property
    def draws(self) -> Draws | None:
        """What crops are drawn from; None where whole tiles are trained on."""
        sampling, classes = self.settings.sampling, self.settings.source.classes
        centred = {classes.index(name): share for name, share in sampling.centred.items()}
        counts = self.store.table.counts[self.parts.train]
        return Draws(counts, self.weights, centred, sampling.crop) if sampling.crop else None

    @cached_property
    def drawn_shares(self) -> np.ndarray:
        """(classes) shares of the pixels that training draws; of crops it is an estimate."""
        counts, train = self.store.table.counts, self.parts.train
        if self.draws is None:
            return reached(counts[train], self.weights)
        return shares(self.store, train, self.draws, self.settings.sampling.crop)

    @property
    def prior(self) -> np.ndarray:
        """(classes) what is added to logits: log of the true share in the training, less log of the drawn one."""
        true = reached(self.store.table.counts[self.parts.train], None)
        return np.log(np.maximum(true, _LEAST_SHARE)) - np.log(np.maximum(self.drawn_shares, _LEAST_SHARE))

    @cached_property
    def input_statistics(self) -> Statistics:
        """Mean and deviation of each input of the network: bands, and indices over some training tiles."""
        places = self.settings.index_places
        if not places:
            return self.statistics
        train = self.parts.train
        found: list[np.ndarray] = []
        for number in train[:: max(1, len(train) // _INDEX_TILES)]:
            image = torch.from_numpy(self.store.read(int(number))[0])
            found.append(torch.cat([difference(image, *pair) for pair in places]).flatten(1).double().numpy())
        values = np.concatenate(found, 1)
        mean, deviation = np.nanmean(values, 1), np.nanstd(values, 1)
        deviation = np.where(deviation > 0, deviation, 1.0)
        bands = self.statistics
        return Statistics(np.concatenate([bands.mean, mean]), np.concatenate([bands.deviation, deviation]))

    @property
    def whole_tiles(self) -> Tiles:
        """The training tiles, each once and whole."""
        return Tiles(self.store, self.parts.train, "train")

    def tiles(self) -> dict[str, Tiles]:
        """The data sets "train", "validation" and "test"."""
        return {
            "train": Tiles(self.store, self.parts.train, "train", self.weights, self.draws),
            "validation": Tiles(self.store, self.parts.validation, "validation"),
            "test": Tiles(self.store, self.parts.test, "test"),
        }

    def describe(self) -> str:
        """Says where the data comes from, how it is split, and which shares the classes have."""
        settings = self.settings
        drawn = settings.generator
        where = (
            f"Data: {self.source}" if self.source
            else f"Data: the archives {', '.join(settings.download)}" if settings.download
            else "No data was given or found mounted. The embedded default is used: "
            f"{drawn.scenes} generated scenes of {drawn.size} x {drawn.size} pixels"
        )  # fmt: skip
        parts, split = self.parts, settings.split
        fold = f"fold {split.fold + 1} of {split.folds} validates; " if split.folds else ""
        sizes = f"{len(parts.train):,} tiles train, {len(parts.validation):,} validate, {len(parts.test):,} test"
        means = enumerate(zip(self.statistics.mean, self.statistics.deviation, strict=True), 1)
        bands = ", ".join(f"{number}: {mean:.4g} ± {deviation:.3g}" for number, (mean, deviation) in means)
        notes = [*parts.notes, *other_units(self.store)]
        matched = [self._matched] if self._matched else []
        return "\n".join([f"{where}.", *matched, f"{fold}{sizes}.", *notes, self._shares(),
                          f"Bands (mean ± deviation of the training): {bands}"])  # fmt: skip

    def _shares(self) -> str:
        """Returns a table of class shares: as they are in each part, and as training draws them."""
        counts, parts = self.store.table.counts, self.parts
        rows = {
            "training": reached(counts[parts.train], None),
            "training, wanted": self.settings.sampling.target_shares,
            "training, as drawn": self.drawn_shares,
            "validation": reached(counts[parts.validation], None),
            "test": reached(counts[parts.test], None),
        }
        head = ["share of pixels", *self.settings.source.classes]
        table = [[name, *(f"{share:.2%}" for share in shares)] for name, shares in rows.items() if len(shares)]
        return aligned([head, *table], left=[0])
