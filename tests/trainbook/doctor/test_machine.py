"""Checks of machines that this one is not: faked cards, disks, networks, clocks and versions."""

import importlib.metadata
import shutil
from collections import namedtuple
from unittest import mock

from lib.machine import memory
from lib.report.findings import Finding
from lib.task import load_config
from tests import own as project
from tests.trainbook.doctor.conftest import by_name
from trainbook.doctor import machine

Usage = namedtuple("Usage", "total used free")


def test_two_t4_are_fine_and_kernels_are_told_by_the_names_of_the_build(card, nvml):
    card("Tesla T4", (7, 5), 14.56, count=2)
    nvml(["Tesla T4", "Tesla T4"])
    checks = by_name(machine.check_machine())
    assert checks["GPU"] == Finding("GPU", "2 x Tesla T4 (capability 7.5, 14.56 GiB)")
    assert checks["kernels"].verdict == "ok"
    for capability, built, verdict in (
        ((10, 0), ["sm_80", "compute_90"], "ok"), ((8, 9), ["sm_86"], "ok"), ((9, 0), ["sm_80"], "bad"),
    ):  # fmt: skip
        card("A card", capability, 178, built=built)
        assert machine.check_kernels().verdict == verdict


def test_a_disk_that_is_almost_full_is_said(monkeypatch, tmp_path):
    for free, verdict in ((10**8, "bad"), (10**9, "warning"), (10**11, "ok")):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _, free=free: Usage(10**12, 10**12 - free, free)
        )
        finding = machine.check_folder(tmp_path / "not" / "yet")
        assert finding.verdict == verdict
        assert "free" in finding.value
        assert not (tmp_path / "not").exists()


def test_versions_are_compared_as_numbers_and_a_missing_package_is_bad_where_training_needs_it(
    monkeypatch,
):
    for installed, verdict in (("2.10.0+cu128", "ok"), ("2.9.1", "warning")):
        monkeypatch.setattr(
            importlib.metadata, "version", lambda project, installed=installed: installed
        )
        assert machine.check_package("torch", "2.10").verdict == verdict
    missing = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert machine.check_package("PyYAML", "6.0").verdict == "bad"


def test_ram_is_that_of_the_container_and_too_little_is_bad(small_container, container):
    ram = machine.check_ram()
    assert ram.verdict == "warning"
    assert ram.value == "1.00 of the container's 4.00 GiB free"
    container("0::/\n", {"memory.max": memory.GIB, "memory.current": memory.GIB // 2})
    assert machine.check_ram().verdict == "bad"


def test_packages_that_the_task_s_own_files_import_must_be_there(tmp_path):
    config = load_config(project.write(tmp_path / "project"))
    with (tmp_path / "project" / "late.py").open("a") as file:
        file.write("def later():\n    import nbformat, no_such_package\n")
    checks = by_name(machine.check_versions(config))
    assert "nbformat" not in checks, "which is installed"
    absent = checks["no_such_package"]
    assert absent.verdict == "bad"
    assert absent.advice == "pip install 'no_such_package'."
    assert "no_such_package" not in by_name(machine.check_versions())
    assert "scipy 1." in checks["versions"].value
