"""glacier: segmentation of ice, debris and lakes in multispectral images, tile by tile.

Data: folders of single-band GeoTIFFs, multi-band GeoTIFFs, or NumPy patches (see `readers`), or archives of these by
address. The embedded default is a generator of plausible scenes (see `terrain`).
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lib.config.reader import option
from lib.machine import platform
from lib.scores import Confusion
from lib.task import Batch, Task
from lib.tasks.glacier import carry, figures, losses
from lib.tasks.glacier.augment import Augmentation, augment
from lib.tasks.glacier.baselines import PixelBaseline
from lib.tasks.glacier.data import folds, readers, terrain
from lib.tasks.glacier.data.download import cut
from lib.tasks.glacier.data.folds import Parts, Split
from lib.tasks.glacier.data.readers import Source
from lib.tasks.glacier.data.sampling import Sampling, reached, tile_weights
from lib.tasks.glacier.data.terrain import Generator
from lib.tasks.glacier.data.tiles import Cut, Cutter, Statistics, Store, folder_for, once, tile_statistics
from lib.tasks.glacier.losses import Loss
from lib.tasks.glacier.maps import masks, probabilities
from lib.tasks.glacier.model import UNet

__all__ = ["Glacier"]

_SHOWN_TILES = 4  # in the figures
_VOTED_AT_ONCE = 4  # tiles, each in eight views one after another


@dataclass(frozen=True)
class Model:
    """Sizes of the U-Net; the defaults are ResNet-34's."""

    widths: tuple[int, ...] = option((64, 64, 128, 256, 512), "Channels of the stem and the four stages.", minimum=1)
    depths: tuple[int, ...] = option((3, 4, 6, 3), "Residual blocks of each stage.", minimum=1)
    decoder: tuple[int, ...] = option((256, 128, 64, 32, 16), "Channels of the decoder's stages.", minimum=1)


@dataclass(frozen=True)
class Initial:
    """What `run.initial_weights` were trained on; see `carry` for the rule by which they come over."""

    bands: tuple[str, ...] = option((), "Names of their bands, in their order; empty: the same as this run's.")
    classes: tuple[str, ...] = option((), "Names of their classes, in their order; empty: the same as this run's.")


@dataclass(frozen=True)
class Criteria:
    """What a run should reach on its test; judged with advice at the end, never enforced."""

    mcc: float = option(0.0, "Matthews' correlation over all pixels; 0: not judged.", minimum=0, maximum=1)
    class_iou: float = option(0.0, "IoU of each class but the first; 0: not judged.", minimum=0, maximum=1)
    ensemble_mcc: float = option(0.0, "The same of several models together; 0: not judged.", minimum=0, maximum=1)


@dataclass(frozen=True)
class Settings:
    source: Source = Source()  # noqa: RUF009  frozen, though defined elsewhere, as are those below
    download: tuple[str, ...] = option((), "Addresses or paths of archives with the data, where no data.dir is given.")
    generator: Generator = Generator()  # noqa: RUF009
    tiles: Cut = Cut()  # noqa: RUF009
    split: Split = Split()  # noqa: RUF009
    sampling: Sampling = Sampling()  # noqa: RUF009
    augmentation: Augmentation = Augmentation()  # noqa: RUF009
    model: Model = Model()
    initial: Initial = Initial()
    loss: Loss = Loss()  # noqa: RUF009
    criteria: Criteria = Criteria()
    bad_input_limit: int = option(0, "Unusable scenes that are left out; one more refuses the data.", minimum=0)

    def __post_init__(self) -> None:
        wanted, classes = self.sampling.target_shares, self.source.classes
        if wanted and len(wanted) != len(classes):
            raise ValueError(f"sampling.target_shares has {len(wanted)} shares for {len(classes)} classes.")


class Sample(NamedTuple):
    """A tile as it lies on disk, and whether it is to be augmented."""

    image: np.ndarray  # (bands, S, S) float32 with NaN for no data
    target: np.ndarray  # (S, S) uint8 with IGNORE
    training: bool


class Tiles:
    """The tiles of one part of the data; `weights` says how often each is trained on.

    Where tiles overlap, every pixel of a held-out part counts in one of them alone.
    """

    def __init__(self, store: Store, chosen: np.ndarray, part: str, weights: np.ndarray | None = None):
        self.store, self.part, self.weights = store, part, weights
        self.chosen, self.new_in = (chosen, {}) if part == "train" else once(store.table, chosen, store.tile_size)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.chosen[index])
        image, target = self.store.read(number)
        if (bits := self.new_in.get(number)) is not None:
            target[~np.unpackbits(bits, count=target.size).view(bool).reshape(target.shape)] = losses.IGNORE
        return Sample(image, target, self.part == "train")


