"""A signal is obeyed between two batches of an evaluation, and nothing is lost."""

import dataclasses
import signal

import pytest

from lib.checkpoint import contents
from lib.task import load_task
from lib.training.summary import Summary
from tests.training.test_loop import fit, newest, same_tensors, stable
from trainbook import launch

SLOW = {
    "data.evaluation_batch": 1,
    "training.ema_decay": 0.9,
    "workload.dropout": 0.5,
}  # a sample a batch


def signalled_in(config, number):
    """Returns a task that gets SIGTERM in batch `number` of all its validations, and a list of these batches."""
    task = load_task(config)
    batches = []
    loss = task.loss

    def watched(model, batch):
        if not model.training:
            batches.append(len(batches))
            if len(batches) == number:
                signal.raise_signal(signal.SIGTERM)
        return loss(model, batch)

    task.loss = watched
    return task, batches


def check_same_end(whole, parts):
    one = newest(whole)
    other = newest(parts)
    contents.check(other)
    assert all(same_tensors(one.tensors[group], other.tensors[group]) for group in one.tensors)
    assert one.state == other.state
    assert stable(whole / "metrics.csv") == stable(parts / "metrics.csv")


@pytest.mark.parametrize("number", [1, 3, 5, 6, 10])
def test_a_signal_in_a_validation_ends_it_and_the_next_session_begins_with_it(
    toy, tmp_path, number
):
    config = toy({**SLOW, "training.max_steps": 6, "training.evaluate_every_steps": 3})
    fit(config, tmp_path / "whole")
    task, batches = signalled_in(config, number)
    outcome = fit(config, tmp_path / "parts", task=task)
    assert outcome.reason == "interrupted"
    assert len(batches) == number
    saved = newest(tmp_path / "parts")
    assert saved.step == outcome.state.step == (3 if number <= 5 else 6)
    again = fit(config, tmp_path / "parts", resume=saved)
    assert again.reason == "completed"
    assert not again.state.validation_due
    check_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_validation_that_is_due_may_be_stopped_again(toy, tmp_path):
    config = toy({**SLOW, "training.max_steps": 6, "training.evaluate_every_steps": 3})
    fit(config, tmp_path / "whole")
    for number in (4, 2):
        resume = newest(tmp_path / "parts")
        task, batches = signalled_in(config, number)
        outcome = fit(config, tmp_path / "parts", resume=resume, task=task)
        assert outcome.reason == "interrupted"
        assert outcome.state.step == 3
        assert len(batches) == number
    fit(config, tmp_path / "parts", resume=newest(tmp_path / "parts"))
    check_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_after_the_last_validation_is_not_forgotten(toy, tmp_path):
    config = toy({"training.max_steps": 2})
    task = load_task(config)
    selection = task.term_weights

    def weights(step):
        if step == 1:
            signal.raise_signal(signal.SIGTERM)
        return selection(step)

    task.term_weights = weights
    outcome = fit(config, tmp_path, task=task)
    assert outcome.reason == "interrupted"
    assert outcome.state.step == 2


def test_a_signal_in_the_test_ends_it_and_the_next_call_makes_the_test(toy, quick):
    config = toy({**SLOW, "training.max_steps": 2, "training.evaluate_every_steps": 2})
    run = launch.prepare(config)
    task, batches = signalled_in(config, 5 + 3)  # the third batch of the test
    with pytest.raises(KeyboardInterrupt):
        launch.train(dataclasses.replace(run, task=task))
    assert len(batches) == 8
    assert Summary.read(run.folder).reason == "interrupted"
    assert newest(run.folder).step == 2
    again = launch.train(config)
    assert again.reason == "completed"
    assert again.metrics["rmse"] > 0
