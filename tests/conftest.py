"""What tests share: a configuration of the toy task, and where real sample data lies."""

import os
from pathlib import Path

import pytest
import torch

from lib.task import load_config
from tests.kaggle import stub as kaggle_stub

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data"))

TOY = f"""
task: {ROOT / "tests" / "toy.py"}:Toy
run: {{name: toy}}
data: {{num_workers: 0}}
training:
  max_steps: 12
  effective_batch: 8
  smoke_steps: 3
  log_every_steps: 5
  evaluate_every_steps: 4
optimizer: {{lr: 0.01}}
scheduler: {{warmup_steps: 2}}
checkpoint: {{every_steps: 3, every_minutes: 0}}
"""


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path, monkeypatch):
    """Caches and outputs go to the test's own folder, and no test sees another platform by accident."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def real_client(tmp_path, monkeypatch):
    """An imitated Kaggle, and an environment in which the real client, as a child, finds it and nothing else."""
    for name in ("KAGGLE_API_TOKEN", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with kaggle_stub.serving(tmp_path) as (served, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.fixture
def stub(real_client, monkeypatch):
    """The same with the real client in this process, which saves its start at every call."""
    monkeypatch.setattr("lib.kaggle.client._execute", kaggle_stub.execute_here)
    return real_client


@pytest.fixture
def toy(tmp_path):
    """toy(**overrides) -> the configuration of the toy task, writing to tmp_path/runs."""
    (tmp_path / "toy.yaml").write_text(TOY)

    def make(overrides=None):
        return load_config(tmp_path / "toy.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})})

    return make
