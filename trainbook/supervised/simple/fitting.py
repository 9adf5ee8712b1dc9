"""Fits the methods that a form of data has, and orders them by folds of the training samples.

A method is tried on the rows of each fold by a model of the others, and judged by the metric that selects. Trees answer
by the mean of these models, which is better than one; all others are fitted once more, to all rows.
"""

import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.errors import BadInput, printable
from lib.report.progress import working
from trainbook.supervised import scoring
from trainbook.supervised.scoring import Judged
from trainbook.supervised.simple import encoded
from trainbook.supervised.simple.columns import ENCODER, VIEWS
from trainbook.supervised.simple.estimators import TREES
from trainbook.supervised.simple.families import FAMILIES, Family
from trainbook.supervised.simple.method import Method, stored_weights
from trainbook.supervised.simple.models import Model, fitted, linked, mean, scored
from trainbook.supervised.simple.rows import Clock, Rows, collected
from trainbook.supervised.targets import class_counts

BEFORE_SECONDS = 180.0  # before a training of unknown length
_LEAST_SECONDS = 60.0  # a tenth of a short training is too little
# With an encoder, half of it to encode: 0.1 s a picture on one core, 0.015 s a sentence
_LEAST_ENCODED = 300.0
_MOST_SECONDS = 600.0
_MOST_OUTPUTS = 1000  # a language model has more, and no simple method beside it
_MOST_CLASSES = 100  # the commonest ones are learned
_MOST_FORESTS = 3  # numbers a sample
_PROBED = 4000  # rows by which time and memory are foretold
_RACED = 20_000  # rows above which two folds choose the strength, and five do not
_MOST_BYTES = 2**30  # of columns
_CALIBRATED = 50_000  # rows that give the power of probabilities
_POWERS = (2.0 ** np.arange(-3, 3.1, 0.25)).tolist()  # small data makes probabilities too sure
_BY_CLASS = ("macro_f1", "macro_recall", "balanced_accuracy", "mean_iou", "mean_dice")


class _Tried(NamedTuple):
    """A method with its score on held-out rows, by which more is better, and its loss there."""

    score: float
    loss: float
    method: Method

    @property
    def worth(self) -> tuple[float, float]:
        return self.score, -self.loss


class _Setting(NamedTuple):
    how: str
    strength: float
    balanced: bool


class _Held(NamedTuple):
    """The answers of other folds' models to rows: score, loss, its power, and the models."""

    score: float
    loss: float
    power: float
    models: Sequence[Model]

    @property
    def worth(self) -> tuple[float, float]:
        return self.score, -self.loss


def seconds_after(task: Any) -> float:
    """Returns how long simple methods may take after a training: a tenth of its time, in bounds."""
    taken = time.monotonic() - task._begin
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, taken / 10))


def fit(task: Any, seconds: float = BEFORE_SECONDS) -> list[Method]:
    """Fits the best method of each family, the strongest first; [] for another form, or if every fit fails.

    A constant is among them only where it is the strongest. With an encoder it may take longer than `seconds`.
    """
    if encoded.is_at_hand(task):
        seconds = max(seconds, _LEAST_ENCODED)
    clock = Clock(seconds)
    with working("Fitting simple methods"), warnings.catch_warnings():
        # scikit-learn warns of fits that have not converged, and of columns without a number
        warnings.simplefilter("ignore")
        counts = class_counts(task, "train") if task._kind.has_classes else np.zeros(0)
        if max(task._width, len(counts)) > _MOST_OUTPUTS:
            return []
        try:
            rows = collected(task, counts.argsort()[-_MOST_CLASSES:], clock)
        except BadInput as error:  # of the task's batches any other error is its own
            return _nothing(error)
        if rows is None:
            return []
        try:
            methods, notes = _fitted(task, rows, counts, clock)
        except ValueError as error:  # of scikit-learn, for example if all texts are the same
            return _nothing(error)
    for note in notes:
        print(note)
    return methods


def _nothing(error: ValueError) -> list[Method]:
    """Prints why there is no simple method; returns none."""
    print(f"No simple method stands beside the network: {printable(error, most=200)}.")
    return []


