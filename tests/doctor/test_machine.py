"""Checks of machines that this one is not: faked cards, disks, networks, clocks and versions."""

import errno
import importlib.util
import shutil
import time
from collections import namedtuple

import pytest
import torch

from lib.doctor import machine
from lib.machine import disk, hardware, memory, platform
from lib.report.findings import Finding
from lib.task import load_config
from lib.training import session
from tests import own as project
from tests.doctor.conftest import by_name

Usage = namedtuple("Usage", "total used free")


def test_two_t4_are_fine(card, nvml):
    card("Tesla T4", (7, 5), 14.56, count=2)
    nvml(["Tesla T4", "Tesla T4"])
    found = by_name(machine.check_machine())
    assert found["GPU"] == Finding("GPU", "2 x Tesla T4 (capability 7.5, 14.56 GiB)")
    assert found["kernels"] == Finding("kernels", "sm_75 for capability 7.5")
    assert found["GPU 0 memory"].verdict == found["GPU 1 memory"].verdict == "ok"
    assert found["GPU 1 memory"].value == "14.46 of 14.56 GiB free"


def test_kernels_that_have_to_be_compiled_first_are_a_warning(card):
    card("NVIDIA B200", (10, 0), 178, built=["sm_80", "sm_90", "compute_90"])
    found = machine.check_kernels()
    assert (found.verdict, found.value) == ("warning", "compute_90 for capability 10.0")


@pytest.mark.parametrize("used, verdict", [(0.2, "ok"), (7.0, "warning"), (14.2, "bad")])
def test_a_card_that_others_fill_is_not_fit_to_train(card, used, verdict):
    card("Tesla T4", (7, 5), 14.56, used=used)
    found = machine.check_gpu_memory(0)
    assert found.verdict == verdict and ("End other kernels" in found.advice) == (verdict != "ok")


def test_a_card_that_this_process_fills_is_cleared_and_not_left(card, monkeypatch):
    card("Tesla T4", (7, 5), 14.56, used=7.0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index=0: 6 * memory.GIB)
    assert "Call memory.clear_memory()" in machine.check_gpu_memory(0).advice


def test_no_card_is_no_failure_and_says_where_to_get_one(monkeypatch, tmp_path):
    found = machine.check_gpu(platform.detect())
    assert found.verdict == "warning" and "none: training runs on the CPU" in found.value
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert "GPU T4 x2" in machine.check_gpu(platform.detect()).advice
    assert "kernels" not in by_name(machine.check_machine())


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
