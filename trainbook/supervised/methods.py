"""`Comparing`: methods beside each other on the test, with gains over the strongest baseline over draws of groups.

evaluation.csv has a row a method: each metric and its gain with 95 % intervals, then what `columns` adds. answers.csv
has a row a sample: what names it, its target, and the guess of each method.
"""

import itertools
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
from lib.training.evaluation import forget_baseline
from trainbook.outputs import result
from trainbook.supervised import (
    bootstrap,
    calibration,
    evaluation,
    folds,
    held,
    kinds,
    prediction,
    scoring,
    verdict,
)
from trainbook.supervised.canonical import canonical
from trainbook.supervised.intervals import Interval, intervals, of_gain, resampled
from trainbook.supervised.kinds.base import MOST_NUMBERS
from trainbook.supervised.samples import Part, is_same, path_of
from trainbook.supervised.scoring import Judged

OF_NETWORK = "network_"  # before the name of a metric
_NETWORKS = ("network", "network alone")  # rows of a network without help
_ROUNDING = 1e-6  # of the largest number
_MOST_DRAWN = 20_000_000  # units in all draws
_FEWEST_DRAWS = 200


class Compared(NamedTuple):
    """Methods beside each other: scores and gains over the strongest, by method and metric; more is better of gains.

    `draws` of the `units` are those of metrics that follow from sums; `about` has a sentence for each other metric.
    """

    scores: dict[str, list[Interval]]
    gains: dict[str, list[Interval]]
    units: int
    draws: int
    about: dict[str, str]


