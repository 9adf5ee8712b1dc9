"""Every key of the general configuration has an effect: another value of it changes something that can be observed."""

import hashlib
from itertools import chain

import pytest
import torch

from lib.config import Config, Training
from lib.config.reader import flat
from lib.errors import BadInput
from lib.ranks import processes
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import load_config
from lib.training import data, loop
from lib.training.session import start_session
from tests.conftest import ROOT, TOY, VOLATILE_COLUMNS
from trainbook.launch import queue, smoke
from trainbook.launch.resume import look_for_checkpoint
from trainbook.launch.run import prepare

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

# What changes -> keys with another value. {home} holds the results of a run of the toy (runs/), a task of one's own
# (own.py) and another configuration (other.yaml).
CHANGES = {
    "weights": {
        "seed": 1, "run.initial_weights": "{home}/runs/toy", "data.subset_ratio": 0.5, "data.buckets": 2,
        "training.effective_batch": 4, "training.micro_batch_slots": 2, "training.precision": "bf16",
        "training.clip_norm": 0.01, "optimizer.name": "sgd", "optimizer.momentum": 0.5, "optimizer.nesterov": True,
        "optimizer.lr": 0.02, "optimizer.weight_decay": 0.5, "optimizer.betas": (0.5, 0.9), "optimizer.eps": 0.1,
    },
    "rows": {
        "data.evaluation_batch": 3, "training.ema_decay": 0.5, "training.log_every_steps": 1,
        "training.evaluate_every_steps": 2, "training.evaluate_every_epochs": 1.0, "scheduler.name": "constant",
        "scheduler.warmup_steps": 6, "scheduler.warmup_epochs": 2.0, "scheduler.min_lr_ratio": 0.5,
        "scheduler.decay_steps": 3, "scheduler.factor": 0.25, "scheduler.patience": 0, "scheduler.min_lr": 4.0,
    },
    "files": {
        "checkpoint.every_steps": 5, "checkpoint.every_epochs": 1.0, "checkpoint.every_minutes": 1e-9,
        "checkpoint.lightweight": True, "checkpoint.keep_last": 1, "checkpoint.keep_best": 0,
        "checkpoint.keep_bytes": 1,
    },
    "step": {
        "training.max_steps": 5, "training.epochs": 1.0, "training.stop_after_evaluations": 1,
        "memory.profile": "prototype",
    },
    "queue": {
        "queue.before": ["other.yaml"], "queue.before_overrides": {"seed": "5"}, "queue.start_from": "other",
        "queue.seeds": [1, 2],
        "queue.grid": {"optimizer.lr": ["0.1", "0.2"]},
    },
    "loader": {"data.num_workers": 1},
    "reason": {"session.minutes": 1e-6, "session.margin_seconds": 6e6},
    "task": {"task": "{home}/own.py:Own"}, "elsewhere": {"output_dir": "{home}/elsewhere"},
    "name": {"run.name": "another"}, "error": {"run.initial_weights_share": 0.1},
    "started at": {"run.resume_from": "{home}/runs"}, "source": {"data.dir": "{home}"},
    "smoke": {"training.smoke_steps": 2}, "micro-batch": {"training.micro_batch": 2},
    "forward passes": {"training.gradient_checkpointing": "all"},
    "compiled": {"training.compile": True}, "processes": {"device.processes": 2},
}  # fmt: skip
EFFECTS = {}
for observable, keys in CHANGES.items():
    EFFECTS |= {key: (value, observable) for key, value in keys.items()}
