"""Probabilities of open references: as many answers are right as are promised, on trees that were not fitted on."""

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest

from tests.bench.bench_graphmer_open import calibration_error, fitted
from workloads.codegraph.follow import BEFORE
from workloads.graphmer import promises
from workloads.graphmer.choices import probabilities
from workloads.graphmer.promises import OF_ANSWER, OF_TOP, Weights

TRUE = {
    "log probability": 0.8, "builtin": 1.5, "same file": 2.0, "none": -0.5, "none by answers": 0.4,
}  # fmt: skip


@cache
def drawn(seed, number=900):
    """Answers of a tree; what is right was drawn by TRUE, which is not what the run's own probability says."""
    random = np.random.default_rng(seed)
    question = np.repeat(np.arange(number), 1 + random.integers(0, 6, number))
    table = pd.DataFrame(0.0, np.arange(len(question)), OF_ANSWER).assign(question=question)
    is_none = ~table["question"].duplicated().to_numpy()
    kind = random.integers(0, 3, len(table))
    table["none"] = is_none.astype(float)
    table["log probability"] = -random.exponential(2.0, len(table))
    table["none by answers"] = is_none * np.log1p(
        table.groupby("question")["none"].transform("size") - 1
    )
    for place, name in enumerate(("builtin", "in the tree")):
        table[name] = (~is_none & (kind == place)).astype(float)
    table["same file"] = table["in the tree"] * random.integers(0, 2, len(table))
    table["kind"] = np.where(
        is_none, "none", np.array(["builtin", "in the tree", "elsewhere"])[kind]
    )
    table["before"] = np.array(BEFORE)[random.integers(0, len(BEFORE), number)][question]
    table["of_object"] = table["before"] != "bare"
    shares = probabilities(table, np.array([TRUE.get(name, 0.0) for name in OF_ANSWER]), OF_ANSWER)
    place = random.random(number)[question]
    behind = shares.groupby(question).cumsum()
    return table.assign(right=(behind - shares <= place) & (place < behind))


@cache
def weights():
    return fitted({"one": drawn(0, 2500), "two": drawn(1, 2500)})


def test_of_answers_at_90_percent_as_many_are_right_on_another_tree():
    top = promises.tops(drawn(2, 12_000), weights().answer)
    chance = promises.chance_of(promises.log_odds(top, weights()))
    right = top["right"].to_numpy(float)
    assert chance.mean() == pytest.approx(right.mean(), abs=0.02)
    assert calibration_error(chance, right) < 0.04
    near = (chance >= 0.87) & (chance < 0.93)
    assert near.sum() > 300
    assert 0.88 <= right[near].mean() <= 0.93


def test_judged_references_move_a_promise_to_what_is_right_and_none_do_not():
    top = promises.tops(drawn(3), weights().answer)
    odds = promises.log_odds(top, weights()) + 1.0  # a tree that is harder than it looks
    right = top["right"].to_numpy(float)
    moved = odds + promises.shift(odds[:100], right[:100])

    def off(values):
        return abs(promises.chance_of(values[100:]).mean() - right[100:].mean())

    assert off(odds) > 0.1
    assert off(moved) < off(odds) / 2
    assert promises.shift(odds[:0], right[:0]) == 0
    assert abs(promises.shift(odds[:2], np.zeros(2))) < 2, "two of them do not move it far"


def test_a_top_answer_is_that_of_most_weight_and_knows_its_rivals():
    table = drawn(4, 300)
    top = promises.tops(table, weights().answer)
    chance = probabilities(table, weights().answer, OF_ANSWER)
    most = chance.groupby(table["question"]).max().to_numpy()
    assert promises.chance_of(top["log odds"].to_numpy()) == pytest.approx(most, abs=2e-4)
    answers = table.groupby("question").size() - 1
    assert np.expm1(top["answers"].to_numpy()) == pytest.approx(answers.to_numpy())
    alone = top[answers.to_numpy() == 0]
    assert len(alone)
    assert (alone["none"] == 1).all()


def test_the_weights_of_the_package_are_of_all_features_and_name_their_origin():
    found = Weights.read()
    assert np.isfinite([*found.answer, *found.top, found.bias]).all()
    content = json.loads(promises.WEIGHTS.read_text())
    assert list(content["answer"]) == OF_ANSWER
    assert list(content["top"]) == OF_TOP
    assert "bench_graphmer_open RUN --fit" in content["about"]
