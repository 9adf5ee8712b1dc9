"""Questions with a few answers each, of which one is right or none is, and probabilities that were fitted to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.graphmer.ragged import offsets

_SHRINKAGE = 0.3  # of the weights, in units of squared weight: what few questions say is not believed at once
_STEPS = 60  # of Newton's method at most
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Choices:
    """Q questions with N answers in all, and beside them the answer that none of these is right.

    `question` (N) is ascending, `features` (N, F) are those of answers and `of_none` (Q, F) those of none. `gold` (Q)
    is the place of the right answer among the N, -1 where none is right.
    """

    question: np.ndarray
    features: np.ndarray
    of_none: np.ndarray
    gold: np.ndarray

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def begin(self) -> np.ndarray:
        """(Q + 1) where the answers of each question begin."""
        return offsets(self.question, len(self))

    def __getitem__(self, chosen: np.ndarray) -> "Choices":
        """Returns the questions for which `chosen` (Q) is True."""
        kept = chosen[self.question]
        number, place = np.cumsum(chosen) - 1, np.cumsum(kept) - 1
        gold = np.where(self.gold >= 0, place[self.gold], -1)[chosen]
        return Choices(number[self.question[kept]], self.features[kept], self.of_none[chosen], gold)

    @classmethod
    def joined(cls, parts: Sequence["Choices"]) -> "Choices":
        answers = np.cumsum([0, *(len(part.question) for part in parts)])
        questions = np.cumsum([0, *(len(part) for part in parts)])
        return cls(
            np.concatenate([part.question + q for part, q in zip(parts, questions, strict=False)]),
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.of_none for part in parts]),
            np.concatenate([np.where(p.gold >= 0, p.gold + a, -1) for p, a in zip(parts, answers, strict=False)]),
        )

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
        order = np.lexsort((-(self.features @ weights), self.question))
        begin = self.begin
        found = np.full(len(self), -1)
        has = np.diff(begin) > 0
        found[has] = order[begin[:-1][has]]
        return found

    def best(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (Q) the most probable answer of each question, -1: that none is right, and its probability."""
        of_answer, of_none = self.probabilities(weights)
        first = self.first(weights)
        most = np.full(len(self), -1.0)
        most[first >= 0] = of_answer[first[first >= 0]]
        return np.where(most > of_none, first, -1), np.maximum(most, of_none)


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
