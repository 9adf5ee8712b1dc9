"""Drawn pictures, few and small, and the task on them."""

import pytest

from lib.task import load_config, load_task

CONFIG = """
task: vqa
data: {dir: embedded, num_workers: 0, evaluation_batch: 8}
training: {max_steps: 4, effective_batch: 8}
checkpoint: {every_minutes: 0}
workload:
  generator: {pictures: 24, questions: 4, side: 32}
  pictures: {side: 32}
  image: {channels: [4, 4]}
  text: {layers: 1, length: 16}
  decoder:
    {fusion_layers: 1, layers: 2, hidden: 4, heads: 2, feed_forward: 8, vocabulary: 200, length: 40, dropout: 0.0}
  writing: {beams: 2, at_once: 16}
  stages:
    FIRST: {answer: 1.0, reasoning: 0.5, format: 0.5}
    SECOND: {from_steps: 2, answer: 0.5, reasoning: 1.0, format: 0.0}
"""


def load(home, overrides=None):
    (home / "vqa.yaml").write_text(CONFIG)
    return load_task(load_config(home / "vqa.yaml", overrides or {}))


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """A cache with the drawn pictures, and what is learned of them."""
    home = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINBOOK_CACHE", str(home / "cache"))
        return home / "cache", load(home).learned()


@pytest.fixture
def vqa(tmp_path, drawn, monkeypatch):
    """vqa(overrides) -> the task, which has learned before."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(drawn[0]))

    def make(overrides=None):
        task = load(tmp_path, overrides)
        task.take_learned(drawn[1])
        return task

    return make
