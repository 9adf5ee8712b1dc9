"""Answers questions by their words alone, and weighs such answers with the network's."""

import contextlib
import hashlib
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from trainbook.supervised import kinds, simple
from trainbook.supervised.intervals import Interval, least
from trainbook.supervised.samples import FOLDS
from trainbook.supervised.text import commonest, exact, normal, words
from workloads.vqa.data import Record
from workloads.vqa.tokens import Answer

_LEAST = 1e-3  # probability of an answer that the words speak against, or that is not among the training's
# Weights of the network, in the order in which they are tried
_WEIGHTS = (0.0, 1.0, 0.75, 0.5, 0.25, 0.125, 0.0625)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the network without the picture
_EACH_SIDE = 0.975
_LIKELY = 0.95  # one-sided: asked once
_SURE = 0.995  # one-sided: every validation of a run asks
_MOST_ANSWERS = 200
_MOST_PAIRS = 20_000  # commonest pairs of question and answer, which `Words` is fitted to
_MOST_BYTES = 6 * 2**20  # size of these, because every checkpoint has them
_FEW = 2000  # up to so many pairs, words that occur in a single pair are learned too
_FAMILY = simple.FAMILIES["texts"][0]  # linear model of one and two words
_KIND = kinds.of("classes")
_SECONDS = 60.0  # in which its settings are chosen


class Words:
    """A linear classifier of training answers by the words of a question.

    By default least squares of one to three words; with a `choice` of `chosen_by_folds` margins of one and two.
    """

    def __init__(self, pairs: Mapping[str, Mapping[str, int]], choice: Mapping[str, float] = {}):
        """Fits the classifier to the result of `pairs_of`."""
        rows = []
        for answer, by_question in pairs.items():
            rows += [(-count, question, answer) for question, count in by_question.items()]
        negative, questions, answers = zip(*sorted(rows), strict=True)
        counts = [-count for count in negative]
        self.answers = sorted(pairs)
        self._model: Any = None
        self._margins: simple.Method | None = None
        self._places = {normal(answer): place for place, answer in enumerate(self.answers)}
        totals = [sum(pairs[answer].values()) for answer in self.answers]
        self._usual = np.array([totals]) / sum(counts)
        with contextlib.suppress(ValueError):  # raised for a single answer or no words
            if choice:
                self._fit_margins(questions, answers, counts, choice)
            else:
                self._fit_squares(questions, answers, counts)

    def _fit_squares(
        self, questions: Sequence[str], answers: Sequence[str], counts: Sequence[int]
    ) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import RidgeClassifier
        from sklearn.pipeline import make_pipeline

        few = 1 if len(questions) <= _FEW else 2
        vectors = TfidfVectorizer(
            ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False, min_df=few
        )
        # 6 s for 12,000 questions with 200 answers, for which a logistic regression takes 45
        model = make_pipeline(vectors, RidgeClassifier(solver="sparse_cg", tol=1e-3))
        self._model = model.fit(questions, answers, ridgeclassifier__sample_weight=counts)

    def _fit_margins(
        self,
        questions: Sequence[str],
        answers: Sequence[str],
        counts: Sequence[int],
        choice: Mapping[str, float],
    ) -> None:
        share = min(1.0, _MOST_PAIRS / sum(counts))
        repeats = np.ceil(share * np.array(counts)).astype(int)
        values = np.repeat(np.array(questions, object), repeats)
        target = np.repeat([self._places[normal(answer)] for answer in answers], repeats)
        rows = _rows(values, target, np.zeros(len(target), int))
        settings = simple.Choice(choice["strength"], choice["power"], 0.0)
        self._margins = simple.refit(_KIND, _FAMILY, settings, rows, len(self.answers))

    def shares(self, questions: Sequence[str]) -> np.ndarray:
        """Returns (questions, answers) probabilities: least squares on -1 and 1 estimate them."""
        texts = [*map(normal, questions)]
        if self._margins is not None:
            scores = self._margins.answers(_KIND, np.array(texts, object))
            shares = np.clip(special.softmax(self._margins.power * scores, 1), _LEAST, 1)
            return (shares / shares.sum(1, keepdims=True)).astype(np.float32)
        if self._model is None:
            return self._usual.repeat(len(questions), 0).astype(np.float32)
        scores = self._model.decision_function(texts)
        if scores.ndim == 1:  # two answers have one score
            scores = np.stack([-scores, scores], 1)
        shares = np.clip((1 + scores) / 2, _LEAST, 1)
        return (shares / shares.sum(1, keepdims=True)).astype(np.float32)

    def guesses(self, questions: Sequence[str]) -> list[str]:
        return [self.answers[place] for place in self.shares(questions).argmax(1)]

    def candidates(
        self, answers: Sequence[tuple[Answer, float, float]], shares: Sequence[float]
    ) -> list[Answer]:
        """Returns different answers, each with log-probabilities by the network, without the picture, and by words."""
        different: dict[str, Answer] = {}
        for answer, log, alone in answers:
            text = normal(answer)
            place = self._places.get(text)
            share = _LEAST if place is None else shares[place]
            answer.network = log
            answer.alone = alone
            answer.words = math.log(share)
            different.setdefault(text, answer)  # another reasoning for the same
        return [*different.values()]


