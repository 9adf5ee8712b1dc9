"""Every key of the general configuration has an effect: another value of it changes something that can be observed."""

import contextlib
import hashlib
import io
import re

import pytest
import torch

from lib import ranks
from lib.config import Config, Training
from lib.config.reader import flat
from lib.errors import BadInput
from lib.launch import queue, smoke, torchrun
from lib.launch.resume import announce
from lib.launch.run import prepare
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import load_config
from lib.training import data, loop
from lib.training.session import start_session
from tests.conftest import ROOT, TOY, VOLATILE_COLUMNS

OWN = """
from dataclasses import dataclass
from tests import toy

@dataclass(frozen=True)
class Larger(toy.Settings):
    forgotten: int = 3

class Own(toy.Toy):
    Settings = Larger

class Rows(list):
    lengths = [i * 7 % 37 for i in range(37)]

class Lengthy(toy.Toy):
    def datasets(self):
        return {**super().datasets(), "train": Rows(range(37))}
"""

# key -> another value, what it changes, and the keys that both runs have on top of the toy's. {home} holds the results
# of a run of the toy (runs/), a task of one's own (own.py) and another configuration (other.yaml).
EFFECTS = {
    "task": ("{home}/own.py:Own", "task", {}),
    "seed": (1, "weights", {}),
    "output_dir": ("{home}/elsewhere", "elsewhere", {}),
    "run.name": ("another", "name", {}),
    "run.initial_weights": ("{home}/runs/toy", "weights", {}),
    "run.initial_weights_share": (
        0.1, "error", {"run.initial_weights": "{home}/runs/toy", "workload.batch_norm": True}
    ),
    "run.resume_from": ("{home}/runs", "started at", {}),
    "data.dir": ("{home}", "source", {}),
    "data.num_workers": (1, "loader", {}),
    "data.prefetch_factor": (3, "loader", {"data.num_workers": 1}),
    "data.subset_ratio": (0.5, "weights", {}),
    "data.evaluation_batch": (3, "rows", {}),
    "data.buckets": (2, "weights", {"task": "{home}/own.py:Lengthy"}),
    "training.max_steps": (5, "step", {}),
    "training.epochs": (1.0, "step", {}),
    "training.smoke_steps": (2, "smoke", {}),
    "training.effective_batch": (4, "weights", {}),
    "training.micro_batch": (2, "micro-batch", {}),
    "training.micro_batch_slots": (2, "weights", {}),
    "training.precision": ("bf16", "weights", {}),
    "training.gradient_checkpointing": ("all", "forward passes", {}),
    "training.ema_decay": (0.5, "rows", {}),
    "training.clip_norm": (0.01, "weights", {}),
    "training.cudnn_benchmark": (True, "benchmark", {}),
    "training.compile": (True, "compiled", {}),
    "training.log_every_steps": (1, "rows", {}),
    "training.evaluate_every_steps": (2, "rows", {}),
    "training.evaluate_every_epochs": (1.0, "rows", {}),
    "training.stop_after_evaluations": (1, "step", {"optimizer.lr": 5.0}),
    "device.gpu_ids": ((1,), "GPUs", {}),
    "device.processes": (2, "processes", {"training.micro_batch_slots": 2}),
    "memory.profile": ("prototype", "step", {}),
    "optimizer.name": ("sgd", "weights", {}),
    "optimizer.momentum": (0.5, "weights", {"optimizer.name": "sgd"}),
    "optimizer.nesterov": (True, "weights", {"optimizer.name": "sgd"}),
    "optimizer.lr": (0.02, "weights", {}),
    "optimizer.weight_decay": (0.5, "weights", {}),
    "optimizer.betas": ((0.5, 0.9), "weights", {}),
    "optimizer.eps": (0.1, "weights", {}),
    "scheduler.name": ("constant", "rows", {}),
    "scheduler.warmup_steps": (6, "rows", {}),
    "scheduler.warmup_epochs": (2.0, "rows", {}),
    "scheduler.min_lr_ratio": (0.5, "rows", {}),
    "scheduler.factor": (0.25, "rows", {"scheduler.name": "plateau", "scheduler.patience": 0, "optimizer.lr": 5.0}),
    "scheduler.patience": (0, "rows", {"scheduler.name": "plateau", "optimizer.lr": 5.0}),
    "scheduler.min_lr": (4.0, "rows", {"scheduler.name": "plateau", "scheduler.patience": 0, "optimizer.lr": 5.0}),
    "checkpoint.every_steps": (5, "files", {}),
    "checkpoint.every_epochs": (1.0, "files", {"checkpoint.keep_last": 9}),
    "checkpoint.every_minutes": (1e-9, "files", {"checkpoint.every_steps": 0, "checkpoint.keep_last": 99}),
    "checkpoint.lightweight": (True, "files", {}),
    "checkpoint.keep_last": (1, "files", {}),
    "checkpoint.keep_best": (0, "files", {}),
    "checkpoint.keep_bytes": (1, "files", {}),
    "session.minutes": (1e-6, "reason", {}),
    "session.margin_seconds": (6e6, "reason", {"session.minutes": 1e5}),
    "queue.before": (["other.yaml"], "queue", {}),
    "queue.before_overrides": ({"seed": "5"}, "queue", {"queue.before": ["other.yaml"]}),
    "queue.start_from": ("other", "queue", {"queue.before": ["other.yaml"]}),
    "queue.folds": (2, "queue", {"queue.fold_key": "seed"}),
    "queue.fold_key": ("scheduler.patience", "queue", {"queue.fold_key": "seed", "queue.folds": 2}),
    "queue.seeds": ([1, 2], "queue", {}),
    "queue.grid": ({"optimizer.lr": ["0.1", "0.2"]}, "queue", {}),
}  # fmt: skip
# Keys whose effect this machine cannot show, and the test that does.
ELSEWHERE = {
    "run.accept_changes": "lets other settings continue a run: tests/training/test_identity.py",
    "data.pin_memory": "needs a GPU: tests/training/test_data.py, the options of the loader",
    "training.deterministic": "the CPU always is: tests/gpu/test_gpu.py",
    "training.fully_shard": "needs ranks: tests/ranks/test_ranks.py, 'sharded'",
    "training.frozen_precision": "needs frozen weights: tests/training/test_frozen.py, 'halves'",
    "checkpoint.frozen": "needs frozen weights: tests/training/test_frozen.py, 'saved each time'",
    "tracking.tensorboard": "writes no result: tests/report/test_tracking.py",
    "tracking.wandb": "writes no result: tests/report/test_tracking.py",
    "tracking.online": "writes no result: tests/report/test_tracking.py",
    "tracking.project": "writes no result: tests/report/test_tracking.py",
    "queue.mean_at_least": "judges runs that are completed: tests/launch/test_queue.py",
    "queue.best_at_least": "judges runs that are completed: tests/launch/test_queue.py",
}


