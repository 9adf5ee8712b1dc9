"""What is said of a method beside the strongest baseline, and how wide its interval is."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.bench import bench_verdicts
from tests.trainbook.supervised.tasks import Heights, Words
from tests.trainbook.supervised.test_methods import evaluated, rows_of
from trainbook.supervised import methods, scoring, verdict
from trainbook.supervised.intervals import Interval, of_gain, resampled
from trainbook.supervised.scoring import Judged
from trainbook.supervised.verdict import concluded

NOTHING = (math.nan, math.nan)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Interval(0.02, 0.01, 0.05), "'x' is surely above the strongest baseline, 'best', by m"),
        (Interval(-0.02, -0.05, -0.01), "'x' is surely below the strongest baseline, 'best', by m"),
        (Interval(0.02, -0.01, 0.05), "This test does not tell 'x' and the strongest baseline"),
        (Interval(-4e-4, -9e-4, -1e-4), "This test does not tell 'x' and the strongest"),
        (Interval(-0.02, *NOTHING), "'x' is beside the strongest baseline, 'best', by m: -0.020. m is slow."),
    ],
)  # fmt: skip
def test_a_verdict_is_surely_above_surely_below_or_not_told_apart(gain, words):
    text = concluded("'x'", "'best'", "m", gain, 30, "picture", "m is slow.")
    assert text.startswith(words)
    assert "picture alone" not in text
    assert math.isnan(gain.low) or "over draws of 30 pictures" in text


def test_one_unit_alone_is_said_of_one_unit_only():
    text = concluded("'x'", "best", "m", Interval(0.1, *NOTHING), 1, "scene")
    assert "There is one scene alone" in text


def test_it_says_how_many_more_units_tell_a_gain_apart_that_stays_and_they_do():
    """A gain of .01 with a deviation of .1 a unit: 80 % of tests with as many units as it says find it."""
    units = 100
    half = 1.96 * 0.1 / math.sqrt(units)
    text = concluded("'x'", "best", "m", Interval(0.01, 0.01 - half, 0.01 + half), units, "sample")
    assert "about 680 more samples tell it, four times in five" in text
    draw = np.random.default_rng(0)
    means = draw.normal(0.01, 0.1, (2000, 780)).mean(1)
    found = means - 1.96 * 0.1 / math.sqrt(780) > 0
    assert 0.77 < found.mean() < 0.83


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Interval(0.0, -0.1, 0.1), "paired."),
        (Interval(1e-9, -0.1, 0.1), "more than 30,000 samples to tell."),
        (
            Interval(0.1, -math.inf, math.inf),
            "They differ on one sample, and nothing says how far chance goes.",
        ),
    ],
)
def test_no_number_is_given_where_none_can_be_computed(gain, words):
    assert concluded("'x'", "best", "m", gain, 30, "sample").endswith(words)


def test_draws_of_few_units_that_differ_make_a_wide_interval():
    """Four units in favour, of a thousand: that happens by chance once in sixteen times."""
    for differing, is_sure in ((4, False), (8, True)):
        each = np.zeros((1000, 1))
        each[:differing] = 1.0
        draws = resampled(each, 2000)[:, 0] / 1000
        gain = of_gain(differing / 1000, draws, differing)
        assert (gain.low > 0) == is_sure
        assert np.percentile(draws, 2.5) >= gain.low
    assert of_gain(0.5, np.array([0.5]), 1).side == 0
    assert of_gain(0.0, np.zeros(9), 0) == (0, 0, 0)


def test_no_interval_reaches_further_than_the_metric_can():
    draws = np.array([-0.3, 0.0, 0.3])
    accuracy = of_gain(0.1, draws, 2, 0.995, scoring.largest_gain("accuracy"))
    assert (accuracy.low, accuracy.high) == (-1, 1)
    mcc = of_gain(0.1, draws, 2, 0.995, scoring.largest_gain("mcc"))
    assert (mcc.low, mcc.high) == (-2, 2)
    for metric in ("rmse", "r2", "log_loss"):
        assert of_gain(0.1, draws, 2, 0.995, scoring.largest_gain(metric)).high > 2


def test_of_equal_methods_hardly_one_in_forty_is_found_surely_above_and_of_better_ones_many():
    sides = [bench_verdicts.verdict(seed, 0.0, draws=300) for seed in range(120)]
    assert sum(side > 0 for side in sides) <= 3
    better = [bench_verdicts.verdict(seed, 0.2, draws=300) for seed in range(40)]
    assert sum(side > 0 for side in better) >= 12
    assert not sum(side < 0 for side in better)


def test_an_answer_that_says_the_same_as_the_simple_method_is_called_that_method(
    configured, words, tmp_path, few
):
    task = Words(configured("Words"), words)
    evaluated(task)
    network = task._tested["network"]
    answer = network._replace(guess=network.true)
    task._tested = {"network": network._replace(guess=1 - network.true), "answer": answer}
    task._beside = {"rule": answer.guess}
    text = task.report({}, tmp_path)
    assert "'answer' is 'rule' itself: both say the same of each of " in text
    assert "Do not use 'network' by itself: it is surely below 'rule', by macro_f1" in text
    assert "So the answer is not it" in text


def test_a_network_that_is_surely_below_is_not_to_be_used_and_the_reason_is_said(
    configured, words, tmp_path, few
):
    task = Words(configured("Words"), words)
    evaluated(task)
    true = task._tested["network"].true
    task._tested = {"network": task._tested["network"]._replace(guess=1 - true)}
    task._beside = {"rule": true}
    text = task.report({}, tmp_path)
    assert "'network' is surely below the strongest baseline, 'rule', by macro_f1" in text
    assert "Do not use it: take 'rule', or training.start_from_baseline: true" in text


def test_less_error_is_a_gain_in_the_table_the_heading_and_the_file(configured, tmp_path, few):
    task = Heights(configured("Heights"))
    evaluated(task)
    right = task._tested["network"]
    task._tested = {"network": right._replace(guess=right.true + 0.1)}
    task._beside = {"far": right.true + 5.0}
    text = task.report({}, tmp_path)
    rows = {row["method"]: row for row in rows_of(tmp_path / "evaluation.csv")}
    strongest = next(name for name, row in rows.items() if not float(row["gain_rmse"]))
    assert f"rmse less than {strongest!r}" in text
    for row in rows.values():
        less = float(rows[strongest]["rmse"]) - float(row["rmse"])
        assert float(row["gain_rmse"]) == pytest.approx(less, abs=3e-6)
    assert float(rows["network"]["gain_rmse"]) > float(rows["far"]["gain_rmse"])


def test_words_that_are_counted_by_pair_are_the_same_as_those_that_are_not():
    draw = np.random.default_rng(0)
    true, guess = draw.integers(0, 3, (2, 60))
    sample = np.repeat(np.arange(12), 5)
    one = Judged(true, guess, sample=sample)
    pairs, counts = np.unique(np.stack([sample, true, guess]), axis=1, return_counts=True)
    counted = Judged(pairs[1], pairs[2], counts, sample=pairs[0])
    assert methods._is_same(one, counted)
    unit = np.arange(12) // 2
    assert methods._differing(one, counted, unit, False) == 0
    other = guess.copy()
    other[[0, 1, 20]] = (guess[[0, 1, 20]] + 1) % 3
    changed = one._replace(guess=other)
    assert not methods._is_same(changed, counted)
    assert methods._differing(changed, counted, unit, False) == 2
    assert methods._differing(changed, one, unit, False) == 2


def test_a_number_of_units_is_called_by_their_name():
    assert verdict.named(1, "picture") == "1 picture"
    assert verdict.named(6000, "picture") == "6,000 pictures"


def test_the_strongest_simple_method_is_that_of_the_folds_whichever_is_best_on_the_test(
    configured, words, few
):
    task = Words(configured("Words"), words)
    task._simples = [SimpleNamespace(name=name) for name in ("by folds", "another")]
    evaluated(task)
    right = task._tested["network"]._replace(guess=task._tested["network"].true)
    wrong = right._replace(guess=1 - right.true)
    half = right._replace(guess=np.where(np.arange(len(right.true)) % 2, right.true, wrong.guess))
    rows = {"always the same": wrong, "another": right, "by folds": half}
    assert task._strongest(rows) == "by folds"
    assert task._strongest({**rows, "a rule": right}) == "a rule"


def test_numbers_that_differ_by_rounding_are_the_same_answer(configured, tmp_path):
    mean = np.full(30, 151.3333333333)
    true = mean + np.arange(30)
    task = Heights(configured("Heights"))
    rows = {
        "mean": Judged(true, mean, sample=np.arange(30)),
        "answer": Judged(true, mean.astype(np.float32).astype(float), sample=np.arange(30)),
    }
    compared = task._compared(rows, "mean", [*range(30)])
    gain = compared.gains["answer"][0]
    assert gain.low == gain.high == gain.value
    assert "'answer' is 'mean' itself" in task._concluded(compared, rows, "mean")
