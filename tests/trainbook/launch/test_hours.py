"""A length in hours: the speed of a few steps gives the steps, which stay the same once the run was saved."""

import types

import pytest

from lib import planner
from lib.errors import BadInput
from trainbook import launch
from trainbook.launch import smoke

pytestmark = pytest.mark.usefixtures("quick")
HOUR = {"training.hours": 0.002, "training.max_steps": 0}  # 7.2 seconds


@pytest.fixture
def speed(monkeypatch):
    """speed(steps a second): of the machine from now on."""

    def of(steps):
        outcome = types.SimpleNamespace(steps_per_second=steps)
        monkeypatch.setattr(smoke, "few_steps", lambda run: outcome)

    return of


def test_nine_tenths_of_the_time_become_steps_which_a_resumed_run_keeps(toy, speed, cut):
    speed(2.0)
    cut(3)
    first = launch.train(toy(HOUR))
    assert (first.reason, first.max_steps) == ("deadline", 12)
    cut(None)
    speed(100.0)
    run = launch.prepare(toy(HOUR))
    assert "training.hours 0.002 -> training.max_steps 12, as when the run began" in run.lengths
    assert launch.train(run).step == 12


def test_the_speed_is_measured_on_this_machine(toy, capsys):
    run = launch.prepare(toy({**HOUR, "training.hours": 1e-4}))
    assert run.config.training.max_steps >= 1
    assert run.config.training.hours == 0
    assert "Measuring the speed in" in capsys.readouterr().out


def test_a_plan_says_the_steps_of_a_card(toy):
    plan = planner.make(toy({**HOUR, "training.hours": 1.0}), planner.find_card("t4"), 1)
    assert plan.max_steps == int(0.9 * 3600 / plan.chosen.expected_seconds)


def test_two_lengths_are_refused(toy):
    with pytest.raises(BadInput, match=r"training\.hours stands in place of training\.max_steps"):
        toy({"training.hours": 1.0, "training.max_steps": 5})
