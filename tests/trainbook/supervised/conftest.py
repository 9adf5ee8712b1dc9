"""What tests of supervised tasks share: data in files, and configurations that read it."""

import json

import pytest

from lib.task import load_config, load_task
from tests.conftest import ROOT
from trainbook.supervised import bootstrap

CONFIG = f"""
task: {ROOT / "tests" / "trainbook" / "supervised" / "tasks.py"}:NAME
run: {{name: small}}
data: {{num_workers: 0}}
training: {{max_steps: 6, effective_batch: 8, evaluate_every_steps: 3}}
checkpoint: {{every_steps: 2, every_minutes: 0}}
"""
WORDS = [
    "apple",
    "echo",
    "bread",
    "cat",
    "dog",
    "fish",
    "orange",
    "grape",
    "horse",
    "ice",
    "jam",
    "kite",
] * 5


@pytest.fixture
def words(tmp_path):
    """A folder of JSON Lines: 60 words, a third of which begin with a vowel."""
    folder = tmp_path / "words"
    folder.mkdir()
    kinds = ["vowel" if word[0] in "aeiou" else "consonant" for word in WORDS]
    rows = (json.dumps({"word": f"{word}{k}", "class": kinds[k]}) for k, word in enumerate(WORDS))
    (folder / "words.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture
def configured(tmp_path):
    """configured("Words", **overrides) -> the configuration of a tiny task, writing to tmp_path/runs."""

    def make(name, overrides=None):
        (tmp_path / "small.yaml").write_text(CONFIG.replace("NAME", name))
        return load_config(
            tmp_path / "small.yaml", {"output_dir": str(tmp_path / "runs"), **(overrides or {})}
        )

    return make


@pytest.fixture
def task(configured, words):
    """task("Words") -> the task, with its data located."""

    def make(name, source=None):
        if source or name == "Words":
            needs = {"data.dir": str(source or words)}
        else:
            needs = {}
        return load_task(configured(name, needs))

    return make


@pytest.fixture
def few(monkeypatch):
    """Few draws for an interval: scikit-learn takes milliseconds for each."""
    monkeypatch.setattr(bootstrap, "_MOST_DRAWS", 60)
