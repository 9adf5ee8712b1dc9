"""Missing packages are installed or named; torch is never installed."""

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

    def find_spec(name):
        if name in names:
            return None
        return find(name)

    monkeypatch.setattr(dependencies.importlib.util, "find_spec", find_spec)


@pytest.fixture
def commands(monkeypatch):
    """Commands of pip, which succeed unless `commands.code` is set."""

    class Commands(list):
        code = 0

        def run(self, command, check):
            self.append(command)
            return SimpleNamespace(returncode=self.code)

    commands = Commands()
    monkeypatch.setattr(subprocess, "run", commands.run)
    return commands


def test_packages_bound_to_the_build_of_torch_are_never_installed(monkeypatch, commands):
    missing(monkeypatch, "torchvision", "yaml")
    sentence = "torchvision is missing, and this notebook never installs it"
    with pytest.raises(BadInput, match=sentence):
        dependencies.ensure(dependencies.with_own(["torchvision"]))
    assert not commands


def test_missing_packages_are_installed(monkeypatch, commands):
    missing(monkeypatch, "tokenizers", "yaml")
    assert "installed now: yaml, tokenizers" in dependencies.ensure()
    assert commands[0][-2:] == ["PyYAML", "tokenizers"]
    assert "torch" not in commands[0]


def test_packages_that_cannot_be_installed_are_named(monkeypatch, commands):
    missing(monkeypatch, "tokenizers", "yaml")
    commands.code = 1
    sentence = "could not be installed: PyYAML, tokenizers. Switch the internet on"
    with pytest.raises(BadInput, match=sentence):
        dependencies.ensure()


def test_the_supported_versions_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = {f"{name}>={oldest}" for name, oldest in dependencies.OLDEST.items()}
    assert packages == set(project["dependencies"])
    (major, oldest), (_, newest) = dependencies.PYTHON
    assert project["requires-python"] == f">={major}.{oldest},<{major}.{newest + 1}"
