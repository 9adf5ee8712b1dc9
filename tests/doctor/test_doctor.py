"""The doctor on machines that this one is not: faked cards, containers, disks and clocks; and on this one."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch

from lib import __main__, checkpoint, dependencies, doctor, launch
from lib.checkpoint import weights
from lib.doctor import findings, machine, rehearsal
from lib.doctor.findings import Finding
from lib.errors import BadInput
from lib.launch.resume import find_checkpoint
from lib.machine import disk, hardware, memory, platform
from lib.training import session
from lib.training.state import restore_state, state_tensors
from tests.conftest import ROOT

CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    """No card, no TPU, no NVML and no container, unless a test puts them there."""
    for name in (*hardware._TPU_VARIABLES, "CUDA_VISIBLE_DEVICES", "TRAINBOOK_SESSION_START", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware, "_DEVICES", tmp_path / "dev")
    monkeypatch.setattr(hardware, "_OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def card(monkeypatch):
    """card("Tesla T4", (7, 5), 14.56, count=2, used=0.1): torch sees these, by name and properties only."""

    def put(name, capability, gib, built=CU128, count=1, used=0.1):
        total = int(gib * memory.GIB)
        seen = SimpleNamespace(name=name, major=capability[0], minor=capability[1], total_memory=total, uuid="1")
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
            nvmlSystemGetDriverVersion=lambda: b"570.86",
            nvmlDeviceGetCount=lambda: len(names),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetName=lambda index: names[index],
        )
        monkeypatch.setitem(sys.modules, "pynvml", fake)

    return put


def by_name(checks):
    return {check.name: check for check in checks}


# --- cards ------------------------------------------------------------------------------------------------------------


def test_two_t4_are_fine_and_train_in_fp16_whatever_emulation_says(card, nvml, monkeypatch):
    card("Tesla T4", (7, 5), 14.56, count=2)
    nvml(["Tesla T4", "Tesla T4"])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    found = by_name(machine.check_machine())
    assert found["GPU"] == Finding("GPU", "2 x Tesla T4 (capability 7.5, 14.56 GiB)")
    assert found["kernels"] == Finding("kernels", "sm_75 for capability 7.5")
    assert found["bf16"] == Finding("bf16", "Tesla T4: emulated only; precision auto trains in fp16")
    assert found["driver"].value.startswith("570.86, for CUDA up to 12.8")
    assert found["GPU 0 memory"].verdict == found["GPU 1 memory"].verdict == "ok"
    assert found["GPU 1 memory"].value == "14.46 of 14.56 GiB free"


def test_a_p100_with_a_cuda_12_8_build_is_caught_without_touching_the_card(card, monkeypatch, toy):
    card("Tesla P100-PCIE-16GB", (6, 0), 15.9)
    touched = lambda *a, **k: pytest.fail("the card was touched")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    monkeypatch.setattr(torch, "empty", touched)
    monkeypatch.setattr(rehearsal, "new_state", touched)
    found = by_name(machine.check_machine())["kernels"]
    assert found.verdict == "bad" and "none for Tesla P100-PCIE-16GB (capability 6.0)" in found.value
    assert "no kernel image is available" in found.advice and "names sm_60" in found.advice
    with pytest.raises(BadInput, match="kernels: none for Tesla P100"):
        doctor.admit(toy())
    run = by_name(rehearsal.check_run(toy()))
    assert run["save and resume"].value.startswith("not tried") and "recomputation" not in run


def test_an_h100_is_fine_and_trains_in_bf16(card):
    card("NVIDIA H100 80GB HBM3", (9, 0), 79.1)
    found = by_name(machine.check_machine())
    assert found["kernels"].value == "sm_90 for capability 9.0" and found["kernels"].verdict == "ok"
    assert found["bf16"].value == "NVIDIA H100 80GB HBM3: yes; precision auto trains in bf16"


def test_kernels_that_have_to_be_compiled_first_are_a_warning(card):
    card("NVIDIA B200", (10, 0), 178, built=["sm_80", "sm_90", "compute_90"])
    found = machine.check_kernels()
    assert (found.verdict, found.value) == ("warning", "compute_90 for capability 10.0")


@pytest.mark.parametrize(
    "capability, built, fitting",
    [
        ((7, 5), CU128, "sm_75"),
        ((8, 9), CU128, "sm_86"),  # an L4: the same major, the highest minor that is not above
        ((8, 0), ["sm_86"], None),  # never downwards
        ((6, 0), CU128, None),
        ((6, 1), ["sm_60"], "sm_60"),
        ((9, 0), ["sm_80", "compute_80"], "compute_80"),
        ((9, 0), ["sm_90a"], "sm_90a"),
        ((9, 1), ["sm_90a", "compute_90a"], None),
        ((10, 3), ["sm_100f"], "sm_100f"),
        ((12, 0), ["sm_100", "sm_100f", "compute_100f"], None),
        ((12, 1), CU128, "sm_120"),
        ((8, 0), [], None),
        ((8, 0), ["gfx90a"], None),
    ],
)
def test_binaries_run_upwards_within_a_major_and_ptx_upwards_for_ever(capability, built, fitting):
    assert hardware.fitting_kernel(capability, built) == fitting


@pytest.mark.parametrize("used, verdict", [(0.2, "ok"), (7.0, "warning"), (14.2, "bad")])
def test_a_card_that_others_fill_is_not_fit_to_train(card, used, verdict):
    card("Tesla T4", (7, 5), 14.56, used=used)
    found = machine.check_gpu_memory(0)
    assert found.verdict == verdict and ("Restart other kernels" in found.advice) == (verdict != "ok")


def test_a_card_that_this_process_fills_is_cleared_and_not_left(card, monkeypatch):
    card("Tesla T4", (7, 5), 14.56, used=7.0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index=0: 6 * memory.GIB)
    assert "Call memory.clear_memory()" in machine.check_gpu_memory(0).advice


def test_no_card_is_no_failure_and_says_where_to_get_one(monkeypatch, tmp_path):
    found = machine.check_gpu(platform.detect())
    assert found.verdict == "warning" and "none: training runs on the CPU" in found.value
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert "GPU T4 x2" in machine.check_gpu(platform.detect()).advice
    assert not {"kernels", "bf16", "driver"} & by_name(machine.check_machine()).keys()


def test_a_card_that_torch_cannot_use_is_explained(nvml, monkeypatch):
    nvml(["Tesla T4"], cuda=11040)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in machine.check_gpu(platform.detect()).advice
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    found = machine.check_gpu(platform.detect())
    assert found.verdict == "bad" and "is built for CUDA 12.8, and driver 570.86 runs CUDA up to 11.4" in found.advice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-very-secret")
    found = machine.check_gpu(platform.detect())
    assert "CUDA_VISIBLE_DEVICES is set" in found.advice and "secret" not in str(found)


def test_a_driver_that_fails_is_a_finding_and_not_an_end(monkeypatch, card):
    card("Tesla T4", (7, 5), 14.56)

    def broken(*_):
        raise RuntimeError("CUDA unknown error")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    found = by_name(machine.check_machine())
    assert found["GPU"].verdict == "warning" and "CUDA unknown error" in found["GPU"].value and "RAM" in found


# --- TPU --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["TPU_ACCELERATOR_TYPE", "COLAB_TPU_ADDR", "accel0"])
def test_a_tpu_runtime_is_refused_in_one_sentence(sign, toy, monkeypatch, tmp_path, capsys):
    (tmp_path / "dev").mkdir()
    if sign.isupper():
        monkeypatch.setenv(sign, "v5litepod-8")
    else:
        (tmp_path / "dev" / sign).touch()
    assert __main__.main(["doctor"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("This is a TPU runtime") and shown.err.count(". ") == 0
    with pytest.raises(BadInput, match="This is a TPU runtime"):
        launch.train(toy())


def test_a_laptops_npu_a_rented_tpu_and_a_gpu_are_no_tpu_runtime(monkeypatch, tmp_path, card):
    (tmp_path / "dev" / "accel").mkdir(parents=True)
    (tmp_path / "dev" / "accel" / "accel0").touch()
    monkeypatch.setenv("TPU_NAME", "one-that-i-rent")
    hardware.refuse_tpu()
    (tmp_path / "dev" / "accel0").touch()
    card("Tesla T4", (7, 5), 14.56)
    hardware.refuse_tpu()


# --- memory, CPUs, disks ----------------------------------------------------------------------------------------------


def cgroup(monkeypatch, tmp_path, own, values):
    """A process that is told `own` about its groups, and the files of those groups."""
    (tmp_path / "cgroup").write_text(own)
    monkeypatch.setattr(hardware, "_CGROUPS", tmp_path / "sys")
    for name, text in values.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_the_limits_of_a_container_count(monkeypatch, tmp_path):
    whole = SimpleNamespace(total=64 * memory.GIB, available=60 * memory.GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert (hardware.ram(), hardware.cpus()) == (hardware.Ram(60 * memory.GIB, 64 * memory.GIB, False), 8)
    values = {
        "job/step/memory.max": "max",
        "job/memory.max": 4 * memory.GIB,
        "job/memory.current": 3 * memory.GIB,
        "job/memory.stat": f"anon 1\ninactive_file {memory.GIB}",  # given up before memory runs out
        "job/cpu.max": "150000 100000",
    }
    cgroup(monkeypatch, tmp_path, "0::/job/step\n", values)
    assert (hardware.ram(), hardware.cpus()) == (hardware.Ram(2 * memory.GIB, 4 * memory.GIB, True), 1.5)
    found = machine.check_ram()
    assert (found.verdict, found.value) == ("warning", "2.00 of the container's 4.00 GiB free")


def test_version_1_of_control_groups_is_read_too(monkeypatch, tmp_path):
    values = {
        "memory/memory.limit_in_bytes": memory.GIB,
        "memory/memory.usage_in_bytes": memory.GIB // 2,
        "cpu/cpu.cfs_quota_us": -1,
        "cpu/cpu.cfs_period_us": 100000,
    }
    cgroup(monkeypatch, tmp_path, "9:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n", values)
    assert hardware.ram().total == memory.GIB and hardware.ram().available <= memory.GIB // 2
    assert machine.check_ram().verdict == "bad"
    assert hardware.cpus() == len(os.sched_getaffinity(0))


def test_more_loader_workers_than_cpus_are_a_warning(toy, monkeypatch):
    monkeypatch.setattr(hardware, "cpus", lambda: 2.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert machine.check_cpus(toy()).verdict == machine.check_cpus(None).verdict == "ok"
    assert "Write 1" in machine.check_cpus(toy({"data.num_workers": 8})).advice


def test_a_small_or_missing_dev_shm_matters_where_there_are_loader_workers(toy, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_SHM", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**26, 0, 2**26))  # Docker's 64 MiB
    found = machine.check_shm(toy({"data.num_workers": 2}))
    assert (found.verdict, found.value) == ("warning", "0.06 GiB free") and "data.num_workers to 0" in found.advice
    assert machine.check_shm(toy()).verdict == "ok"
    monkeypatch.setattr(machine, "_SHM", tmp_path / "nowhere")
    assert machine.check_shm(toy({"data.num_workers": 2})).verdict == "bad"
    assert machine.check_shm(None).verdict == "warning"


@pytest.mark.parametrize("free, verdict", [(10**8, "bad"), (10**9, "warning"), (10**11, "ok")])
def test_a_disk_that_is_almost_full_is_said(free, verdict, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - free, free))
    found = machine.check_folder("output folder", tmp_path / "not" / "yet", machine._OUTPUT_BYTES)
    assert found.verdict == verdict and "free" in found.value
    assert not (tmp_path / "not").exists()


def test_places_that_cannot_be_written_to_are_bad(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    found = machine.check_folder("output folder", tmp_path / "file" / "runs", machine._OUTPUT_BYTES)
    assert (
        found.verdict == "bad" and "is no folder" in found.value and "Give another folder: output_dir" in found.advice
    )

    def read_only(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", read_only)
    found = by_name(machine.check_machine())
    assert "Read-only file system" in found["output folder"].value
    assert "TRAINBOOK_CACHE" in found["scratch folder"].advice


def test_the_platforms_budget_of_files_warns_and_never_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    assert machine.check_budget(platform.detect()).value == "0.00 of 20 GB in 0 of 500 files"
    monkeypatch.setattr(disk, "held", lambda _: (10**9, 700))
    assert machine.check_budget(platform.detect()).verdict == "warning"
    monkeypatch.setattr(disk, "held", lambda _: (20 * 10**9, 7))
    assert machine.check_budget(platform.detect()).verdict == "bad"


# --- network, inputs, session, versions -------------------------------------------------------------------------------


def test_no_host_is_asked_for_the_internet(monkeypatch):
    sent = []
    monkeypatch.setattr(hardware.socket, "getaddrinfo", lambda host, port: sent.append(host) or [1])
    monkeypatch.setattr(hardware.socket, "create_connection", lambda *a, **k: pytest.fail("a host was asked"))
    assert machine.check_internet(platform.detect()).verdict == "ok" and sent == []
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert machine.check_internet(platform.detect()).value == "on" and sent == ["www.kaggle.com"]


def test_a_resolver_that_hangs_is_waited_for_no_longer_than_its_time(monkeypatch):
    monkeypatch.setattr(hardware.socket, "getaddrinfo", lambda *_: time.sleep(1.0) or [])
    begin = time.monotonic()
    assert not hardware.resolves("somewhere.invalid", 0.05)
    assert time.monotonic() - begin < 0.8


def test_inputs_are_shown_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    assert "none: the embedded data" in machine.check_inputs(platform.detect()).value
    (tmp_path / "input" / "datasets" / "ada" / "graph").mkdir(parents=True)
    assert machine.check_inputs(platform.detect()).value == "1: datasets/ada/graph"


def test_a_session_that_is_over_is_bad_and_a_short_one_a_warning(toy, monkeypatch):
    assert machine.check_session(None) == Finding("session", "has no end")
    monkeypatch.setattr(session, "_process_start", lambda: time.time() - 600)
    assert machine.check_session(toy({"session.minutes": 300})).verdict == "ok"
    assert machine.check_session(toy({"session.minutes": 20})).verdict == "warning"
    expired = machine.check_session(toy({"session.minutes": 5}))
    assert expired.verdict == "bad" and expired.value.startswith("0:00:00 left") and "new session" in expired.advice


def test_the_supported_versions_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}>={oldest}" for name, oldest in dependencies.OLDEST.items()} == set(project["dependencies"])
    oldest, newest = dependencies.PYTHON
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"


@pytest.mark.parametrize(
    "installed, verdict", [("2.10.0+cu128", "ok"), ("2.9.1", "warning"), ("3.0", "ok"), ("2.10rc1", "ok")]
)
def test_versions_are_compared_as_numbers(installed, verdict, monkeypatch):
    monkeypatch.setattr(machine.importlib.metadata, "version", lambda _: installed)
    found = machine.check_package("torch", "2.10")
    assert found.verdict == verdict and "pip" not in found.advice, "torch is never installed by pip here"


def test_a_missing_package_is_bad_only_where_training_needs_it(monkeypatch):
    def missing(name):
        raise machine.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", missing)
    assert machine.check_package("PyYAML", "6.0").verdict == "bad"
    assert machine.check_package("nvidia-ml-py", "12").verdict == "warning"


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_runs_numbers_are_said(toy):
    found = by_name(rehearsal.check_run(toy({"training.effective_batch": 10, "training.micro_batch": 3})))
    assert found["precision"].value == "fp32 on the CPU; training.precision is auto"
    accumulation = "effective batch 10 = 1 slot of 10, each in 3 micro-batches of 3, and one of 1"
    assert found["accumulation"].value == accumulation
    assert found["recomputation"].value == "0 of 4 blocks"
    assert found["save interval"].value.startswith("every 3 steps: a kill loses at most that")
    assert found["resume"].value == "No earlier checkpoint of toy: training starts at step 0 of 12."
    assert "the same bit for bit" in found["save and resume"].value
    assert not [check for check in found.values() if check.verdict != "ok"]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"checkpoint.every_steps": 0}, "at the session's end only"),
        ({"checkpoint.every_steps": 12}, "at the session's end only"),
        ({"checkpoint.keep_last": 0}, "no checkpoint is kept"),
    ],
)
def test_a_run_that_a_kill_would_end_is_a_warning(toy, changes, sentence):
    found = rehearsal.check_save_interval(toy(changes))
    assert found.verdict == "warning" and sentence in found.value and found.advice


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def test_the_source_of_a_resumed_run_is_found_and_nothing_in_its_folder_changes(toy, tmp_path):
    config = toy()
    launch.train(config)
    folder = tmp_path / "runs" / "toy"
    newest = checkpoint.path_of(folder / "checkpoints", 12)
    (newest / "model.safetensors").write_bytes(b"damaged")
    before = snapshot(tmp_path / "runs")
    assert rehearsal.check_resume(launch.prepare(config)).value.startswith("completed at step 12")
    found = rehearsal.check_resume(launch.prepare(toy({"training.max_steps": 20})))
    assert found.verdict == "warning" and "step 9: 11 of 20 steps left" in found.value and "is damaged" in found.advice
    rehearsal.check_run(toy({"training.max_steps": 20}))
    assert snapshot(tmp_path / "runs") == before
    assert find_checkpoint(launch.prepare(config)).step == 9 and not newest.exists(), "a run does set it aside"


def test_a_run_that_cannot_go_on_is_bad(toy, tmp_path):
    launch.train(toy())
    other = launch.prepare(toy({"seed": 1, "training.max_steps": 20}))
    found = rehearsal.check_resume(other)
    assert found.verdict == "bad" and "cannot be resumed with this configuration" in found.advice
    newest = checkpoint.path_of(tmp_path / "runs" / "toy" / "checkpoints", 12)
    (newest / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BadInput, match=r"It is kept as step-00000012.damaged.\n.* cannot be resumed"):
        find_checkpoint(other)


def test_room_for_one_checkpoint_is_too_little_and_for_a_few_a_warning(toy, monkeypatch):
    run = launch.prepare(toy({"checkpoint.keep_last": 5}))
    state = rehearsal._after_one_update(run)
    one = rehearsal._bytes(state_tensors(state, run.config))
    assert one == (3 * 4 * 21 + 4 * 4), "weights and two moments of 21 numbers in fp32, and a step for each parameter"
    verdicts = []
    for room in (one, 3 * one, 100 * one):
        monkeypatch.setattr(rehearsal.Retention, "available", lambda self, room=room: room)
        verdicts.append(rehearsal.check_room(run, state).verdict)
    assert verdicts == ["bad", "warning", "ok"]


@pytest.mark.parametrize("lost", ["optimizer", "model"])
def test_a_resume_that_loses_something_is_found(toy, monkeypatch, lost):
    restore = restore_state

    def forgetful(state, saved):
        kept = {group: named for group, named in saved.tensors.items() if group != lost}
        whole = weights.of(state.model) if lost == "model" else {}
        restore(state, checkpoint.Checkpoint(saved.path, saved.step, {"model": whole, **kept}, saved.state))

    monkeypatch.setattr(rehearsal, "restore_state", forgetful)
    run = launch.prepare(toy())
    found = rehearsal.check_round_trip(run, rehearsal._after_one_update(run))
    assert found.verdict == "bad" and f"{lost}/" in found.advice


def test_every_bit_counts(toy):
    zeros = {"a": {"x": torch.zeros(2)}}
    assert rehearsal.differences(zeros, {"a": {"x": torch.tensor([0.0, -0.0])}}) == ["a/x"]
    nan = {"a": {"x": torch.tensor([float("nan")])}}
    assert rehearsal.differences(nan, {"a": {"x": torch.tensor([float("nan")])}}) == []
    assert rehearsal.differences(
        zeros, {"a": {"x": torch.zeros(2, dtype=torch.float16)}, "b": {"y": nan["a"]["x"]}}
    ) == [
        "a/x",
        "b/y",
    ]


@pytest.mark.parametrize("changes", [{"training.ema_decay": 0.9}, {"checkpoint.lightweight": True}])
def test_the_round_trip_holds_for_averages_and_lightweight_checkpoints(toy, changes, tmp_path):
    found = by_name(rehearsal.check_run(toy(changes)))["save and resume"]
    assert found.verdict == "ok" and "the same bit for bit" in found.value
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "error, sentence",
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "do not fit into memory"),
        (FileNotFoundError("No usable temporary directory"), "No usable temporary directory"),
    ],
)
def test_a_model_that_cannot_be_made_is_said(toy, monkeypatch, error, sentence):
    def fail(task, config):
        raise error

    monkeypatch.setattr(rehearsal, "new_state", fail)
    found = by_name(rehearsal.check_run(toy()))["model"]
    assert found.verdict == "bad" and sentence in found.value


def test_a_mistake_in_the_task_keeps_its_own_traceback(toy, monkeypatch):
    def mistaken(task, config):
        raise AttributeError("no such layer")

    monkeypatch.setattr(rehearsal, "new_state", mistaken)
    with pytest.raises(AttributeError, match="no such layer"):
        rehearsal.check_run(toy())


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_table_is_aligned_and_fits_into_100_columns():
    sections = {"Machine": [Finding("GPU", "none", "bad", "Take one."), Finding("a longer name", "goes on and " * 9)]}
    assert findings.table(sections).splitlines() == [
        "Machine",
        "  BAD      GPU            none",
        "                          > Take one.",
        "  ok       a longer name  " + ("goes on and " * 6).strip(),
        "                          " + ("goes on and " * 3).strip(),
        "",
        "2 checks: 1 bad.",
    ]


def test_the_command_tells_bad_by_its_exit_code_and_json_is_nothing_but_json(toy, tmp_path, capsys):
    config = str(tmp_path / "toy.yaml")
    toy()
    assert __main__.main(["doctor", config, "--json", "--set", f"output_dir={tmp_path / 'runs'}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "warning" and {row["section"] for row in found["checks"]} == {
        "machine",
        "versions",
        "run",
    }
    assert set(found["checks"][0]) == {"section", "name", "value", "verdict", "advice"}
    (tmp_path / "file").touch()
    assert __main__.main(["doctor", config, "--set", f"output_dir={tmp_path / 'file'}"]) == 2
    assert "cannot be written to" in capsys.readouterr().out
    assert __main__.main(["doctor", config, "--set", "training.precision=fp16"]) == 2
    assert "there is no GPU. Write auto or fp32." in " ".join(capsys.readouterr().out.split())
    assert __main__.main(["doctor", str(tmp_path / "nothing.yaml")]) == 2


def test_the_doctor_runs_on_this_machine():
    command = [sys.executable, "-m", "lib", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = {row["name"] for row in json.loads(done.stdout)["checks"]}
    assert done.returncode in (0, 2) and done.stderr == ""
    assert {"platform", "GPU", "RAM", "CPUs", "/dev/shm", "internet", "session", "Python", "torch"} <= names