def chosen_by_folds(samples: Sequence[Record]) -> dict[str, float]:
    """Returns the settings of margins for `Words`; {} if they are not surely above least squares on others.

    Pictures are dealt to folds with all of their questions.
    """
    places = np.random.default_rng(0).permutation(len(samples))[:_MOST_PAIRS]
    records = [samples[place] for place in places]
    answers = [normal(record.answer) for record in records]
    common = [answer for answer, _ in Counter(answers).most_common(_MOST_ANSWERS)]
    place_of = {answer: place for place, answer in enumerate(common)}
    kept = [number for number, answer in enumerate(answers) if answer in place_of]
    records = [records[number] for number in kept]
    texts = np.array([normal(record.question) for record in records], object)
    target = np.array([place_of[answers[number]] for number in kept])
    fold = np.array([_fold(record.picture) for record in records])
    if len({*fold}) < FOLDS:
        return {}
    rows = _rows(texts, target, fold)
    try:
        choice = simple.choose(_KIND, _FAMILY, rows, len(common), _SECONDS)
    except ValueError:  # no text has a word
        return {}
    settings = {"strength": choice.strength, "power": choice.power}
    gains = _right(records, fold, settings) - _right(records, fold, {})
    shown = [record.picture for record in records]
    is_sure = _surely_above(gains[:, None], shown, _LIKELY)
    return settings if is_sure[0] else {}


def _right(records: Sequence[Record], fold: np.ndarray, choice: Mapping[str, float]) -> np.ndarray:
    """Returns (records) 1 where `Words`, fitted to the other folds, answers a record exactly, else 0."""
    right = np.zeros(len(records))
    for number in range(FOLDS):
        others = [records[place] for place in np.flatnonzero(fold != number).tolist()]
        classifier = Words(pairs_of(others), choice)
        held_out = np.flatnonzero(fold == number)
        judged = [records[place] for place in held_out.tolist()]
        guesses = classifier.guesses([record.question for record in judged])
        answers = [record.answer for record in judged]
        right[held_out] = [*map(exact, answers, guesses)]
    return right


def _surely_above(gains: np.ndarray, pictures: Sequence[str], level: float) -> np.ndarray:
    """Returns (methods) whether the means of (records, methods) gains are surely above 0."""
    return _least(gains, pictures, level) > 0


