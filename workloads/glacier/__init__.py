"""glacier: segmentation of ice, debris and lakes in multispectral images, tile by tile.

Data: rasters or NumPy patches in a documented layout or by patterns (see `data.layout`). The embedded default is a
generator of plausible scenes (see `data.terrain`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lib.config import Config
from lib.report.progress import counted, working
from lib.task import Batch
from trainbook.supervised import methods
from workloads.glacier import baselines, losses
from workloads.glacier.judging import Gate, Tested, draw_tiles, judged, mcc, scores_of, write_scenes
from workloads.glacier.model import Net, carry, encoder
from workloads.glacier.settings import Settings

# Whatever reads, cuts or predicts scenes is imported where it is used: a notebook that only plans a run carries the
# modules above, and none of the others.

_FLATTERED = (
    "Warning: there is no test of its own (workload.split.test is 0). The vote is judged on the validation of its "
    "first member, on which others trained: it flatters. Take the folds' mean."
)


class Glacier(methods.Comparing):
    Settings = Settings
    # Files of the documented layouts that only labelled data has: a folder of new scenes or of maps is no data set
    sentinels = ("*_mask_*.npy", "label/*", "[Tt]rain/label/*", "masks/*", "[Tt]rain/masks/*")
    kind = "tokens"
    metrics = ("mcc", "mean_iou")
    unit = "scene"
    selection = ("mcc", "max")
    shown = ("mcc", "mean_iou")
    dials: ClassVar = {"workload.tiles.size": (128, 256, 384, 512)}
    _tests: Mapping[str, Any] = {}  # by method the `Tested` of the last evaluation on the test
    _gate: Any = None  # the `Gate` of the last validation

    def __init__(self, config: Config, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        if config.workload.baseline.gate:
            # An answer behind a shut gate stays the same, and chooses nothing
            self.selection = "network_mcc", "max"  # type: ignore[misc]
            self.shown = ("mcc", "network_mcc", "mean_iou")  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        unused = ("fitted", "_gate", "_tests")
        return {name: value for name, value in vars(self).items() if name not in unused}

    @property
    def settings(self) -> Settings:
        return self.config.workload

    @cached_property
    def data(self) -> Any:
        """The `Data` of these settings: tiles, parts, statistics and weights, each computed on first use."""
        from workloads.glacier.data.datasets import Data

        return Data(self.settings, self.source)

    @property
    def _is_split(self) -> bool:
        """Whether the training tiles have been read."""
        return "data" in vars(self) and "parts" in vars(self.data)

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def datasets(self) -> dict[str, Any]:
        return self.data.tiles()

    def draw_tiles(self, out: Path) -> Path:
        """Draws some training tiles beside their masks, those with most classes first; returns `out`."""
        tiles = self.data.whole_tiles
        classes = (self.data.counts > 0).sum(1)
        chosen = np.argsort(-classes, kind="stable")[:8:2]
        shown = [tiles[index][:2] for index in chosen]
        return draw_tiles(shown, self.settings.source.classes, out)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns image (B, bands, S, S), target (B, S, S) and, for the boundary loss, distances (B, classes, S, S)."""
        return self.data.collate(samples, generator)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        settings = self.settings
        bands = len(settings.source.bands)
        classes = len(settings.source.classes)
        S = settings.sampling.crop or settings.tiles.size
        batch = {"image": torch.randn(size, bands, S, S, device=device)}
        shape = (size, S, S)
        batch["target"] = torch.randint(classes, shape, dtype=torch.uint8, device=device)
        if settings.loss.boundary:
            batch["distances"] = torch.rand(size, classes, S, S, device=device).half()
        return batch

    def model(self) -> nn.Module:
        """Returns the network. It has normalisation and boosting of the training tiles, if they have been read."""
        settings = self.settings
        bands = len(settings.source.bands)
        classes = len(settings.source.classes)
        net = Net(bands, classes, settings.model, settings.index_places, settings.prior)
        if self._is_split:
            mean, deviation = self.data.statistics
            net.mean.copy_(_planes(mean))
            net.deviation.copy_(_planes(deviation))
            if net.prior is not None:
                net.prior.copy_(_planes(self.data.prior))
        if settings.baseline.gate:
            rounds = settings.baseline.rounds
            net.boosted = baselines.Boosted(classes, rounds, settings.boosted_places)
            if self._is_split and not self.is_planned:
                net.boosted.take([self.fitted[name][1] for name in baselines.HELD])
        return net

    def adapt(
        self, given: Mapping[str, Tensor], model: nn.Module
    ) -> tuple[Mapping[str, Tensor], str]:
        """Matches bands and classes by name; the normalisation stays this run's own."""
        settings = self.settings
        initial = settings.initial
        if "layer1.0.conv1.weight" in given:
            return encoder(given, settings.inputs)  # published weights, of ImageNet
        bands = initial.bands or settings.inputs, settings.inputs
        classes = initial.classes or settings.source.classes, settings.source.classes
        return carry(given, model.state_dict(), bands, classes)

    def count(self, batch: Batch) -> dict[str, float]:
        return losses.count(self.settings.loss, batch["target"])

    def term_weights(self, step: int) -> dict[str, float]:
        return losses.weights(self.settings.loss, step)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        return self._sums(model(batch["image"]), batch), {}

    def _sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return losses.sums(self.settings.loss, logits, batch["target"], batch.get("distances"))

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics over all valid pixels, and the network's loss with the boundary at its full weight.

        With boosting in the model they are those of the answer, on validation for some pixels, and `network_mcc`.
        """
        loss = self.settings.loss
        classes = self.settings.source.classes
        part = loader.dataset  # type: ignore
        boosted: Any = getattr(model, "boosted", None)
        gate = self._gate_of(boosted, part)
        network = Tested(part, len(classes))
        answer = Tested(part, len(classes))
        total = dict.fromkeys(loss.terms, 0.0)
        numbers = dict.fromkeys(loss.terms, 0.0)
        options: list[np.ndarray] = []
        for batch in loader:
            logits = model(batch["image"])
            if gate:
                options.append(gate.counted(len(network.counts), batch, logits))
            elif boosted is not None:
                log_p = boosted.answer(batch["image"], logits.float().log_softmax(1))
                answer.add(batch, log_p.argmax(1))
            network.add(batch, logits.argmax(1))
            for term, value in self._sums(logits, batch).items():
                total[term] += float(value)
            for term, number in self.count(batch).items():
                numbers[term] += number
        mean = sum(getattr(loss, term) * total[term] / max(1, numbers[term]) for term in total)
        if gate:
            answer.counts = gate.choose(np.concatenate(options, 1))
        tests = {"network": network}
        if boosted is not None:
            tests = {"network alone": network, "answer": answer}
        if part.part == "test":
            self._tests = tests
        *_, last = tests.values()
        scores = {"loss": mean, **scores_of(last.counts.sum(0), classes)}
        if boosted is not None:
            scores["network_mcc"] = mcc(network.counts.sum(0)).item()
            scores["network_weight"] = float(boosted.weight)
        return scores

    def _gate_of(self, boosted: Any, part: Any) -> Any:
        """Returns the gate of boosting on a validation, the last one again if these are the same; else None."""
        if boosted is None or part.part != "validation":
            return None
        gate = self._gate
        if not gate or (gate.boosted, gate.part) != (boosted, part):
            self._gate = Gate(boosted, part, self.data.parts.groups[part.chosen])
        return self._gate

    def baseline(self) -> dict[str, float]:
        """Returns the scores on the test of the strongest method of `baselines` by MCC."""
        names = self.settings.source.classes
        strongest = self._guesses[self._strongest(self._guesses)]
        matrix = np.zeros((len(names), len(names)), np.int64)
        np.add.at(matrix, (strongest.true, strongest.guess), strongest.counts)
        return scores_of(matrix, names)

    @cached_property
    def fitted(self) -> Any:
        """`baselines.fit` of the training tiles."""
        limits = self.settings.baseline
        places = self.settings.boosted_places
        with working("Fitting boosting"):
            tiles = self.data.whole_tiles
            return baselines.fit(tiles, self.config.seed, places, limits.pixels, limits.rounds)

    def baselines(self) -> dict[str, Any]:
        """Fits gradient boosting; returns the answers of each method on the scored tiles of the test."""
        classes = len(self.settings.source.classes)
        test = self.datasets()["test"]
        places = self.settings.boosted_places
        counts = baselines.compared(self.fitted, test, classes, self.config.seed, places)
        return {name: judged(of_tiles) for name, of_tiles in counts.items()}

    def group(self, sample: int) -> str:
        """Returns the scene, or square of the map, of a tile by its index."""
        return self.data.parts.groups[sample]

    @property
    def repeats_validation(self) -> bool:
        return self.data.parts.test is self.data.parts.validation

    @property
    def parts(self) -> dict[str, Any]:
        """The tiles of the test on which methods are compared, by their indices."""
        test = self.datasets()["test"]
        return {"test": SimpleNamespace(samples=test.chosen[baselines.scored(test)])}

    @property
    def names(self) -> list[str]:
        return list(self.settings.source.classes)

    def columns(self, judged: Any) -> dict[str, float]:
        columns = super().columns(judged)
        return {key: value for key, value in columns.items() if key.startswith("iou_")}

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes tables and figures of the test, if it was evaluated; returns the tables and a line on the gate."""
        lines = []
        if self._tests:
            lines.append(self._judged(self._tests, vars(self).get("_guesses", {}), folder))
        weight = metrics.get("network_weight")
        if weight == 0:
            lines.append(
                "The gate is shut: validation shows no sure gain of the network, so boosting alone answers."
            )
        elif weight:
            lines.append(
                f"The gate is open: the answer has {weight:g} of the network's log-probabilities, "
                "the rest is boosting's."
            )
        return "\n\n".join(lines)

    def _judged(self, tested: Mapping[str, Any], others: Mapping[str, Any], folder: Path) -> str:
        """Writes tables of tests beside the baselines, and the figures of the last; returns the tables as text."""
        *_, last = tested.values()
        store = self.data.store
        classes = self.settings.source.classes
        numbers = baselines.scored(last.part)
        tiles = len(last.part)
        last.draw(classes, folder)
        scenes = [store.names[number] for number in store.table.scene[last.part.chosen]]
        worst = write_scenes(classes, scenes, last.counts, folder)
        if not others:
            return worst
        rows = {name: judged(test.counts[numbers]) for name, test in tested.items()}
        some = ""
        if len(numbers) < tiles:
            some = f"{len(numbers):,} of {tiles:,} tiles of the test:\n"
        compared = self._compare({**others, **rows}, self._strongest(others), folder)
        return f"{some}{compared}\n\n{worst}"

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Predicts each tile of the test in all its flips and turns, by the mean of all models and by each alone."""
        from lib.training.evaluation import EvaluationLoader
        from workloads.glacier.maps import probabilities

        part = self.datasets()["test"]
        views = self.settings.prediction.views
        names = self.settings.source.classes
        tested = {voter: Tested(part, len(names)) for voter in (*self.members, "the vote")}
        loader = EvaluationLoader(self, part, 4, torch.device("cpu"))
        for batch in counted(loader, f"batches voted on by {len(models)} models"):
            answers = [probabilities([model], batch["image"], views) for model in models]
            answers.append(sum(p / len(models) for p in answers))
            for test, p in zip(tested.values(), answers, strict=True):
                test.add(batch, p.argmax(1))
        scores = scores_of(tested["the vote"].counts.sum(0), names)
        text = self._judged(tested, self._guesses, folder)
        if not self.settings.split.test and len(models) > 1:
            text = f"{_FLATTERED}\n\n{text}"
        return scores, text

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns (h, w) masks, in the mask's codes, by scene; or the paths of the maps that it writes into `out`."""
        from workloads.glacier.maps import masks

        size = self.settings.tiles.size
        views = self.settings.prediction.views
        return masks(models, source, self.settings.source, size, out, views)


def _planes(values: np.ndarray) -> Tensor:
    """(N) -> (N, 1, 1)."""
    return torch.from_numpy(values).view(-1, 1, 1)
