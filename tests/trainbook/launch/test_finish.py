"""A schedule without a horizon: a run goes on as long as it may, and another one ends it with a falling rate."""

import math

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.report.metrics import read
from trainbook import launch

pytestmark = pytest.mark.usefixtures("quick")
STABLE = {
    "scheduler.name": "wsd",
    "training.max_steps": 8,
    "checkpoint.every_steps": 1,
    "training.log_every_steps": 1,
}
END = {"run.name": "toy-finish", "run.finishes": "toy"}


def weights(folder, step):
    return (checkpoint.path_of(folder / "checkpoints", step) / "model.safetensors").read_bytes()


def rates(folder):
    return [float(row["lr"]) for row in read(folder / "metrics.csv") if row["split"] == "train"]


def test_an_ended_run_is_one_that_had_its_decay_from_the_first_step_on(toy, tmp_path):
    launch.train(toy(STABLE))
    launch.train(toy({**STABLE, **END}))
    whole = {"training.max_steps": 10, "scheduler.decay_steps": 2, "run.name": "whole"}
    launch.train(toy({**STABLE, **whole}))
    runs = tmp_path / "runs"
    assert weights(runs / "toy-finish", 10) == weights(runs / "whole", 10)
    stable = rates(runs / "toy")
    falling = [max(stable), max(stable) * (1 - math.sqrt(1 / 2))]
    assert rates(runs / "toy-finish") == pytest.approx([*stable, *falling])
    assert stable[2:] == [max(stable)] * 6, "after the warm-up"


def test_a_stable_run_goes_on_as_if_nothing_had_ended_it(toy, tmp_path):
    launch.train(toy(STABLE))
    launch.train(toy({**STABLE, **END}))
    launch.train(toy({**STABLE, "training.max_steps": 12}))
    launch.train(toy({**STABLE, "training.max_steps": 12, "run.name": "whole"}))
    runs = tmp_path / "runs"
    assert weights(runs / "toy", 12) == weights(runs / "whole", 12)


def test_an_end_that_is_cut_goes_on_to_its_own_length_whatever_the_stable_run_did(
    toy, tmp_path, cut
):
    runs = tmp_path / "runs"
    launch.train(toy(STABLE))
    launch.train(toy({**STABLE, **END, "run.name": "whole", "scheduler.decay_steps": 4}))
    decay = {**STABLE, **END, "scheduler.decay_steps": 4}
    cut(2)
    assert launch.train(toy(decay)).reason == "deadline"
    cut(None)
    launch.train(toy({**STABLE, "training.max_steps": 12}))
    launch.train(toy({**STABLE, **END}))
    assert weights(runs / "toy-finish", 12) == weights(runs / "whole", 12)


def test_what_cannot_be_ended_is_refused_in_a_sentence(toy):
    with pytest.raises(BadInput, match="run.finishes is for scheduler.name wsd"):
        toy({**END, "scheduler.name": "cosine"})
    with pytest.raises(BadInput, match="toy, which has no checkpoint here"):
        launch.train(toy({**STABLE, **END}))
