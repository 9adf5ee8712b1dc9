"""A configuration with its data: lengths in steps."""

from lib import launch


def test_epochs_become_steps_and_are_printed(toy):
    run = launch.prepare(toy({"training.epochs": 2}))
    assert run.config.training.max_steps == 10  # 2 * 37 / 8, rounded up
    assert run.lengths == ["training.epochs 2 -> training.max_steps 10 (samples 37, effective batch 8)"]


def test_a_subset_of_the_data_is_what_epochs_and_training_count(toy):
    run = launch.prepare(toy({"training.epochs": 2, "data.subset_ratio": 0.25}))
    assert run.config.training.max_steps == 3  # 2 * 9 / 8, rounded up