class _Pairs(Sequence):
    """Tiles as (bands, mask), read one at a time."""

    def __init__(self, tiles_of_part: Tiles):
        self.tiles = tiles_of_part

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        sample = self.tiles[index]
        return sample.image, sample.target

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[index] for index in range(len(self)))


class Net(UNet):
    """The U-Net behind the normalisation that belongs to its weights: raw bands in, NaN where there is no data."""

    def __init__(self, bands: int, classes: int, model: Model):
        super().__init__(bands, classes, model.widths, model.depths, model.decoder)
        self.register_buffer("mean", torch.zeros(bands, 1, 1))
        self.register_buffer("deviation", torch.ones(bands, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """(B, bands, S, S) -> (B, classes, S, S). No data becomes the mean of its band."""
        normal = (image - self.mean) / self.deviation
        return super().forward(torch.where(normal.isnan(), 0.0, normal))


class Glacier(Task):
    """See the module's docstring."""

    Settings = Settings
    sentinels = ("*_img_*.npy", "*.tif", "*.tiff")
    selection = ("mcc", "max")
    shown = ("mcc", "mean_iou")
    dials: ClassVar = {"workload.tiles.size": (128, 256, 384, 512)}

    @property
    def settings(self) -> Settings:
        return self.config.workload

    # --- data -----------------------------------------------------------------------------------------------------

    @property
    def _scratch(self) -> Path:
        return platform.detect().scratch_dir

    @cached_property
    def store(self) -> Store:
        """All tiles, cut from the data that was given, downloaded or generated. Raises BadInput."""
        settings = self.settings
        if self.source is None and settings.download:
            folder = folder_for(self._scratch, Path("|".join(settings.download)), settings.source, settings.tiles)
            cutter = Cutter(folder, settings.source, settings.tiles, settings.bad_input_limit)
            return cut(settings.download, self._scratch / "glacier" / "downloads", cutter)
        root = self.root
        folder = folder_for(self._scratch, root, settings.source, settings.tiles)
        cutter = Cutter(folder, settings.source, settings.tiles, settings.bad_input_limit)
        scenes, problems = readers.find(root, settings.source)
        print(f"{root}: {readers.counts(scenes, problems)}.")
        return cutter.all(scenes, problems)

    @cached_property
    def root(self) -> Path:
        """The folder of the scenes, where they were not downloaded."""
        return readers.home(self.source) if self.source else self._generated()

    def _generated(self) -> Path:
        """The folder of the generated scenes, made once for each choice of settings."""
        settings = self.settings
        folder = self._scratch / "glacier" / f"generated-{self._generator_key()}"
        terrain.write(folder, settings.generator, settings.source)
        return folder

    def _generator_key(self) -> str:
        source = self.settings.source
        told = [terrain.VERSION, asdict(self.settings.generator), source.bands, source.classes, source.codes]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    @cached_property
    def parts(self) -> Parts:
        settings = self.settings
        return folds.parts(self.store, settings.split, settings.source.classes, settings.tiles.size)

    @cached_property
    def statistics(self) -> Statistics:
        """Of the bands, over the training tiles alone."""
        return tile_statistics(self.store.table, self.parts.train)

    @cached_property
    def _weights(self) -> np.ndarray | None:
        return tile_weights(self.store.table.counts[self.parts.train], self.settings.sampling)

    def describe_data(self) -> str:
        where = f"Data: {self.source}"
        if self.source is None:
            generator = self.settings.generator
            where = (
                f"Data: the archives {', '.join(self.settings.download)}"
                if self.settings.download
                else "No data was given or found mounted. The embedded default is used: "
                f"{generator.scenes} generated scenes of {generator.size} x {generator.size} pixels"
            )
        parts, split = self.parts, self.settings.split
        fold = f"fold {split.fold + 1} of {split.folds} validates; " if split.folds else ""
        sizes = f"{len(parts.train):,} tiles train, {len(parts.validation):,} validate, {len(parts.test):,} test"
        return "\n".join([f"{where}.", f"{fold}{sizes}.", *parts.notes, self._shares(), self._bands()])

    def _shares(self) -> str:
        """A table of class shares: as they are in each part, and as training draws them."""
        counts, parts = self.store.table.counts, self.parts
        train = counts[parts.train]
        rows = [
            ("training", reached(train, None)),
            ("training, as drawn", reached(train, self._weights)),
            ("validation", reached(counts[parts.validation], None)),
            ("test", reached(counts[parts.test], None)),
        ]
        if wanted := self.settings.sampling.target_shares:
            rows.insert(2, ("  wanted", np.array(wanted)))
        head = f"{'share of pixels':<20}" + "".join(f"{name:>12}" for name in self.settings.source.classes)
        return "\n".join([head, *(f"{name:<20}" + "".join(f"{s:>12.2%}" for s in row) for name, row in rows)])

    def _bands(self) -> str:
        pairs = zip(self.statistics.mean, self.statistics.deviation, strict=True)
        listed = ", ".join(
            f"{number}: {mean:.4g} ± {deviation:.3g}" for number, (mean, deviation) in enumerate(pairs, 1)
        )
        return f"Bands (mean ± deviation of the training): {listed}"

    def draw_tiles(self, out: Path) -> Path:
        """Some training tiles above their masks, those first that show most classes."""
        train = self.datasets()["train"]
        several = (self.store.table.counts[train.chosen] > 0).sum(1)
        pairs = [train[index][:2] for index in np.argsort(-several, kind="stable")[: 2 * _SHOWN_TILES : 2]]
        return figures.tiles(pairs, self.settings.source.classes, out)

    def fingerprint(self) -> str:
        """Of generated data its settings, because another machine may round a pixel differently; else the content."""
        generated = self.source is None and not self.settings.download
        content = self._generator_key() if generated else self.store.fingerprint()
        told = json.dumps([content, asdict(self.settings.tiles), asdict(self.settings.split)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def datasets(self) -> dict[str, Any]:
        parts = self.parts
        return {
            "train": Tiles(self.store, parts.train, "train", self._weights),
            "validation": Tiles(self.store, parts.validation, "validation"),
            "test": Tiles(self.store, parts.test, "test"),
        }

    def collate(self, samples: list[Sample], generator: torch.Generator) -> Batch:
        pairs = [self._tensors(sample, generator) for sample in samples]
        batch = {"image": torch.stack([image for image, _ in pairs]), "target": torch.stack([t for _, t in pairs])}
        if self.settings.loss.boundary:
            classes = len(self.settings.source.classes)
            maps = [losses.distance_maps(target.numpy(), classes) for _, target in pairs]
            batch["distances"] = torch.from_numpy(np.stack(maps))
        return batch

    def _tensors(self, sample: Sample, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        image, target = torch.from_numpy(sample.image), torch.from_numpy(sample.target)
        if not sample.training:
            return image, target
        deviation = torch.from_numpy(self.statistics.deviation).float()
        return augment(image, target, deviation, self.settings.augmentation, generator)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        settings = self.settings
        classes, S = len(settings.source.classes), settings.tiles.size
        batch = {
            "image": torch.randn(size, len(settings.source.bands), S, S, device=device),
            "target": torch.randint(classes, (size, S, S), dtype=torch.uint8, device=device),
        }
        if settings.loss.boundary:
            batch["distances"] = torch.rand(size, classes, S, S, device=device).half()
        return batch

    # --- training -------------------------------------------------------------------------------------------------

    def model(self) -> nn.Module:
        """Normalises by the training tiles where the data has been read, and by nothing where it has not."""
        net = Net(len(self.settings.source.bands), len(self.settings.source.classes), self.settings.model)
        if "parts" in self.__dict__:
            net.mean.copy_(torch.from_numpy(self.statistics.mean).view(-1, 1, 1))
            net.deviation.copy_(torch.from_numpy(self.statistics.deviation).view(-1, 1, 1))
        return net

    def adapt(self, given: Mapping[str, Tensor], model: nn.Module) -> tuple[Mapping[str, Tensor], str]:
        """Bands and classes by name; the normalisation stays this run's own."""
        source, initial, fresh = self.settings.source, self.settings.initial, model.state_dict()
        bands = initial.bands or source.bands, source.bands
        classes = initial.classes or source.classes, source.classes
        carried, said = carry.carry(given, fresh, bands, classes)
        return {**carried, "mean": fresh["mean"], "deviation": fresh["deviation"]}, said

    def count(self, batch: Batch) -> dict[str, int]:
        return losses.count(self.settings.loss, batch["target"])

    def term_weights(self, step: int) -> dict[str, float]:
        return losses.weights(self.settings.loss, step)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        logits = model(batch["image"])
        return losses.sums(self.settings.loss, logits, batch["target"], batch.get("distances")), {}

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Metrics over all valid pixels, and the loss with the boundary at its full weight."""
        settings = self.settings
        confusion = Confusion(len(settings.source.classes), next(model.parameters()).device)
        total: dict[str, float] = dict.fromkeys(losses.terms(settings.loss), 0.0)
        numbers: dict[str, int] = dict.fromkeys(total, 0)
        shown: list[figures.Shown] = []
        for batch in loader:
            logits = model(batch["image"])
            predicted = logits.argmax(1)
            confusion.add(predicted, batch["target"])
            for term, value in losses.sums(settings.loss, logits, batch["target"], batch.get("distances")).items():
                total[term] += float(value)
            for term, number in self.count(batch).items():
                numbers[term] += number
            shown += figures.shown(batch, predicted, _SHOWN_TILES - len(shown))
        if loader.dataset.part == "test":  # type: ignore[attr-defined]
            self._tested, self._shown = confusion, shown
        full = {term: getattr(settings.loss, term) for term in total}
        loss = sum(full[term] * total[term] / max(1, numbers[term]) for term in total)
        return {"loss": loss, **confusion.scores(settings.source.classes)}

    def baseline(self) -> dict[str, float]:
        """Gradient boosting on single pixels of the same training tiles, scored on the same test."""
        names, parts = self.settings.source.classes, self.datasets()
        pixels = PixelBaseline(len(names), self.config.seed).fit(_Pairs(parts["train"]))
        return pixels.score(_Pairs(parts["test"])).scores(names)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv, the confusion matrix and some predictions as figures; returns tables and a verdict."""
        names = self.settings.source.classes
        with (folder / "evaluation.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["true class", *names])
            writer.writerows([name, *row] for name, row in zip(names, self._tested.matrix.tolist(), strict=True))
        figures.confusion(self._tested.matrix, names, folder / "plots" / "confusion.png")
        figures.predictions(self._shown, names, folder / "plots" / "predictions.png")
        return "\n".join([self._tested.table(names), *self._verdict(metrics)])

    def _verdict(self, metrics: Mapping[str, float]) -> list[str]:
        criteria, lines = self.settings.criteria, []
        if criteria.mcc:
            lines.append(_judged("MCC", metrics["mcc"], criteria.mcc))
        if criteria.class_iou:
            scores = {name: metrics.get(f"iou_{name}") for name in self.settings.source.classes[1:]}
            lines += [_judged(f"IoU of {n}", s, criteria.class_iou) for n, s in scores.items() if s is not None]
        if any("missed" in line for line in lines):
            lines.append(
                "What helps, in the order of cost: more epochs, more weight on the class in "
                "workload.sampling.target_shares, more or cleaner data, a wider model. Training goes on where it is."
            )
        return lines

    # --- prediction -----------------------------------------------------------------------------------------------

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Each tile of the test in all its flips and turns, by the mean of all models."""
        names = self.settings.source.classes
        confusion, examples = Confusion(len(names)), []
        part = self.datasets()["test"]
        for first in range(0, len(part), _VOTED_AT_ONCE):
            samples = [part[index] for index in range(first, min(first + _VOTED_AT_ONCE, len(part)))]
            image = torch.from_numpy(np.stack([sample.image for sample in samples]))
            target = torch.from_numpy(np.stack([sample.target for sample in samples]))
            predicted = probabilities(models, image).argmax(1)
            confusion.add(predicted, target)
            examples += figures.shown({"image": image, "target": target}, predicted, _SHOWN_TILES - len(examples))
        figures.confusion(confusion.matrix, names, folder / "plots" / "confusion.png")
        figures.predictions(examples, names, folder / "plots" / "predictions.png")
        scores, wanted = confusion.scores(names), self.settings.criteria.ensemble_mcc
        verdict = [_judged("MCC of the ensemble", scores["mcc"], wanted)] if wanted else []
        if verdict and "missed" in verdict[0]:
            verdict.append("More members that differ (folds and seeds), or better ones, help; so do cleaner labels.")
        return scores, "\n".join([confusion.table(names), *verdict])

    def joined_by(self) -> Source:
        return self.settings.source

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """(h, w) uint8 masks, in the mask's codes, by scene; written to `out` as GeoTIFFs where it is given."""
        return masks(models, source, self.settings.source, self.settings.tiles.size, out)


def _judged(what: str, value: float, wanted: float) -> str:
    return f"Criterion {what} >= {wanted:.2f}: {value:.4f}, {'reached' if value >= wanted else 'missed'}."
