"""Kaggle, Colab or local, and the folders and limits of each."""

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
    (content / "drive" / "MyDrive").mkdir(parents=True)
    assert platform.detect().output_dir == content / "drive" / "MyDrive" / "trainbook"
    assert platform.detect().session_minutes == 720


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
