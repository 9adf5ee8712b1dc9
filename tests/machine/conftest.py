"""Platforms that this machine is not: Kaggle with mounted inputs, Colab's shell."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.machine import platform


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the machine's own platform, or files of the folder that it was started in."""
    for name in (
        "KAGGLE_KERNEL_RUN_TYPE",
        "COLAB_RELEASE_TAG",
        "TRAINBOOK_KAGGLE_ROOT",
        "TRAINBOOK_CACHE",
        "LIGHTNING_CLOUD_SPACE_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "_CONTENT", tmp_path / "content")
    monkeypatch.setattr(platform, "_STUDIO", tmp_path / "studio")
    monkeypatch.setattr(platform, "_MOLAB_HOME", tmp_path / "marimo")
    in_shell(monkeypatch, None)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def in_shell(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def kaggle(
    monkeypatch: pytest.MonkeyPatch, root: Path, mounts: list[str], run_type: str = "Batch"
) -> platform.Platform:
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", run_type)
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(root))
    for mount in mounts:
        (root / "input" / mount).mkdir(parents=True)
        (root / "input" / mount / "data.jsonl").write_text("{}\n")
    return platform.detect()
