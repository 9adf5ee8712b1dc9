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
from lib.task import Batch, Task
from lib.task.contract import to_write
from lib.text import aligned
from trainbook.outputs import result
from trainbook.supervised import bootstrap, evaluation, prediction, scoring, simple, text
from trainbook.supervised.canonical import canonical
from trainbook.supervised.intervals import Interval, concluded, intervals, resampled
from trainbook.supervised.samples import Part, is_same, path_of
from trainbook.supervised.scoring import Judged

_MOST_NUMBERS = (
    2**26
)  # in all draws; of more, as of every word of a large vocabulary, no sums are drawn
_MOST_DRAWN = 20_000_000  # units in all draws
_FEWEST_DRAWS = 200
_MOST_COLUMNS = 50  # of classes, in evaluation.csv


class Compared(NamedTuple):
    """Methods beside each other: scores and gains over the strongest, by method and metric.

    `draws` of the `units` are those of metrics that follow from sums; `about` has a sentence for each other metric.
    """

    scores: dict[str, list[Interval]]
    gains: dict[str, list[Interval]]
    units: int
    draws: int
    about: dict[str, str]


class Comparing(Task):
    """The part of `Supervised` that judges: baselines, groups, what is multiplied into the network, tables."""

    kind: ClassVar[Any] = "classes"
    metrics: ClassVar[Sequence[Any]] = ("accuracy",)
    unit: ClassVar[str] = "sample"  # the word for what `group` names
    constant: ClassVar[str] = (
        "always the same"  # the row of the commonest class or text, or the mean
    )
    draws: ClassVar[int] = 2000  # of the test's groups, for intervals
    parts: cached_property[dict[str, Part]]
    width: int = 0  # of the outputs, once they were seen
    starts: bool = False  # from the simple method
    started: Any  # its scores of the latest evaluation's targets, with these
    outputs: Any  # a method of `Supervised`
    about_gate: str = ""
    owners: Mapping[
        nn.Module, Any
    ] = {}  # of models that predict together: the task with what each learned
    _tested: Mapping[str, Judged] = {}  # by method, the last of which is the answer
    _beside: Mapping[str, Any] = {}  # what `beside` returned
    _passed: tuple[Any, ...] | None = (
        None  # model, batch and outputs of an evaluation's latest batch
    )

    def group(self, sample: Any) -> Any:
        """Returns what samples have in common that must stay together: a document, a patient, a scene.

        `unit` is its name. A lazy sequence of samples may have all of them as `groups`, so that none is read.
        """
        return None

    def baselines(self) -> Mapping[str, Any]:
        """Returns guesses for the test set's targets, in its order, or `Judged`, by methods without the network."""
        return {}

    def beside(self, model: nn.Module, loader: Iterable[Batch]) -> Mapping[str, Any]:
        """Returns what `baselines` does, by methods beside the tested model: its untouched base, examples in a prompt.

        `judge` answers with another model: with model.disable_adapter(): {"untouched base": self.judge(model, loader)}
        """
        return {}

    def combined(self, model: nn.Module, outputs: Tensor, part: str) -> Mapping[str, Any]:
        """Returns (targets, classes) scores of a whole part by method, the last of which is the task's answer.

        `outputs` are of known targets on the CPU. What it chooses on the part "validation" belongs into buffers of the
        model. Write `answers` for new samples too.
        """
        if self.starts:
            return evaluation.combined(self, model, outputs, part)
        raise to_write(self, "combined(model, outputs, part)", "scores by the name of each method")

    @property
    def selected(self) -> tuple[int, int]:
        """The place of the metric of `selection`, or of the first, and -1 where less is better."""
        names, (name, direction) = (
            [scoring.name_of(metric) for metric in self.metrics],
            self.selection,
        )
        place = names.index(name) if name in names else 0
        return place, -1 if (
            direction if name in names else scoring.better(self.metrics[place])
        ) == "min" else 1

    def strongest(self, baselines: Mapping[str, Judged]) -> str:
        """Returns the name of the best baseline by the metric that is selected by."""
        place, sign = self.selected
        values = {
            key: sum(scoring.scores([self.metrics[place]], judged).values())
            for key, judged in baselines.items()
        }
        return max(values, key=lambda key: sign * values[key])

    def columns(self, judged: Judged) -> Mapping[str, float]:
        """Returns further columns of a method's row in evaluation.csv: F1, and IoU of tokens, of at most 50 classes."""
        if self.kind in ("numbers", "labels", "text") or (width := judged.width) > _MOST_COLUMNS:
            return {}
        sums = scoring.tallied(self.kind, judged, np.zeros(len(judged.true), int), 1, width)[0]
        scores = zip(
            ("f1", "iou") if self.kind == "tokens" else ("f1",),
            scoring.by_class(sums),
            strict=False,
        )
        there = np.flatnonzero(sums[1]).tolist()
        return {f"{name}_{self.named(k)}": float(of[k]) for name, of in scores for k in there}

    def cells(self, sample: Any, number: int) -> Mapping[str, Any]:
        """Returns the first columns of a sample's row in answers.csv: its group, its file or number in the test."""
        if (
            self.has_groups and sample is not None
        ):  # as those of a lazy sequence are, which are not read for it
            return {self.unit: self._text(self.group(sample)), "sample": number}
        return {"sample": self._text(path) if (path := path_of(sample)) else number}

    def known_names(self) -> list[str]:
        return []

    def named(self, number: int) -> str:
        names = self.known_names()
        if number < len(names):
            return names[number]
        return str(number)

    @property
    def has_groups(self) -> bool:
        return type(self).group is not Comparing.group

    @property
    def combines(self) -> bool:
        return self.starts or self.has_own_scores

    @property
    def has_own_scores(self) -> bool:
        return type(self).combined is not Comparing.combined

    @cached_property
    def guesses(self) -> dict[str, Any]:
        """What `baselines` returns, computed once; of texts also the commonest."""
        if self.kind != "text":
            return dict(self.baselines())
        usual = text.commonest(text.targets(self.parts["train"]))
        return {self.constant: [usual] * len(self.parts["test"]), **self.baselines()}

    def passed(self, model: nn.Module, batch: Batch) -> Any:
        """Returns `outputs`; in an evaluation, where losses and metrics need them, they are computed once."""
        if (kept := self._passed) and kept[0] is model and kept[1] is batch:
            return kept[2]
        outputs = self.outputs(
            model, {name: value for name, value in batch.items() if name != simple.KEY}
        )
        self._passed = kept and (model, batch, outputs)
        return outputs

    def guessed(self, scores: Tensor, judged: Judged) -> Judged:
        guess = evaluation.guesses(self.kind, scores).numpy()
        return Judged(judged.true, guess, None, evaluation.shares(self, scores), judged.sample)

    def judge(self, model: nn.Module, loader: Iterable[Batch]) -> Judged:
        *_, answer = self.scored(model, loader)[1].values()
        return answer

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        is_test = getattr(getattr(loader, "dataset", None), "name", "") == "test"
        scores, rows = self.scored(model, loader)
        if is_test:
            self._tested, self._beside = rows, dict(self.beside(model, loader))
        return scores

    def scored(
        self, model: nn.Module, loader: Iterable[Batch]
    ) -> tuple[dict[str, float], Mapping[str, Judged]]:
        """Returns what `evaluate` does, and the answers of each method of `combined`."""
        if self.kind == "text":
            scores, judged = text.evaluate(self, model, loader)
            return {**scores, **self.columns(judged)}, {"network": judged}
        self._passed = None, None, None
        try:
            return evaluation.evaluate(self, model, loader)
        finally:
            self._passed = None

    def baseline(self) -> dict[str, float]:
        rows = evaluation.baselines(self, evaluation.tested(self))
        if self.metrics:
            return scoring.scores(self.metrics, rows[self.strongest(rows)])
        return {}

    read_new = prediction.read
    answers = prediction.answers
    predict = prediction.predict  # of new data

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv, answers.csv, and confusion.csv with its plot or that of numbers; returns tables."""
        if not self._tested:
            return ""
        *_, answer = self._tested.values()
        true = answer.true
        guess = answer.guess
        lines = list[str]()
        if self.metrics:
            rows = {**evaluation.baselines(self, answer), **evaluation.judged(answer, self._beside)}
            table = self.compare({**rows, **self._tested}, self.strongest(rows), folder)
            lines.append("\n".join(filter(None, [table, self.about_gate])))
        if self.kind == "numbers":  # (numbers) that are known
            true, guess = true[~np.isnan(true)], guess[~np.isnan(true)]
        if self.kind != "text":
            names = self.known_names()
            width = max(self.width, len(names))
            lines.append(result.write(self.kind, true, guess, names, width, folder, answer.counts))
        return "\n\n".join(lines)

    def compare(self, rows: Mapping[str, Judged], strongest: str, folder: Path) -> str:
        """Writes evaluation.csv and answers.csv into a folder; returns the table of the methods as text."""
        compared = self.compared(rows, strongest)
        self._write_evaluation(rows, compared, folder)
        if answers := [*self._answers(rows)]:
            result.write_table(folder / "answers.csv", answers)
        names = [*map(scoring.name_of, self.metrics)]
        table = [["", *names, f"{names[0]} above {strongest!r}"]]
        for name, scores in compared.scores.items():
            cell = "" if name == strongest else compared.gains[name][0].signed
            table.append([name, *map(str, scores), cell])
        has_sums = len(compared.about) < len(names)
        draws = f"{compared.draws:,} draws" if has_sums else "draws"
        about = f"In brackets: 95 % of {draws} of the {compared.units:,} {self.unit}s of the test; gains are paired."
        about = " ".join([about, *filter(None, compared.about.values())])
        if self.repeats_validation:
            about += " The test is the validation: the same samples chose the step."
        last = [*rows][-1]
        is_error = scoring.better(self.metrics[0]) == "min"
        why = compared.about.get(names[0], "")
        gain = compared.gains[last][0]
        conclusion = concluded(
            repr(last), strongest, names[0], gain, compared.units, self.unit, is_error, why
        )
        return f"{aligned(table, left={0})}\n{about}\n{conclusion}"

    def _write_evaluation(
        self, rows: Mapping[str, Judged], compared: Compared, folder: Path
    ) -> None:
        columns = {name: self.columns(judged) for name, judged in rows.items()}
        further = list(dict.fromkeys(column for figures in columns.values() for column in figures))
        bounds = [
            f"{scoring.name_of(metric)}{end}"
            for metric in self.metrics
            for end in ("", "_low", "_high")
        ]
        table: list[list[Any]] = [
            ["method", *bounds, *(f"gain_{name}" for name in bounds), *further]
        ]
        for name, figures in columns.items():
            of_row = (*compared.scores[name], *compared.gains[name])
            cells = [value for interval in of_row for value in interval]
            cells += [figures.get(column, np.nan) for column in further]
            table.append([name, *("" if np.isnan(cell) else f"{cell:.6f}" for cell in cells)])
        result.write_table(folder / "evaluation.csv", table)

    def compared(self, rows: Mapping[str, Judged], strongest: str) -> Compared:
        """Scores each method, and its gain over the strongest, over draws of the test's groups or samples."""
        last = [*rows.values()][-1]
        of_sample: Any = (
            self._groups("test") if self.has_groups else range(1 + int(last.sample.max()))
        )
        names, unit = np.unique(np.array(of_sample), return_inverse=True)
        units = len(names)
        best = [*rows].index(strongest)
        number = max(_FEWEST_DRAWS, min(self.draws, _MOST_DRAWN // units))
        whole = np.array(
            [[*scoring.scores(self.metrics, judged).values()] for judged in rows.values()]
        )
        from_sums = self._from_sums(rows, unit, units, number, best)
        scores = dict[str, list[Interval]]()
        gains = dict[str, list[Interval]]()
        about = dict[str, str]()
        for place, metric in enumerate(self.metrics):
            name = scoring.name_of(metric)
            values, differences = (each[..., place] for each in from_sums)
            if np.isnan(values[0]).all():
                drawn = bootstrap.of_metric(metric, [*rows.values()], unit, units)
                values = np.concatenate([whole[None, :, place], drawn.scores])
                differences = values - values[:, [best]]
                about[name] = drawn.about
            scores[name] = intervals(_known(values[0], whole[:, place]), values[1:], units)
            beside = whole[:, place] - whole[best, place]
            gains[name] = intervals(_known(differences[0], beside), differences[1:], units)
        return Compared(_by_row(rows, scores), _by_row(rows, gains), units, number, about)

    def _from_sums(
        self, rows: Mapping[str, Judged], unit: np.ndarray, units: int, draws: int, best: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (1 + draws, methods, metrics) scores of the whole test and of draws, and gains over the best.

        Metrics that do not follow from sums are NaN.
        """
        tallies = self.tallied(rows, unit, units)
        if tallies is None or draws * tallies[0].size > _MOST_NUMBERS:
            nothing = np.full((1, len(rows), len(self.metrics)), np.nan)
            return nothing, nothing
        sums = np.concatenate([tallies.sum(0)[None], resampled(tallies, draws)])
        strongest = sums[:, best]
        scores = []
        gains = []
        for place in range(len(rows)):
            method = sums[:, place]
            scores.append(self.measured(method))
            gains.append(self.measured(method, strongest) - self.measured(strongest, method))
        return np.stack(scores, 1), np.stack(gains, 1)

    def tallied(
        self, rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        """Returns (units, methods, ...) numbers whose sums `measured` takes, or None. `unit` is each sample's."""
        if self.kind == "text":
            sums = np.zeros((units, len(rows), 1 + len(self.metrics)))
            for place, (true, guess, *_) in enumerate(rows.values()):
                scores = [metric.each(true, guess) for metric in self.metrics]
                np.add.at(sums[:, place], unit, np.array([np.ones(len(unit)), *scores]).T)
            return sums
        if self.kind in ("numbers", "labels"):
            width = 0
        else:
            width = max(judged.width for judged in rows.values())
        if self.kind == "labels" or _FEWEST_DRAWS * 3 * len(rows) * width > _MOST_NUMBERS:
            return None
        each = (
            scoring.tallied(self.kind, judged, unit[judged.sample], units, width)
            for judged in rows.values()
        )
        return np.stack([*each], 1)

    def measured(self, sums: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
        """(draws, ...) sums -> (draws, metrics); means are over classes there, or guessed here or in `reference`."""
        if self.kind == "text":
            return sums[..., 1:] / sums[..., :1]
        if self.kind == "numbers":
            values = scoring.of_numbers(sums)
        else:
            values = scoring.of_classes(sums, reference)
        nothing = np.full(len(sums), np.nan)
        return np.stack(
            [values.get(scoring.name_of(metric), nothing) for metric in self.metrics], -1
        )

    @cached_property
    def repeats_validation(self) -> bool:
        """Whether the samples of the test are those of the validation, as in folds without a test of their own."""
        parts = self.parts
        return {"validation", "test"} <= parts.keys() and is_same(
            parts["validation"], parts["test"]
        )

    def check_groups(self) -> None:
        if not self.has_groups:
            return
        first: dict[str, str] = {}
        for part in self.parts:
            if part == "test" and self.repeats_validation:
                continue
            for name in sorted({*self._groups(part)}):
                if first.setdefault(name, part) != part:
                    what = f"The {self.unit} {printable(name, most=60)} is in {first[name]} and in {part}"
                    raise BadInput(
                        f"{what}, of which one would teach the other: deal each {self.unit} to one part."
                    )

    def _groups(self, part: str) -> list[str]:
        """Returns the name of each sample's group; a sample without one is a group of its own."""
        samples = self.parts[part].samples
        groups = samples.groups if hasattr(samples, "groups") else map(self.group, samples)
        return [
            f"{part} sample {number}" if group is None else self._text(group)
            for number, group in enumerate(groups)
        ]

    def _text(self, value: Any) -> str:
        """Returns text as it is, and anything else as text that is the same wherever the data lies."""
        if isinstance(value, str):
            return value
        return canonical(value, self.source)

    def _answers(self, rows: Mapping[str, Judged]) -> Iterator[list[Any]]:
        """Yields a head and a row a sample, those of a group together; nothing where a sample has several targets.

        Classes have a column each with their probability, where the answer has probabilities.
        """
        *_, answer = rows.values()
        if (
            answer.counts is not None
            or self.kind == "tokens"
            or (answer.true.ndim > 1 and self.kind != "labels")
        ):
            return
        samples = self.parts["test"].samples
        is_read = isinstance(samples, list | tuple) or type(self).cells is not Comparing.cells
        cells = [
            self.cells(samples[number] if is_read else None, number)
            for number in answer.sample.tolist()
        ]
        shares = [] if answer.shares is None else answer.shares.tolist()
        yield [
            *cells[0],
            "target",
            *rows,
            *(prediction.class_shares(self, shares[0]) if shares else ()),
        ]
        guesses = zip(
            answer.true.tolist(), *(judged.guess.tolist() for judged in rows.values()), strict=True
        )
        answers = [[self._named_answer(guess) for guess in row] for row in guesses]
        if shares:
            answers = [
                [*row, *prediction.class_shares(self, of).values()]
                for row, of in zip(answers, shares, strict=True)
            ]
        table = ([*first.values(), *row] for first, row in zip(cells, answers, strict=True))
        yield from sorted(table, key=lambda row: row[: len(cells[0])])

    def _named_answer(self, guess: Any) -> Any:
        """Returns the name of a class, or of all marked classes; other answers as they are."""
        if self.kind == "labels":
            return "; ".join(
                self.named(number) for number, is_marked in enumerate(guess) if is_marked
            )
        if self.kind == "classes":
            return self.named(guess)
        return guess


def _known(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Replaces NaN by what stands there in `others`."""
    return np.where(np.isnan(values), others, values)


def _by_row(
    rows: Iterable[str], of_metrics: Mapping[str, list[Interval]]
) -> dict[str, list[Interval]]:
    """Turns the intervals of each metric, one a row, into those of each row, one a metric."""
    return {
        row: [intervals_of[place] for intervals_of in of_metrics.values()]
        for place, row in enumerate(rows)
    }
