"""Memory profiles, stages of the data, and what is said where nothing is kept for resuming."""

from typing import get_args, get_type_hints

import pytest
import torch

from lib.config import Memory, profiles
from lib.config.reader import flat
from lib.task import load_config
from tests.conftest import ROOT
from trainbook import launch


@pytest.fixture
def written(tmp_path):
    """written(lines, overrides) -> the toy task, with lines added to the file: these are no overrides."""

    def make(lines, overrides=None):
        text = f"task: {ROOT}/tests/toy.py:Toy\noutput_dir: {tmp_path}/runs\nseed: 0\nrun: {{name: toy}}\n"
        text += "training: {max_steps: 12, effective_batch: 8, log_every_steps: 5}\n"
        (tmp_path / "toy.yaml").write_text(text + lines)
        return load_config(tmp_path / "toy.yaml", overrides)

    return make


def test_a_profile_prints_every_key_that_it_changes(written):
    assert {*profiles.names()} == {*get_args(get_type_hints(Memory)["profile"])} - {""}
    for profile in profiles.names():
        before = written(
            f"memory: {{profile: {profile}}}\ncheckpoint: {{keep_last: 5, every_steps: 3}}\n"
        )
        after, lines = profiles.apply(before, has_gpu=True)
        old = flat(before)
        new = flat(after)
        values = profiles.settings(profile)
        differing = {key for key in new if old[key] != new[key]} - {"memory.profile"}
        assert {key: new[key] for key in values} == values
        assert differing <= {
            *values,
            "training.max_steps",
        }
        assert {line.split(": ")[1].split()[0] for line in lines} == differing


def test_an_override_wins_over_the_profile_and_fp16_needs_a_gpu(written):
    after, _ = profiles.apply(written("memory: {profile: optimized}\n"), has_gpu=False)
    assert after.training.precision == "auto"
    overrides = {"training.micro_batch": 2, "training.max_steps": 7, "training.precision": "bf16"}
    after, _ = profiles.apply(written("memory: {profile: optimized}\n", overrides), True)
    assert after.training.micro_batch == 2
    assert after.training.effective_batch == 16
    assert after.training.precision == "bf16"
    after, _ = profiles.apply(written("memory: {profile: prototype}\n", overrides), True)
    assert after.training.max_steps == 7
    assert after.training.epochs == 0  # the other form of the same length


def test_a_profile_is_worked_in_before_lengths_become_steps(written, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = launch.prepare(written("memory: {profile: prototype}\n"))
    assert run.config.training.max_steps == 1  # 2 * 4 / 8
    assert "memory.profile prototype: data.subset_ratio 1 -> 0.1" in run.lengths
