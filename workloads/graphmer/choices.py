"""Questions with competing answers, and the weights that make probabilities of the answers' features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.graphmer.settings import Array

SURE = 0.9
_SHRINKAGE = 0.3  # of the weights, in units of squared weight: what few questions say is not believed at once
_STEPS = 60  # of Newton's method at most


@dataclass(frozen=True)
class Choices:
    """Q questions with N answers in all, of which the first of each question is that none is right.

    `question` (N) is ascending, `features` (N, F), `entity` (N, -1: none) and `relation` (N) are those of answers.
    `gold` (Q) is the place of the right answer among the N, `reference` (Q) the number of what is asked, and
    `of_object` (Q) says which are attributes of something that the text does not name.
    """

    question: Array
    features: Array
    entity: Array
    relation: Array
    gold: Array
    reference: Array
    of_object: Array

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def begin(self) -> Array:
        """(Q) where the answers of each question begin."""
        return np.searchsorted(self.question, np.arange(len(self)))

    def __getitem__(self, chosen: Array) -> "Choices":
        """Returns the questions for which `chosen` (Q) is True."""
        answers = chosen[self.question]
        of_answers = (value[answers] for value in (self.features, self.entity, self.relation))
        question, gold = (np.cumsum(chosen) - 1)[self.question[answers]], (np.cumsum(answers) - 1)[self.gold[chosen]]
        return Choices(question, *of_answers, gold, self.reference[chosen], self.of_object[chosen])

    @classmethod
    def joined(cls, parts: Sequence["Choices"]) -> "Choices":
        answers = np.cumsum([0, *(len(part.question) for part in parts)])
        questions = np.cumsum([0, *(len(part) for part in parts)])
        together = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
        together["question"] += np.repeat(questions[:-1], np.diff(answers))
        together["gold"] += np.repeat(answers[:-1], np.diff(questions))
        return cls(**together)

    def probabilities(self, weights: Array) -> Array:
        """(F) weights -> (N) the probability of each answer."""
        scores, begin = self.features @ weights, self.begin
        part = np.exp(scores - np.maximum.reduceat(scores, begin)[self.question])
        return part / np.add.reduceat(part, begin)[self.question]

    def loss(self, weights: Array) -> float:
        """Returns the mean of minus log of the probability of what is right."""
        return float(-np.log(np.maximum(self.probabilities(weights)[self.gold], 1e-12)).mean()) if len(self) else 0.0

    def best(self, scores: Array) -> Array:
        """(N) scores of answers -> (Q) the place of the best answer of each question."""
        return np.lexsort((-scores, self.question))[self.begin]

    def judged(self, weights: Array) -> tuple[float, float]:
        """Returns the share of right answers: of all, and of those given SURE or more, NaN where none is."""
        probabilities = self.probabilities(weights)
        place = self.best(probabilities)
        right, sure = place == self.gold, probabilities[place] >= SURE
        return float(right.mean()), float(right[sure].mean()) if sure.any() else float("nan")


def fit(choices: Choices, start: Array, free: Array) -> Array:
    """Returns (F) weights of most likelihood near `start`, of which those not `free` stay, by Newton's method."""
    weights = start.astype(float)
    if not len(choices) or not free.any():
        return weights
    features, begin, prior = choices.features[:, free], choices.begin, _SHRINKAGE * np.eye(int(free.sum()))
    for _ in range(_STEPS):
        shares = choices.probabilities(weights)[:, None]
        mean = np.add.reduceat(shares * features, begin)
        gradient = (mean - features[choices.gold]).sum(0) + prior @ (weights - start)[free]
        spread = features - mean[choices.question]
        step = np.linalg.solve(prior + (spread * shares).T @ spread, gradient)
        step *= min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))  # far from the minimum a whole step overshoots
        weights[free] -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights
