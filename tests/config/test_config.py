"""The configuration: defaults, lengths in epochs, changes, keys of earlier versions."""

from dataclasses import dataclass, field

import pytest

from lib.config import (
    REMOVED,
    Config,
    Folds,
    Run,
    Training,
    read_config,
    resolve_lengths,
    split_overrides,
    with_changes,
)
from lib.errors import BadInput
from tests.config.settings import GOOD, Settings, load


@dataclass(frozen=True)
class Stage:
    ramp_steps: int = 0
    ramp_epochs: float = 0.0


@dataclass(frozen=True)
class Stages:
    by_name: dict[str, Stage] = field(default_factory=dict)


def test_epochs_become_steps_once_in_mappings_too_and_whole_numbers_are_not_rounded_up(tmp_path):
    (tmp_path / "staged.yaml").write_text(
        "task: toy\ntraining: {epochs: 3, effective_batch: 64, evaluate_every_epochs: 0.5}\n"
        "scheduler: {warmup_epochs: 0.0001}\n"
        "workload: {by_name: {early: {ramp_epochs: 1.1}, whole: {ramp_steps: 7}, late: {ramp_epochs: 3}}}\n"
    )
    config = read_config(tmp_path / "staged.yaml", workload=lambda task: Stages)
    assert config.training.max_steps == 0
    resolved, lines = resolve_lengths(config, 26_320)
    training = resolved.training
    assert training.max_steps == 1234
    assert training.evaluate_every_steps == 206
    assert resolved.scheduler.warmup_steps == 1
    assert training.epochs == 0
    assert training.evaluate_every_epochs == 0
    assert resolved.workload == Stages(
        {"early": Stage(453), "whole": Stage(7), "late": Stage(1234)}
    )
    assert (
        lines[0]
        == "training.epochs 3 -> training.max_steps 1,234 (samples 26,320, effective batch 64)"
    )
    assert len(lines) == 5
    assert resolve_lengths(resolved, 999) == (resolved, [])
    with pytest.raises(BadInput, match="no training samples"):
        resolve_lengths(config, 0)
    for epochs, steps in (("1.1", 11), ("0.3", 3), ("1e-9", 1)):
        config = load(tmp_path, f"task: toy\ntraining: {{epochs: {epochs}, effective_batch: 1}}\n")
        assert resolve_lengths(config, 10)[0].training.max_steps == steps


def test_changes_replace_values_and_may_not_contradict_each_other(tmp_path):
    training = Training(max_steps=10, effective_batch=8)
    config = load(tmp_path, GOOD)
    assert config == Config(
        task="toy", run=Run(name="toy_small"), training=training, workload=Settings()
    )
    config = load(tmp_path, GOOD + "run: {name: mine}\n")
    changed = with_changes(
        config, {"training.max_steps": 3, "workload.encoder.layers": 1, "checkpoint.keep_last": 0}
    )
    assert changed.training.max_steps == 3
    assert changed.workload.encoder.layers == 1
    assert changed.run.name == "mine"
    assert changed.workload.width == config.workload.width
    assert with_changes(config, {}) == config
    assert with_changes(config, {"training.epochs": 2.0}).training == Training(
        epochs=2.0, effective_batch=8
    )
    with pytest.raises(BadInput, match="effective_batch 8 cannot be dealt into 3 equal parts"):
        with_changes(config, {"training.micro_batch_slots": 3})
    assert split_overrides(["a.b=1", "c=x=y", "a.b="]) == {"a.b": "", "c": "x=y"}
    with pytest.raises(BadInput, match="NAME=VALUE"):
        split_overrides(["x"], "--param takes NAME=VALUE")


def test_a_removed_key_is_ignored_with_a_sentence(tmp_path, capsys):
    """The config.yaml of an earlier run loads; so does a file that was written by hand, and an override."""
    old = (
        GOOD
        + "data:\n  persistent_workers: true\nmemory: {profile: '', empty_cache_every_steps: 3}\n"
    )
    assert load(tmp_path, old, data__persistent_workers="x") == load(tmp_path, GOOD)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("override data.persistent_workers: ")
    assert REMOVED["data.persistent_workers"] in first
    assert second.startswith(f"{tmp_path / 'toy_small.yaml'}:5:23: ")
    assert REMOVED["memory.empty_cache_every_steps"] in second


def test_a_number_stands_for_the_section_of_folds_and_an_earlier_key_for_it(tmp_path, capsys):
    path = tmp_path / "my.yaml"
    start = "task: toy\ntraining: {max_steps: 1, effective_batch: 1}\n"
    path.write_text(f"{start}folds: 5\n")
    assert read_config(path).folds == Folds(5, -1, False)
    assert read_config(path, {"folds": "3"}).folds.number == 3
    assert read_config(path, {"folds.nested": "true", "folds.fold": "4"}).folds == Folds(5, 4, True)
    assert read_config(path, {"queue.folds": "0"}).folds.number == 0
    for wrong, sentence in (("1", "leaves nothing to train on"), ("x", "must be a whole number")):
        with pytest.raises(BadInput, match=sentence):
            read_config(path, {"folds": wrong})
    with pytest.raises(BadInput, match="folds.fold is 5, and there are 5 folds, counted from 0"):
        read_config(path, {"folds.fold": "5"})
    with pytest.raises(BadInput, match="The queue has 1,010 runs; at most 1,000"):
        read_config(path, {"queue.seeds": str([*range(202)])})
    (tmp_path / "child.yaml").write_text("base: my.yaml\nfolds: 0\n")
    assert read_config(tmp_path / "child.yaml").folds.number == 0
    capsys.readouterr()
    path.write_text(f"{start}queue: {{folds: 4, fold_key: seed}}\n")
    assert read_config(path).folds.number == 4
    said = capsys.readouterr().err
    assert "my.yaml:3:16: queue.folds is now folds." in said
    assert "queue.fold_key is no longer a key" in said
