"""Splits the tiles of given, downloaded or generated scenes, and makes batches of them.

An epoch draws tiles towards wanted shares of classes, or crops; both are augmented.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.config import environment
from lib.errors import BadInput
from lib.machine import platform
from lib.task import Batch
from lib.text import aligned
from trainbook import IGNORED
from workloads.glacier.data import folds, layout, terrain
from workloads.glacier.data.cutter import VERSION, Store, Table, cut, cut_archives
from workloads.glacier.data.folds import Parts
from workloads.glacier.losses import distance_maps
from workloads.glacier.model import Normalisation, difference
from workloads.glacier.settings import IGNORE, UNLIKE, Sampling, Settings

ANYWHERE = -1  # in the place of a class
BAND_NOISE = 0.05  # deviation of a band's random gain and offset, in deviations of the band
_LOOKED_AT = 50  # tiles that are searched for nodata values
_OFTEN = 10  # pixels of a nodata value
_CODES = 20  # values of a band of codes, which has gaps
# From hardly a tilt (at 100 no weight is off by more than 1 %) to the largest useful one
_RIDGES = [10 ** (-k / 8) for k in range(-16, 73)]
_LEAST_SHARE = 1e-6  # least share of a class in a logarithm
_INDEX_TILES = 200  # over which the indices' mean and deviation are taken
_DRAWN = 2_000  # crops by which the shares of classes are estimated


def tile_weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Returns (tiles) weights of mean 1, or None for an even draw; `counts` (tiles, classes) are valid pixels.

    They are the most even weights that draw the classes in the wanted shares. The weights of largest entropy are
    exponential in the shares (Jaynes, 1957); a ridge on their coefficients bounds them. The smallest ridge is taken
    that keeps all weights below `most_often`, so reachable shares are reached and others are approached.
    """
    if not sampling.target_shares:
        return None
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    # The convex dual: log of the mean of exp(shares c), minus goal c, plus the ridge; c (classes) are coefficients
    def dual(c: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        exponents = shares @ c
        value = logsumexp(exponents) - goal @ c + ridge / 2 * c @ c
        return value, softmax(exponents) @ shares - goal + ridge * c

    def curvature(c: np.ndarray, ridge: float) -> np.ndarray:
        weight = softmax(shares @ c)
        centred = shares - weight @ shares
        return (centred * weight[:, None]).T @ centred + ridge * np.eye(len(c))

    shares = counts / counts.sum(1, keepdims=True)
    present = shares.any(0)  # weights cannot change the share of an absent class
    shares = shares[:, present]
    goal = np.asarray(sampling.target_shares, np.float64)[present]
    coefficients = np.zeros(len(goal))
    best = np.ones(len(shares))
    # Unreachable goals have coefficients that grow as 1 / ridge; the default radius of 1,000 would bound steps
    options = {"gtol": 1e-10, "max_trust_radius": 1e12}
    how = {"method": "trust-exact", "jac": True, "hess": curvature, "options": options}
    for ridge in _RIDGES:
        coefficients = minimize(dual, coefficients, (ridge,), **how).x
        weight = softmax(shares @ coefficients) * len(shares)
        if weight.max() > sampling.most_often:
            break
        best = weight
    if np.allclose(best, 1):
        return None
    return best / best.mean()


def reached(counts: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Returns (classes) shares of the valid pixels, drawn with (tiles) weights or evenly."""
    drawn = counts if weight is None else counts * weight[:, None]
    return drawn.sum(0) / drawn.sum()


class Draws(NamedTuple):
    """The draws of an epoch: numbers of tiles, the class around which each is cropped, and weights."""

    tiles: np.ndarray
    classes: np.ndarray
    weights: np.ndarray | None

    @classmethod
    def of(
        cls, counts: np.ndarray, weights: np.ndarray | None, centred: Mapping[int, float], size: int
    ) -> "Draws":
        """Returns each tile for a crop anywhere, and again for each rare class in it.

        All are repeated until an epoch draws about as many pixels as its tiles have. `counts` (tiles, classes) are
        pixels, `weights` (tiles) of crops anywhere, `centred` shares by class.
        """
        count = len(counts)
        even = np.ones(count) if weights is None else weights
        shown = {k: share for k, share in centred.items() if counts[:, k].any()}
        tiles = [np.arange(count)]
        classes = [np.full(count, ANYWHERE)]
        shares = [even / even.sum() * (1 - sum(shown.values()))]
        # All pixels of a class are equally likely: a tile's share is its share of them
        for k in sorted(shown):
            pixels = counts[:, k]
            having = np.flatnonzero(pixels)
            tiles.append(having)
            classes.append(np.full(len(having), k))
            shares.append(shown[k] * pixels[having] / pixels.sum())
        drawn = np.concatenate(tiles)
        times = max(1, round(float(counts.sum()) / size**2 / len(drawn)))
        columns = drawn, np.concatenate(classes), np.concatenate(shares) * len(drawn)
        return cls(*(np.tile(column, times) for column in columns))


def once(table: Table, chosen: np.ndarray, size: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Returns tiles that cover the chosen ones, and the new pixels of tiles that overlap earlier tiles.

    Those are (S * S / 8) bits by index. Tiles side by side come first. Metrics must not count a pixel twice.
    """
    new_in: dict[int, np.ndarray] = {}
    needed = []
    corners = table.corner[chosen]
    off_grid = (corners % size).any(1)  # the grid of tiles that do not overlap
    keys = (corners[:, 1], corners[:, 0], off_grid, table.scene[chosen])
    order = chosen[np.lexsort(keys)]
    for scene, tiles in itertools.groupby(order, key=lambda index: table.scene[index]):
        extent = table.corner[table.scene == scene].max(0) + size
        covered = np.zeros(extent, bool)
        for index in tiles:
            row, column = table.corner[index]
            window = covered[row : row + size, column : column + size]
            if window.all():
                continue
            needed.append(index)
            if window.any():
                new_in[int(index)] = np.packbits(~window)
            window[:] = True
    return np.array(needed, dtype=chosen.dtype), new_in


def tile_statistics(table: Table, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges the moments of the chosen tiles (Chan, Golub and LeVeque, 1983, equation 2.1): (bands) mean, deviation."""
    valid = table.valid[chosen].astype(np.float64)[:, None]  # (n, 1)
    total = max(valid.sum(), 1.0)
    mean = (valid * table.mean[chosen]).sum(0) / total
    between = valid * (table.mean[chosen] - mean) ** 2
    variance = (table.squares[chosen] + between).sum(0) / total
    return mean, np.where(variance > 0, np.sqrt(variance), 1.0)


def applied_scalings(store: Store) -> list[str]:
    """Returns a sentence on the scenes whose scale and offset tags are applied."""
    scaled = {}
    for name, pairs in zip(store.names, store.scalings, strict=True):
        units = [pair for pair in pairs if tuple(pair) != (1, 0)]
        if units:
            scaled[name] = units[0]
    if not scaled:
        return []
    name, (scale, offset) = next(iter(scaled.items()))
    return [
        f"Scale and offset tags are applied to {len(scaled):,} of {len(store.names):,} scenes, such as {name}: "
        f"value * {scale:g} + {offset:g}."
    ]


def unlike_scenes(store: Store, bands: Sequence[str]) -> list[str]:
    """Returns warnings on bands in different units, by their values: 0.2 in one scene and 2000 in another."""
    levels = _levels(store.table)
    names = [store.names[number] for number in np.unique(store.table.scene)]
    lines = []
    for band, level in zip(bands, levels.T, strict=True):
        usual = np.where(level > 0, level, level.max())  # a scene of zeros has no unit
        low = int(usual.argmin())
        high = int(usual.argmax())
        number = int((usual * UNLIKE < usual[high]).sum())
        if number:
            lines.append(
                f"Warning: the band {band} is {usual[low]:.3g} in {names[low]} and {usual[high]:.3g} in "
                f"{names[high]}; {number:,} scenes are below a {UNLIKE}th. Bring all to one unit."
            )
    return lines


def _levels(table: Table) -> np.ndarray:
    """Returns (scenes with tiles, bands) the root mean square of pixels."""
    numbers, scene = np.unique(table.scene, return_inverse=True)
    valid = table.valid.astype(np.float64)[:, None]
    totals = np.zeros((len(numbers), table.mean.shape[1]))
    pixels = np.zeros((len(numbers), 1))
    np.add.at(totals, scene, table.squares + valid * table.mean**2)
    np.add.at(pixels, scene, valid)
    return np.sqrt(totals / np.maximum(pixels, 1))


def unnamed_nodata(store: Store, bands: Sequence[str]) -> list[str]:
    """Returns a warning on each band with a frequent value far below all others, such as -9999."""
    sample = np.linspace(0, len(store) - 1, min(len(store), _LOOKED_AT)).round()
    numbers = np.unique(sample.astype(int)).tolist()
    tiles = np.stack([store.read(number)[0] for number in numbers], 1)
    lines = []
    for name, plane in zip(bands, tiles, strict=True):
        values, counts = np.unique(plane[~np.isnan(plane)], return_counts=True)
        if len(values) <= _CODES or counts[0] < _OFTEN:
            continue
        gap = values[1] - values[0]
        if gap <= (values[-1] - values[1]) / 2:
            continue
        share = counts[0] / counts.sum()
        advice = f"set workload.source.nodata: [{values[0]:g}]"
        if applied_scalings(store):
            advice = "set workload.source.nodata to the number that the files have there, before scale and offset"
        lines.append(
            f"Warning: {share:.1%} of the pixels of the band {name} are {values[0]:g}, far below all others. "
            f"If that means no data, {advice}."
        )
    return lines


def augment(
    image: Tensor, target: Tensor, deviation: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Flips and turns (bands, S, S) and (S, S) alike, and changes gain and offset of bands by `deviation` (bands)."""
    mirrored = torch.randint(2, (), generator=generator)
    turns = int(torch.randint(4, (), generator=generator))
    gain, offset = torch.randn(2, len(image), 1, 1, generator=generator)
    if mirrored:
        image = image.flip(2)
        target = target.flip(1)
    if turns:
        image = image.rot90(turns, (1, 2))
        target = target.rot90(turns, (0, 1))
    shift = BAND_NOISE * deviation.view(-1, 1, 1) * offset
    return torch.addcmul(shift, image, 1 + BAND_NOISE * gain), target  # in one pass over the pixels


def corner(target: Tensor, size: int, around: int, generator: torch.Generator) -> tuple[int, int]:
    """Draws the corner of a crop of (S, S) classes: anywhere, or so that it shows a pixel of `around`."""
    draws = torch.rand(3, generator=generator, dtype=torch.float64)
    pixel, down, across = draws.tolist()
    height, width = (length - size for length in target.shape)
    places = target.new_empty(0)
    if around != ANYWHERE:
        places = (target == around).nonzero()
    if not len(places):
        return int(down * (height + 1)), int(across * (width + 1))
    row, column = places[int(pixel * len(places))].tolist()
    top = row - int(down * size)
    left = column - int(across * size)
    return min(max(top, 0), height), min(max(left, 0), width)


def _each_once(tiles: int, weights: np.ndarray | None = None) -> Draws:
    return Draws(np.arange(tiles), np.full(tiles, ANYWHERE), weights)


class Sample(NamedTuple):
    """A tile of the store."""

    image: np.ndarray  # (bands, S, S) float32 with NaN for no data
    target: np.ndarray  # (S, S) uint8 with IGNORE
    around: int  # the class around which it is cropped


class Tiles:
    """The tiles of a split, by default each once.

    `chosen` are numbers of tiles in the store, `groups` name the scene or map square of each tile of the store; see
    `Draws` and `once`.
    """

    def __init__(
        self,
        store: Store,
        chosen: np.ndarray,
        groups: np.ndarray,
        draws: Draws | None = None,
        new_in: Mapping[int, np.ndarray] | None = None,
    ):
        self.store = store
        self.draws = draws or _each_once(len(chosen))
        self.weights = self.draws.weights
        self.numbers = chosen[self.draws.tiles]
        self.new_in = new_in or {}
        self._groups = groups

    @property
    def groups(self) -> list[str]:
        """The name of each tile's group."""
        return self._groups[self.numbers].tolist()

    @property
    def scenes(self) -> list[str]:
        """The name of each tile's scene."""
        return [self.store.names[scene] for scene in self.store.table.scene[self.numbers]]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.numbers[index])
        image, target = self.store.read(number)
        if number in self.new_in:
            bits = np.unpackbits(self.new_in[number], count=target.size)
            is_new = bits.view(bool).reshape(target.shape)
            target[~is_new] = IGNORE
        return Sample(image, target, int(self.draws.classes[index]))


def _hashed(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns errors of writing to the cache into BadInput, which names it and its setting."""
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if error.filename else folder
        is_in_cache = named.is_relative_to(folder) or folder.is_relative_to(named)
        if not is_in_cache:  # a file of the data
            raise
        reason = error.strerror or error
        raise BadInput(
            f"The cache folder {folder} cannot be written to ({reason}). Make room on its disk, or name another "
            f"folder in the environment variable {environment.CACHE}."
        ) from error


class Data:
    """The tiles of all scenes and their splits. Each is read or computed on first use."""

    def __init__(self, settings: Settings, source: Path | None):
        """`source` is the folder of the scenes; without it they are downloaded or generated."""
        self.settings = settings
        self.source = source
        self._matched = ""  # a sentence on matched files
        self.archives = () if source else settings.download
        self.cache = platform.detect().scratch_dir / "glacier"

    @cached_property
    def store(self) -> Store:
        """All tiles. Raises BadInput for unusable data or cache."""
        settings = self.settings
        with _writing(self.cache):
            origin = Path("|".join(self.archives)) if self.archives else self.root
            facts = [VERSION, str(origin.resolve())]
            facts += [asdict(settings.source), asdict(settings.tiles)]
            folder = self.cache / f"tiles-{_hashed(facts)[:16]}"
            if self.archives:
                return cut_archives(self.archives, self.cache / "downloads", folder, settings)
            match = layout.find(origin, settings.source)
            if self.source:
                self._matched = match.text
            print(match.text)
            return cut(match, folder, settings.source, settings.tiles, settings.bad_input_limit)

    @cached_property
    def root(self) -> Path:
        """The folder of the given or generated scenes."""
        if self.source:
            return self.source
        folder = self.cache / f"generated-whole-{self._generator_key}"
        terrain.write(folder, self.settings.generator, self.settings.source)
        return folder

    @property
    def _generator_key(self) -> str:
        source = self.settings.source
        generator = asdict(self.settings.generator)
        facts = [terrain.VERSION, generator, source.bands, source.classes, source.codes]
        return _hashed(facts)[:16]

    def fingerprint(self) -> str:
        """Hashes the content or the generator's settings, and the split."""
        split = asdict(self.settings.split)
        content = self._generator_key
        if self.source or self.archives:
            store = self.store
            content = store.fingerprint()
            if any(store.parts):
                parts, _ = folds.given(store)
                split["given"] = sorted(zip(store.digests, parts, store.groups, strict=True))
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
        """(training tiles) the weight of each draw; None for even draws."""
        return tile_weights(self.counts, self.settings.sampling)

    @cached_property
    def draws(self) -> Draws:
        sampling = self.settings.sampling
        classes = self.settings.source.classes
        if not sampling.crop:
            return _each_once(len(self.counts), self.weights)
        centred = {classes.index(name): share for name, share in sampling.centred.items()}
        return Draws.of(self.counts, self.weights, centred, sampling.crop)

    @cached_property
    def drawn_shares(self) -> np.ndarray:
        """(classes) shares of the pixels that training draws; for crops an estimate by some draws."""
        draws = self.draws
        size = self.settings.sampling.crop
        if not size:
            return reached(self.counts, self.weights)
        generator = torch.Generator().manual_seed(0)
        assert draws.weights is not None
        p = draws.weights / draws.weights.sum()
        order = np.random.default_rng(0).choice(len(draws.tiles), _DRAWN, p=p)
        order = order[np.argsort(draws.tiles[order], kind="stable")]
        counts = np.zeros(self.counts.shape[1])
        for index in order:
            number = int(self.parts.train[draws.tiles[index]])
            _, mask = self.store.read(number)
            target = torch.from_numpy(mask)
            top, left = corner(target, size, int(draws.classes[index]), generator)
            crop = target[top : top + size, left : left + size].flatten()
            counts += torch.bincount(crop, minlength=256)[: len(counts)].numpy()
        return counts / max(1, counts.sum())

    @property
    def normalisation(self) -> Normalisation:
        """The values that the network's buffers take from the training tiles."""
        prior = self.prior if self.settings.prior else None
        return Normalisation(*self.statistics, prior)

    @property
    def prior(self) -> np.ndarray:
        """(classes) the correction of logits: log(true share / drawn share) of training pixels."""
        true = np.log(np.maximum(reached(self.counts), _LEAST_SHARE))
        drawn = np.log(np.maximum(self.drawn_shares, _LEAST_SHARE))
        return true - drawn

    @cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each input of the network; of indices over some training tiles."""
        places = self.settings.index_places
        train = self.parts.train
        mean, deviation = tile_statistics(self.store.table, train)
        if not places:
            return mean, deviation
        planes = []
        for number in train[:: max(1, len(train) // _INDEX_TILES)]:
            image = torch.from_numpy(self.store.read(int(number))[0])
            indices = torch.cat([difference(image, *pair) for pair in places])
            planes.append(indices.flatten(1).double().numpy())
        values = np.concatenate(planes, 1)
        spread = np.nanstd(values, 1)
        spread = np.where(spread > 0, spread, 1.0)
        means = np.concatenate([mean, np.nanmean(values, 1)])
        return means, np.concatenate([deviation, spread])

    @property
    def whole_tiles(self) -> Tiles:
        return Tiles(self.store, self.parts.train, self.parts.groups)

    def tiles(self) -> dict[str, Tiles]:
        """Returns the tiles of each split; a test that repeats the validation is the same object."""
        parts = self.parts
        validation = self._held_out(parts.validation)
        test = validation
        if parts.test is not parts.validation:
            test = self._held_out(parts.test)
        train = Tiles(self.store, parts.train, parts.groups, self.draws)
        return {"train": train, "validation": validation, "test": test}

    def _held_out(self, chosen: np.ndarray) -> Tiles:
        tiles, new_in = once(self.store.table, chosen, self.store.size)
        return Tiles(self.store, tiles, self.parts.groups, None, new_in)

    def batch(self, samples: Sequence[Sample], generator: torch.Generator | None) -> Batch:
        """Returns the tensors of samples, which a `generator` augments."""
        images = []
        targets = []
        for sample in samples:
            image = torch.from_numpy(sample.image)
            target = torch.from_numpy(sample.target)
            if generator:
                size = self.settings.sampling.crop
                if size:
                    top, left = corner(target, size, sample.around, generator)
                    image = image[:, top : top + size, left : left + size]
                    target = target[top : top + size, left : left + size]
                deviation = torch.from_numpy(self.statistics[1][: len(image)]).float()
                image, target = augment(image, target, deviation, generator)
            images.append(image)
            targets.append(target)
        target = torch.stack(targets)
        labels = target.short().masked_fill(target == IGNORE, IGNORED)
        batch = {"image": torch.stack(images), "labels": labels}
        if self.settings.loss.boundary:
            classes = len(self.settings.source.classes)
            maps = [distance_maps(target.numpy(), classes) for target in targets]
            batch["distances"] = torch.from_numpy(np.stack(maps))
        return batch

    def describe(self) -> str:
        """Describes origin, split, warnings, and shares of classes."""
        settings = self.settings
        split = settings.split
        parts = self.parts
        bands = settings.source.bands
        fold = f"fold {split.fold + 1} of {split.folds} validates; " if split.folds else ""
        lines = [f"{self._origin()}."]
        if self._matched:
            lines.append(self._matched)
        lines.append(
            f"{fold}{len(parts.train):,} tiles train, {len(parts.validation):,} validate, {len(parts.test):,} test."
        )
        lines += parts.notes
        lines += applied_scalings(self.store)
        lines += unlike_scenes(self.store, bands)
        lines += unnamed_nodata(self.store, bands)
        lines.append(self._shares())
        mean, deviation = tile_statistics(self.store.table, parts.train)
        pairs = enumerate(zip(mean, deviation, strict=True), 1)
        values = ", ".join(f"{number}: {m:.4g} ± {d:.3g}" for number, (m, d) in pairs)
        lines.append(f"Bands (mean ± deviation of the training): {values}")
        return "\n".join(lines)

    def _origin(self) -> str:
        if self.source or self.archives:
            return f"Data: {self.source or ', '.join(self.archives)}"
        generator = self.settings.generator
        return (
            "No data was given or found mounted. The embedded default is used: "
            f"{generator.scenes} generated scenes of {generator.size} x {generator.size} pixels"
        )

    def _shares(self) -> str:
        """Returns a table of the shares of the classes in each split."""
        counts = self.store.table.counts
        rows: dict[str, Any] = {"training": reached(self.counts)}
        if self.settings.sampling.target_shares:
            rows["training, wanted"] = self.settings.sampling.target_shares
        rows["training, as drawn"] = self.drawn_shares
        rows["validation"] = reached(counts[self.parts.validation])
        rows["test"] = reached(counts[self.parts.test])
        table = [["share of pixels", *self.settings.source.classes]]
        for name, shares in rows.items():
            table.append([name, *(f"{share:.2%}" for share in shares)])
        return aligned(table, left=[0])
