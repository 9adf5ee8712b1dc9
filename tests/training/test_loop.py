"""The loop: exact accumulation, exact resume, best weights, and a diverged run that costs no good checkpoint."""

import signal

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import contents
from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.ranks.sums import add_counts
from lib.report.meter import Meter
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import load_task
from lib.training import data, loop
from lib.training.order import Order
from lib.training.session import Session
from lib.training.state import new_state
from lib.training.step import _gradients, total_norm
from tests.conftest import VOLATILE_COLUMNS


def endless():
    return Session(None, 0, 0)


def fit(config, folder, session=None, resume=None, task=None):
    folder.mkdir(parents=True, exist_ok=True)
    return loop.train(
        task or load_task(config), config, folder, session or endless(), Plain(), resume
    )


def newest(folder):
    return checkpoint.load_newest(folder / "checkpoints")[0]


def stable(path):
    """metrics.csv without the columns that no two runs share."""
    return [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in read(path)]


def same_tensors(a, b):
    if a.keys() != b.keys():
        return False
    return all(torch.equal(a[name], b[name]) for name in a)


def gradient(config, micro_batch):
    """The gradient of step 0 when its effective batch is worked off in pieces of `micro_batch`."""
    config = with_changes(config, {"training.micro_batch": micro_batch})
    task = load_task(config)
    state = new_state(task, config)
    slots = config.training.slots
    order = Order(config.workload.samples, config.seed, config.training.effective_batch, slots)
    train_set = task.datasets()["train"]
    _, batches = next(data.train_batches(task, train_set, order, range(1), config.data))
    counts = add_counts(map(task.count, batches))
    _gradients(state, task, config, batches, 0, counts, Meter({}, state.device))
    return torch.cat([p.grad.flatten() for p in state.model.parameters()]), batches, state


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_any_split_into_micro_batches_gives_the_same_gradient(toy, micro_batch):
    whole, _, _ = gradient(toy(), 8)
    split, _, _ = gradient(toy(), micro_batch)
    assert ((split - whole).norm() / whole.norm()).item() < 1e-6


def test_the_gradient_is_that_of_the_sum_over_the_count_of_the_whole_batch(toy):
    config = toy({"training.micro_batch": 2})
    got, (batch,), state = gradient(config, 2)
    state.model.zero_grad()
    task = load_task(config)
    sums, _ = task.loss(state.model, batch)  # plain autograd over the whole batch as the reference
    (sums["squared"] / task.count(batch)["squared"]).backward()
    want = torch.cat([p.grad.flatten() for p in state.model.parameters()])
    assert ((got - want).norm() / want.norm()).item() < 1e-6


class StopAfter(Session):
    """A session whose deadline falls after `steps` steps."""

    def __init__(self, steps):
        super().__init__(None, 0, 0)
        self.steps = steps

    def stop_reason(self, evaluates_next=False):
        self.steps -= 1
        return "deadline" if self.steps == 0 else None

    def stop_alone(self):
        """Counts no step: it is asked as often as a batch is late."""


def check_resume(config, folder, cut, between=lambda: None):
    """Trains in one go, and once more with an end after `cut` steps: both have the same bytes. Returns the end."""
    if not (folder / "whole").exists():
        fit(config, folder / "whole")
    whole = newest(folder / "whole")
    parts = folder / f"cut-{cut}"
    between()
    stopped = fit(config, parts, StopAfter(cut))
    assert stopped.reason == "deadline"
    assert stopped.state.step == cut
    saved = newest(parts)
    contents.check(saved)
    between()
    fit(config, parts, resume=saved)
    end = newest(parts)
    assert all(same_tensors(whole.tensors[group], end.tensors[group]) for group in whole.tensors)
    assert whole.state == end.state
    assert stable(folder / "whole" / "metrics.csv") == stable(parts / "metrics.csv")
    return end


@pytest.mark.parametrize(
    "overrides",
    [
        {"workload.dropout": 0.5, "training.micro_batch": 3, "training.ema_decay": 0.9},
        {"workload.batch_norm": True, "training.micro_batch_slots": 2},
        {"data.num_workers": 2},
        {
            "scheduler.name": "plateau",
            "scheduler.patience": 0,
            "optimizer.lr": 0.3,
            "training.evaluate_every_steps": 1,
        },
    ],
)
def test_stopping_and_resuming_ends_in_the_same_bytes(toy, tmp_path, overrides):
    for cut in (1, 6):
        check_resume(toy(overrides), tmp_path, cut)


