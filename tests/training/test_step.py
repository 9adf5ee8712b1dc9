"""A step whose memory runs out, is not finite or does not fit: repeated, skipped, or refused with what to do."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib import ranks
from lib.config import with_changes
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.ranks import sums
from lib.report.meter import Meter
from lib.report.metrics import read
from lib.task import load_task
from lib.training import data, step
from lib.training.evaluation import evaluate
from lib.training.state import new_state
from tests.toy import Toy
from tests.training.test_loop import fit, newest, same_tensors


class Budget(TorchDispatchMode):
    """Follows real CPU tensors; what would hold more than `most` live bytes in a pass raises as a GPU does.

    `most` has a number for "forward" (all that is not backward), "backward", or both; `peak` is measured for both.
    """

    def __init__(self, most=None):
        super().__init__()
        self.most = most or {}
        self.peak = {"forward": 0, "backward": 0}
        self.fired = []
        self.live = 0
        self.sizes = {}

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
    with monkeypatch.context() as patch, budget or Budget():
        for name, method in methods.items():
            patch.setattr(type(load_task(config)), name, method)
        return fit(config, folder)


def wide(self):
    """Activations outweigh parameters and moments, so 256 samples take twice what 128 take."""
    settings = self.config.workload
    norm = nn.BatchNorm1d(64) if settings.batch_norm else nn.Tanh()
    return nn.Sequential(
        nn.Linear(3, 64), norm, nn.Dropout(settings.dropout), nn.Linear(64, 64), nn.Linear(64, 1)
    )


# Saved at the end alone: what a save keeps on the CPU would count against the budget, which stands for a GPU's memory.
WIDE = {
    "checkpoint.every_steps": 0, "training.effective_batch": 256, "training.max_steps": 4, "workload.dropout": 0.5,
    "workload.noise": 0.0,
}  # fmt: skip


def tight(most, training=False):
    """A loss that bears `most` samples at once where it is evaluated (or trained), and any number elsewhere."""

    def loss(self, model, batch):
        if model.training == training and data.size_of(batch) > most:
            raise RuntimeError("CUDA error: out of memory")
        return original(self, model, batch)

    original = Toy.loss
    return loss


@pytest.mark.parametrize("phase, batch_norm", [("forward", False), ("backward", True)])
def test_running_out_at_a_byte_budget_ends_in_the_weights_of_the_planned_run(
    toy, tmp_path, monkeypatch, capsys, phase, batch_norm
):
    config = toy({**WIDE, "workload.batch_norm": batch_norm, "training.evaluate_every_steps": 0})
    half = with_changes(config, {"training.micro_batch": 128})
    first = {"training.max_steps": 1}
    large = Budget()
    small = Budget()
    run_in(tmp_path / "large", with_changes(config, first), monkeypatch, large, model=wide)
    run_in(tmp_path / "small", with_changes(half, first), monkeypatch, small, model=wide)
    run_in(tmp_path / "planned", half, monkeypatch, model=wide)
    budget = Budget({phase: (large.peak[phase] + small.peak[phase]) // 2})
    outcome = run_in(tmp_path / "surprised", config, monkeypatch, budget, model=wide)
    assert budget.fired == [phase]
    assert outcome.state.micro_batch == 128
    surprised = newest(tmp_path / "surprised")
    planned = newest(tmp_path / "planned")
    assert same_tensors(surprised.tensors["model"], planned.tensors["model"])
    assert same_tensors(surprised.tensors["optimizer"], planned.tensors["optimizer"])
    assert (
        "Memory ran out at step 0: it is repeated with 128 samples at once"
        in capsys.readouterr().out
    )
    (event,) = read(tmp_path / "surprised" / "events.csv")
    assert event["kind"] == "oom_training"
    assert event["before"] == "256"
    assert event["after"] == "128"


def test_the_error_at_one_sample_says_what_to_do(toy, tmp_path, monkeypatch):
    with pytest.raises(TrainingFailed, match=r"one sample at once. Set .*gradient_checkpointing"):
        run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(0, training=True))


def test_an_evaluation_that_runs_out_starts_again_in_smaller_pieces_with_the_same_metrics(
    toy, tmp_path, monkeypatch, capsys
):
    config = toy({"workload.noise": 0.5})
    easy = run_in(tmp_path / "easy", config, monkeypatch)
    hard = run_in(tmp_path / "hard", config, monkeypatch, loss=tight(1))
    assert hard.state.micro_batch == 8
    assert hard.state.evaluation_batch == 1
    assert hard.state.best["value"] == pytest.approx(easy.state.best["value"], rel=1e-6)
    assert same_tensors(
        newest(tmp_path / "easy").tensors["model"], newest(tmp_path / "hard").tensors["model"]
    )
    out = capsys.readouterr().out
    assert out.count("Memory ran out") == 3  # 8 -> 4 -> 2 -> 1, and never again


def test_a_skipped_step_leaves_batch_statistics_as_they_were(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.samples": 40, "workload.poison_from": 39})
    outcome = fit(config, tmp_path / "run")
    assert outcome.state.skipped_steps > 0
    assert all(torch.isfinite(value).all() for value in outcome.state.model.state_dict().values())


def test_training_samples_with_nan_are_named_once_and_their_steps_skipped(toy, tmp_path):
    fitted = fit(toy({"workload.poison_from": 36, "training.evaluate_every_steps": 99}), tmp_path)
    (event,) = [row for row in read(tmp_path / "events.csv") if row["kind"] == "skipped"]
    assert "'x' of the training samples [36] has NaN" in event["text"]
    assert fitted.state.skipped_steps > 1


def test_a_diverged_run_ends_with_the_samples_to_look_at(toy, tmp_path):
    config = toy({"training.max_steps": 40, "workload.poison_from": 0})
    with pytest.raises(
        TrainingFailed,
        match="20 steps in a row, the last of them step 19 on samples .* optimizer.lr",
    ):
        fit(config, tmp_path)


def test_an_evaluation_has_a_batch_of_its_own(toy):
    config = toy({"data.evaluation_batch": 16})
    task = load_task(config)
    state = new_state(load_task(config), config)
    sizes = []
    state.micro_batch = 1  # training ran out of memory, which an evaluation may not
    task.evaluate = lambda model, loader: sizes.extend(map(data.size_of, loader)) or {"loss": 0.0}
    evaluate(state, task, config, range(21))
    assert sizes == [16, 5]


def test_a_batch_with_something_that_has_no_samples_is_refused_before_it_is_cut(toy, tmp_path):
    task = load_task(toy())
    collate = task.collate
    task.collate = lambda samples, generator: {
        "scale": torch.tensor(2.0),
        **collate(samples, generator),
    }
    with pytest.raises(BadInput, match="samples along the first dimension.*'scale': \\(\\)"):
        fit(toy(), tmp_path, task=task)


# --- memory that runs out where no piece of the batch is at work ------------------------------------------------------


def fail_once(monkeypatch, holder, name):
    """The first call of a function raises as a full card does."""
    original = getattr(holder, name)

    def function(*arguments):
        monkeypatch.setattr(holder, name, original)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr(holder, name, function)


def test_a_step_that_ran_out_after_unscaling_starts_with_a_fresh_scaler(toy, monkeypatch):
    config = toy({"training.clip_norm": 0})
    task = load_task(config)
    batch = task.collate(list(range(8)), torch.Generator().manual_seed(0))
    ends = []
    for disturbed in (False, True):
        state = new_state(task, config)
        state.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        if disturbed:
            fail_once(monkeypatch, step, "total_norm")
        step.optimizer_step(state, task, config, [batch], 0, None, Meter({}, state.device))
        ends.append(torch.cat([value.detach().flatten() for value in state.parameters]))
    assert state.micro_batch == 4
    assert state.scaler.state_dict()["_growth_tracker"] == 1
    torch.testing.assert_close(*ends)


def test_running_out_between_two_sums_over_ranks_ends_the_launch_because_others_wait(
    toy, monkeypatch
):
    config = toy()
    task = load_task(config)
    state = new_state(task, config)
    batch = task.collate(list(range(8)), torch.Generator().manual_seed(0))
    before = [parameter.detach().clone() for parameter in state.parameters]
    monkeypatch.setattr(ranks, "_here", ranks._Place(1, 2))
    monkeypatch.setattr(sums, "gathered", lambda value: [value])
    monkeypatch.setattr(ranks, "highest", lambda *values: [*values])
    monkeypatch.setattr(sums, "add_up", lambda tensors: None)
    fail_once(monkeypatch, step, "total_norm")
    waiting = pytest.raises(OutOfMemory, match="the other ranks wait for this one")
    with waiting as raised, step.memory_for_next_launch(state, 8):
        step.optimizer_step(state, task, config, [batch], 0, None, Meter({}, state.device))
    assert raised.value.micro_batch == 4
    assert all(torch.equal(a, b) for a, b in zip(before, state.parameters, strict=True))


def test_with_dropout_the_micro_batch_is_part_of_the_result_and_without_it_is_not(
    toy, tmp_path, monkeypatch
):
    """A repeated step draws the masks of a run that was planned in its pieces, and no others."""

    def first_step(name, dropout, micro_batch, **methods):
        config = toy({**FIRST, "workload.dropout": dropout, "training.micro_batch": micro_batch})
        run_in(tmp_path / f"{name} {dropout}", config, monkeypatch, **methods)
        return newest(tmp_path / f"{name} {dropout}").tensors["optimizer"]

    for dropout in (0.0, 0.5):
        whole = first_step("whole", dropout, 8)
        planned = first_step("planned", dropout, 2)
        repeated = first_step("repeated", dropout, 8, loss=tight(2, training=True))
        assert same_tensors(repeated, planned)
        close = all(
            torch.allclose(whole[name], value, rtol=1e-4, atol=1e-6)
            for name, value in repeated.items()
        )
        assert close == (not dropout)


FIRST = {"training.max_steps": 1, "training.evaluate_every_steps": 0, "training.clip_norm": 0}


# --- figures of Task.loss ---------------------------------------------------------------------------------------------


def figures(self, model, batch):
    sums, _ = ORIGINAL(self, model, batch)
    return sums, {"largest_id": batch["id"].max(), "size": float(len(batch["id"]))}


ORIGINAL = Toy.loss


def test_figures_are_means_over_micro_batches_by_their_samples(toy, tmp_path, monkeypatch):
    config = toy({"training.micro_batch": 3, "training.log_every_steps": 1})
    run_in(tmp_path / "run", config, monkeypatch, loss=figures)
    train = [row for row in read(tmp_path / "run" / "metrics.csv") if row["split"] == "train"]
    assert [float(row["size"]) for row in train] == pytest.approx(
        [(3 * 3 + 3 * 3 + 2 * 2) / 8] * 12
    )
