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


class Glacier(methods.Comparing):
    Settings = Settings
    # Files of the documented layouts that only labelled data has: a folder of new scenes or of maps is no data set
    sentinels = (
        "*_mask_*.npy",
        *(f"{above}{kind}/*" for kind in ("label", "masks") for above in ("", "[Tt]rain/")),
    )
    kind = "tokens"
    metrics = ("mcc", "mean_iou")
    unit = "scene"
    selection = ("mcc", "max")
    shown = ("mcc", "mean_iou")
    dials: ClassVar = {"workload.tiles.size": (128, 256, 384, 512)}
    _tests: Mapping[str, Any] = {}  # by method the `Tested` of the last evaluation on the test
    _gate: Any = None  # of the last validation

    def __init__(self, config: Config, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        if config.workload.baseline.gate:
            # An answer behind a shut gate stays the same, and chooses nothing
            self.selection = "network_mcc", "max"  # type: ignore[misc]
            self.shown = ("mcc", "network_mcc", "mean_iou")  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("fitted", "_gate", "_tests")
        }

    @property
    def settings(self) -> Settings:
        return self.config.workload

    @cached_property
    def data(self) -> Any:
        """The `Data` of these settings: tiles, parts, statistics and weights, each computed on first use."""
        from workloads.glacier.data.datasets import Data

        return Data(self.settings, self.source)

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def datasets(self) -> dict[str, Any]:
        return self.data.tiles()

    def draw_tiles(self, out: Path) -> Path:
        """Draws some training tiles beside their masks, those with most classes first; returns `out`."""
        tiles = self.data.whole_tiles
        chosen = np.argsort(-(self.data.counts > 0).sum(1), kind="stable")[:8:2]
        return draw_tiles([tiles[index][:2] for index in chosen], self.settings.source.classes, out)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns image (B, bands, S, S), target (B, S, S) and, for the boundary loss, distances (B, classes, S, S)."""
        return self.data.collate(samples, generator)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        settings = self.settings
        classes = len(settings.source.classes)
        S = settings.sampling.crop or settings.tiles.size
        batch = {
            "image": torch.randn(size, len(settings.source.bands), S, S, device=device),
            "target": torch.randint(classes, (size, S, S), dtype=torch.uint8, device=device),
        }
        if settings.loss.boundary:
            batch["distances"] = torch.rand(size, classes, S, S, device=device).half()
        return batch

    def model(self) -> nn.Module:
        """Returns the network. It has normalisation and boosting of the training tiles, if they have been read."""
        settings, source = self.settings, self.settings.source
        net = Net(
            len(source.bands),
            len(source.classes),
            settings.model,
            settings.index_places,
            settings.prior,
        )
        if "data" in vars(self) and "parts" in vars(self.data):
            for buffer, values in zip((net.mean, net.deviation), self.data.statistics, strict=True):
                buffer.copy_(torch.from_numpy(values).view(-1, 1, 1))
            if net.prior is not None:
                net.prior.copy_(torch.from_numpy(self.data.prior).view(-1, 1, 1))
        if settings.baseline.gate:
            net.boosted = baselines.Boosted(
                len(source.classes), settings.baseline.rounds, settings.boosted_places
            )
            if "data" in vars(self) and "parts" in vars(self.data) and not self.is_planned:
                net.boosted.take([self.fitted[name][1] for name in baselines.HELD])
        return net

    def adapt(
        self, given: Mapping[str, Tensor], model: nn.Module
    ) -> tuple[Mapping[str, Tensor], str]:
        """Matches bands and classes by name; the normalisation stays this run's own."""
        settings, initial = self.settings, self.settings.initial
        if "layer1.0.conv1.weight" in given:
            return encoder(given, settings.inputs)  # of ImageNet
        bands = initial.bands or settings.inputs, settings.inputs
        classes = initial.classes or settings.source.classes, settings.source.classes
        return carry(given, model.state_dict(), bands, classes)

    def count(self, batch: Batch) -> dict[str, float]:
        return losses.count(self.settings.loss, batch["target"])

    def term_weights(self, step: int) -> dict[str, float]:
        return losses.weights(self.settings.loss, step)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        return losses.sums(
            self.settings.loss, model(batch["image"]), batch["target"], batch.get("distances")
        ), {}

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics over all valid pixels, and the network's loss with the boundary at its full weight.

        With boosting in the model they are those of the answer, on validation of some pixels, and `network_mcc`.
        """
        loss = self.settings.loss
        classes = self.settings.source.classes
        part = loader.dataset  # type: ignore
        boosted: Any = getattr(model, "boosted", None)
        gate: Any = None
        if boosted is not None and part.part == "validation":
            is_known = self._gate and (self._gate.boosted, self._gate.part) == (boosted, part)
            self._gate = gate = (
                self._gate if is_known else Gate(boosted, part, self.data.parts.groups[part.chosen])
            )
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
                answer.add(
                    batch, boosted.answer(batch["image"], logits.float().log_softmax(1)).argmax(1)
                )
            network.add(batch, logits.argmax(1))
            for term, value in losses.sums(
                loss, logits, batch["target"], batch.get("distances")
            ).items():
                total[term] += float(value)
            for term, number in self.count(batch).items():
                numbers[term] += number
        mean = sum(getattr(loss, term) * total[term] / max(1, numbers[term]) for term in total)
        if gate:
            answer.counts = gate.choose(np.concatenate(options, 1))
        tests = (
            {"network": network}
            if boosted is None
            else {"network alone": network, "answer": answer}
        )
        self._tests = tests if part.part == "test" else self._tests
        *_, last = tests.values()
        scores = {"loss": mean, **scores_of(last.counts.sum(0), classes)}
        if boosted is None:
            return scores
        return {
            **scores,
            "network_mcc": mcc(network.counts.sum(0)).item(),
            "network_weight": float(boosted.weight),
        }

    def baseline(self) -> dict[str, float]:
        """Returns the scores on the test of the strongest by MCC of the methods of `baselines`."""
        names = self.settings.source.classes
        strongest = self._guesses[self._strongest(self._guesses)]
        matrix = np.zeros((len(names), len(names)), np.int64)
        np.add.at(matrix, (strongest.true, strongest.guess), strongest.counts)
        return scores_of(matrix, names)

    @cached_property
    def fitted(self) -> Any:
        """What `baselines.fit` returns for the training tiles."""
        bounds = self.settings.baseline
        places = self.settings.boosted_places
        with working("Fitting boosting"):
            return baselines.fit(
                self.data.whole_tiles, self.config.seed, places, bounds.pixels, bounds.rounds
            )

    def baselines(self) -> dict[str, Any]:
        """Fits gradient boosting; returns what each method answers on the scored tiles of the test."""
        limits = len(self.settings.source.classes), self.config.seed, self.settings.boosted_places
        counts = baselines.compared(self.fitted, self.datasets()["test"], *limits)
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
        return {
            key: value for key, value in super().columns(judged).items() if key.startswith("iou_")
        }

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes tables and figures of the test, if it was evaluated; returns the tables and a line on the gate."""
        if self._tests:
            lines = [self._judged(self._tests, vars(self).get("_guesses", {}), folder)]
        else:
            lines = []
        if (weight := metrics.get("network_weight")) == 0:
            lines.append(
                "The gate is shut: validation shows no sure gain of the network, so boosting alone answers."
            )
        elif weight:
            mixed = f"{weight:g} of the network's log-probabilities, the rest is boosting's."
            lines.append(f"The gate is open: the answer has {mixed}")
        return "\n\n".join(lines)

    def _judged(self, tested: Mapping[str, Any], others: Mapping[str, Any], folder: Path) -> str:
        """Writes tables of tests beside the baselines, and the figures of the last; returns the tables as text."""
        (*_, last), store = tested.values(), self.data.store
        numbers = baselines.scored(last.part)
        tiles = len(last.part)
        last.draw(self.settings.source.classes, folder)
        scenes = [store.names[number] for number in store.table.scene[last.part.chosen]]
        worst = write_scenes(self.settings.source.classes, scenes, last.counts, folder)
        if not others:
            return worst
        rows = {**others, **{name: judged(test.counts[numbers]) for name, test in tested.items()}}
        if len(numbers) < tiles:
            some = f"{len(numbers):,} of {tiles:,} tiles of the test:\n"
        else:
            some = ""
        return f"{some}{self._compare(rows, self._strongest(others), folder)}\n\n{worst}"

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Predicts each tile of the test in all its flips and turns, by the mean of all models and by each alone."""
        from lib.training.evaluation import EvaluationLoader
        from workloads.glacier.maps import probabilities

        settings, part, names = self.settings, self.datasets()["test"], self.settings.source.classes
        tested = {voter: Tested(part, len(names)) for voter in (*self.members, "the vote")}
        loader = EvaluationLoader(self, part, 4, torch.device("cpu"))
        for batch in counted(loader, f"batches voted on by {len(models)} models"):
            each = [
                probabilities([model], batch["image"], settings.prediction.views)
                for model in models
            ]
            for test, p in zip(
                tested.values(), [*each, sum(p / len(models) for p in each)], strict=True
            ):
                test.add(batch, p.argmax(1))
        scores = scores_of(tested["the vote"].counts.sum(0), names)
        text = self._judged(tested, self._guesses, folder)
        if not settings.split.test and len(models) > 1:
            warning = "Warning: there is no test of its own (workload.split.test is 0). The vote is judged on the "
            warning += "validation of its first member, on which others trained: it flatters. Take the folds' mean."
            text = f"{warning}\n\n{text}"
        return scores, text

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        """Returns (h, w) masks, in the mask's codes, by scene; or the paths of the maps that it writes into `out`."""
        from workloads.glacier.maps import masks

        settings = self.settings
        return masks(
            models, source, settings.source, settings.tiles.size, out, settings.prediction.views
        )
