"""What all tasks of competitions share: their block of settings, targets, groups, and the submission at the end."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.task import Batch
from trainbook.launch import EXPORT, ensemble, together
from trainbook.supervised import columns, kinds, scoring, submission
from trainbook.supervised.expected import Expected
from trainbook.supervised.intervals import Interval
from trainbook.supervised.tables import number_of
from trainbook.supervised.task import Supervised
from workloads.competition import files
from workloads.competition.settings import Settings
from workloads.competition.wording import kind_of, metric_of

_BESIDE = {
    "classes": ("accuracy", "macro_f1"),
    "labels": ("roc_auc",),
    "numbers": ("rmse", "mae"),
    "tokens": ("mean_iou",),
}  # metrics that are shown beside the competition's
_BALANCED = ("macro_f1", "balanced_accuracy")


def rmsle(true: np.ndarray, guess: np.ndarray) -> float:
    """Returns the root of the mean squared distance of logarithms, which both are."""
    return float(np.sqrt(np.mean((true - np.maximum(guess, 0)) ** 2)))


class Logarithms(kinds.Numbers):
    """Numbers that are learned as log(1 + number), and written as they are."""

    name = "numbers"

    def rows(self, task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
        return super().rows(task, mean.clamp(min=0).expm1(), labels)


class Entry(Supervised):
    """A task whose files, targets and metric are those of the block of settings.

    Classes that derive from it say how samples are read and learned; each takes an example's model.
    """

    Settings: ClassVar[Any] = Settings  # of the block; each example has its own
    sentinels: ClassVar[Any] = ("*.csv", "*.parquet")
    like: ClassVar[Any] = None  # the settings of the example whose model is taken
    rate: ClassVar[float] = 10.0  # times optimizer.lr, which is for published networks

    def __init__(self, config: Any, source: Path | Sequence[Path] | None = None):
        block = config.workload
        metric = metric_of(block.metric)
        name = kind_of(metric, block.target)
        self.is_logarithm = metric == "rmsle"
        self.kind = Logarithms if self.is_logarithm else name  # type: ignore[misc]
        beside = () if self.is_logarithm else _BESIDE[name]
        names = dict.fromkeys([metric, *beside])
        metrics = [rmsle if each == "rmsle" else each for each in names]
        self.metrics = tuple(map(self._kind.metric, metrics))  # type: ignore[misc]
        self.selection = (metric, scoring.better(metric))  # type: ignore[misc]
        self.shown = tuple(names)  # type: ignore[misc]
        self.balanced = name == "classes" and metric in _BALANCED  # type: ignore[misc]
        self.unit = block.group or "sample"  # type: ignore[misc]
        self._is_learning = False
        super().__init__(config, source)

    # --- settings -----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Any:
        """The settings of the example, with what the block and the training files say of them."""
        block = self.config.workload
        known = self._learned or {}
        values = dict(vars(self.like()))
        values |= {"table": "", "target": block.target[0], "targets": block.target}
        values["classes"] = tuple(self._given_names() or known.get("classes", ()))
        values["size"] = block.size
        values["flip"] = block.flip
        values["encoder"] = block.encoder
        return SimpleNamespace(**values | known.get("form", {}))

    def _given_names(self) -> list[str]:
        kind = self._kind.name
        if kind == "tokens":
            return ["ground", *self.config.workload.target]
        if kind == "classes":
            return []
        return [*self.config.workload.target]

    def describe_data(self) -> str:
        return self.with_predicted(super().describe_data())

    def with_predicted(self, about: str) -> str:
        """Returns a description of the data with the word for targets that are numbers."""
        if self._kind.name != "numbers":
            return about
        return about.replace(" Classes: ", " Predicted: ", 1)

    @property
    def _has_groups(self) -> bool:
        return bool(self.config.workload.group)

    def learned(self) -> dict[str, Any]:
        """Returns the learned values; none while they are being learned."""
        if self._is_learning and self._learned is None:
            return {}
        self._is_learning = True
        try:
            return super().learned()
        finally:
            self._is_learning = False

    def learn(self, samples: Any) -> Mapping[str, Any]:
        return {**super().learn(samples), "form": self.form(samples), **self.scales(samples)}

    def scales(self, samples: Any) -> Mapping[str, Any]:
        """Returns means and deviations of the targets, if these are numbers."""
        if self._kind.name != "numbers":
            return {}
        targets = np.array([sample[-1] for sample in samples], np.float64)
        by_column = targets.reshape(len(targets), -1).T.tolist()
        spreads = [columns.spread(column) for column in by_column]
        return {"scales": [[*each] for each in zip(*spreads, strict=True)]}

    def form(self, samples: Any) -> Mapping[str, Any]:
        """Returns settings of the example that follow from the training files."""
        return {}

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        groups = super().parameter_groups(model) or [{"names": "*"}]
        return [{**group, "lr": self.rate * group.get("lr", 1.0)} for group in groups]

    # --- samples ------------------------------------------------------------------------------------------------------

    def target(self, row: Mapping[str, Any]) -> Any:
        """Returns the target of a row. Raises BadInput for a cell that is none."""
        cells = [row[name] for name in self.config.workload.target]
        if self._kind.name == "classes":
            return "" if cells[0] is None else str(cells[0]).strip()
        numbers = [number_of(cell) for cell in cells]
        wrong = [cell for cell, number in zip(cells, numbers, strict=True) if math.isnan(number)]
        if wrong:
            raise BadInput(
                f"{getattr(row, 'place', 'a row')}: {printable(repr(wrong[0]), most=60)} is no number, and "
                f"{self.metrics_named} judges numbers. Correct the cell, or workload.target."
            )
        if self._kind.name == "labels" or len(numbers) > 1:
            return [self._logarithm(number) for number in numbers]
        return self._logarithm(numbers[0])

    @property
    def metrics_named(self) -> str:
        return scoring.name_of(self.metrics[0])

    def _logarithm(self, number: float) -> float:
        if not self.is_logarithm:
            return number
        if number < 0:
            raise BadInput(
                f"The target has {number:g}, and RMSLE judges numbers from 0. Name another workload.metric."
            )
        return math.log1p(number)

    def empty_target(self) -> Any:
        """Returns a target of the right form for an example."""
        kind = self._kind.name
        if kind == "classes":
            return "a class"
        number = len(self.config.workload.target)
        return [0.0] * number if kind == "labels" or number > 1 else 0.0

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        answers: Any = super().outputs(model, batch)
        scales = self.learned().get("scales")
        if scales is None:
            return answers
        means, deviations = torch.tensor(scales, device=answers.device)
        return means + deviations * answers.float()

    # --- the submission -----------------------------------------------------------------------------------------------

    def export(self, model: nn.Module, folder: Path) -> None:
        """Writes predictions.csv and submission.csv of the competition's test, and prints what to expect."""
        if self.config.folds.number or self.source is None:
            return  # all folds answer together, in `submit`
        test, sample, id_column = self.asked()
        if sample is None:
            return
        answers = self.predict([model], test, folder)
        place = folder / submission.FILE
        about = submission.write(self, answers, test, sample, place, id_column)
        metric = scoring.name_of(self.metrics[0])
        interval = self.expectation()
        expected = Expected(metric, scoring.better(metric), *interval, way="test")
        expected.write(folder)
        run = folder.parent
        shown = about.replace(str(folder), str(run / EXPORT))
        print(shown, self.handed_in(place, sample, run.parent), expected, sep="\n")

    def submit(self, name: str, folder: Path) -> None:
        """Writes the submission of the completed folds and seeds of a queue, in the folder of its runs."""
        test, sample, id_column = self.asked()
        if sample is None:
            return
        out = together.folder_of(folder / name, name)
        print(ensemble.run(folder, test, out, sample, id_column, name=name))
        print(self.handed_in(out / submission.FILE, sample, folder))

    def asked(self) -> tuple[Path, Path | None, str]:
        """Returns the test, the sample submission (None, with a sentence, without one), and the column of ids."""
        block = self.config.workload
        source = self.source or Path()
        if not block.test or not block.sample:
            print("No submission was written: workload.test or workload.sample is empty.")
            return source, None, ""
        test = source / block.test
        if files.form_of(block.test):
            test = test.parent
        if not test.exists():
            raise BadInput(
                f"There is no {printable(block.test)} in {printable(source)}: correct workload.test."
            )
        sample = files.place_of(source, block.sample, "sample")
        is_other = test.is_file() and files.columns_of(sample)[0] != block.key
        return test, sample, block.key if is_other else ""

    def handed_in(self, place: Path, sample: Path, folder: Path) -> str:
        """Checks a submission, and copies it to the top of the output, where Kaggle looks; returns sentences."""
        about = submission.checked(place, sample, self.cell_check())
        with disk.whole(folder / submission.FILE) as aside:
            shutil.copyfile(place, aside)
        return f"{about} To be handed in: {folder / submission.FILE}."

    def cell_check(self) -> Callable[[str, str], str] | None:
        """Returns what refuses a written cell of an id, or None; for tables nothing more is known of one."""
        return None

    def expectation(self) -> Interval:
        """Returns the first metric of the tested answer, with its interval."""
        *_, answer = self._tested.values()
        rows = {**self._kind.baselines(self, answer), **self._tested}
        compared = self._compared(rows, self._strongest(rows))
        *_, scores = compared.scores.values()
        return scores[0]
