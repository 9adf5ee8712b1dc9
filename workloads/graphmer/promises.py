"""Probabilities of answers for open references, by weights that were fitted on open references of other trees.

The weights that a run fits (`choices`) are of known references, which are hidden in turn. Open references are other
ones: fewer are of entities of the tree and more of none that is known, so that those weights promise too much. What
open references mean was judged by jedi, in trees of installed packages; tests/bench/graphmer_open.py fits WEIGHTS, and
its record says how well they hold on trees that were left out.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workloads.codegraph.follow import BEFORE
from workloads.graphmer.choices import best, probabilities
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.settings import OF_REFERENCES, Array

WEIGHTS = Path(__file__).with_name("open_references.json")
_LEAST = 1e-4  # a probability's distance from 0 and 1
_KINDS = ("in the tree", "builtin", "elsewhere")
# Of an answer, or of that none is right: a softmax of their sums is over the answers of a question
OF_ANSWER = [
    "log probability", *OF_REFERENCES, "in the tree", "builtin", "mentions in the tree", "mentions of a builtin",
    "mentions elsewhere", "none beside the tree's", "none beside builtins", "none by answers", "none after a call",
    "none after super", "none of a bare name",
]  # fmt: skip
# Of the top answer of a question: a logistic function of their sum is its probability
OF_TOP = [
    "log odds", "log odds over the second", "none", "none beside the tree's", "none beside builtins",
    "none beside others", "in the tree", "builtin", "elsewhere", "the tree's only one", "answers of the tree",
    "answers elsewhere", "answers", "mentions in the tree", "mentions elsewhere", "of an object",
    *(f"before it: {kind}" for kind in BEFORE),
    "dotted function", "owner before", "imported", "same file", "log odds of none", "log odds of a builtin",
]  # fmt: skip
_STIFFNESS = (
    2.0  # of a tree's own shift: as much as twelve references weigh, so that few do not move it far
)
_STEPS = 50  # at most, by Newton's method


@dataclass(frozen=True)
class Weights:
    """Weights of OF_ANSWER, of OF_TOP, and the log odds for OF_TOP of 0."""

    answer: Array
    top: Array
    bias: float

    @classmethod
    def read(cls) -> "Weights":
        found = json.loads(WEIGHTS.read_text("utf-8"))
        answer = np.array([found["answer"][name] for name in OF_ANSWER])
        top = np.array([found["top"][name] for name in OF_TOP])
        return cls(answer, top, found["bias"])


def described(choices: pd.DataFrame, corpus: Corpus, in_tree: Array, before: Array) -> pd.DataFrame:
    """Returns choices, which have a run's own `probability`, with OF_ANSWER, kind and before.

    `in_tree` (entities) are those that the tree defines, and `before` (rows) has one of `follow.BEFORE` for each.
    """
    entity = choices["entity"].to_numpy()
    is_none = entity < 0
    masks = {"in the tree": ~is_none & in_tree[entity]}
    is_builtin = corpus.package[entity] == corpus.word_index("builtins")
    masks["builtin"] = ~is_none & is_builtin
    masks["elsewhere"] = ~(is_none | masks["in the tree"] | masks["builtin"])
    question = pd.factorize(choices["question"])[0]
    numbers = {name: np.bincount(question, masks[name])[question] for name in _KINDS}
    count = np.bincount(corpus.tail, minlength=len(in_tree))
    mentions = np.log1p(count[entity])
    values = {
        "log probability": np.log(choices["probability"].clip(lower=_LEAST)),
        "in the tree": masks["in the tree"],
        "builtin": masks["builtin"],
        "mentions in the tree": mentions * masks["in the tree"],
        "mentions of a builtin": mentions * masks["builtin"],
        "mentions elsewhere": mentions * masks["elsewhere"],
        "none beside the tree's": is_none & (numbers["in the tree"] > 0),
        "none beside builtins": is_none & (numbers["builtin"] > 0),
        "none by answers": is_none * np.log1p(sum(numbers.values())),
        "none after a call": is_none & (before == "call"),
        "none after super": is_none & (before == "super"),
        "none of a bare name": is_none & (before == "bare"),
    }
    features = {name: np.asarray(value, float) for name, value in values.items()}
    kinds = np.select([masks[name] for name in _KINDS], _KINDS, "none")
    return choices.assign(**features, kind=kinds, before=before)


def tops(choices: pd.DataFrame, weights: Array) -> pd.DataFrame:
    """Returns a row of the top answer of each question, in their order, with OF_TOP; weights are of OF_ANSWER."""
    chance = probabilities(choices, weights, OF_ANSWER)
    rows = best(choices, chance)
    by_question = choices.groupby("question")
    second = chance.drop(rows).groupby(choices["question"].drop(rows)).max()
    top = choices.loc[rows].set_index("question", drop=False)
    chance = pd.Series(chance[rows].to_numpy(), top.index).clip(_LEAST, 1 - _LEAST)
    second = second.reindex(top.index).fillna(_LEAST).clip(lower=_LEAST)
    of_tree = by_question["in the tree"].sum()
    answers = by_question.size() - 1
    elsewhere = answers - of_tree - by_question["builtin"].sum()
    log_odds = np.log(chance / (1 - chance))
    features = {
        "log odds": log_odds,
        "log odds over the second": np.log(chance / second),
        "none beside others": top["none"] * (elsewhere > 0),
        "elsewhere": top["kind"] == "elsewhere",
        "the tree's only one": top["in the tree"] * (of_tree == 1),
        "answers of the tree": np.log1p(of_tree),
        "answers elsewhere": np.log1p(elsewhere),
        "answers": np.log1p(answers),
        "of an object": top["of_object"],
        "log odds of none": log_odds * top["none"],
        "log odds of a builtin": log_odds * top["builtin"],
    }
    features |= {f"before it: {kind}": top["before"] == kind for kind in BEFORE}
    top = top.assign(**{name: value.astype(float) for name, value in features.items()})
    return top.reset_index(drop=True)


def log_odds(top: pd.DataFrame, weights: Weights) -> Array:
    """(Q) top answers -> (Q) the log odds that they are right."""
    return top[OF_TOP].to_numpy() @ weights.top + weights.bias


def chance_of(log_odds: Array) -> Array:
    return 1 / (1 + np.exp(-log_odds))


def shift(log_odds: Array, right: Array) -> float:
    """Returns the shift of log odds with which they promise the share of right answers; 0 without answers."""
    added = 0.0
    for _ in range(_STEPS):
        chance = chance_of(log_odds + added)
        slope = (right - chance).sum() - _STIFFNESS * added
        step = slope / ((chance * (1 - chance)).sum() + _STIFFNESS)
        added += step
        if abs(step) < 1e-9:
            break
    return float(added)