def test_what_is_shown_elsewhere_names_a_test_that_exists():
    named = [path for why in ELSEWHERE.values() for path in re.findall(r"tests/[a-z_/]+[.]py", why)]
    assert len(named) >= 5 and all((ROOT / path).is_file() for path in named)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with everything that the values above name."""
    home = tmp_path_factory.mktemp("home")
    (home / "toy.yaml").write_text(TOY)
    (home / "other.yaml").write_text(TOY.replace("name: toy", "name: other"))
    (home / "own.py").write_text(OWN)
    trained(load_config(home / "toy.yaml", {"output_dir": str(home / "runs"), "training.max_steps": 4}))
    return home


def trained(config):
    """Trains in this process as `launch` does, without its plots; returns everything that may differ by name."""
    calls, loaders, compiled = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        loader, forward = data.DataLoader, torch.nn.Linear.forward
        patch.setattr(data, "DataLoader", lambda *args, **options: loaders.append(options) or loader(*args, **options))
        patch.setattr(torch.nn.Linear, "forward", lambda *args: calls.append(1) or forward(*args))
        patch.setattr(torch.nn.Module, "compile", lambda model: compiled.append(type(model)))
        patch.setattr(torch.backends.cudnn, "benchmark", False)
        run = prepare(config)
        run.folder.mkdir(parents=True, exist_ok=True)
        resumed = announce(run)
        session = start_session(run.config.session.minutes, run.config.session.margin_seconds)
        outcome = loop.train(run.task, run.config, run.folder, session, Plain(), resumed)
        benchmark = torch.backends.cudnn.benchmark
    weights = hashlib.sha256()
    for tensor in outcome.state.model.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    rows = read(run.folder / "metrics.csv")
    return {
        "weights": weights.hexdigest(),
        "rows": [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in rows],
        "files": sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*")),
        "name": run.folder.name,
        "task": type(run.task).__name__,
        "source": str(run.task.source),
        "started at": resumed.step if resumed else 0,
        "step": outcome.state.step,
        "reason": outcome.reason,
        "micro-batch": outcome.state.micro_batch,
        "forward passes": len(calls),
        "loader": [{name: options.get(name) for name in ("num_workers", "prefetch_factor")} for options in loaders],
        "benchmark": benchmark,
        "compiled": compiled,
        "elsewhere": run.output_dir.name == "elsewhere",
        "error": "",
    }


RUNS = {}  # most keys are compared with the same run


def observed(home, folder, overrides, name):
    """One observable of the toy with these overrides."""
    config = load_config(home / "toy.yaml", {"output_dir": str(folder), **overrides})
    if name == "queue":
        entries = queue.entries(home / "toy.yaml", overrides)
        return [(flat(entry.config), entry.starts_from) for entry in entries]
    if name == "GPUs":
        return ranks.cards(config.device)
    if name == "processes":
        return torchrun.processes(config)
    if name == "smoke":
        return smoke.few_steps(prepare(config)).state.step
    try:
        key = repr(sorted(overrides.items()))
        RUNS[key] = RUNS.get(key) or trained(config)
    except BadInput as error:
        if name != "error":
            raise
        return str(error)
    return RUNS[key][name]


def has_effect(home, folder, key, value, name, context):
    def filled(value):
        return value.replace("{home}", str(home)) if isinstance(value, str) else value

    context = {other: filled(setting) for other, setting in context.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        before = observed(home, folder / "before", context, name)
        after = observed(home, folder / "after", {**context, key: filled(value)}, name)
    return before != after


@pytest.mark.parametrize("key", EFFECTS)
def test_another_value_of_a_key_changes_what_it_promises(home, tmp_path, monkeypatch, key):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 if key == "device.gpu_ids" else 0)
    assert has_effect(home, tmp_path, key, *EFFECTS[key])


def test_every_key_has_an_effect_here_or_elsewhere():
    keys = set(flat(Config(task="x", training=Training(effective_batch=1)))) - {"workload"}
    assert keys == {*EFFECTS, *ELSEWHERE}
    assert not set(EFFECTS) & set(ELSEWHERE)


@pytest.mark.parametrize("name", ["weights", "rows", "files", "loader", "step", "forward passes"])
def test_a_key_without_effect_is_found(home, tmp_path, name):
    context = {"task": "{home}/own.py:Own"}
    assert not has_effect(home, tmp_path, "workload.forgotten", 4, name, context)
