"""Variants of a run side by side, and what each memory profile makes of it."""

import pytest

from lib import planner, text
from lib.config import profiles
from lib.notebook import variants


def cells(table):
    return {line.split("  ")[0]: line.split() for line in table.splitlines()}


def test_a_row_a_variant_says_how_the_batch_is_split_and_what_it_takes(toy):
    config = toy({"training.epochs": 3, "training.max_steps": 0})
    table = variants.table(config, {"whole": {}, "halves": {"training.micro_batch": 4}}, "t4", [1000, 1_000_000])
    rows = cells(table)
    assert "3 epochs of 1,000,000" in table and "One T4 with" in table
    assert rows["whole"][1:4] == ["8", "x", "1"] and rows["halves"][1:4] == ["4", "x", "2"]


def test_shorter_inputs_take_less_time_and_no_less_memory(toy):
    config, ways = toy(), {"one": {}}
    whole, half = (cells(variants.table(config, ways, "t4", [10**9], share))["one"] for share in (1.0, 0.5))
    assert whole[5] == half[5]  # GiB
    hours = [int(row[-1].split(":")[0]) for row in (whole, half)]
    assert hours[1] == pytest.approx(hours[0] / 2, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, 3), ({"checkpoint.lightweight": True}, 1), ({"optimizer.name": "sgd"}, 2),
        ({"training.ema_decay": 0.9}, 4),
    ],
)  # fmt: skip
def test_a_checkpoint_has_the_average_and_what_the_optimizer_keeps_unless_it_is_lightweight(toy, changes, numbers):
    config = toy(changes)
    option = planner.as_configured(config, planner.find_card("t4"))
    wanted = text.amount(4 * numbers * option.prediction.parameters)
    assert wanted in variants.table(config, {"one": {}}, "t4", [1])


def test_the_profiles_are_shown_key_by_key_with_what_they_really_set(toy):
    rows = {line.split()[0]: line.split()[1:] for line in variants.of_profiles(toy(), True).splitlines()[1:]}
    names = list(profiles.names())
    assert rows["training.micro_batch"][1 + names.index("ultra_low")] == "4"
    assert rows["training.precision"][1 + names.index("optimized")] == "fp16"
    assert "optimizer.lr" not in rows
    without = {line.split()[0] for line in variants.of_profiles(toy(), False).splitlines()[1:]}
    assert "training.precision" not in without
