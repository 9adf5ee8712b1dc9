"""Kaggle, Colab, Lightning AI, molab or local, and the folders and limits of each."""

from pathlib import Path

import pytest

from lib.machine import inputs, platform
from tests.machine.conftest import in_shell, kaggle

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(("run_type", "batch"), [("Interactive", False), ("Batch", True)])
def test_kaggle_is_told_by_its_run_type_even_where_colab_seems_to_be(
    monkeypatch, tmp_path, run_type, batch
):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    in_shell(monkeypatch, "<google.colab._shell.Shell object>")
    here = kaggle(monkeypatch, tmp_path, [], run_type)
    assert here.name == "kaggle"
    assert here.batch == batch
    assert here.input_dir == (tmp_path / "input")
    assert here.output_dir == (tmp_path / "working")
    assert here.scratch_dir == Path("/tmp/trainbook-cache")
    assert here.session_minutes == 690
    assert not here.begins_with_container, "a test's folder in the place of /kaggle"
    assert here.has_mounts
    assert here.download_advice.startswith("Download: ")
    assert ("Save Version" in here.download_advice) != batch
    assert here.output_bytes == (20 * 10**9)
    assert here.output_files == 500


def test_colab_writes_to_drive_where_it_is_mounted(monkeypatch, tmp_path):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    assert platform.detect().name == "local"
    (tmp_path / "content").mkdir()
    assert platform.detect().name == "colab", "a child process there, which has no shell"
    monkeypatch.delenv("COLAB_RELEASE_TAG")
    in_shell(monkeypatch, "<google.colab._shell.Shell object>")
    content = tmp_path / "content"
    assert platform.detect().name == "colab"
    assert platform.detect().output_dir == content
    assert "files.download" in platform.detect().download_advice
    (content / "drive" / "MyDrive").mkdir(parents=True)
    assert platform.detect().output_dir == content / "drive" / "MyDrive" / "trainbook"
    assert platform.detect().session_minutes == 720
    assert platform.detect().begins_with_container
    assert not platform.detect().download_advice


def test_lightning_writes_to_the_disk_of_its_studio(monkeypatch, tmp_path):
    monkeypatch.setenv("LIGHTNING_CLOUD_SPACE_ID", "01j")
    assert platform.detect().name == "local", "the variable alone may come from anywhere"
    (tmp_path / "studio").mkdir()
    here = platform.detect()
    assert here.name == "lightning"
    assert here.output_dir == tmp_path / "studio" / "runs"
    assert here.scratch_dir == Path("/tmp/trainbook-cache")
    assert here.session_minutes is None
    assert not here.download_advice
    assert inputs.mounted(here) == []


def test_molab_counts_twelve_hours_from_the_start_of_its_container(monkeypatch, tmp_path):
    (tmp_path / "marimo").mkdir()
    assert platform.detect().name == "local", "a user may have this name"
    (tmp_path / "marimo.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    here = platform.detect()
    assert here.name == "molab"
    assert here.output_dir == Path("runs")
    assert here.session_minutes == 720
    assert here.begins_with_container
    assert "out.tar.gz" in here.download_advice.format(archive="out.tar.gz", name="out.tar.gz")


@pytest.mark.parametrize("detector", platform._DETECTORS)
def test_no_detector_takes_this_machine(detector):
    assert detector() is None


def test_local(monkeypatch):
    here = platform.detect()
    assert here.name == "local"
    assert not here.batch
    assert here.input_dir is None
    assert here.output_dir == Path("runs")
    assert here.session_minutes is None
    assert here.output_bytes is None
    assert here.output_files is None
    assert here.scratch_dir == Path.home() / ".cache" / "trainbook"
    assert inputs.mounted(here) == []


def test_the_cache_can_be_put_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    for run_type in ("", "Batch"):
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", run_type)
        assert platform.detect().scratch_dir == tmp_path / "cache"
