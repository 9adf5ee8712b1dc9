"""`Comparing`: methods beside each other on the test, with gains over the strongest baseline over draws of groups.

evaluation.csv has a row a method: each metric and its gain with 95 % intervals, then what `columns` adds. answers.csv
has a row a sample: what names it, its target, and the guess of each method.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.report import result
from lib.scores import Interval, concluded, intervals, resampled
from lib.supervised import evaluation, scoring, start
from lib.supervised.parts import Part
from lib.supervised.samples import path_of
from lib.supervised.scoring import Judged
from lib.task import Batch, Task
from lib.task.contract import to_write
from lib.task.fingerprint import canonical
from lib.text import aligned

_MOST_NUMBERS = 2**26  # of all draws; of more, as of every word of a large vocabulary, there are no intervals
_MOST_DRAWN = 20_000_000  # units in all draws
_FEWEST_DRAWS = 200
_MOST_COLUMNS = 50  # of classes, in evaluation.csv


class Comparison(NamedTuple):
    """The metrics of each method, and their gains over the strongest baseline, over draws of so many units."""

    scores: dict[str, list[Interval]]
    gains: dict[str, list[Interval]]
    units: int
    draws: int


class Comparing(Task):
    """The part of `Supervised` that judges: baselines, groups, what is multiplied into the network, tables."""

    kind: ClassVar[Any] = "classes"
    metrics: ClassVar[Sequence[scoring.Metric]] = ("accuracy",)
    unit: ClassVar[str] = "sample"  # the word for what `group` names
    constant: ClassVar[str] = "always the same"  # the row of the commonest class, or the mean
    draws: ClassVar[int] = 2000  # of the test's groups, for intervals
    parts: cached_property[dict[str, Part]]
    width: int = 0  # of the outputs, once they were seen
    starts: bool = False  # from the simple method
    started: Any  # its scores of the latest evaluation's targets, with these
    about_gate: str = ""
    _tested: Mapping[str, Judged] = {}  # by method, the last of which is the answer
    _beside: Mapping[str, Any] = {}  # what `beside` returned
    _passed: list[Any] | None = None  # model, batch and outputs of an evaluation's latest batch

    def group(self, sample: Any) -> Any:
        """Returns what samples have in common that must stay together: a document, a patient, a scene.

        `split` deals groups, two parts may share none, and intervals are over draws of them; `unit` is their name. By
        default each sample is alone. A lazy sequence of samples may have all of them as `groups`, so that none is read.
        """
        return None

    def baselines(self) -> Mapping[str, Any]:
        """Returns guesses for the targets of the test set, in its order, by the name of a method without the network.

        What the network gains over the strongest is reported. A `Judged` may stand for guesses.
        """
        return {}

    def beside(self, model: nn.Module, loader: Iterable[Batch]) -> Mapping[str, Any]:
        """Returns what `baselines` does, by methods beside the tested model: its untouched base, examples in a prompt.

        The final test calls it with the tested model and the test's loader, and reports its methods among the
        baselines. `judge` answers with another model:

            with model.disable_adapter():
                return {"untouched base": self.judge(model, loader)}
        """
        return {}

    def judge(self, model: nn.Module, loader: Iterable[Batch]) -> Judged:
        """Returns what a model answers over a whole set."""
        *_, answer = self.scored(model, loader)[1].values()
        return answer

    def combined(self, model: nn.Module, outputs: Tensor, part: str) -> Mapping[str, Any]:
        """Returns (targets, classes) scores of a whole part by method, the last of which is the task's answer.

        Write it where `outputs`, of known targets on the CPU, are stacked with or multiplied into something else. What
        it chooses on the part "validation" belongs into buffers of the model. Write `answers` for new samples too.
        With training.start_from_baseline it is there: the gate is that choice.
        """
        if self.starts:
            return start.combined(self, model, outputs, part)
        raise to_write(self, "combined(model, outputs, part)", "scores by the name of each method")

    def strongest(self, baselines: Mapping[str, Judged]) -> str:
        """Returns the name of the best baseline by `selection`, or by the first metric if that is none."""
        names, (name, direction) = [scoring.name_of(metric) for metric in self.metrics], self.selection
        metric = self.metrics[names.index(name) if name in names else 0]
        sign = -1 if (direction if name in names else scoring.better(metric)) == "min" else 1
        values = {key: sum(scoring.scores([metric], judged).values()) for key, judged in baselines.items()}
        return max(values, key=lambda key: sign * values[key])

    def columns(self, judged: Judged) -> Mapping[str, float]:
        """Returns further columns of a method's row in evaluation.csv: F1, and IoU of tokens, of at most 50 classes."""
        if self.kind in ("numbers", "labels", "text") or (width := _width(judged)) > _MOST_COLUMNS:
            return {}
        right, true, guessed = _tallied(self.kind, judged, np.zeros(len(judged.true), int), 1, width)[0]
        f1, iou = 2 * right / np.maximum(true + guessed, 1), right / np.maximum(true + guessed - right, 1)
        scores = {"f1": f1, **({"iou": iou} if self.kind == "tokens" else {})}
        return {f"{name}_{self.named(k)}": float(of[k]) for name, of in scores.items() for k in range(width) if true[k]}

    def cells(self, sample: Any, number: int) -> Mapping[str, Any]:
        """Returns the first columns of a sample's row in answers.csv: its group, its file or number in the test."""
        if self.has_groups and sample is not None:  # as those of a lazy sequence are, which are not read for it
            return {self.unit: self._text(self.group(sample)), "sample": number}
        return {"sample": self._text(path) if (path := path_of(sample)) else number}

    def known_names(self) -> list[str]:
        """Returns the names of the classes in their order; none where they are not known."""
        return []

    def named(self, number: int) -> str:
        """Returns the name of a class, or its number."""
        names = self.known_names()
        return names[number] if number < len(names) else str(number)

    def tallied(self, rows: Mapping[str, Judged], unit: np.ndarray, units: int) -> np.ndarray | None:
        """Returns (units, methods, ...) numbers from whose sums `measured` has the metrics; `unit` is each sample's."""
        width = 0 if self.kind in ("numbers", "labels") else max(map(_width, rows.values()))
        if self.kind == "labels" or _FEWEST_DRAWS * 3 * len(rows) * width > _MOST_NUMBERS:
            return None
        return np.stack([_tallied(self.kind, judged, unit[judged.sample], units, width) for judged in rows.values()], 1)

    def measured(self, sums: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
        """(draws, ...) sums -> (draws, metrics), NaN for one that does not follow from sums.

        Means over classes are over those that are there or guessed, here or in the `reference`.
        """
        values = of_numbers(sums) if self.kind == "numbers" else of_classes(sums, reference)
        nothing = np.full(len(sums), np.nan)
        return np.stack([values.get(scoring.name_of(metric), nothing) for metric in self.metrics], -1)

    @property
    def has_groups(self) -> bool:
        return type(self).group is not Comparing.group

    def passed(self, model: nn.Module, batch: Batch) -> Any:
        """Returns `outputs`; in an evaluation, where losses and metrics need them, they are computed once."""
        if self._passed is None:
            return start.both(self, model, batch)
        if len(self._passed) < 3 or self._passed[0] is not model or self._passed[1] is not batch:
            self._passed[:] = model, batch, start.both(self, model, batch)
        return self._passed[2]

    @property
    def combines(self) -> bool:
        return self.starts or type(self).combined is not Comparing.combined

    def guessed(self, scores: Tensor, judged: Any) -> Judged:
        """Returns the guesses that follow from scores of the targets of a judgement."""
        guess = evaluation.guesses(self.kind, scores).numpy()
        return Judged(judged.true, guess, None, evaluation.shares(self, scores), judged.sample)

    @cached_property
    def guesses(self) -> dict[str, Any]:
        """What `baselines` returns, computed once."""
        return dict(self.baselines())

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns the losses as `Task.evaluate` does, and the metrics of the whole set."""
        is_test = getattr(getattr(loader, "dataset", None), "name", "") == "test"
        scores, rows = self.scored(model, loader, is_test)
        if is_test:
            self._tested, self._beside = rows, dict(self.beside(model, loader))
        return scores

    def scored(
        self, model: nn.Module, loader: Iterable[Batch], watched: bool = False
    ) -> tuple[dict[str, float], Mapping[str, Judged]]:
        """Returns what `evaluate` does, and the answers of each method of `combined`; `watch` sees texts if watched."""
        self._passed = []
        try:
            return evaluation.evaluate(self, model, loader)
        finally:
            self._passed = None

    def baseline(self) -> dict[str, float]:
        """Returns the metrics of the strongest baseline on the test set."""
        rows = evaluation.baselines(self, evaluation.tested(self), self.width)
        return scoring.scores(self.metrics, rows[self.strongest(rows)]) if self.metrics else {}

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv, answers.csv, and confusion.csv with its plot or that of numbers; returns tables."""
        if not self._tested:
            return ""
        *_, answer = self._tested.values()
        true, guess, text = answer.true, answer.guess, ""
        if self.metrics:
            rows = {**evaluation.baselines(self, answer, self.width), **evaluation.judged(answer, self._beside)}
            text = self.compare({**rows, **self._tested}, self.strongest(rows), folder)
            text = "\n".join(filter(None, [text, self.about_gate])) + "\n\n"
        if self.kind == "text":
            return text.strip()
        if self.kind == "numbers":  # (numbers) that are known
            true, guess = true[~np.isnan(true)], guess[~np.isnan(true)]
        width = max(self.width, len(self.known_names()))
        return text + result.write(self.kind, true, guess, self.known_names(), width, folder, answer.counts)

    def compare(self, rows: Mapping[str, Judged], strongest: str, folder: Path) -> str:
        """Writes evaluation.csv and answers.csv into a folder; returns the table of the methods as text."""
        names, compared = [scoring.name_of(metric) for metric in self.metrics], self.compared(rows, strongest)
        columns = {name: self.columns(judged) for name, judged in rows.items()}
        further = list(dict.fromkeys(column for figures in columns.values() for column in figures))
        bounds = [f"{metric}{end}" for metric in names for end in ("", "_low", "_high")]
        table: list[list[Any]] = [["method", *bounds, *(f"gain_{name}" for name in bounds), *further]]
        for name, more in columns.items():
            each = (*compared.scores[name], *compared.gains[name])
            cells = [value for interval in each for value in (interval.value, interval.low, interval.high)]
            cells += [more.get(column, np.nan) for column in further]
            table.append([name, *("" if np.isnan(cell) else f"{cell:.6f}" for cell in cells)])
        result.write_table(folder / "evaluation.csv", table)
        if answers := [*self._answers(rows)]:
            result.write_table(folder / "answers.csv", answers)
        table = [["", *names, f"{names[0]} above {strongest!r}"]]
        for name, scores in compared.scores.items():
            table.append([name, *map(str, scores), "" if name == strongest else compared.gains[name][0].signed])
        last, units = [*rows][-1], f"{compared.units:,} {self.unit}s"
        gain, is_error = compared.gains[last][0], scoring.better(self.metrics[0]) == "min"
        return (
            f"{aligned(table, left={0})}\n"
            f"In brackets: 95 % of {compared.draws:,} draws of the {units} of the test; gains are paired.\n"
            f"{concluded(repr(last), strongest, names[0], gain, compared.units, self.unit, is_error)}"
        )

    def compared(self, rows: Mapping[str, Judged], strongest: str) -> Comparison:
        """Scores methods on the same targets; a metric that does not follow from sums has no interval."""
        of_sample: Any = self._groups("test") if self.has_groups else range(1 + int([*rows.values()][-1].sample.max()))
        names, unit = np.unique(np.array(of_sample), return_inverse=True)
        units, draws = len(names), max(_FEWEST_DRAWS, min(self.draws, _MOST_DRAWN // len(names)))
        plain = {name: np.array([*scoring.scores(self.metrics, judged).values()]) for name, judged in rows.items()}
        tallies, best = self.tallied(rows, unit, units), [*rows].index(strongest)
        sums: tuple[np.ndarray, ...] = ()  # (draws, methods, ...)
        if tallies is not None and draws * tallies[0].size <= _MOST_NUMBERS:
            sums = tallies.sum(0)[None], resampled(tallies, draws)
        scores, gains = {}, {}
        for place, (name, values) in enumerate(plain.items()):
            whole, drawn, gain, gained = np.full((4, 1, len(values)), np.nan)
            if sums:
                whole, drawn = (self.measured(of[:, place]) for of in sums)
                gain, gained = (
                    self.measured(of[:, place], of[:, best]) - self.measured(of[:, best], of[:, place]) for of in sums
                )
            scores[name] = intervals(np.where(np.isnan(whole[0]), values, whole[0]), drawn, units)
            gains[name] = intervals(np.where(np.isnan(gain[0]), values - plain[strongest], gain[0]), gained, units)
        return Comparison(scores, gains, units, draws)

    def check_groups(self) -> None:
        """Raises BadInput for a group that is in two parts."""
        first: dict[str, str] = {}
        for part in self.parts if self.has_groups else ():
            for name in sorted({*self._groups(part)}):
                if first.setdefault(name, part) != part:
                    what = f"The {self.unit} {printable(name, most=60)} is in {first[name]} and in {part}"
                    advice = f"What is tested would have been trained on: deal each {self.unit} to one part."
                    raise BadInput(f"{what}. {advice}")

    def _groups(self, part: str) -> list[str]:
        samples = self.parts[part].samples
        return [*map(self._text, samples.groups if hasattr(samples, "groups") else map(self.group, samples))]

    def _text(self, value: Any) -> str:
        """Returns text as it is, and anything else as text that is the same wherever the data lies."""
        return value if isinstance(value, str) else canonical(value, self.source)

    def _answers(self, rows: Mapping[str, Judged]) -> Iterator[list[Any]]:
        """Yields a head and a row a sample, those of a group together; nothing where a sample has several targets."""
        *_, answer = rows.values()
        if answer.counts is not None or answer.true.ndim > 1 or self.kind == "tokens":
            return
        samples = self.parts["test"].samples
        is_read = isinstance(samples, list | tuple) or type(self).cells is not Comparing.cells
        cells = [self.cells(samples[number] if is_read else None, number) for number in answer.sample.tolist()]
        yield [*cells[0], "target", *rows]
        guesses = zip(answer.true.tolist(), *(judged.guess.tolist() for judged in rows.values()), strict=True)
        answers = ([self.named(k) for k in row] if self.kind == "classes" else row for row in guesses)
        table = ([*first.values(), *row] for first, row in zip(cells, answers, strict=True))
        yield from sorted(table, key=lambda row: row[: len(cells[0])])


def _width(judged: Judged) -> int:
    return int(max(judged.true.max(), judged.guess.max())) + 1


def _tallied(kind: str, judged: Judged, unit: np.ndarray, units: int, classes: int) -> np.ndarray:
    """Returns (units, 3, classes) right, true and guessed targets; of numbers (units, 5, columns) sums of powers."""
    true, guess, counts = judged.true, judged.guess, judged.counts
    if kind == "numbers":
        true, guess = (values.reshape(len(values), -1).astype(np.float64) for values in (true, guess))
        known = ~np.isnan(true)
        centred, error = (np.where(known, true - of, 0.0) for of in (np.nanmean(true, 0), guess))
        powers = np.stack([known.astype(float), centred, centred**2, np.abs(error), error**2], 1)
        sums = np.zeros((units, *powers.shape[1:]))
        np.add.at(sums, unit, powers)
        return sums
    sums, number, right = np.zeros((units, 3, classes)), np.ones(len(true)) if counts is None else counts, true == guess
    np.add.at(sums[:, 0], (unit[right], true[right]), number[right])
    np.add.at(sums[:, 1], (unit, true), number)
    np.add.at(sums[:, 2], (unit, guess), number)
    return sums


def of_classes(sums: np.ndarray, reference: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """(..., 3, classes) right, true and guessed targets -> (...) each metric, as scikit-learn has it."""
    right, true, guessed = np.moveaxis(np.asarray(sums, np.float64), -2, 0)
    known = (sums if reference is None else sums + reference)[..., 1:, :].sum(-2) > 0
    total, classes = np.maximum(true.sum(-1), 1), np.maximum(known.sum(-1), 1)
    f1, iou = 2 * right / np.maximum(true + guessed, 1), right / np.maximum(true + guessed - right, 1)
    covariance = right.sum(-1) * total - (true * guessed).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (guessed**2).sum(-1))
    return {
        "accuracy": right.sum(-1) / total, "macro_f1": f1.sum(-1) / classes, "mean_iou": iou.sum(-1) / classes,
        "mean_dice": f1.sum(-1) / classes, "weighted_f1": (f1 * true).sum(-1) / total,
        "mcc": np.divide(covariance, np.sqrt(spread), out=np.zeros_like(total), where=spread > 0),
    }  # fmt: skip


def of_numbers(sums: np.ndarray) -> dict[str, np.ndarray]:
    """(..., 5, columns) sums of powers -> (...) each metric, the mean over columns."""
    number, centred, squared, distance, error = np.moveaxis(sums, -2, 0)
    number = np.maximum(number, 1)
    spread = squared - centred**2 / number
    share = np.divide(error, spread, out=np.ones_like(error), where=spread > 1e-12 * squared)
    columns = {"rmse": np.sqrt(error / number), "mse": error / number, "mae": distance / number, "r2": 1 - share}
    return {name: values.mean(-1) for name, values in columns.items()}