class Comparing(Task):
    """The judging part of `Supervised`: baselines, groups, mixtures with the network, tables."""

    kind: ClassVar[Any] = "classes"
    metrics: ClassVar[Sequence[Any]] = ("accuracy",)
    unit: ClassVar[str] = "sample"  # the word for what `group` names
    # The row of the commonest class or text, or the mean
    constant: ClassVar[str] = "always the same"
    parts: cached_property[dict[str, Part]]
    outputs: Any  # a method of `Supervised`
    _draws: ClassVar[int] = 2000  # of the test's groups, for intervals
    _width: int = 0  # of the outputs, once they were seen
    _can_start: bool = False  # whether answers may start from the simple method
    _starts: bool = False  # whether answers start from the simple method
    # Of the network in an answer, beside its simple method; None: as validation set it
    _share: float | None = None
    _answer: str = ""  # "network" or "simple" answers new samples, if one is asked for
    _tta: bool = False  # whether an answer to an image (4 dimensions) is the mean over it and its mirror image
    _owners: Mapping[
        nn.Module, Any
    ] = {}  # of models that predict together: the task that trained them
    _tested: Mapping[str, Judged] = {}  # by method; the last one is the answer
    _beside: Mapping[str, Any] = {}  # what `beside` returned
    _about: str = ""  # a sentence on the answer
    _promised: Judged | None = (
        None  # targets of the test with the answer's calibrated probabilities
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
        """Returns (targets, classes) scores of a whole part by method; the last one is the task's answer.

        `outputs` are of known targets on the CPU. What it chooses on the part "validation" belongs into buffers of the
        model. Write `answers` for new samples too.
        """
        raise to_write(self, "combined(model, outputs, part)", "scores by the name of each method")

    @property
    def _kind(self) -> kinds.Kind:
        return kinds.of(self.kind)

    @property
    def _selected(self) -> tuple[int, int]:
        """The place of the metric of `selection`, or of the first, and -1 if less is better.

        The network's own metric, by which weights are chosen, judges answers under its plain name.
        """
        names = [*map(scoring.name_of, self.metrics)]
        name, direction = self.selection
        name = name.removeprefix(OF_NETWORK)
        if name in names:
            place = names.index(name)
        else:
            place = 0
            direction = scoring.better(self.metrics[0])
        return place, -1 if direction == "min" else 1

    def _strongest(self, baselines: Mapping[str, Judged]) -> str:
        """Returns the name of the best baseline by the metric that is selected by.

        Of the simple methods that one counts which was best by folds of the training samples, whichever is best here.
        """
        place, sign = self._selected
        metric = self.metrics[place]
        _, *others = vars(self).get("_simples") or [None]
        passed_over = {method.name for method in others}
        values = {}
        for name, judged in baselines.items():
            (value,) = scoring.scores([metric], judged).values()
            values[name] = sign * value
        chosen = [name for name in values if name not in passed_over]
        return max(chosen, key=lambda name: values[name])

    def columns(self, judged: Judged) -> Mapping[str, float]:
        """Returns further columns of a method's row in evaluation.csv: F1, and IoU of tokens, of at most 50 classes."""
        return self._kind.columns(self, judged)

    def cells(self, sample: Any, number: int) -> Mapping[str, Any]:
        """Returns the first columns of a sample's row in answers.csv: its group, its file or number in the test.

        `sample` is None for those of a lazy sequence, which are not read for it.
        """
        if self._has_groups and sample is not None:
            return {self._unit: self._text(self.group(sample)), "sample": number}
        path = path_of(sample)
        return {"sample": self._text(path) if path else number}

    @property
    def names(self) -> list[str]:
        """The names of the classes in their order."""
        return []

    def _known_names(self) -> list[str]:
        return self.names

    @property
    def _has_groups(self) -> bool:
        return type(self).group is not Comparing.group

    @property
    def _has_own_cells(self) -> bool:
        return type(self).cells is not Comparing.cells

    @property
    def _combines(self) -> bool:
        return self._starts or self._has_own_scores

    @property
    def _has_own_scores(self) -> bool:
        return type(self).combined is not Comparing.combined

    @property
    def _averages_outputs(self) -> bool:
        """Whether members answer by the mean of their outputs, and not of their rows."""
        return type(self).answers is Comparing.answers and not self._kind.is_generated

    @cached_property
    def _guesses(self) -> dict[str, Any]:
        """What `baselines` returns, computed once; for texts also the commonest."""
        return self._kind.guesses(self)

    def judge(self, model: nn.Module, loader: Iterable[Batch]) -> Judged:
        """Returns the answers of a model to the batches of a loader."""
        *_, answer = self._scored(model, loader).rows.values()
        return answer

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        scored = self._scored(model, loader)
        if evaluation.part_of(loader) == "test":
            self._tested = scored.rows
            self._about = scored.about
            self._promised = scored.promised
            self._beside = dict(self.beside(model, loader))
            if self._beside:
                forget_baseline(self)
        return scored.scores

    def _scored(self, model: nn.Module, loader: Iterable[Batch]) -> evaluation.Scored:
        return self._kind.evaluate(self, model, loader)

    def baseline(self) -> dict[str, float]:
        """Returns the metrics of the strongest method of the test's table but the network's own."""
        tested = self._kind.tested(self)
        rows = self._kind.baselines(self, tested)
        for name, judged in evaluation.judged(tested, self._beside).items():
            if len(judged.guess) == len(tested.true):  # and not the first ones, of a check
                rows[name] = judged
        if self.metrics:
            return scoring.scores(self.metrics, rows[self._strongest(rows)])
        return {}

    def read_new(self, source: Path) -> list[Any]:
        """Returns samples to predict from new data, whose targets may be None; by default as `read` does."""
        return prediction.read(self, source)

    def answers(self, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
        """Returns a row for each sample by the mean of the models; of pixels an array of classes, written as a PNG.

        Classes have a column each with their probability.
        """
        return self._kind.answers(self, models, samples)

    def predict(self, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
        return prediction.predict(self, models, source, out)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv, answers.csv, and confusion.csv with its plot; returns tables."""
        if not self._tested:
            return ""
        *_, answer = self._tested.values()
        tables = list[str]()
        if self.metrics:
            beside = evaluation.judged(answer, self._beside)
            rows = {**self._kind.baselines(self, answer), **beside}
            table = self._compare({**rows, **self._tested}, self._strongest(rows), folder)
            if folds.is_joined(self):
                strongest, *_ = vars(self).get("_simples") or [None]
                held.write(self, self._tested, rows.get(getattr(strongest, "name", "")), folder)
            tables.append("\n".join(filter(None, [table, self._about, self._calibrated()])))
        of_kind = self._kind.tables(self, answer, folder)
        if of_kind is not None:
            tables.append(of_kind)
        return "\n\n".join(tables)

    def _calibrated(self) -> str:
        """Returns a sentence on the probabilities of the test's answers; "" where they are not calibrated."""
        judged = self._promised
        if judged is None:
            return ""
        groups = self._groups("test") if self._has_groups else range(1 + int(judged.sample.max()))
        return calibration.line(judged, groups)

    def _compare(self, rows: Mapping[str, Judged], strongest: str, folder: Path) -> str:
        """Writes evaluation.csv and answers.csv into a folder; returns the table of the methods as text."""
        compared = self._compared(rows, strongest)
        self._write_evaluation(rows, compared, folder)
        answers = [*self._answers(rows)]
        if answers:
            result.write_table(folder / "answers.csv", answers)
        names = [*map(scoring.name_of, self.metrics)]
        side = "less than" if self._signs[0] < 0 else "above"
        table = [["", *names, f"{names[0]} {side} {strongest!r}"]]
        for name, scores in compared.scores.items():
            gain = "" if name == strongest else compared.gains[name][0].signed
            table.append([name, *map(str, scores), gain])
        about = self._about_draws(compared)
        conclusion = self._concluded(compared, rows, strongest)
        return f"{aligned(table, left={0})}\n{about}\n{conclusion}"

    @property
    def _signs(self) -> list[int]:
        """-1 for each metric of which less is better: its gains are turned."""
        selected, direction = self._selected
        signs = [-1 if scoring.better(metric) == "min" else 1 for metric in self.metrics]
        signs[selected] = direction
        return signs

    @property
    def _unit(self) -> str:
        """The word for a drawn unit."""
        if self._has_groups and self.unit == Comparing.unit:
            return "group"
        return self.unit

    def _about_draws(self, compared: Compared) -> str:
        """Returns sentences on the intervals of a comparison, and on the test."""
        has_sums = len(compared.about) < len(self.metrics)
        draws = f"{compared.draws:,} draws" if has_sums else "draws"
        units = verdict.named(compared.units, self._unit)
        sentences = [
            f"In brackets: 95 % of {draws} of the {units} of the test; gains are paired, and + is better.",
            *filter(None, compared.about.values()),
        ]
        if self.repeats_validation:
            sentences.append("The test is the validation: the same samples chose the step.")
        return " ".join(sentences)

    def _concluded(self, compared: Compared, rows: Mapping[str, Judged], strongest: str) -> str:
        """Returns sentences on the last method beside the strongest baseline, and on a network that is below that."""
        name = scoring.name_of(self.metrics[0])
        *_, last = rows
        gain = compared.gains[last][0]
        if _is_same(rows[last], rows[strongest]) and not gain.side:
            first = verdict.same(repr(last), repr(strongest), compared.units, self._unit)
        else:
            why = compared.about.get(name, "")
            first = verdict.concluded(
                repr(last), repr(strongest), name, gain, compared.units, self._unit, why
            )
        sentences = [first, *self._warnings(compared, last, repr(strongest))]
        return " ".join(sentences)

    def _warnings(self, compared: Compared, last: str, strongest: str) -> Iterator[str]:
        """Yields sentences on a network that is surely below the strongest baseline, and on what answers instead."""
        name = scoring.name_of(self.metrics[0])
        for network in _NETWORKS:
            gain, *_ = compared.gains.get(network, [Interval(0, np.nan, np.nan)])
            if not gain.has_bounds or gain.side >= 0:
                continue
            if network != last:
                yield verdict.not_to_use(repr(network), strongest, name, gain)
                yield "So the answer is not it, but what validation makes of both."
                continue
            advice = f"Do not use it: take {strongest}"
            if self._can_start and self._kind.has_simple:
                advice += ", or training.start_from_baseline: true, which answers by the better"
            yield f"{advice}."

    def _write_evaluation(
        self, rows: Mapping[str, Judged], compared: Compared, folder: Path
    ) -> None:
        """Writes evaluation.csv: a row a method."""
        columns = {name: self.columns(judged) for name, judged in rows.items()}
        further = list(dict.fromkeys(column for figures in columns.values() for column in figures))
        names = [*map(scoring.name_of, self.metrics)]
        bounds = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
        gains = [f"gain_{name}" for name in bounds]
        table: list[list[Any]] = [["method", *bounds, *gains, *further]]
        for name, figures in columns.items():
            cells = [*itertools.chain(*compared.scores[name], *compared.gains[name])]
            cells += [figures.get(column, np.nan) for column in further]
            table.append([name, *map(_cell, cells)])
        result.write_table(folder / "evaluation.csv", table)

    def _compared(
        self, rows: Mapping[str, Judged], strongest: str, groups: Sequence[Any] = ()
    ) -> Compared:
        """Scores each method, and its gain over the strongest, over draws of the test's groups or samples.

        `groups` are those of the samples, if these are not the test's.
        """
        *_, last = rows.values()
        if not groups:
            groups = range(1 + int(last.sample.max()))
            if self._has_groups:
                groups = self._groups("test")
        names, unit = np.unique(np.array(groups), return_inverse=True)
        units = len(names)
        best = [*rows].index(strongest)
        number = max(_FEWEST_DRAWS, min(self._draws, _MOST_DRAWN // units))
        every = [scoring.scores(self.metrics, judged) for judged in rows.values()]
        whole = np.array([[*values.values()] for values in every])
        scores_of_sums, gains_of_sums = self._from_sums(rows, unit, units, number, best)
        scores = dict[str, list[Interval]]()
        gains = dict[str, list[Interval]]()
        about = dict[str, str]()
        for place, (metric, sign) in enumerate(zip(self.metrics, self._signs, strict=True)):
            name = scoring.name_of(metric)
            by_shares = scoring.needs_probabilities([metric])
            differing = [
                _differing(judged, rows[strongest], unit, by_shares) for judged in rows.values()
            ]
            of_whole = whole[:, place]
            values = scores_of_sums[..., place]
            differences = gains_of_sums[..., place]
            if np.isnan(values[0]).all():
                drawn = bootstrap.of_metric(metric, [*rows.values()], unit, units)
                values = np.concatenate([of_whole[None], drawn.scores])
                differences = values - values[:, [best]]
                about[name] = drawn.about
            scores[name] = intervals(_known(values[0], of_whole), values[1:], units)
            above = sign * _known(differences[0], of_whole - of_whole[best])
            drawn_above = sign * differences[1:]
            largest = scoring.largest_gain(metric)
            gains[name] = [
                of_gain(above[row], drawn_above[:, row], differing[row], largest=largest)
                for row in range(len(rows))
            ]
        return Compared(_by_row(rows, scores), _by_row(rows, gains), units, number, about)

    def _from_sums(
        self, rows: Mapping[str, Judged], unit: np.ndarray, units: int, draws: int, best: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (1 + draws, methods, metrics) scores of the whole test and of draws, and gains over the best.

        Metrics that do not follow from sums are NaN.
        """
        kind = self._kind
        tallies = kind.tallied(self.metrics, rows, unit, units)
        if tallies is None or draws * tallies[0].size > MOST_NUMBERS:
            nothing = np.full((1, len(rows), len(self.metrics)), np.nan)
            return nothing, nothing
        sums = np.concatenate([tallies.sum(0)[None], resampled(tallies, draws)])
        strongest = sums[:, best]
        scores = []
        gains = []
        for place in range(len(rows)):
            method = sums[:, place]
            scores.append(kind.measured(self.metrics, method))
            score = kind.measured(self.metrics, method, strongest)
            gains.append(score - kind.measured(self.metrics, strongest, method))
        return np.stack(scores, 1), np.stack(gains, 1)

    @cached_property
    def repeats_validation(self) -> bool:
        """Whether test and validation have the same samples, as in folds without a separate test."""
        parts = self.parts
        if not {"validation", "test"} <= parts.keys():
            return False
        return is_same(parts["validation"], parts["test"])

    def _check_groups(self) -> None:
        """Raises BadInput for a group in two parts."""
        if not self._has_groups:
            return
        first: dict[str, str] = {}
        for part in self.parts:
            if part == "test" and self.repeats_validation:
                continue
            for name in sorted({*self._groups(part)}):
                if first.setdefault(name, part) != part:
                    raise BadInput(
                        f"The {self._unit} {printable(name, most=60)} is in {first[name]} and in "
                        f"{part}, of which one would teach the other: deal each {self._unit} to "
                        "one part."
                    )

    def _groups(self, part: str) -> list[str]:
        """Returns the name of each sample's group; a sample without one forms a group."""
        samples = self.parts[part].samples
        groups = samples.groups if hasattr(samples, "groups") else map(self.group, samples)
        return [
            f"{part} sample {number}" if group is None else self._text(group)
            for number, group in enumerate(groups)
        ]

    def _text(self, value: Any) -> str:
        """Returns text unchanged, and anything else as text that does not depend on the data's location."""
        if isinstance(value, str):
            return value
        return canonical(value, self.source)

    def _answers(self, rows: Mapping[str, Judged]) -> Iterator[list[Any]]:
        """Yields a head and a row a sample, grouped; nothing if a sample has several targets.

        Classes have a column each with their probability, if the answer has probabilities.
        """
        kind = self._kind
        *_, answer = rows.values()
        if not kind.has_rows(answer):
            return
        samples = self.parts["test"].samples
        is_read = isinstance(samples, list | tuple) or self._has_own_cells
        cells = []
        for number in answer.sample.tolist():
            sample = samples[number] if is_read else None
            cells.append(self.cells(sample, self.parts["test"].number(number)))
        shares: list[Mapping[str, float]] = [{}] * len(cells)
        if answer.shares is not None:
            shares = [prediction.class_shares(self, row) for row in answer.shares.tolist()]
        guesses = [judged.guess.tolist() for judged in rows.values()]
        answers = zip(answer.true.tolist(), *guesses, strict=True)
        yield [*cells[0], "target", *rows, *shares[0]]
        table = []
        for first, row, last in zip(cells, answers, shares, strict=True):
            named = [kind.cell(self, guess) for guess in row]
            table.append([*first.values(), *named, *last.values()])
        yield from sorted(table, key=lambda row: row[: len(cells[0])])


def _is_same(one: Judged, other: Judged) -> bool:
    """Returns whether two methods answer the same of each target."""
    if _can_be_paired(one, other):
        return not _unlike(one.guess, other.guess).any()
    unit = np.arange(1 + int(max(one.sample.max(), other.sample.max())))
    return not _differing_pairs(one, other, unit)


def _can_be_paired(one: Judged, other: Judged) -> bool:
    """Returns whether two methods have a guess for each target, in the same order."""
    is_counted = one.counts is not None or other.counts is not None
    return one.guess.shape == other.guess.shape and not is_counted


def _differing(one: Judged, other: Judged, unit: np.ndarray, by_shares: bool) -> int:
    """Returns the number of units on which two methods differ; `by_shares`: by their probabilities."""
    if not _can_be_paired(one, other):
        return _differing_pairs(one, other, unit)
    pair = (one.shares, other.shares) if by_shares else (one.guess, other.guess)
    differs = _unlike(*pair).reshape(len(one.guess), -1).any(1)
    return len(np.unique(unit[one.sample[differs]]))


def _unlike(one: Any, other: Any) -> np.ndarray:
    """Returns where answers differ; of numbers by more than the rounding of fp32."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind != "f":
        return np.asarray(one != other)
    size = np.nanmax(np.abs(other), initial=0.0)
    return ~np.isclose(one, other, rtol=0, atol=_ROUNDING * size, equal_nan=True)


def _differing_pairs(one: Judged, other: Judged, unit: np.ndarray) -> int:
    """Returns the number of units in which pairs of truth and guess come in other numbers."""
    width = max(one.width, other.width)
    keys = []
    counts = []
    for judged, sign in ((one, 1), (other, -1)):
        pairs = judged.true * width + judged.guess
        keys.append(unit[judged.sample] * width**2 + pairs)
        number = np.ones(len(pairs), int) if judged.counts is None else judged.counts
        counts.append(sign * number)
    different, place = np.unique(np.concatenate(keys), return_inverse=True)
    balance = np.bincount(place, np.concatenate(counts))
    return len(np.unique(different[balance != 0] // width**2))


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}"


def _known(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Replaces NaN by the value in `others`."""
    return np.where(np.isnan(values), others, values)


def _by_row(
    rows: Iterable[str], of_metrics: Mapping[str, list[Interval]]
) -> dict[str, list[Interval]]:
    """Transposes intervals from metrics by rows to rows by metrics."""
    return {
        row: [intervals_of[place] for intervals_of in of_metrics.values()]
        for place, row in enumerate(rows)
    }
