"""A configuration with its data: lengths in steps."""

import pytest
import torch

from lib import launch
from lib.errors import TrainingFailed
from lib.launch import run as prepared
from lib.machine import platform


def test_epochs_become_steps_and_are_printed(toy):
    run = launch.prepare(toy({"training.epochs": 2}))
    assert run.config.training.max_steps == 10  # 2 * 37 / 8, rounded up
    assert run.lengths == ["training.epochs 2 -> training.max_steps 10 (samples 37, effective batch 8)"]


def test_a_subset_of_the_data_is_what_epochs_and_training_count(toy):
    run = launch.prepare(toy({"training.epochs": 2, "data.subset_ratio": 0.25}))
    assert run.config.training.max_steps == 3  # 2 * 9 / 8, rounded up


def test_a_plan_that_fails_in_a_users_code_is_an_error_on_the_command_line_alone(toy, monkeypatch):
    def fails(*_):
        raise TrainingFailed("Planning toy failed:\nThe step raises ValueError (mine.py:6).")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(prepared, "card_of_gpu", lambda number: None)
    monkeypatch.setattr(prepared.measured, "corrected", lambda card, config: card)
    monkeypatch.setattr(prepared.process, "plan", fails)
    monkeypatch.setattr(prepared.ranks, "cards", lambda device: [0])
    with pytest.raises(TrainingFailed):
        prepared.apply_plan(toy(), 1)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    _, plan, (said,) = prepared.apply_plan(toy(), 1)
    assert plan is None and said.startswith("Warning: The step raises ValueError (mine.py:6). So nothing is planned")
