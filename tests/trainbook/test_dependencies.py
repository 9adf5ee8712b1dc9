"""Packages that are missing are installed or named; torch never is."""

import importlib.util
import subprocess
import tomllib
from types import SimpleNamespace

import pytest

from lib.errors import BadInput
from tests.conftest import ROOT
from trainbook import dependencies


def missing(monkeypatch, *names):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        dependencies.importlib.util, "find_spec", lambda n: None if n in names else find(n)
    )


def test_what_is_bound_to_the_build_of_torch_is_never_installed(monkeypatch):
    missing(monkeypatch, "torchvision", "yaml")
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: pytest.fail("nothing should be installed")
    )
    with pytest.raises(
        BadInput, match="torchvision is missing, and this notebook never installs it"
    ):
        dependencies.ensure(dependencies.with_own(["torchvision"]))


@pytest.mark.parametrize("works", [True, False])
def test_what_is_missing_is_installed_or_named(monkeypatch, works):
    missing(monkeypatch, "tokenizers", "yaml")
    commands = []
    done = SimpleNamespace(returncode=0 if works else 1)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command) or done)
    if works:
        assert "installed now: yaml, tokenizers" in dependencies.ensure()
    else:
        with pytest.raises(
            BadInput, match="could not be installed: PyYAML, tokenizers. Switch the internet on"
        ):
            dependencies.ensure()
    assert commands[0][-2:] == ["PyYAML", "tokenizers"]
    assert "torch" not in commands[0]


def test_the_supported_versions_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}>={oldest}" for name, oldest in dependencies.OLDEST.items()} == set(
        project["dependencies"]
    )
    oldest, newest = dependencies.PYTHON
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