def _fitted(
    task: Any, rows: Rows, counts: np.ndarray, clock: Clock
) -> tuple[list[Method], list[str]]:
    """Returns the methods and sentences on cuts; `counts` are of the training samples' classes."""
    width = rows.target.shape[-1]
    notes = list[str]()
    if task._kind.has_classes:
        width = max(len(task._known_names()), len(counts))
        learned = np.count_nonzero(counts)
        if learned > _MOST_CLASSES:
            notes.append(
                f"Simple methods learned the {_MOST_CLASSES} commonest of {learned} classes."
            )
    work = _Work(task, rows, width, clock, notes)
    constant = work.constant()
    families = [each for each in FAMILIES[rows.form] if _can(task._kind, each, width, rows)]
    tried = [constant]
    for place, family in enumerate(families):
        try:
            tried += filter(None, [work.tried(family, clock.left / (len(families) - place))])
        except ValueError as error:  # of scikit-learn, for example if no text has a word
            why = printable(error, most=200)
            notes.append(f"The {family.name} could not be fitted: {why}.")
    tried.sort(key=lambda each: each.worth, reverse=True)
    methods = [each.method for each in tried]
    return [method for method in methods if method is methods[0] or not method.is_constant], notes


def _can(kind: Any, family: Family, width: int, rows: Rows) -> bool:
    """Returns whether a family has an answer for a kind: trees of more than 100 outputs are left out.

    One of an encoder's vectors needs these. A forest of several numbers has trees for each of them, and takes longer
    than many trainings.
    """
    if VIEWS[family.view].is_encoded and not len(rows.vectors):
        return False
    if family.how == "counts":
        return kind.has_classes
    if family.how == "forest" and not kind.has_classes and width > _MOST_FORESTS:
        return False
    return family.how not in TREES or width <= _MOST_CLASSES


