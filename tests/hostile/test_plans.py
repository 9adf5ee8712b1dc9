"""Plan files among mounted inputs, as a training notebook meets them when it configures itself."""

import json
import os

import pytest

from lib import notebook
from lib.task import load_config
from tests.conftest import ROOT, TOY
from tests.hostile.conftest import FORGED, SECRET
from tests.notebook.test_notebook import EMPTY

TASK = {"task": "{evil}:Evil"}
KEYS = {
    "a task": TASK,
    "a task among sizes": {"training.micro_batch": 2, **TASK},
    "a name": {"run.name": "../../outside/target"},
    "weights": {"run.initial_weights": "{secret}"},
    "data": {"data.dir": "{secret}"},
    "an unknown key": {"training.nothing": 1},
    "a setting that is no dial": {"workload.model.layers": 2},
    "a queue's key": {"queue.fold_key": "task", "queue.folds": 2},
    "a section": {"training": {"micro_batch": 1}},
    "a key of a newline": {f"x\n{FORGED} at step 9": 1},
    "half a surrogate": {"\ud800": 1},
    "a micro-batch of text": {"training.micro_batch": "many"},
    "a negative micro-batch": {"training.micro_batch": -1},
    "a giant effective batch": {"training.effective_batch": 10**17},
    "a flag": {"training.micro_batch": True},
    "another precision": {"training.precision": "int1"},
    "a precision of escapes": {"training.precision": f"\x1b[31m\n{FORGED}"},
    "a dial of text": {"workload.samples": "{evil}"},
}
DIALS = {"workload.samples": (32, 64)}


@pytest.fixture
def configured(nothing_outside, monkeypatch):
    """configured() -> what a training notebook prints, and the configuration that it takes."""
    mount = nothing_outside.folder / "datasets" / "mallory" / "plans"
    mount.mkdir(parents=True)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(nothing_outside.root))
    nothing_outside.folder.rename(nothing_outside.root / "input")
    nothing_outside.folder = nothing_outside.root / "input"
    nothing_outside.mount = nothing_outside.folder / "datasets" / "mallory" / "plans"
    task = nothing_outside.root / "dialled.py"
    task.write_text(f"from tests.toy import Toy\nclass Dialled(Toy):\n    dials = {DIALS}\n")
    config = nothing_outside.root / "toy.yaml"
    config.write_text(TOY.replace(f"{ROOT / 'tests' / 'toy.py'}:Toy", f"{task}:Dialled"))
    given = {**EMPTY, "CONFIG": str(config)}
    plain = load_config(config)

    def configure():
        configs = []
        text = nothing_outside.attempt(lambda: configs.append(notebook.configure("toy", ROOT, given)))
        return text, configs[0] == plain

    return configure


@pytest.mark.parametrize("overrides", KEYS.values(), ids=KEYS)
def test_what_a_mounted_plan_may_not_set_makes_it_ignored(nothing_outside, configured, overrides):
    places = {name: getattr(nothing_outside, name) for name in ("evil", "target", "secret")}
    text = json.dumps({key: _placed(value, places) for key, value in overrides.items()})
    (nothing_outside.mount / "plan-toy.json").write_text(text)
    (nothing_outside.mount / "evil.py").write_text(nothing_outside.code())
    printed, unchanged = configured()
    assert unchanged and "plan-toy.json is ignored: " in printed


def _placed(value, places):
    return value.format(**places) if isinstance(value, str) else value


BYTES = {
    "nothing": b"",
    "a list": b"[]",
    "a key of escapes": json.dumps({f"\x1b[2J\n{FORGED}": 1}).encode(),
    "200,000 brackets": b"[" * 200_000,
    "no UTF-8": b'{"kind": "\xff"}',
    "NUL": b"\0" * 100,
    "a megabyte": b"{}" + b" " * 2**20,
    "a number of 5,000 digits": b'{"kind": ' + b"9" * 5000 + b"}",
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES)
def test_what_is_no_plan_is_ignored(nothing_outside, configured, content):
    (nothing_outside.mount / "plan-toy.json").write_bytes(content)
    printed, unchanged = configured()
    assert unchanged and "plan-toy.json is ignored: " in printed


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "secret"])
def test_what_is_no_file_is_never_opened(nothing_outside, configured, kind):
    path = nothing_outside.mount / "plan-toy.json"
    make = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path),
        "secret": lambda: path.symlink_to(nothing_outside.target / "nowhere"),
    }
    make[kind]()
    printed, unchanged = configured()
    assert unchanged and "is ignored: " in printed and SECRET not in printed


def test_a_mounted_plan_of_sizes_and_dials_is_taken(nothing_outside, configured):
    sizes = {
        "training.effective_batch": 16, "training.micro_batch": 2, "training.micro_batch_slots": 2,
        "training.gradient_checkpointing": "all", "training.precision": "fp32", "workload.samples": 64,
    }  # fmt: skip
    (nothing_outside.mount / "plan-toy.json").write_text(json.dumps(sizes))
    printed, unchanged = configured()
    assert not unchanged and printed.count("plan-toy.json: ") == len(sizes)
