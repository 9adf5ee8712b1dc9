"""A saved plan: what is written is read back, and what is no plan is refused with its reason."""

import pytest

from lib.errors import BadInput
from lib.planner import file


def test_a_written_plan_is_found_for_its_configuration_alone(toy, tmp_path):
    overrides = {"training.micro_batch": 4}
    path = file.write(tmp_path / "runs", "toy", overrides)
    assert file.find(path.parent, "toy", toy(), {}) == (path, overrides)
    assert [child.name for child in path.parent.iterdir()] == ["plan-toy.json"]
    assert file.find(path.parent, "other", toy(), {}) is None


@pytest.mark.parametrize(
    "overrides, reason",
    [({"workload.dropout": 0.5}, ""), ({"task": "graphmer"}, "it sets 'task'"),
     ({"training.micro_batch_slots": 3}, "cannot be dealt into 3")],
)  # fmt: skip
def test_ones_own_plan_sets_whatever_fits_but_no_task(toy, tmp_path, capsys, overrides, reason):
    file.write(tmp_path, "toy", overrides)
    plan = file.find(tmp_path, "toy", toy(), {})
    assert plan is None if reason else plan[1] == overrides
    assert reason in capsys.readouterr().out
    assert file.find(tmp_path, "toy", toy({"training.micro_batch_slots": 2}), {}) is None or "task" not in overrides


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"training.micro_batch": 4.5}', '{"kind": "trainbook plan"}'])
def test_what_is_no_plan_is_ignored(toy, tmp_path, capsys, text):
    (tmp_path / "plan-toy.json").write_text(text)
    assert file.find(tmp_path, "toy", toy(), {}) is None and "plan-toy.json is ignored: " in capsys.readouterr().out


def test_a_plan_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        file.write(tmp_path / "taken", "toy", {})


def test_overrides_become_a_line_of_python():
    values = {}
    exec(file.as_code({"training.micro_batch": 4, "workload.name": "x"}), values)
    assert values["OVERRIDES"] == {"training.micro_batch": 4, "workload.name": "x"}
