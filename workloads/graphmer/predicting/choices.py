"""Questions with a few answers each and the answer that none is right, and weights that make them probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.graphmer.counts.ragged import offsets

SURE = 0.9
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
_SHRINKAGE = 0.3  # of the weights, in units of squared weight: what few questions say is not believed at once
_STEPS = 60  # of Newton's method at most
_OF_ANSWERS = ("question", "features", "entity", "relation")


@dataclass(frozen=True)
class Choices:
    """Q questions with N answers in all, and beside them the answer that none of these is right.

    `question` (N) is ascending, `features` (N, F) are those of answers and `of_none` (Q, F) those of none. `gold` (Q)
    is the place of the right answer among the N, -1 where none is right. `entity` and `relation` (N) are those of each
    answer, `reference` (Q) is the number of what is asked, and `of_object` (Q) says which are attributes of something
    that the text does not name.
    """

    question: np.ndarray
    features: np.ndarray
    of_none: np.ndarray
    gold: np.ndarray
    entity: np.ndarray
    relation: np.ndarray
    reference: np.ndarray
    of_object: np.ndarray

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def begin(self) -> np.ndarray:
        """(Q + 1) where the answers of each question begin."""
        return offsets(self.question, len(self))

    def __getitem__(self, chosen: np.ndarray) -> "Choices":
        """Returns the questions for which `chosen` (Q) is True."""
        answers = chosen[self.question]
        parts = {name: value[answers if name in _OF_ANSWERS else chosen] for name, value in vars(self).items()}
        number, place = np.cumsum(chosen) - 1, np.cumsum(answers) - 1
        gold = np.where(self.gold >= 0, place[self.gold], -1)[chosen]
        return Choices(**{**parts, "question": number[parts["question"]], "gold": gold})

    @classmethod
    def joined(cls, parts: Sequence["Choices"]) -> "Choices":
        answers = np.cumsum([0, *(len(part.question) for part in parts)])
        questions = np.cumsum([0, *(len(part) for part in parts)])
        together = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        question = [part.question + first for part, first in zip(parts, questions, strict=False)]
        gold = [np.where(p.gold >= 0, p.gold + first, -1) for p, first in zip(parts, answers, strict=False)]
        return cls(**{**together, "question": np.concatenate(question), "gold": np.concatenate(gold)})

    def probabilities(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(F) weights -> (N) the probability of each answer, (Q) that none is right."""
        scores, none = self.features @ weights, self.of_none @ weights
        most = none.copy()
        np.maximum.at(most, self.question, scores)
        part, rest = np.exp(scores - most[self.question]), np.exp(none - most)
        total = rest + np.bincount(self.question, part, len(self))
        return part / total[self.question], rest / total

    def loss(self, weights: np.ndarray) -> float:
        """Returns the mean of minus log of the probability of what is right."""
        of_answer, of_none = self.probabilities(weights)
        right = np.where(self.gold >= 0, of_answer[self.gold], of_none)
        return float(-np.log(np.maximum(right, 1e-12)).mean()) if len(self) else 0.0

    def first(self, weights: np.ndarray) -> np.ndarray:
        """Returns (Q) the place of the most probable answer of each question, -1 where it has none."""
        order, begin = np.lexsort((-(self.features @ weights), self.question)), self.begin
        has, first = np.diff(begin) > 0, np.full(len(self), -1)
        first[has] = order[begin[:-1][has]]
        return first

    def best(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (Q) the most probable answer of each question, -1: that none is right, and its probability."""
        of_answer, of_none = self.probabilities(weights)
        first, most = self.first(weights), np.full(len(self), -1.0)
        most[first >= 0] = of_answer[first[first >= 0]]
        return np.where(most > of_none, first, -1), np.maximum(most, of_none)

    def judged(self, weights: np.ndarray) -> dict[str, float]:
        """Returns the number of questions, how many answers are right, also of the sure ones, and calibration error.

        `resolved` is the share of right answers where one is right and another one competes, without the answer none.
        """
        place, probability = self.best(weights)
        right = np.where(self.gold >= 0, place == self.gold, place < 0)
        is_first = (self.first(weights) == self.gold)[(self.gold >= 0) & (np.diff(self.begin) > 1)]
        sure = probability >= SURE
        return {
            "number": len(self), "right": float(right.mean()),
            "resolved": float(is_first.mean()) if len(is_first) else float("nan"), "sure": float(sure.mean()),
            "right of the sure": float(right[sure].mean()) if sure.any() else float("nan"),
            "calibration error": calibration_error(probability, right),
        }  # fmt: skip


def fit(choices: Choices, start: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Returns the (F) weights with which the right answers are likeliest, near `start`; those not `free` stay there.

    The loss is convex, so Newton's method finds the one minimum: the same in every run.
    """
    weights = start.astype(float)
    if not len(choices) or not free.any():
        return weights
    answers, none = choices.features[:, free].astype(float), choices.of_none[:, free].astype(float)
    right = np.where((choices.gold >= 0)[:, None], answers[np.maximum(choices.gold, 0)] if len(answers) else 0.0, none)
    prior = _SHRINKAGE * np.eye(int(free.sum()))
    for _ in range(_STEPS):
        of_answer, of_none = choices.probabilities(weights)
        mean = of_none[:, None] * none
        np.add.at(mean, choices.question, of_answer[:, None] * answers)
        gradient = (mean - right).sum(0) + prior @ (weights - start)[free]
        spread = answers - mean[choices.question], none - mean
        hessian = prior + (spread[0] * of_answer[:, None]).T @ spread[0] + (spread[1] * of_none[:, None]).T @ spread[1]
        step = np.linalg.solve(hessian, gradient)
        step *= min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))  # far from the minimum a whole step overshoots
        weights[free] -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """(N) probabilities and whether each answer is right -> the mean gap of predicted and observed shares, by BINS.

    Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015.
    """
    place = np.clip(np.searchsorted(BINS, probability, "right") - 1, 0, len(BINS) - 2)
    gaps = np.bincount(place, probability) - np.bincount(place, right)
    return float(np.abs(gaps).sum() / max(1, len(right)))