PLATEAU = {"scheduler.name": "plateau", "optimizer.lr": 5.0}
CONTEXT = {  # key -> what both runs have on top of the toy's
    "run.initial_weights_share": {"run.initial_weights": "{home}/runs/toy", "workload.batch_norm": True},
    "data.buckets": {"task": "{home}/own.py:Lengthy"},
    "training.stop_after_evaluations": {"optimizer.lr": 5.0},
    "device.processes": {"training.micro_batch_slots": 2},
    "optimizer.momentum": {"optimizer.name": "sgd"}, "optimizer.nesterov": {"optimizer.name": "sgd"},
    "scheduler.decay_steps": {"scheduler.name": "wsd"},
    "scheduler.factor": {**PLATEAU, "scheduler.patience": 0}, "scheduler.patience": PLATEAU,
    "scheduler.min_lr": {**PLATEAU, "scheduler.patience": 0},
    "checkpoint.every_epochs": {"checkpoint.keep_last": 9},
    "checkpoint.every_minutes": {"checkpoint.every_steps": 0, "checkpoint.keep_last": 99},
    "session.margin_seconds": {"session.minutes": 1e5},
    "queue.before_overrides": {"queue.before": ["other.yaml"]}, "queue.start_from": {"queue.before": ["other.yaml"]},
}  # fmt: skip
# Keys whose effect this machine cannot show, by the test that does.
ELSEWHERE = {
    "training/test_identity.py": ["run.accept_changes", "run.on_change"],
    "gpu/parts/bits.py": ["training.deterministic"],
    "trainbook/launch/test_finish.py": ["run.finishes"],
    "trainbook/launch/test_hours.py": ["training.hours"],
    "trainbook/launch/test_fp16.py": ["training.fp32_modules"],
    "training/test_frozen.py": ["training.frozen_precision", "checkpoint.frozen"],
    "trainbook/outputs/test_tracking.py": [
        "tracking.tensorboard",
        "tracking.wandb",
        "tracking.online",
        "tracking.project",
    ],
    "trainbook/supervised/test_start.py": ["training.start_from_baseline"],
    "trainbook/launch/test_folds.py": ["folds.number", "folds.fold", "folds.nested"],
    "trainbook/launch/test_queue.py": ["queue.mean_at_least", "queue.best_at_least"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with everything that the values above name."""
    home = tmp_path_factory.mktemp("home")
    (home / "toy.yaml").write_text(TOY)
    (home / "other.yaml").write_text(TOY.replace("name: toy", "name: other"))
    (home / "own.py").write_text(OWN)
    overrides = {"output_dir": str(home / "runs"), "training.max_steps": 4}
    trained(load_config(home / "toy.yaml", overrides))
    return home


def trained(config):
    """Trains in this process as `launch` does, without its plots; returns everything that may differ by name."""
    calls = []
    loaders = []
    compiled = []
    loader = data.DataLoader
    forward = torch.nn.Linear.forward

    def noted_loader(*args, **options):
        loaders.append(options)
        return loader(*args, **options)

    def counted_forward(*args):
        calls.append(1)
        return forward(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "DataLoader", noted_loader)
        patch.setattr(torch.nn.Linear, "forward", counted_forward)
        patch.setattr(torch.nn.Module, "compile", lambda model: compiled.append(type(model)))
        run = prepare(config)
        run.folder.mkdir(parents=True, exist_ok=True)
        resumed, _ = look_for_checkpoint(run)
        session = start_session(run.config.session.minutes, run.config.session.margin_seconds)
        outcome = loop.train(run.task, run.config, run.folder, session, Plain(), resumed)
    state = outcome.state
    seen = {"forward passes": len(calls), "compiled": compiled, "error": ""}
    seen["weights"] = hash_of(state.model)
    seen["rows"] = rows_of(run.folder)
    seen["files"] = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*"))
    seen["loader"] = [each.get("num_workers") for each in loaders]
    seen["name"] = run.folder.name
    seen["elsewhere"] = run.output_dir.name == "elsewhere"
    seen["task"] = type(run.task).__name__
    seen["source"] = str(run.task.source)
    seen["started at"] = resumed.step if resumed else 0
    seen["step"] = state.step
    seen["micro-batch"] = state.micro_batch
    seen["reason"] = outcome.reason
    return seen


def hash_of(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def rows_of(folder):
    rows = read(folder / "metrics.csv")
    for row in rows:
        for name in VOLATILE_COLUMNS & row.keys():
            del row[name]
    return rows


RUNS = {}  # most keys are compared with the same run


def observed(home, folder, overrides, name):
    """One observable of the toy with these overrides."""
    texts = {key: value for key, value in overrides.items() if isinstance(value, str)}
    overrides = dict(overrides)
    overrides |= {key: text.replace("{home}", str(home)) for key, text in texts.items()}
    config = load_config(home / "toy.yaml", {"output_dir": str(folder), **overrides})
    match name:
        case "queue":
            entries = queue.entries(home / "toy.yaml", overrides)
            return [(flat(entry.config), entry.starts_from) for entry in entries]
        case "processes":
            return processes(config.training.micro_batch_slots, config.device.processes)
        case "smoke":
            return smoke.few_steps(prepare(config)).state.step
    try:
        key = repr(sorted(overrides.items()))
        RUNS[key] = RUNS.get(key) or trained(config)
    except BadInput as error:
        assert name == "error"
        return str(error)
    return RUNS[key][name]


def has_effect(home, folder, key, value, name, context):
    before = observed(home, folder / "before", context, name)
    return before != observed(home, folder / "after", {**context, key: value}, name)


@pytest.mark.parametrize("key", EFFECTS)
def test_another_value_of_a_key_changes_what_it_promises(home, tmp_path, monkeypatch, key):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert has_effect(home, tmp_path, key, *EFFECTS[key], CONTEXT.get(key, {}))


def test_every_key_has_an_effect_here_or_elsewhere_and_one_without_is_found(home, tmp_path):
    keys = set(flat(Config(task="x", training=Training(effective_batch=1)))) - {"workload"}
    elsewhere = chain(*ELSEWHERE.values())
    assert sorted(keys) == sorted([*EFFECTS, *elsewhere])
    assert all((ROOT / "tests" / path).is_file() for path in ELSEWHERE)
    own = {"task": "{home}/own.py:Own"}
    for name in ("weights", "rows", "files", "loader", "step", "forward passes"):
        assert not has_effect(home, tmp_path, "workload.forgotten", 4, name, own)