class _Work:
    """The rows of a task, on which methods are tried."""

    def __init__(self, task: Any, rows: Rows, width: int, clock: Clock, notes: list[str]):
        self.task = task
        self.rows = rows
        self.width = width
        self.clock = clock
        self.notes = notes
        self.folds = np.unique(rows.fold).tolist()
        self.raced = self.folds  # choose settings
        if len(rows.target) > _RACED:
            self.raced = self.folds[:2]
        self.views: dict[tuple[str, int], Any] = {}  # of a form of columns and a number of rows

    def constant(self) -> _Tried:
        """Returns the method whose answer is always the same."""
        rows = self.rows
        nothing = np.zeros((len(rows.target), 0), np.float32)
        held = self._held(_Setting("constant", 0.0, False), nothing, rows, self.raced)
        family = Family(self.task.constant, FAMILIES[rows.form][0].view, "constant", ())
        columns = VIEWS[family.view].fit(rows.first(_PROBED).values)
        weights = np.zeros((columns.width, self.width))
        models = [model._replace(weights=weights) for model in held.models]
        return self._made(family, held._replace(models=models), columns)

    def tried(self, family: Family, seconds: float) -> _Tried | None:
        """Returns the best method of a family, fitted to as many rows as time allows; None without time."""
        if seconds <= 0:
            self.notes.append(f"There was no time for the {family.name} ({self._limit}).")
            return None
        rows = self._affordable(family, seconds)
        columns, values = self._columns(family.view, rows)
        held = self._compared(family, values, rows)
        best = _best(held)
        found = held[best]
        if family.how in TREES:
            found = self._held(best, values, rows, self.folds, found.models)
        else:
            whole = self._fit(best, values, rows, np.ones(len(rows.target), bool))
            found = found._replace(models=[whole])
        return self._made(family, found, columns)

    def _compared(self, family: Family, values: Any, rows: Rows) -> dict[_Setting, _Held]:
        """Tries the settings of a family in the remaining time."""
        settings = self._settings(family)
        tries = len(settings) + self._may_balance(family)
        held = dict[_Setting, _Held]()
        for number in range(tries):
            if held and self.clock.left < 0:
                self.notes.append(
                    f"The {family.name} was tried in {number} of {tries} settings ({self._limit})."
                )
                break
            if number < len(settings):
                setting = settings[number]
            else:
                best = _best(held)
                setting = best._replace(balanced=not best.balanced)
            held[setting] = self._held(setting, values, rows, self.raced)
        return held

    @property
    def _limit(self) -> str:
        return f"simple methods have {self.clock.seconds:.0f} s"

    def _settings(self, family: Family) -> list[_Setting]:
        """Returns what is tried."""
        weighs = bool(self.task.balanced)
        return [_Setting(family.how, strength, weighs) for strength in family.strengths]

    def _may_balance(self, family: Family) -> bool:
        """Returns whether the best is tried with other weights of classes: a mean over classes may gain."""
        metric = _selected(self.task)
        return family.may_balance and self.task._kind.has_classes and metric in _BY_CLASS

    def _affordable(self, family: Family, seconds: float) -> Rows:
        """Returns the rows that a family is fitted to, by the time and bytes that some of them take; notes a cut."""
        rows = self.rows
        if VIEWS[family.view].is_encoded:
            rows = rows.first(len(rows.vectors))
        number = len(rows.target)
        if number > 2 * _PROBED:
            number = min(number, self._foreseen(family, seconds))
        if number < rows.total:
            self.notes.append(
                f"The {family.name} was fitted to {number:,} of {rows.total:,} rows ({self._limit})."
            )
        return rows.first(number)

    def _foreseen(self, family: Family, seconds: float) -> int:
        """Returns the number of rows that time and memory allow, judged by the first ones; at least these."""
        probe = self.rows.first(_PROBED)  # as many are encoded
        begin = time.perf_counter()
        _, values = _view_of(family.view, probe)
        seen_after = time.perf_counter()
        settings = self._settings(family)
        ends = (settings[0], settings[-1])
        for setting in ends:
            self._fold(setting, values, probe, self.folds[0])
        a_fit = (time.perf_counter() - seen_after) / len(ends)
        tries = len(settings) + self._may_balance(family)
        fits = tries * len(self.raced) + len(self.folds)
        by_time = seconds / (seen_after - begin + fits * a_fit)
        of_scores = 3 * 8 * self.width * len(probe.target)
        by_bytes = _MOST_BYTES / (_bytes(values) + of_scores)
        return max(_PROBED, int(_PROBED * min(by_time, by_bytes)))

    def _columns(self, view: str, rows: Rows) -> tuple[Any, Any]:
        key = (view, len(rows.target))
        if key not in self.views:
            self.views.clear()  # one is enough: the next family mostly has another
            self.views[key] = _view_of(view, rows)
        return self.views[key]

    def _fold(
        self, setting: _Setting, values: Any, rows: Rows, fold: int, known: Model | None = None
    ) -> tuple[Model, np.ndarray]:
        """Returns the model of the other folds, a new one if none is known, and the scores of a fold's rows."""
        here = rows.fold == fold
        model = known or self._fit(setting, values, rows, ~here | here.all())
        return model, linked(self.task._kind, setting.how, scored(values[here], model))

    def _fit(self, setting: _Setting, values: Any, rows: Rows, chosen: np.ndarray) -> Model:
        places = np.flatnonzero(chosen)
        return fitted(self.task, *setting, values[places], rows.target[places], self.width)

    def _held(
        self,
        setting: _Setting,
        values: Any,
        rows: Rows,
        folds: Sequence[int],
        known: Sequence[Model] = (),
    ) -> _Held:
        """Tries a method on the rows of some folds, each by a model of the others; the first models may be known."""
        scores = np.zeros((len(rows.target), self.width))
        models = []
        for fold, model in itertools.zip_longest(folds, known):
            fitted_now, scores[rows.fold == fold] = self._fold(setting, values, rows, fold, model)
            models.append(fitted_now)
        tried = np.flatnonzero(np.isin(rows.fold, folds))
        target = rows.target[tried]
        scores = scores[tried]
        power, loss = self._power(scores, target)
        return _Held(measured(self.task, power * scores, target), loss, power, models)

    def _power(self, scores: np.ndarray, target: np.ndarray) -> tuple[float, float]:
        """Returns the power of probabilities with the least loss, and this."""
        kind = self.task._kind
        every = -(-len(target) // _CALIBRATED)
        scores, target = scores[::every], target[::every]
        counts = np.bincount(target, minlength=self.width) if self.task.balanced else None
        powers = _POWERS if kind.has_probabilities else [1.0]
        each = []
        for power in powers:
            loss = losses(kind, torch.from_numpy(power * scores), target, counts).mean()
            each.append((float(loss), power))
        least, best = min(each)
        return best, least

    def _made(self, family: Family, held: _Held, columns: Any) -> _Tried:
        """Returns a method with the mean of the models, as an archive would hold it."""
        model = mean(held.models)
        exact = Model(
            stored_weights(family.view, model.weights).astype(np.float32),
            model.bias.astype(np.float32),
            model.trees.astype(np.float32),
        )
        kind = self.task._kind.name
        method = Method(family.name, family.view, family.how, kind, held.power, exact, columns)
        return _Tried(held.score, held.loss, method)


def _best(held: Mapping[_Setting, _Held]) -> _Setting:
    return max(held, key=lambda setting: held[setting].worth)


def _view_of(view: str, rows: Rows) -> tuple[Any, Any]:
    """Returns a view of rows, and their columns."""
    form = VIEWS[view]
    values = rows.values
    if form.is_encoded:
        values = encoded.paired(values, rows.vectors)
    columns = form.fit(values)
    if form.is_encoded:
        columns = form({**columns.arrays, ENCODER: np.asarray(rows.probe)})
    return columns, columns.columns(values)


def _bytes(values: Any) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else values.data.nbytes * 3 // 2


def _selected(task: Any) -> Any:
    """Returns the metric that selects; None for a task without metrics."""
    place, _ = task._selected if task.metrics else (0, 1)
    return task.metrics[place] if task.metrics else None


def measured(task: Any, scores: np.ndarray, target: np.ndarray) -> float:
    """Returns the metric that selects, turned so that more is better; the loss if it is unknown."""
    metric = _selected(task)
    if metric is None:
        return -np.inf
    kind = task._kind
    labels = torch.from_numpy(target)
    outputs = torch.from_numpy(scores).float()
    if not kind.has_classes:
        outputs = outputs.view(labels.shape)
    true, guess = (kind.judged(labels, each).numpy() for each in (labels, kind.guess(outputs)))
    shares = None
    if scoring.needs_probabilities([metric]):
        shares = kind.averaged(kind.of_known(labels, outputs)).numpy()
    _, sign = task._selected
    (value,) = scoring.scores([metric], Judged(true, guess, None, shares)).values()
    return -np.inf if np.isnan(value) else sign * value


def losses(kind: Any, scores: Tensor, true: np.ndarray, counts: np.ndarray | None) -> Tensor:
    """Returns (targets) the loss of each, classes balanced by `counts`; 0 for unknown numbers and marks."""
    weights = None
    if counts is not None:
        weights = torch.from_numpy(scoring.balanced(counts, scores.shape[-1]))
    return kind.losses(scores, torch.from_numpy(true), weights)


class Choice(NamedTuple):
    """The settings of a family that answer held-out texts best: see `Family`, `Method`; `score` is their accuracy."""

    strength: float
    power: float
    score: float


class _Texts:
    """What `_Work` needs of a task: a class for each text."""

    metrics = ("accuracy",)
    balanced = False
    _selected = (0, 1)

    def __init__(self, kind: Any):
        self._kind = kind


def choose(kind: Any, family: Family, rows: Rows, width: int, seconds: float) -> Choice:
    """Chooses a family's settings by folds of texts; `kind` is of one class a sample, `width` the number of classes.

    Raises ValueError if they cannot be fitted, for example if no text has a word.
    """
    work = _Work(_Texts(kind), rows, width, Clock(seconds), [])
    affordable = work._affordable(family, seconds)
    _, values = work._columns(family.view, affordable)
    held = work._compared(family, values, affordable)
    best = _best(held)
    return Choice(best.strength, held[best].power, held[best].score)


def refit(kind: Any, family: Family, choice: Choice, rows: Rows, width: int) -> Method:
    """Fits a family with chosen settings to texts. Raises ValueError as `choose` does."""
    columns, values = _view_of(family.view, rows)
    model = fitted(_Texts(kind), family.how, choice.strength, False, values, rows.target, width)
    return Method(family.name, family.view, family.how, kind.name, choice.power, model, columns)
