"""What tests share: a configuration of the toy task, and where real sample data lies."""

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib.machine import hardware, memory
from lib.report.metrics import MACHINE_COLUMNS
from lib.task import load_config
from lib.training.session import Session
from tests.trainbook.kaggle import stub as kaggle_stub
from trainbook import launch
from trainbook.supervised.simple import estimators

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data"))
# Columns of metrics.csv whose values a second run of the same configuration does not repeat.
VOLATILE_COLUMNS = {"samples_per_second", "peak_memory_bytes", "elapsed_seconds", *MACHINE_COLUMNS}

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


_FIRST = "notebooks", "trainbook/launch", "workloads/glacier", "ranks", "planner", "faults"
_LONGEST = tuple(f"tests/{name}/" for name in _FIRST)


def pytest_collection_modifyitems(items):
    """Starts the longest files first: a minute of one at the end is a minute in which the other core is idle."""
    ranks = {prefix: number for number, prefix in enumerate(_LONGEST)}
    items.sort(
        key=lambda item: next((ranks[p] for p in _LONGEST if item.nodeid.startswith(p)), len(ranks))
    )


def pytest_collection_finish():
    """Clearing memory, which every run does, would walk all modules and tests: a second each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path, monkeypatch):
    """Caches and outputs go to the test's own folder, and no test sees another platform by accident."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    """Simple methods of few trees: those of every small run would take minutes. Tests of theirs have all."""
    monkeypatch.setattr(estimators, "GROWN", 4)
    monkeypatch.setattr(estimators, "ROUNDS", 10)


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
    monkeypatch.setattr("trainbook.kaggle.client._execute", kaggle_stub.execute_here)
    return real_client


@pytest.fixture
def toy(tmp_path):
    """toy(**overrides) -> the configuration of the toy task, writing to tmp_path/runs."""
    (tmp_path / "toy.yaml").write_text(TOY)

    def make(overrides=None):
        return load_config(
            tmp_path / "toy.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})}
        )

    return make


@pytest.fixture
def quick(monkeypatch):
    """A picture that takes no time: drawing takes longer than the toy's training, and has tests of its own."""

    def draw(table, out, *_):
        out.parent.mkdir(exist_ok=True)
        out.write_bytes(b"picture")
        return out

    monkeypatch.setattr(launch, "draw_metrics", draw)


# --- machines that this one is not ------------------------------------------------------------------------------------

CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.fixture
def nothing_of_this_machine(monkeypatch, tmp_path):
    """No card, no TPU, no NVML and no container, unless a test puts them there."""
    for name in ("CUDA_VISIBLE_DEVICES", "TRAINBOOK_SESSION_START", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware, "_OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def card(monkeypatch):
    """card("Tesla T4", (7, 5), 14.56, count=2, used=0.1): torch sees these, by name and properties only."""

    def put(name, capability, gib, built=CU128, count=1, used=0.1):
        total = int(gib * memory.GIB)
        seen = SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], total_memory=total, uuid="1"
        )
        fakes = {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "current_device": lambda: 0,
            "get_device_properties": lambda index: seen,
            "get_device_capability": lambda on=None: capability,
            "get_device_name": lambda on=None: name,
            "get_arch_list": lambda: list(built),
            "mem_get_info": lambda index: (total - int(used * memory.GIB), total),
            "memory_allocated": lambda index=0: 0,
            "memory_reserved": lambda index=0: 0,
        }
        for function, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, function, fake)

    return put


@pytest.fixture
def nvml(monkeypatch):
    """nvml(names): a driver 570.86 for CUDA 12.8 that sees cards of these names."""

    def put(names, cuda=12080):
        fake = SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlSystemGetCudaDriverVersion_v2=lambda: cuda,
            nvmlSystemGetDriverVersion=lambda: "570.86",
            nvmlDeviceGetCount=lambda: len(names),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetName=lambda index: names[index],
        )
        monkeypatch.setitem(sys.modules, "pynvml", fake)

    return put


@pytest.fixture
def container(monkeypatch, tmp_path):
    """container("0::/\\n", {"cpu.max": "200000 100000"}): the control groups of this process, and their files."""

    def limit(own_groups, files):
        (tmp_path / "cgroup").write_text(own_groups)
        monkeypatch.setattr(hardware, "_OWN_CGROUP", tmp_path / "cgroup")
        monkeypatch.setattr(hardware, "_CGROUPS", tmp_path / "sys")
        for name, text in files.items():
            path = tmp_path / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    return limit


@pytest.fixture
def small_container(container, monkeypatch):
    """A container with 1.5 CPUs and 4 GiB of RAM, 3 of them used, on a machine with 8 CPUs and 64 GiB, 4 of them."""
    whole = SimpleNamespace(total=64 * memory.GIB, available=60 * memory.GIB)
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: whole)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    files = {
        "memory.max": 4 * memory.GIB,
        "memory.current": 3 * memory.GIB,
        "cpu.max": "150000 100000",
    }
    container("0::/\n", files)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def cut(monkeypatch):
    """cut(n): the next session's deadline falls after n steps; cut(None): never."""

    def after(steps):
        class Cut(Session):
            done = 0

            def stop_reason(self, evaluates_next=False):
                self.done += 1
                if steps and self.done >= steps:
                    return "deadline"
                return None

        monkeypatch.setattr(launch, "start_session", lambda minutes, margin: Cut(None, 0, 0))

    return after
