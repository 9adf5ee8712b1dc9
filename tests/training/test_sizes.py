"""Bytes of states that are divided among ranks, counted as FSDP2 lays them out."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from lib.ranks import sharding
from lib.task import load_task
from lib.training.optimization import make_moments
from lib.training.sizes import saved_bytes, sharded_bytes
from lib.training.state import new_state


@pytest.fixture
def two_ranks(monkeypatch):
    """The first of two ranks, whose other one answers nothing: what it holds is the same."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    monkeypatch.setattr("lib.ranks.world", lambda: 2)
    yield
    dist.destroy_process_group()


def local_bytes(state):
    for parameter in state.parameters:
        parameter.grad = torch.zeros_like(parameter)
    make_moments(state.optimizer)
    held = [*state.model.parameters(), *(p.grad for p in state.parameters)]
    held += [value for own in state.optimizer.state.values() for value in own.values()]
    return sum(sharding.local(value).nbytes for value in held)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_states_on_a_rank_are_those_that_fsdp2_holds(toy, two_ranks, optimizer):
    config = toy({"training.fully_shard": True, "training.micro_batch_slots": 2, "optimizer.name": optimizer})
    with torch.random.fork_rng():
        counted, _ = sharded_bytes(load_task(config), config, 2)
        assert counted == local_bytes(new_state(load_task(config), config, torch.device("cpu"), "fp32"))


def test_one_rank_holds_everything_and_gathers_a_layer_and_what_is_in_none(toy):
    config = toy({"training.ema_decay": 0.9})
    task = load_task(config)
    model = task.model()
    weights = sum(value.nbytes for value in model.parameters())
    layers = [sum(value.nbytes for value in block.parameters()) for block in model.blocks]
    whole, gathered = sharded_bytes(task, config, 1)
    saved, _ = saved_bytes(task, config)
    assert whole == pytest.approx(saved + weights, abs=64), "what is saved, and gradients"
    assert gathered == weights - sum(layers) + max(layers)
