"""A configuration of one's own on Kaggle: its notebook is built on the way, and every command takes its name."""

import json

import pytest

from lib import planner
from lib.errors import BadInput
from tests import own as project
from trainbook.building import carrier
from trainbook.commands import main
from trainbook.kaggle import carried

NAME = "ada/trainbook-my"


@pytest.fixture
def config(tmp_path):
    return project.write(tmp_path)


def test_a_push_builds_the_notebook_from_the_files_as_they_are(stub, config, capsys):
    assert main(["kaggle", "push", "my.yaml", "--param", "MAX_STEPS=7"]) == 0
    out = capsys.readouterr().out
    assert "Built runs/kaggle/trainbook-my/my.ipynb" in out
    assert f"Version 1 of {NAME} was pushed" in out
    stub.settled()
    config.with_name("late.py").write_text("said = len  # new\n")
    assert main(["kaggle", "push", "my.yaml"]) == 0
    first, second = (json.loads(session.request["text"]) for session in stub.sessions)
    assert carried.carried_files(second)["configs/late.py"] == "said = len  # new\n"
    assert carried.carried_files(first)["configs/late.py"] != "said = len  # new\n"
    assert stub.sessions[0].parameter("MAX_STEPS") == 7


def test_status_and_fetch_take_its_name_and_need_no_more(stub, config, capsys):
    stub.ended(lambda session: session.summary(step=100, reason="completed"))
    config.unlink()
    assert main(["kaggle", "status", "my.yaml"]) == 0
    assert f"{NAME}: complete" in capsys.readouterr().out
    assert main(["kaggle", "fetch", "my.yaml"]) == 0
    assert (config.parent / "runs" / "kaggle" / "trainbook-my" / "results" / "toy").is_dir()


def test_data_that_only_this_machine_has_is_refused_before_anything_is_sent(stub, config, capsys):
    (config.parent / "waves").mkdir()
    stub.datasets["ada/sines"] = [{}]
    config.write_text(project.CONFIG.replace("data: {", "data: {dir: waves, "))
    assert main(["kaggle", "push", "my.yaml"]) == 2
    assert "waves, which is on this machine" in capsys.readouterr().err
    assert stub.sessions == []
    assert (
        main(
            ["kaggle", "push", "my.yaml", "--dataset", "ada/sines", "--param", "DATA_DIR=ada/sines"]
        )
        == 0
    )


def test_a_preflight_traces_its_step_for_a_t4(stub, config, monkeypatch, capsys):
    (config.parent / "waves").mkdir()
    config.write_text(project.CONFIG.replace("data: {", "data: {dir: waves, "))
    here = lambda config, card: planner.make(config, planner.find_card(card))  # noqa: E731
    monkeypatch.setattr(planner, "plan", here)  # in a process of its own it takes seconds
    assert main(["kaggle", "preflight", "my.yaml"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GiB of a T4" in said
    assert "waves, which is on this machine and in no" in said


def test_a_check_does_not_run_the_code_of_a_foreign_notebook(stub, config, capsys):
    assert main(["notebook", "my.yaml"]) == 0
    notebook = json.loads((config.parent / "my.ipynb").read_text())
    config.with_name("mine.py").write_text("raise SystemExit('it was run')\n")
    assert main(["kaggle", "push", "my.ipynb"]) == 2
    assert "(configs/late.py), which would run on this machine" in capsys.readouterr().err
    assert main(["kaggle", "preflight", "my.ipynb"]) == 1
    assert "which would run on this machine" in " ".join(capsys.readouterr().out.split())
    assert stub.sessions == []
    files = {
        name: text
        for name, text in carried.carried_files(notebook).items()
        if not name.endswith(".py")
    }
    files["configs/my.yaml"] = files["configs/my.yaml"].replace(
        "mine.py", str(config.parent / "beside.py")
    )
    carried.tagged(notebook, "carrier")[0]["source"] = carrier.code("my", files)
    with pytest.raises(BadInput, match="an untrusted configuration cannot run"):
        carried.training(notebook, {}, True)


def test_two_files_that_would_be_one_notebook_are_told_apart(stub, config, capsys):
    first = config.with_name("my--model.yaml")
    second = config.with_name("My_Model.yaml")
    for path in (first, second):
        path.write_text(config.read_text())
    assert main(["kaggle", "push", first.name]) == 0
    stub.settled()
    assert main(["kaggle", "push", second.name]) == 2
    assert "My_Model.yaml and " in (said := capsys.readouterr().err)
    assert "would be one notebook on Kaggle" in said
    assert main(["kaggle", "status", second.name]) == 2
    assert main(["kaggle", "push", second.name, "--slug", "trainbook-other-model"]) == 0
    assert main(["kaggle", "push", first.name]) == 0
    assert len(stub.sessions) == 3
    first.unlink()
    stub.settled()
    assert main(["kaggle", "push", second.name]) == 0, "the other file is gone: it was renamed"


def test_a_name_that_is_too_long_for_a_title_is_refused_and_checked_before(stub, config, capsys):
    long = config.with_name(f"{'a_long_name_' * 5}.yaml")
    long.write_text(config.read_text())
    assert main(["kaggle", "push", long.name, "--dry-run"]) == 2
    assert "Give a shorter name with --slug" in capsys.readouterr().err
    assert main(["kaggle", "preflight", long.name]) == 1
    assert "letters, and Kaggle takes 50" in " ".join(capsys.readouterr().out.split())


def test_data_on_this_machine_is_the_mounted_competition_s_there(stub, config, capsys):
    (config.parent / "waves").mkdir()
    config.write_text(project.CONFIG.replace("data: {", "data: {dir: waves, "))
    assert main(["kaggle", "push", "my.yaml", "--competition", "titanic"]) == 0
    assert "DATA_DIR is titanic there, because data.dir is " in capsys.readouterr().out
    assert stub.sessions[0].parameter("DATA_DIR") == "titanic"


def test_a_preflight_knows_that_a_competition_has_the_data(stub, config, monkeypatch, capsys):
    (config.parent / "waves").mkdir()
    config.write_text(project.CONFIG.replace("data: {", "data: {dir: waves, "))
    here = lambda config, card: planner.make(config, planner.find_card(card))  # noqa: E731
    monkeypatch.setattr(planner, "plan", here)
    assert main(["kaggle", "preflight", "my.yaml", "--competition", "titanic"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the session mounts titanic, which was not read" in said
    assert "in no session" not in said
    assert "titanic is mounted, on T4 x2, without internet, for 690 minutes" in said
    card = ["--competition", "titanic", "--accelerator", "rtxpro6000"]
    assert main(["kaggle", "preflight", "my.yaml", *card]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "titanic is mounted, on rtxpro6000, without internet, for 510 minutes" in said
    assert "GiB of a RTX PRO 6000" in said
