"""What decides whether a checkpoint belongs to a run."""

import pytest

from lib import launch
from lib.errors import BadInput
from lib.training import identity
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("quick")


def test_another_order_or_other_data_is_not_resumed(toy):
    launch.train(toy())
    for key, value in (("seed", 1), ("training.effective_batch", 4), ("workload.samples", 36)):
        named = key.replace("workload.samples", "data fingerprint")
        with pytest.raises(BadInput, match=rf"(?s)be resumed with this configuration:\n +saved +now\n.* {named} "):
            launch.train(toy({key: value, "training.max_steps": 20}))


def test_what_differs_without_harm_is_a_table_of_warnings(toy, cut, capsys):
    cut(5)
    launch.train(toy())
    cut(None)
    launch.train(toy({"optimizer.lr": 0.02, "data.num_workers": 1}))
    out = capsys.readouterr().out
    assert "resumes, but not bit for bit" in out and "optimizer.lr  0.01   0.02" in out and "num_workers" not in out


def test_changed_code_of_the_task_is_named_and_not_refused(toy, tmp_path, cut, capsys):
    task = tmp_path / "mine.py"
    task.write_text((ROOT / "tests" / "toy.py").read_text())
    config = {"task": f"{task}:Toy"}
    cut(5)
    launch.train(toy(config))
    cut(3)
    launch.train(toy(config))
    assert "these differ" not in capsys.readouterr().out
    task.write_text(task.read_text().replace(".sin()", ".cos()"))
    cut(None)
    assert launch.train(toy(config)).reason == "completed"
    out = capsys.readouterr().out
    assert "resumes, but not bit for bit" in out and "code of the task" in out and "code of lib" not in out
    task.write_text(task.read_text() + "\n")
    launch.train(toy(config))  # a completed one
    out = capsys.readouterr().out
    assert "was completed with other settings" in out and "code of the task" in out


def test_what_an_earlier_version_did_not_save_is_no_difference(toy):
    run = launch.prepare(toy())
    now = identity.facts(run.config, run.task)
    earlier = {key: value for key, value in now.items() if not key.startswith("code of")}
    assert len(earlier) == len(now) - 2
    assert identity.check(earlier, now, "somewhere") == ""
    assert "code of lib" in identity.check({**now, "code of lib": "other"}, now, "somewhere")
    assert identity.check({**now, "device": "Tesla T4"}, now, "somewhere", is_completed=True) == ""
