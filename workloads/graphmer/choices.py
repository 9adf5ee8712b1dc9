"""Questions with competing answers as a table, and the weights that make probabilities of the answers' features.

A row is an answer of a question: `question` (its rows stand together), `right`, and the features OF_REFERENCES.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workloads.graphmer.settings import OF_REFERENCES, Array

SURE = 0.9
_SHRINKAGE = 0.3  # weight of the squared weights: few questions do not move them far
_STEPS = 60  # at most, by Newton's method


def probabilities(
    choices: pd.DataFrame, weights: Array, features: Sequence[str] = OF_REFERENCES
) -> pd.Series:
    """Returns the probability of each answer by weights (F): a softmax over its question's answers."""
    scores = pd.Series(choices[list(features)].to_numpy() @ weights, choices.index)
    part = np.exp(scores - scores.groupby(choices["question"]).transform("max"))
    return part / part.groupby(choices["question"]).transform("sum")


def best(choices: pd.DataFrame, values: pd.Series) -> pd.Index:
    """Returns the row of the answer with the largest value for each question; NaN counts as the smallest."""
    by_question = values.fillna(-1.0).groupby(choices["question"])
    return pd.Index(by_question.idxmax())


def fit(choices: pd.DataFrame, start: Array) -> Array:
    """Returns (F) the most likely weights near `start`, by Newton's method."""
    weights = start.astype(float)
    features = choices[OF_REFERENCES].to_numpy()
    number = pd.factorize(choices["question"])[0]
    right = choices["right"].to_numpy()
    begin = np.flatnonzero(np.diff(number, prepend=-1))
    prior = _SHRINKAGE * np.eye(len(start))
    of_right = features[right].sum(0)
    for _ in range(_STEPS):
        shares = probabilities(choices, weights).to_numpy()[:, None]
        mean = np.add.reduceat(shares * features, begin)
        gradient = mean.sum(0) - of_right + prior @ (weights - start)
        spread = features - mean[number]
        curvature = prior + (spread * shares).T @ spread
        step = np.linalg.solve(curvature, gradient)
        largest = float(np.abs(step).max())
        # far from the minimum a whole step overshoots
        step *= min(1.0, 2.0 / max(1e-12, largest))
        weights -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights
