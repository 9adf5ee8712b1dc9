"""What decides whether a checkpoint belongs to a run."""

import fcntl
import os
import re
import shutil
from pathlib import Path

import pytest

from lib.config.reader import flat
from lib.errors import BadInput
from lib.task import load_config
from lib.training import identity
from lib.training.identity import Earlier
from tests.conftest import ROOT
from trainbook import launch, notebook

pytestmark = pytest.mark.usefixtures("quick")


def test_another_order_or_other_data_is_not_resumed(toy):
    launch.train(toy())
    for key, value in (("seed", 1), ("workload.samples", 36)):
        named = key.replace("workload.samples", "data fingerprint")
        with pytest.raises(
            BadInput, match=rf"(?s)be resumed with this configuration:\n +saved +now\n.* {named} "
        ):
            launch.train(toy({key: value, "training.max_steps": 20}))


def test_another_way_to_compute_is_a_table_of_warnings(toy, cut, capsys):
    cut(5)
    launch.train(toy())
    cut(None)
    launch.train(toy({"training.micro_batch": 2, "data.num_workers": 1, "training.max_steps": 20}))
    out = capsys.readouterr().out
    assert "resumes, but not bit for bit" in out
    assert "num_workers" not in out
    assert re.search(r"training.max_steps +12 +20\n", out)
    assert re.search(r"training.micro_batch +0 +2\n", out)


def test_edited_settings_are_not_trained_in_silence(toy, tmp_path, cut, capsys):
    cut(5)
    launch.train(toy())
    with pytest.raises(
        BadInput, match=r"(?s)cannot be resumed with.*optimizer.lr +0.01 +0.02\n.*run.name=toy-2\n"
    ):
        launch.train(toy({"optimizer.lr": 0.02}))
    cut(3)
    launch.train(toy({"optimizer.lr": 0.02, "run.accept_changes": True}))
    assert "optimizer.lr  0.01   0.02" in capsys.readouterr().out
    cut(None)
    assert (
        launch.train(toy({"optimizer.lr": 0.02})).reason == "completed"
    )  # what was accepted is that of the run


@pytest.fixture
def own(toy, tmp_path):
    """Returns a configuration of a task in a file of its own, with a helper beside it."""
    (tmp_path / "waves.py").write_text("def wave(x):\n    return x.sin()\n")
    code = (ROOT / "tests" / "toy.py").read_text().replace("(ids * k).sin()", "wave(ids * k)")
    (tmp_path / "mine.py").write_text("from waves import wave\n" + code)
    return lambda **more: toy({"task": f"{tmp_path / 'mine.py'}:Toy", **more})


def test_edited_code_of_the_task_or_of_what_it_imports_is_not_trained_in_silence(
    own, tmp_path, cut, capsys
):
    def edit(file):
        (tmp_path / file).write_text((tmp_path / file).read_text() + "\n")
        identity._code.cache_clear()  # a new process

    cut(5)
    launch.train(own())
    cut(3)
    launch.train(own())
    assert "these differ" not in capsys.readouterr().out
    edit("waves.py")
    with pytest.raises(
        BadInput, match=r"cannot be resumed with this configuration:\n +saved +now\n +code of "
    ):
        launch.train(own())
    cut(None)
    assert launch.train(own(**{"run.accept_changes": True})).reason == "completed"
    assert "code of lib" not in capsys.readouterr().out
    edit("mine.py")
    with pytest.raises(BadInput, match="was completed with another configuration"):
        launch.train(own())


def test_an_edit_becomes_a_run_of_its_own_and_undoing_it_finds_the_earlier(own, tmp_path, cut):
    def run(**more):
        identity._code.cache_clear()  # a new process
        prepared = launch.prepare(own(**{"run.on_change": "new", **more}))
        return prepared, launch.train(prepared)

    cut(5)
    run()
    edit = {"optimizer.lr": 0.02}
    assert run(**edit)[1].reason == "deadline"
    cut(None)
    second, summary = run(**edit)  # resumes it
    assert second.config.run.name == "toy-2"
    assert summary.run == "toy-2"
    assert summary.reason == "completed"
    code = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(code.replace("nn.Tanh()", "nn.GELU()"))
    assert run(**{"workload.samples": 36})[1].run == "toy-3"
    (tmp_path / "mine.py").write_text(code)
    last, summary = run(**edit)
    assert summary.run == "toy-2", "an edit that was trained already"
    assert run()[1].run == "toy"
    _, *rows = notebook.runs(last).splitlines()
    assert [row.split()[0] for row in rows] == ["toy", "toy-2", "toy-3"]
    assert rows[1].endswith("  optimizer.lr 0.01 -> 0.02")
    assert rows[2].endswith(", code: nn.Tanh() -> nn.GELU()")


