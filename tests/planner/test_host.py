"""What a plan says of the machine's own memory is what a run then holds."""

import pytest
import torch

from lib import launch
from lib.checkpoint.saver import Saver
from lib.planner import make, of_plan
from lib.planner.card import find_card
from lib.planner.search import host_memory
from lib.task import load_task


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_the_copy_for_checkpoints_is_what_the_saver_keeps(toy, quick, monkeypatch, ema_decay):
    savers, prepare = [], Saver.prepare
    monkeypatch.setattr(Saver, "prepare", lambda self, tensors: (prepare(self, tensors), savers.append(self))[0])
    config = toy({"training.ema_decay": ema_decay, "training.max_steps": 2})
    torch.manual_seed(7)
    before = torch.get_rng_state()
    counted = host_memory(load_task(config), config, 1)
    assert torch.equal(before, torch.get_rng_state()), "counting draws nothing that the run draws"
    launch.train(config)
    assert counted.copied_bytes == sum(buffer.nbytes for buffer in savers[-1]._buffers.values())


def test_batches_wait_for_each_card_as_many_as_its_workers_prepare(toy):
    config = toy({"data.num_workers": 2, "data.prefetch_factor": 3, "training.micro_batch_slots": 2})
    task = load_task(config)
    slot = config.training.effective_batch // 2
    batch = sum(value.nbytes for value in task.example_batch(slot, torch.device("cpu")).values())
    counted = host_memory(task, config, 2)
    assert (counted.waiting_bytes, counted.workers) == (2 * 2 * 3 * batch, 4)
    alone = toy({"data.num_workers": 0, "training.micro_batch_slots": 2, "checkpoint.keep_last": 0})
    counted = host_memory(load_task(alone), alone, 1)
    assert (counted.waiting_bytes, counted.workers, counted.copied_bytes) == (batch, 0, 0)
    assert "checkpoints" not in counted.sentence() and "workers" not in counted.sentence()


def test_a_plan_prints_it_and_an_allocator_that_is_not_followed(toy, monkeypatch):
    plan = make(toy(), find_card("t4"))
    text = of_plan(plan)
    assert "The machine's own memory: 0.0 MB for the copy that checkpoints are written from, 0.0 MB for batches" in text
    assert "Expandable segments" not in text
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    assert "Expandable segments are switched on here, and a plan does not follow them" in of_plan(plan)