def _least(gains: np.ndarray, pictures: Sequence[str], level: float) -> np.ndarray:
    """Returns (methods) lower ends of Student's paired intervals over pictures of (records, methods) gains."""
    names, unit, sizes = np.unique(pictures, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return np.full(gains.shape[1], -np.inf)
    sums = np.array([np.bincount(unit, column) for column in gains.T]).T  # (pictures, methods)
    whole = sums.sum(0)
    others = (whole - sums) / (len(gains) - sizes)[:, None]  # without each picture
    return least(whole / len(gains), others, level)


def _fold(picture: str) -> int:
    return int(hashlib.sha256(picture.encode()).hexdigest()[:8], 16) % FOLDS


def _rows(texts: np.ndarray, target: np.ndarray, fold: np.ndarray) -> simple.Rows:
    nothing = np.zeros((0, 0), np.float32)
    return simple.Rows("texts", texts, target, fold, len(texts), nothing, None)


def pairs_of(samples: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Returns the commonest answers, each with its commonest questions and their counts."""
    pairs = Counter[tuple[str, str]]()
    spelled = defaultdict[str, list[str]](list)
    for record in samples:
        answer = normal(record.answer)
        pairs[normal(record.question), answer] += 1
        spelled[answer].append(record.answer)
    by_count = sorted(spelled, key=lambda answer: (-len(spelled[answer]), answer))
    common = {*by_count[:_MOST_ANSWERS]}
    rows = sorted(pairs, key=lambda row: (-pairs[row], row))
    rows = [row for row in rows if row[1] in common][:_MOST_PAIRS]
    sizes = itertools.accumulate(len(json.dumps(row)) for row in rows)
    kept: dict[str, dict[str, int]] = {}
    for (question, answer), size in zip(rows, sizes, strict=True):
        if size <= _MOST_BYTES:
            kept.setdefault(commonest(spelled[answer]), {})[question] = pairs[question, answer]
    return kept


def likeliest(
    written: Sequence[Answer] | np.ndarray, weight: float, alone: float = 0.0
) -> np.ndarray:
    """Returns the best candidate for each question; among equals the first beam's."""
    best = []
    for answer in written:
        best.append(max(answer.candidates, key=lambda other: other.score(weight, alone)))
    return np.array(best, object)


def chosen_weight(
    right: Sequence[str] | np.ndarray,
    written: Sequence[Answer] | np.ndarray,
    pictures: Sequence[str],
    alone: float = 0.0,
) -> float:
    """Returns the network's weight: the first sure gain over the words' answers, if any, or a sure gain over that.

    A gain is sure if the lower end of Student's paired interval over pictures is above 0. So the network answers if it
    gains, unless a weight between both gains more. `alone` is a result of `chosen_alone`.
    """
    of_weight = []
    for weight in _WEIGHTS:
        of_weight.append([*map(exact, right, likeliest(written, weight, alone))])
    is_right = np.array(of_weight).T  # (questions, weights)
    place = 0
    while True:
        is_sure = _surely_above(is_right - is_right[:, [place]], pictures, _SURE)
        if not is_sure.any():
            return _WEIGHTS[place]
        place = int(is_sure.argmax())


def chosen_alone(
    right: Sequence[str] | np.ndarray, written: Sequence[Answer] | np.ndarray
) -> float:
    """Returns the share of the network without the picture beside the words' classifier: the most exact answers.

    Neither sees the picture, so that the better one is no reason for doubt.
    """
    values = []
    for share in SHARES:
        answers = likeliest(written, 0.0, share)
        values.append(sum(map(exact, right, answers)))
    return SHARES[int(np.argmax(values))]


def gain(
    right: np.ndarray, better: np.ndarray, worse: np.ndarray, pictures: Sequence[str]
) -> Interval:
    """Returns how many more answers of `better` are exact, with Student's paired interval over pictures."""
    gains = np.array([*map(exact, right, better)]) - np.array([*map(exact, right, worse)])
    both = np.stack([gains, -gains], 1)
    low, below = _least(both, pictures, _EACH_SIDE)
    return Interval(float(gains.mean()), float(low), float(-below))