def test_validation_runs_in_evaluation_mode_and_training_goes_on_in_training_mode(toy, tmp_path):
    task = load_task(toy())
    modes = []
    loss = task.loss
    task.loss = lambda model, batch: (
        modes.append((model.training, torch.is_grad_enabled())) or loss(model, batch)
    )
    fit(toy(), tmp_path, task=task)
    assert set(modes) == {(True, True), (False, False)}


def test_the_task_gets_the_scores_of_each_validation(toy, tmp_path):
    config = toy({"training.evaluate_every_steps": 5, "training.max_steps": 12})
    task = load_task(config)
    calls = []
    task.after_evaluation = lambda step, scores: calls.append((step, scores["loss"]))
    fit(config, tmp_path, task=task)
    rows = [row for row in stable(tmp_path / "metrics.csv") if row["split"] == "validation"]
    assert [step for step, _ in calls] == [5, 10, 12]
    assert calls == [(int(row["step"]), float(row["loss"])) for row in rows]


def test_a_first_signal_finishes_the_step_and_saves_a_second_one_raises(toy, tmp_path):
    session = endless()
    before = signal.getsignal(signal.SIGTERM)
    with session.catching_signals():
        signal.raise_signal(signal.SIGTERM)
        assert session.stop_reason() == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before
    outcome = fit(toy(), tmp_path / "run", session)
    assert outcome.reason == "interrupted"
    assert outcome.state.step == 1
    assert newest(tmp_path / "run").step == 1


def test_the_weights_of_terms_are_those_of_the_step(toy, tmp_path):
    """A ramp: a weight of 0 leaves no loss."""
    config = toy({"training.max_steps": 8, "training.log_every_steps": 1})
    task = load_task(config)
    task.term_weights = lambda step: {"squared": max(0.0, (step - 3) / 4)}
    fit(config, tmp_path, task=task)
    rows = [row for row in stable(tmp_path / "metrics.csv") if row["split"] == "train"]
    assert [float(row["loss"]) > 0 for row in rows] == [False] * 4 + [True] * 4


def test_rows_and_events_of_a_repeated_piece_of_a_run_stand_once(toy, tmp_path):
    config = toy({"scheduler.name": "plateau", "scheduler.patience": 0, "optimizer.lr": 0.3,
                  "training.evaluate_every_steps": 1})  # fmt: skip
    fit(config, tmp_path / "run")
    events = (tmp_path / "run" / "events.csv").read_bytes()
    older = checkpoint.load(checkpoint.path_of(tmp_path / "run" / "checkpoints", 9))
    fit(config, tmp_path / "run", resume=older)
    assert events.count(b"\n") > 3
    assert (tmp_path / "run" / "events.csv").read_bytes() == events
    keys = [(row["step"], row["split"]) for row in read(tmp_path / "run" / "metrics.csv")]
    assert len(keys) == len(set(keys))
    assert keys[-1] == ("12", "validation")


def test_the_norm_has_the_bits_of_torchs():
    gradients = [torch.randn(5, 7), torch.randn(3) * 1e-4, torch.randn(2, 3, 4).transpose(0, 1)]
    assert torch.equal(total_norm(gradients), torch.nn.utils.get_total_norm(gradients))
    assert total_norm([]) == 0


def test_best_weights_are_those_of_the_best_validation(toy, tmp_path):
    outcome = fit(toy({"training.max_steps": 40, "optimizer.lr": 0.05}), tmp_path / "run")
    rows = [r for r in read(tmp_path / "run" / "metrics.csv") if r["split"] == "validation"]
    best = min(rows, key=lambda r: float(r["loss"]))
    assert outcome.state.best == {
        "step": int(best["step"]),
        "metric": "loss",
        "value": float(best["loss"]),
    }
    assert checkpoint.steps(tmp_path / "run" / "best") == [int(best["step"])]
    saved = checkpoint.load(checkpoint.path_of(tmp_path / "run" / "best", int(best["step"])))
    assert set(saved.tensors) == {"model"}


def test_weights_that_are_not_finite_never_replace_a_good_checkpoint(toy, tmp_path, monkeypatch):
    config = toy()
    fit(config, tmp_path / "run", StopAfter(5))
    good = newest(tmp_path / "run")
    step = torch.optim.AdamW.step

    def diverge(self, *rest):
        step(self, *rest)
        self.param_groups[0]["params"][0].data.fill_(float("inf"))

    monkeypatch.setattr(torch.optim.AdamW, "step", diverge)
    with pytest.raises(
        TrainingFailed, match="no longer finite at step 6.*the checkpoint before is kept"
    ):
        fit(config, tmp_path / "run", resume=good)
    assert newest(tmp_path / "run").step == 5
