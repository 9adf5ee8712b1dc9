"""Checks of machines that this one is not: faked cards, disks, networks, clocks and versions."""

import errno
import importlib.util
import shutil
import time
from collections import namedtuple

import pytest
import torch

from lib.doctor import machine
from lib.doctor.findings import Finding
from lib.machine import disk, hardware, memory, platform
from lib.task import load_config
from lib.training import session
from tests import own as project
from tests.doctor.conftest import by_name

Usage = namedtuple("Usage", "total used free")


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


def test_an_h100_is_fine_and_trains_in_bf16(card):
    card("NVIDIA H100 80GB HBM3", (9, 0), 79.1)
    found = by_name(machine.check_machine())
    assert found["kernels"].value == "sm_90 for capability 9.0" and found["kernels"].verdict == "ok"
    assert found["bf16"].value == "NVIDIA H100 80GB HBM3: yes; precision auto trains in bf16"


def test_kernels_that_have_to_be_compiled_first_are_a_warning(card):
    card("NVIDIA B200", (10, 0), 178, built=["sm_80", "sm_90", "compute_90"])
    found = machine.check_kernels()
    assert (found.verdict, found.value) == ("warning", "compute_90 for capability 10.0")


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


def test_no_host_is_asked_for_the_internet(monkeypatch):
    sent = []
    monkeypatch.setattr(hardware.socket, "getaddrinfo", lambda host, port: sent.append(host) or [1])
    monkeypatch.setattr(hardware.socket, "create_connection", lambda *a, **k: pytest.fail("a host was asked"))
    assert machine.check_internet(platform.detect()).verdict == "ok" and sent == []
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert machine.check_internet(platform.detect()).value == "on" and sent == ["www.kaggle.com"]


def test_inputs_are_shown_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    assert "none: the embedded data" in machine.check_inputs(platform.detect()).value
    (tmp_path / "input" / "datasets" / "ada" / "graph").mkdir(parents=True)
    assert machine.check_inputs(platform.detect()).value == "1: datasets/ada/graph"


def test_a_session_that_is_over_is_bad_and_a_short_one_a_warning(toy, monkeypatch):
    assert machine.check_session(None) == Finding("session", "no time limit")
    monkeypatch.setattr(session, "_process_start", lambda: time.time() - 600)
    assert machine.check_session(toy({"session.minutes": 300})).verdict == "ok"
    assert machine.check_session(toy({"session.minutes": 20})).verdict == "warning"
    expired = machine.check_session(toy({"session.minutes": 5}))
    assert expired.verdict == "bad" and expired.value.startswith("0:00:00 left") and "new session" in expired.advice


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


def test_ram_and_cpus_are_those_of_the_container(small_container, toy, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    ram = machine.check_ram()
    assert (ram.verdict, ram.value) == ("warning", "1.00 of the container's 4.00 GiB free")
    cpus = machine.check_cpus(toy({"data.num_workers": 2}))
    assert cpus.value.startswith("1.5 of the machine's") and "Write 0" in cpus.advice


def test_too_little_ram_for_a_run_is_bad(container):
    container("0::/\n", {"memory.max": memory.GIB, "memory.current": memory.GIB // 2})
    assert machine.check_ram().verdict == "bad"


def test_a_machine_that_only_plans_is_asked_for_neither_gpu_nor_data(nothing_of_this_machine, tmp_path, monkeypatch):
    (tmp_path / "input").mkdir()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    for trains, advised in ((True, True), (False, False)):
        found = {finding.name: finding for finding in machine.check_machine(trains=trains)}
        texts = [found[name].value + found[name].advice for name in ("GPU", "inputs", "session")]
        assert any("Accelerator" in text for text in texts) == advised
        assert any("embedded data is trained on" in text for text in texts) == advised
        assert any("last save" in text for text in texts) == advised
        assert (found["GPU"].verdict == "ok") != advised


def test_packages_that_the_task_s_own_files_import_must_be_there(tmp_path):
    config = load_config(project.write(tmp_path / "project"))
    with (tmp_path / "project" / "late.py").open("a") as file:
        file.write("def later():\n    import nbformat, torchvision, no_such_package\n")
    found = by_name(machine.check_versions(config))
    assert found["nbformat"].verdict == "ok" and "the task imports it" in found["nbformat"].value
    absent = found["no_such_package"]
    assert (absent.verdict, absent.advice) == ("bad", "pip install 'no_such_package'.")
    assert "no_such_package" not in by_name(machine.check_versions()) and found["scipy"].verdict == "ok"
    if importlib.util.find_spec("torchvision") is None:
        assert "Install it beside PyTorch" in found["torchvision"].advice
