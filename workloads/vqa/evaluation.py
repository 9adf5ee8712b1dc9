"""Judges answers: rules without pictures, and words alone beside the network."""

import contextlib
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from lib.report.progress import working
from lib.scores import least
from lib.supervised.text import commonest, exact, normal, words
from workloads.vqa.data import Record
from workloads.vqa.tokens import Answer

NETWORK, WORDS = "network alone", "by words"  # rows of the tables
_RULES = {"by question type": lambda record: record.kind, "by question": lambda record: normal(record.question)}
OFFERED = 4  # likeliest training answers, which the network judges beside its own
_LEAST = 1e-3  # probability of an answer that the words speak against, or that is not among the training's
_WEIGHTS = (0.0, 1.0, 0.75, 0.5, 0.25, 0.125, 0.0625)  # of the network, in the order in which they are tried
_SURE = 0.995  # of one side: every validation of a run asks
_MOST_ANSWERS, _MOST_PAIRS = 200, 20_000  # commonest answers and questions with one, of which the words learn
_MOST_BYTES = 6 * 2**20  # of these, as every checkpoint has them
_FEW = 2000  # pairs, of which words that stand in one alone are learned too


class Words:
    """A linear classifier of the words of a question, one to three in a row, over training answers."""

    def __init__(self, pairs: Mapping[str, Mapping[str, int]]):
        """Fits it to what `pairs_of` returned."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import RidgeClassifier
        from sklearn.pipeline import make_pipeline

        rows = [(question, answer, count) for answer, each in pairs.items() for question, count in each.items()]
        questions, answers, counts = zip(*sorted(rows, key=lambda row: (-row[2], row)), strict=True)
        self.answers, self._model = sorted(pairs), None
        self._places = {normal(answer): place for place, answer in enumerate(self.answers)}
        self._usual = np.array([[sum(pairs[answer].values()) for answer in self.answers]]) / sum(counts)
        few = 1 if len(questions) <= _FEW else 2
        vectors = TfidfVectorizer(ngram_range=(1, 3), tokenizer=words, token_pattern=None, lowercase=False, min_df=few)
        # 6 s for 12,000 questions with 200 answers, for which a logistic regression takes 45
        model = make_pipeline(vectors, RidgeClassifier(solver="sparse_cg", tol=1e-3))
        with working("Learning what questions alone answer"), contextlib.suppress(ValueError):  # one answer, no words
            self._model = model.fit(questions, answers, ridgeclassifier__sample_weight=counts)

    def shares(self, questions: Sequence[str]) -> np.ndarray:
        """Returns (questions, answers) probabilities: least squares on -1 and 1 estimate them."""
        if self._model is None:
            return self._usual.repeat(len(questions), 0).astype(np.float32)
        scores = self._model.decision_function(list(map(normal, questions)))
        scores = np.stack([-scores, scores], 1) if scores.ndim == 1 else scores  # of two answers
        shares = np.clip((1 + scores) / 2, _LEAST, 1)
        return (shares / shares.sum(1, keepdims=True)).astype(np.float32)

    def guesses(self, questions: Sequence[str]) -> list[str]:
        return [self.answers[place] for place in self.shares(questions).argmax(1)]

    def candidates(self, answers: Sequence[tuple[Answer, float]], shares: Sequence[float]) -> list[Answer]:
        """Returns the different ones of answers, which the network gave logarithms, with those of the words' shares."""
        different: dict[str, Answer] = {}
        for answer, log in answers:
            place = self._places.get(text := normal(answer))
            answer.network, answer.words = log, math.log(_LEAST if place is None else shares[place])
            different.setdefault(text, answer)  # another reasoning for the same
        return [*different.values()]


def pairs_of(samples: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Returns the commonest answers, each with its commonest questions and how often these came with it."""
    pairs = Counter((normal(record.question), normal(record.answer)) for record in samples)
    spelled: dict[str, list[str]] = {}
    for record in samples:
        spelled.setdefault(normal(record.answer), []).append(record.answer)
    common = {*sorted(spelled, key=lambda answer: (-len(spelled[answer]), answer))[:_MOST_ANSWERS]}
    rows = sorted((row for row in pairs if row[1] in common), key=lambda row: (-pairs[row], row))[:_MOST_PAIRS]
    sizes = itertools.accumulate(len(json.dumps(row)) for row in rows)
    kept: dict[str, dict[str, int]] = {}
    for (question, answer), size in zip(rows, sizes, strict=True):
        if size <= _MOST_BYTES:
            kept.setdefault(commonest(spelled[answer]), {})[question] = pairs[question, answer]
    return kept


def likeliest(written: Sequence[Answer], weight: float) -> np.ndarray:
    """Returns the best candidate for each question, of the first answers in the order of the beams."""
    return np.array([max(answer.candidates, key=lambda other: other.score(weight)) for answer in written], object)


def chosen_weight(right: Sequence[str], written: Sequence[Answer], pictures: Sequence[str]) -> float:
    """Returns the network's weight: the first one surely above the words' answers, if any, or one surely above that.

    Surely: the lower end of Student's paired interval over pictures is above 0. So the network alone answers where it
    gains, unless a weight between both gains more.
    """
    names, unit, sizes = np.unique(pictures, return_inverse=True, return_counts=True)
    guesses = (likeliest(written, weight) for weight in _WEIGHTS)
    each = [[exact(*pair) for pair in zip(right, guess, strict=True)] for guess in guesses]
    sums = np.array([np.bincount(unit, row) for row in each]).T  # (pictures, weights)
    place = 0
    while len(names) > 1:
        gains = sums - sums[:, [place]]
        whole = gains.sum(0)
        others = (whole - gains) / (len(right) - sizes)[:, None]  # without each picture
        is_sure = least(whole / len(right), others, _SURE) > 0
        if not is_sure.any():
            break
        place = int(is_sure.argmax())
    return _WEIGHTS[place]


def by_rules(train: Sequence[Record], records: Sequence[Record]) -> dict[str, list[str]]:
    """Returns what the training records mostly answer to a question's type, and to the question, else to its type."""
    guesses, rows = [commonest(record.answer for record in train)] * len(records), {}
    for name, key in _RULES.items():
        groups = defaultdict[str, list[str]](list)
        for record in train:
            groups[key(record)].append(record.answer)
        usual = {asked: commonest(answers) for asked, answers in groups.items()}
        guesses = [usual.get(key(record), guess) for record, guess in zip(records, guesses, strict=True)]
        rows[name] = guesses
    return rows
