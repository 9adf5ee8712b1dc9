"""Batch norms need two values for each channel, in training alone."""

import pytest
import torch
from torch import nn

from lib.errors import BadInput, TrainingFailed
from lib.planner import search
from lib.planner.card import find_card
from lib.task import load_task
from lib.training import norms
from tests.toy import Net
from tests.training.test_loop import fit
from tests.training.test_step import run_in, tight
from trainbook.launch.checks import check

NORM = {"workload.batch_norm": True, "training.max_steps": 2}


def of_maps(task):
    """A model whose batch norm sees four values of each sample."""
    return Net(
        nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(4, 1)
    )


@pytest.mark.parametrize(
    ("before", "slot", "least", "size"),
    [
        (8, 8, 1, 4),
        (2, 8, 1, 1),
        (1, 8, 1, 0),
        (2, 8, 2, 0),
        (3, 8, 2, 2),
        (5, 5, 2, 3),
        (3, 5, 2, 0),
        (4, 7, 2, 0),
    ],
)
def test_a_smaller_micro_batch_leaves_no_piece_below_the_least(before, slot, least, size):
    assert norms.smaller(before, slot, least) == size


def test_memory_halves_down_to_two_where_a_model_has_batch_norms(
    toy, tmp_path, monkeypatch, capsys
):
    outcome = run_in(tmp_path / "two", toy(NORM), monkeypatch, loss=tight(2, training=True))
    assert outcome.state.micro_batch == 2
    assert outcome.reason == "completed"
    with pytest.raises(
        TrainingFailed, match="with 2 samples at once. The model has batch norms, whose statistics"
    ):
        run_in(tmp_path / "one", toy(NORM), monkeypatch, loss=tight(1, training=True))
    assert "repeated with one sample" not in capsys.readouterr().out


def test_memory_halves_down_to_one_where_a_model_has_none(toy, tmp_path, monkeypatch):
    outcome = run_in(
        tmp_path, toy({"training.max_steps": 2}), monkeypatch, loss=tight(1, training=True)
    )
    assert outcome.state.micro_batch == 1


@pytest.mark.parametrize(("micro_batch", "batch"), [(1, 8), (4, 5), (2, 5)])
def test_checks_training_and_plan_refuse_a_micro_batch_of_one_sample(
    toy, tmp_path, micro_batch, batch
):
    config = toy({**NORM, "training.micro_batch": micro_batch, "training.effective_batch": batch})
    with pytest.raises(
        BadInput, match="A batch norm got one value for each channel, in a micro-batch of 1 sample"
    ):
        check(config)
    with pytest.raises(
        BadInput, match=f"training.micro_batch is {micro_batch}, and a slot has {batch} samples"
    ):
        fit(config, tmp_path)
    if micro_batch == 1:
        with pytest.raises(BadInput, match="Its variance needs two"):
            search.make(config, find_card("t4"))


def test_one_sample_of_several_values_is_trained(toy, tmp_path, monkeypatch):
    config = toy({"training.micro_batch": 1, "training.max_steps": 2})
    monkeypatch.setattr(type(load_task(config)), "model", of_maps)
    check(config)
    assert fit(config, tmp_path).reason == "completed"


def test_a_plan_tries_no_size_that_leaves_one_sample(toy):
    sizes = search._Search(
        toy({**NORM, "training.effective_batch": 7, "training.micro_batch_slots": 1}),
        find_card("t4"),
        1,
    )._sizes
    assert sizes == [4, 7]
    assert search.even_sizes(7) == [1, 2, 3, 4, 7]


def test_a_norm_in_evaluation_mode_needs_nothing():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    assert norms.has_batch_norms(model)
    assert not norms.has_batch_norms(model.eval())
    assert torch.is_tensor(model(torch.ones(1, 2)))
