"""A saved plan: what is written is read back, and what is no plan is refused with its reason."""

import json
import types

import pytest

from lib.errors import BadInput
from lib.planner import file

PLAN = types.SimpleNamespace(card="T4", cards=2)


def test_a_written_plan_is_found_for_its_configuration_alone(toy, tmp_path, capsys):
    overrides = {"training.micro_batch": 4}
    path = file.write(tmp_path / "runs", "toy", PLAN, overrides)
    assert file.find(path.parent, "toy", toy(), {}) == file.PlanFile(path, "toy", "T4", 2, overrides)
    assert [child.name for child in path.parent.iterdir()] == ["plan-toy.json"]
    assert file.find(path.parent, "other", toy(), {}) is None and "it was made for toy" in capsys.readouterr().out


def test_ones_own_plan_sets_whatever_the_panel_was_given_but_no_task(toy, tmp_path, capsys):
    own = file.write(tmp_path / "runs", "toy", PLAN, {"workload.dropout": 0.5})
    assert file.find(own.parent, "toy", toy(), {}).overrides == {"workload.dropout": 0.5}
    file.write(tmp_path / "runs", "toy", PLAN, {"task": "graphmer"})
    assert file.find(own.parent, "toy", toy(), {}) is None and "it sets 'task'" in capsys.readouterr().out


def test_a_plan_is_judged_together_with_what_overrides_it(toy, tmp_path, capsys):
    own = file.write(tmp_path / "runs", "toy", PLAN, {"training.micro_batch_slots": 3})
    assert file.find(own.parent, "toy", toy(), {}) is None and "cannot be dealt into 3" in capsys.readouterr().out
    assert file.find(own.parent, "toy", toy({"training.micro_batch_slots": 2}), {})


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "not a plan as the memory panel writes it"),
        ("{}", "it has no \"kind\""),
        (json.dumps({"kind": "trainbook plan", "config": 3}), "its 'config' is 3 instead of a text"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, reason):
    (tmp_path / "plan-toy.json").write_text(text)
    with pytest.raises(BadInput, match=reason):
        file.read(tmp_path / "plan-toy.json")


def test_a_plan_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        file.write(tmp_path / "taken", "toy", PLAN, {})


def test_overrides_become_a_line_of_python():
    line = file.as_code({"training.micro_batch": 4, "workload.name": "x"})
    values = {}
    exec(line, values)
    assert values["OVERRIDES"] == {"training.micro_batch": 4, "workload.name": "x"}
