"""Figures of ranks: means over the questions of each condition, as metrics of an evaluation."""

import itertools

import numpy as np

from lib.supervised import Judged
from workloads.graphmer.settings import CONDITIONS, Array

KINDS = ("", "trained_")  # of candidates: all that the ontology allows, the tails that training has
MEANS = (*(f"mrr_{kind}{condition}" for kind in KINDS for condition in CONDITIONS), "resolved")


def each(judged: Judged) -> Array:
    """(Q, MEANS) what MEANS are the means of; NaN where a question does not count.

    Of Q questions `true` has the conditions. `guess` (Q, 3) has the right tail's rank among the entities that the
    ontology lets the relation have, and among the tails that training has with it. The last one is 1 if the right
    entity is the first of its name, a part if it shares that place, and NaN if no other candidate has the name.
    """
    counts = np.where(judged.true[:, None] == np.arange(len(CONDITIONS)), 0.0, np.nan)
    ranks, first = 1 / judged.guess[:, : len(KINDS), None], judged.guess[:, -1:]
    return np.concatenate([(ranks + counts[:, None]).reshape(len(counts), -1), first + counts[:, :1]], 1)


def summed(values: Array, unit: Array, units: int) -> Array:
    """(Q, M) values and their units -> (units, 2, M) sums, and how many values there are that are not NaN."""
    sums = np.zeros((units, 2, values.shape[1]))
    np.add.at(sums, unit, np.stack([np.nan_to_num(values), ~np.isnan(values)], 1))
    return sums


def means(sums: Array) -> Array:
    """(..., 2, M) what `summed` returns -> (..., M); 0 where there are no values."""
    return sums[..., 0, :] / np.maximum(sums[..., 1, :], 1)


def figures(judged: Judged) -> dict[str, float]:
    """Returns MEANS, Hits@1, 3 and 10, and as `mrr` the mean of all MRRs: one number, steadier than each of them."""
    whole = means(summed(each(judged), np.zeros(len(judged.true), int), 1)[0]).tolist()
    scores = {"mrr": sum(whole[:-1]) / len(whole[:-1]), **dict(zip(MEANS, whole, strict=True))}
    for (number, condition), (place, kind) in itertools.product(enumerate(CONDITIONS), enumerate(KINDS)):
        ranks = judged.guess[judged.true == number, place]
        scores |= {f"hits{k}_{kind}{condition}": float((ranks <= k).sum() / max(1, len(ranks))) for k in (1, 3, 10)}
    return scores


class Figure:
    """One of `figures` as a metric."""

    def __init__(self, name: str):
        self.__name__ = name

    def __call__(self, true: Array, guess: Array) -> float:
        return figures(Judged(true, guess))[self.__name__]
