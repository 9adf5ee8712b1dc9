"""glacier: segmentation of ice, debris and lakes in multispectral images, tile by tile.

Data: folders of single-band GeoTIFFs, multi-band GeoTIFFs, or NumPy patches (see `data.readers`), or archives of these
by address. The embedded default is a generator of plausible scenes (see `data.terrain`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.scores import Confusion
from lib.task import Batch, Survey, Task
from lib.tasks.glacier import losses
from lib.tasks.glacier.augment import augment, cut_out
from lib.tasks.glacier.model import Net
from lib.tasks.glacier.settings import Settings, Source
from lib.text import Criterion

# Whatever reads, cuts, draws or predicts scenes is imported where it is used: a notebook that only plans a run carries
# the modules above, and none of the others.

_SHOWN_TILES = 4  # in the figures
_VOTED_AT_ONCE = 4  # tiles, each in eight views one after another


class Glacier(Task):
    """The workload of the module's docstring."""

    Settings = Settings
    sentinels = ("*_img_*.npy", "*.tif", "*.tiff", "*.jp2", "images/*.png")
    selection = ("mcc", "max")
    shown = ("mcc", "mean_iou")
    dials: ClassVar = {"workload.tiles.size": (128, 256, 384, 512)}
    _test: tuple[Confusion, list[Any]] | None = None  # counts and examples of the last evaluation on the test

    @property
    def settings(self) -> Settings:
        return self.config.workload

    # --- data -----------------------------------------------------------------------------------------------------

    @classmethod
    def homes(cls, folders: list[Path]) -> list[Path]:
        """Returns the folders above Band1, images and masks, each once; what a run has written is no data."""
        from lib.tasks.glacier.data import layout

        return layout.homes(folders) if folders else []

    @classmethod
    def survey(cls, folder: Path) -> Survey:
        from lib.tasks.glacier import proposal, survey

        found = survey.look(folder)
        text = survey.describe(found)
        try:
            return Survey(text, proposal.configuration(found), proposal.groups(found))
        except BadInput as refusal:
            raise BadInput(f"{text}\n\n{refusal}") from None

    @cached_property
    def data(self) -> Any:
        """The `Data` of these settings: tiles, parts, statistics and weights, each computed on first use."""
        from lib.tasks.glacier.data.datasets import Data

        return Data(self.settings, self.source)

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def datasets(self) -> dict[str, Any]:
        return self.data.tiles()

    def draw_tiles(self, out: Path) -> Path:
        """Draws some training tiles above their masks, those with most classes first; returns `out`."""
        from lib.tasks.glacier import figures

        train = self.datasets()["train"]
        classes = (train.store.table.counts[train.chosen] > 0).sum(1)
        chosen = np.argsort(-classes, kind="stable")[: 2 * _SHOWN_TILES : 2]
        return figures.tiles([train[index][:2] for index in chosen], self.settings.source.classes, out)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns image (B, bands, S, S), target (B, S, S) and, for the boundary loss, distances (B, classes, S, S)."""
        pairs = [(torch.from_numpy(sample.image), torch.from_numpy(sample.target)) for sample in samples]
        for number, sample in enumerate(samples):
            if sample.training and (size := self.settings.sampling.crop):
                pairs[number] = cut_out(*pairs[number], size, sample.around, generator)
            if sample.training:
                deviation = torch.from_numpy(self.data.statistics.deviation).float()
                pairs[number] = augment(*pairs[number], deviation, self.settings.augmentation, generator)
        batch = {"image": torch.stack([image for image, _ in pairs]), "target": torch.stack([t for _, t in pairs])}
        if self.settings.loss.boundary:
            classes = len(self.settings.source.classes)
            maps = [losses.distance_maps(target.numpy(), classes) for _, target in pairs]
            batch["distances"] = torch.from_numpy(np.stack(maps))
        return batch

    def example_batch(self, size: int, device: torch.device) -> Batch:
        settings = self.settings
        classes, S = len(settings.source.classes), settings.sampling.crop or settings.tiles.size
        batch = {
            "image": torch.randn(size, len(settings.source.bands), S, S, device=device),
            "target": torch.randint(classes, (size, S, S), dtype=torch.uint8, device=device),
        }
        if settings.loss.boundary:
            batch["distances"] = torch.rand(size, classes, S, S, device=device).half()
        return batch

    # --- training -------------------------------------------------------------------------------------------------

    def model(self) -> nn.Module:
        """Returns the network. It normalises by the training tiles if they have been read, and otherwise not."""
        settings, source = self.settings, self.settings.source
        bands, classes = len(source.bands), len(source.classes)
        net = Net(bands, classes, settings.model, settings.index_places, settings.prior)
        if "data" in self.__dict__ and self.data.is_split:
            statistics = self.data.input_statistics
            net.mean.copy_(torch.from_numpy(statistics.mean).view(-1, 1, 1))
            net.deviation.copy_(torch.from_numpy(statistics.deviation).view(-1, 1, 1))
            if net.prior is not None:
                net.prior.copy_(torch.from_numpy(self.data.prior).view(-1, 1, 1))
        return net

    def adapt(self, given: Mapping[str, Tensor], model: nn.Module) -> tuple[Mapping[str, Tensor], str]:
        """Matches bands and classes by name; the normalisation stays this run's own."""
        from lib.tasks.glacier.carry import carry

        source, initial, fresh = self.settings.source, self.settings.initial, model.state_dict()
        bands = initial.bands or self.settings.inputs, self.settings.inputs
        classes = initial.classes or source.classes, source.classes
        carried, message = carry(given, fresh, bands, classes)
        own = {name: fresh[name] for name in ("mean", "deviation", "prior") if name in fresh}
        return {**{name: value for name, value in carried.items() if name != "prior"}, **own}, message

    def count(self, batch: Batch) -> dict[str, float]:
        return losses.count(self.settings.loss, batch["target"])

    def term_weights(self, step: int) -> dict[str, float]:
        return losses.weights(self.settings.loss, step)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        logits = model(batch["image"])
        return losses.sums(self.settings.loss, logits, batch["target"], batch.get("distances")), {}

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics over all valid pixels, and the loss with the boundary at its full weight."""
        from lib.tasks.glacier import figures

        settings = self.settings
        confusion = Confusion(len(settings.source.classes), next(model.parameters()).device)
        total: dict[str, float] = dict.fromkeys(settings.loss.terms, 0.0)
        numbers: dict[str, int] = dict.fromkeys(total, 0)
        examples: list[figures.Shown] = []
        for batch in loader:
            logits = model(batch["image"])
            predicted = logits.argmax(1)
            confusion.add(predicted, batch["target"])
            for term, value in losses.sums(settings.loss, logits, batch["target"], batch.get("distances")).items():
                total[term] += float(value)
            for term, number in self.count(batch).items():
                numbers[term] += number
            examples += figures.shown(batch, predicted, _SHOWN_TILES - len(examples))
        if loader.dataset.part == "test":  # type: ignore[attr-defined]
            self._test = confusion, examples
        loss = sum(getattr(settings.loss, term) * total[term] / max(1, numbers[term]) for term in total)
        return {"loss": loss, **confusion.scores(settings.source.classes)}

    def baseline(self) -> dict[str, float]:
        """Scores gradient boosting on single pixels, fitted on the training tiles, on the test."""
        from lib.tasks.glacier.baselines import PixelBaseline

        names, parts = self.settings.source.classes, self.datasets()
        pixels = PixelBaseline(len(names), self.config.seed, indices=self.settings.index_places)
        pixels.fit(self.data.whole_tiles)
        return pixels.score(parts["test"]).scores(names)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv, the confusion matrix and some predictions as figures; returns a verdict.

        Where the test was not evaluated, nothing is written.
        """
        names, criteria = self.settings.source.classes, self.settings.criteria
        if self._test:
            self._test[0].write_csv(names, folder / "evaluation.csv")
            self._draw(*self._test, folder)
        judged = [Criterion("MCC", metrics["mcc"], criteria.mcc)] if criteria.mcc else []
        if criteria.class_iou:
            scores = {name: metrics.get(f"iou_{name}") for name in names[1:]}
            judged += [Criterion(f"IoU of {n}", s, criteria.class_iou) for n, s in scores.items() if s is not None]
        advice = (
            "What helps, in the order of cost: more epochs, more weight on the class in "
            "workload.sampling.target_shares, more or cleaner data, a wider model. A run with more epochs "
            "resumes from this one."
        )
        return "\n".join(_verdict(judged, advice))

    def _draw(self, confusion: Confusion, examples: list[Any], folder: Path) -> None:
        """Draws the confusion matrix and examples of predictions."""
        from lib.report import figure
        from lib.tasks.glacier import figures

        names = self.settings.source.classes
        figure.confusion(confusion.matrix, names, folder / "plots" / "confusion.png", unit="pixels")
        figures.predictions(examples, names, folder / "plots" / "predictions.png")

    # --- prediction -----------------------------------------------------------------------------------------------

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Predicts each tile of the test in all its flips and turns, by the mean of all models."""
        from lib.report.progress import counted
        from lib.tasks.glacier import figures
        from lib.tasks.glacier.maps import probabilities

        names, least = self.settings.source.classes, self.settings.criteria.ensemble_mcc
        confusion, examples = Confusion(len(names)), []
        part = self.datasets()["test"]
        for first in counted(range(0, len(part), _VOTED_AT_ONCE), f"batches voted on by {len(models)} models"):
            samples = [part[index] for index in range(first, min(first + _VOTED_AT_ONCE, len(part)))]
            image = torch.from_numpy(np.stack([sample.image for sample in samples]))
            target = torch.from_numpy(np.stack([sample.target for sample in samples]))
            predicted = probabilities(models, image).argmax(1)
            confusion.add(predicted, target)
            examples += figures.shown({"image": image, "target": target}, predicted, _SHOWN_TILES - len(examples))
        self._draw(confusion, examples, folder)
        scores = confusion.scores(names)
        judged = [Criterion("MCC of the ensemble", scores["mcc"], least)] if least else []
        advice = "More members that differ (folds and seeds), or better ones, help; so do cleaner labels."
        return scores, "\n".join(_verdict(judged, advice))

    def joined_by(self) -> Source:
        return self.settings.source

    def predict(
        self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None
    ) -> Mapping[str, Any]:
        """Returns (h, w) masks, in the mask's codes, by scene; writes maps into `out` if given (see `maps.masks`)."""
        from lib.tasks.glacier.maps import masks

        settings = self.settings
        return masks(models, source, settings.source, settings.tiles.size, out, settings.prediction)

    def solution(self, models: list[nn.Module], folder: Path) -> None:
        """Writes solution.py, whose function `maskgeration` GlacierHack's grader calls, and weights.pt."""
        from lib.tasks.glacier import solution

        solution.write(models, self.settings, folder)


def _verdict(criteria: Sequence[Criterion], advice: str) -> list[str]:
    """Returns a line for each criterion, and advice if one was missed."""
    return [*map(str, criteria), *([] if all(criterion.reached for criterion in criteria) else [advice])]