def test_an_edit_is_found_again_after_one_before_it_was_deleted(own, tmp_path):
    def run(**more):
        prepared = launch.prepare(own(**{"run.on_change": "new", **more}))
        return prepared, launch.train(prepared).run

    assert [run(**{"optimizer.lr": rate})[1] for rate in (0.1, 0.2, 0.3)] == [
        "toy",
        "toy-2",
        "toy-3",
    ]
    shutil.rmtree(tmp_path / "runs" / "toy-2")
    last, name = run(**{"optimizer.lr": 0.3})
    assert name == "toy-3", "it was completed under this name"
    rows = notebook.runs(last).splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["toy", "toy-3"]
    assert run(**{"optimizer.lr": 0.4})[1] == "toy-2", "the first free name"


def test_a_name_that_ends_in_a_number_is_no_edit_of_a_shorter_one(own):
    for name in ("net", "net-50"):
        prepared = launch.prepare(own(**{"run.on_change": "new", "run.name": name}))
        launch.train(prepared)
    assert "one run so far" in notebook.runs(prepared)
    edited = launch.prepare(
        own(**{"run.on_change": "new", "run.name": "net-50", "optimizer.lr": 0.5})
    )
    assert edited.config.run.name == "net-50-2"
    assert edited.base_name == "net-50"
    launch.train(edited)
    assert [row.split()[0] for row in notebook.runs(edited).splitlines()[1:]] == [
        "net-50",
        "net-50-2",
    ]


def test_two_at_once_are_told_how_the_second_gets_a_name(own, tmp_path):
    prepared = launch.prepare(own(**{"run.on_change": "new"}))
    prepared.folder.mkdir(parents=True)
    other = os.open(prepared.folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)  # as another process holds it
    with pytest.raises(BadInput, match="this one then gets a free name"):
        launch.train(prepared)
    os.close(other)


def test_code_that_failed_is_corrected_without_a_question(own, tmp_path, capsys):
    right = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(right.replace('{"rmse": 1.0}', '{"rmse": 1 / 0}'))
    assert launch.train(own()).missing
    (tmp_path / "mine.py").write_text(right)
    identity._code.cache_clear()
    with pytest.raises(BadInput, match="optimizer.lr"):
        launch.train(own(**{"optimizer.lr": 0.5}))
    assert not launch.train(own()).missing
    assert "code of the task" in capsys.readouterr().out


def test_a_folder_that_a_setting_names_may_lie_elsewhere():
    saved = {"workload.base": "/kaggle/input/minilm/base", "training.max_steps": 4}
    assert not identity.check(saved, {**saved, "workload.base": "models/base"}, Path("toy"))
    with pytest.raises(BadInput, match=r"workload.base +base +large"):
        identity.check(saved, {**saved, "workload.base": "models/large"}, Path("toy"))


def test_an_entry_more_or_less_of_a_mapping_is_a_difference():
    config = load_config(ROOT / "configs" / "vqa_small.yaml")
    saved = flat(config.workload, "workload.")
    stage = next(key for key in saved if key.startswith("workload.stages.")).rsplit(".", 1)[0]
    more = saved | {f"workload.stages.late.{name}": 1.0 for name in ("from_epochs", "answer")}
    less = {key: value for key, value in saved.items() if not key.startswith(stage)}
    for now in (more, less):
        with pytest.raises(BadInput, match=r"cannot be resumed with[^#]*workload\.stages\."):
            identity.check(saved, now, Path("vqa"))


def test_what_an_earlier_version_did_not_save_is_no_difference(toy):
    run = launch.prepare(toy())
    now = identity.facts(run.config, run.task)
    earlier = {key: value for key, value in now.items() if key != "optimizer.betas"}
    assert identity.check(earlier, now, Path("somewhere")) == ""
    assert "code of lib" in identity.check({**now, "code of lib": "other"}, now, Path("somewhere"))
    assert (
        identity.check({**now, "device": "Tesla T4"}, now, Path("somewhere"), is_completed=True)
        == ""
    )


def test_a_run_has_the_name_of_an_equal_earlier_one_or_the_first_free_name():
    now = {"training.max_steps": 10, "optimizer.lr": 0.1}
    other = {**now, "optimizer.lr": 0.2}

    def named(*runs, is_accepted=False):
        earlier = [Earlier(name, facts, -1, has_failed=False) for name, facts in runs]
        return identity.name_of("my", earlier, now, is_accepted)[0]

    assert named() == "my"
    assert named(("my", now)) == "my"
    assert named(("my", other)) == "my-2"
    assert named(("my", other), ("my-2", other), ("my-4", now)) == "my-4"
    assert named(("my", other), ("my-3", other)) == "my-2"
    assert named(("my", other), is_accepted=True) == "my"


def test_a_completed_run_is_not_the_one_that_a_shorter_length_asks_for():
    before = {"training.max_steps": 20}
    done = Earlier("my", before, done_until=20, has_failed=False)
    assert identity.name_of("my", [done], {"training.max_steps": 30}, False) == ("my", "")
    name, differs = identity.name_of("my", [done], {"training.max_steps": 10}, False)
    assert name == "my-2"
    assert "training.max_steps 20 -> 10" in differs
