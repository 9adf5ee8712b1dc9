"""A step whose memory runs out, is not finite or does not fit: repeated, skipped, or refused with what to do."""

import csv
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib import checkpoint
from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.report.progress import Plain
from lib.task import load_task
from lib.training import data, loop
from lib.training.state import new_state
from tests.toy import Toy
from tests.training.test_loop import endless, fit, newest, same_tensors


class Budget(TorchDispatchMode):
    """Follows real CPU tensors; what would hold more than `most` live bytes in a pass raises as a GPU does.

    `most` has a number for "forward" (all that is not backward), "backward", or both; `peak` is measured for both.
    """

    def __init__(self, most=None):
        super().__init__()
        self.most, self.peak, self.fired = most or {}, {"forward": 0, "backward": 0}, []
        self.live, self.sizes = 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.follow(tensor.untyped_storage())
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        self.peak[phase] = max(self.peak[phase], self.live)
        if self.live > self.most.get(phase, self.live):
            self.fired.append(phase)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return out

    def follow(self, storage):
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.live += self.sizes[key]
            weakref.finalize(storage, self.forget, key)

    def forget(self, key):
        self.live -= self.sizes.pop(key)


def run_in(folder, config, monkeypatch, budget=None, **methods):
    """Trains the toy with some of its methods replaced, under a budget."""
    folder.mkdir()
    task = load_task(config)
    for name, method in methods.items():
        monkeypatch.setattr(type(task), name, method)
    with budget or Budget():
        return loop.train(task, config, folder, endless(), Plain())


def wide(self):
    """Activations outweigh parameters and moments, so 256 samples take twice what 128 take."""
    settings = self.config.workload
    norm = nn.BatchNorm1d(64) if settings.batch_norm else nn.Tanh()
    return nn.Sequential(nn.Linear(3, 64), norm, nn.Dropout(settings.dropout), nn.Linear(64, 64), nn.Linear(64, 1))


def rows(folder):
    with (folder / "events.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Saved at the end alone: what a save keeps on the CPU would count against the budget, which stands for a GPU's memory.
WIDE = {
    "checkpoint.every_steps": 0,
    "training.effective_batch": 256,
    "training.max_steps": 4,
    "workload.dropout": 0.5,
    "workload.noise": 0.0,
}


def tight(most, training=False):
    """A loss that bears `most` samples at once where it is evaluated (or trained), and any number elsewhere."""

    def loss(self, model, batch):
        if model.training == training and data.size_of(batch) > most:
            raise RuntimeError("CUDA error: out of memory")
        return original(self, model, batch)

    original = Toy.loss
    return loss


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_running_out_at_a_byte_budget_ends_in_the_weights_of_the_planned_run(
    toy, tmp_path, monkeypatch, capsys, phase, batch_norm
):
    config = toy({**WIDE, "workload.batch_norm": batch_norm, "training.evaluate_every_steps": 0})
    half = with_changes(config, {"training.micro_batch": 128})
    first = {"training.max_steps": 1}
    large, small = Budget(), Budget()
    run_in(tmp_path / "large", with_changes(config, first), monkeypatch, large, model=wide)
    run_in(tmp_path / "small", with_changes(half, first), monkeypatch, small, model=wide)
    run_in(tmp_path / "planned", half, monkeypatch, model=wide)
    budget = Budget({phase: (large.peak[phase] + small.peak[phase]) // 2})
    outcome = run_in(tmp_path / "surprised", config, monkeypatch, budget, model=wide)
    assert budget.fired == [phase] and outcome.state.micro_batch == 128
    surprised, planned = newest(tmp_path / "surprised"), newest(tmp_path / "planned")
    assert same_tensors(surprised.tensors["model"], planned.tensors["model"])
    assert same_tensors(surprised.tensors["optimizer"], planned.tensors["optimizer"])
    text = "Memory ran out at step 0: the step is repeated in micro-batches of 128 instead of 256; the effective batch "
    assert f"{text}stays." in capsys.readouterr().out
    assert rows(tmp_path / "surprised") == [
        {"step": "0", "kind": "oom_training", "before": "256", "after": "128", "text": f"{text}stays."}
    ]


def test_the_error_at_one_sample_says_what_was_tried(toy, tmp_path, monkeypatch):
    with pytest.raises(TrainingFailed, match=r"one sample \(tried: 8, 4, 2, 1\). Set .*gradient_checkpointing"):
        run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(0, training=True))


def test_a_skipped_step_leaves_batch_statistics_as_they_were(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.samples": 40, "workload.poison_from": 39})
    outcome = fit(config, tmp_path / "run")
    assert outcome.state.skipped_steps > 0
    assert all(torch.isfinite(value).all() for value in outcome.state.model.state_dict().values())


def test_a_diverged_run_names_its_last_good_checkpoint(toy, tmp_path, monkeypatch):
    fit(toy(), tmp_path / "run")
    config = toy({"training.max_steps": 40, "workload.poison_from": 0, "checkpoint.every_steps": 4})
    expected = checkpoint.path_of(tmp_path / "run" / "checkpoints", 12)
    with pytest.raises(TrainingFailed, match="20 steps in a row.*step 31 on samples") as caught:
        fit(config, tmp_path / "run", resume=newest(tmp_path / "run"))
    assert f"The last good checkpoint is {expected}, from before them (step 12)." in str(caught.value)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(TrainingFailed, match="There is no checkpoint from before them."):
        fit(config, tmp_path / "elsewhere")


def test_what_belongs_to_a_session_is_in_no_checkpoint(toy, tmp_path, monkeypatch):
    run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(2))
    assert not {"evaluation_batch", "events", "resumed_from"} & set(newest(tmp_path / "run").state)
    assert new_state(load_task(toy()), toy()).evaluation_batch == 0
