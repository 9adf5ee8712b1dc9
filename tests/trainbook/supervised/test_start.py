"""The simple method beside the network, and answers that start from it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Following, Words
from tests.trainbook.supervised.test_methods import Pages, rows_of
from trainbook import launch

pytestmark = pytest.mark.usefixtures("quick", "few")
STARTS = {"training.start_from_baseline": True}


def test_the_samples_of_a_group_share_a_fold(configured, words):
    task = Pages(configured("Words"), words)
    part = task.parts["train"]
    folds = [part.fold(index) for index in range(len(part))]
    pages = [task.group(sample) for sample in part.samples]
    assert len({*zip(pages, folds, strict=True)}) == len({*pages})
    assert len({*folds}) > 1


def test_a_run_that_starts_from_the_simple_method_says_which_answers_and_learns_as_it_does_without(
    configured, words
):
    options = {"data.dir": str(words), "training.max_steps": 4}
    without = launch.train(configured("Words", {**options, "run.name": "without"}))
    alone = launch.train(configured("Words", {**options, **STARTS, "run.name": "alone"}))
    assert "The gate is " in alone.report
    assert "'answer'" in alone.report
    assert "gate" not in without.report
    plain, started = (
        load_file(Path("runs", name, "checkpoints/step-00000004/model.safetensors"))
        for name in ("without", "alone")
    )
    powers = [tensors.pop("probability_powers") for tensors in (plain, started)]
    assert powers[0][1] == powers[1][1], "of the network"
    assert plain
    assert all(torch.equal(started[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("name", ["Heights", "Tags", "Topics"])
def test_every_other_kind_starts_and_has_the_simple_method_beside_the_answer(configured, name):
    summary = launch.train(configured(name, STARTS))
    rows = {row["method"]: row for row in rows_of(Path("runs/small/evaluation.csv"))}
    *_, network, answer = rows
    assert network == "network"
    assert answer == "answer"
    assert not summary.missing
    scores = {
        row: [value for key, value in columns.items() if key != "method" and "gain" not in key]
        for row, columns in rows.items()
    }
    beside = [scores[row] for row in rows if row not in (network, answer)]
    assert "The gate is open" in summary.report or scores[answer] in beside


def test_what_cannot_start_from_a_simple_method_is_refused_with_the_reason(configured):
    class Own(Words):
        def combined(self, model, outputs, part):
            return {}

    for make, why in (
        (lambda: Own(configured("Words", STARTS)), "not for Own, which has its own `combined`"),
        (
            lambda: Following(configured("Following", STARTS)),
            "not for Following, whose kind is 'next_tokens'",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            make()
