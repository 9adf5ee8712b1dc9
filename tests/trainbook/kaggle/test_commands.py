"""The commands: options in, sentences and exit codes out."""

import threading

import pytest

from tests.trainbook.kaggle.stub import leaves_results
from trainbook.commands import main
from trainbook.kaggle import commands

NAME = "ada/trainbook-01-graphmer"


def test_every_command_explains_its_options(capsys):
    for name in (row[0] for row in commands._COMMANDS):
        with pytest.raises(SystemExit) as end:
            main(["kaggle", name, "--help"])
        assert end.value.code == 0 and f"kaggle {name} [-h]" in capsys.readouterr().out


def test_the_status_and_the_log_of_a_running_session_are_readable(stub, capsys):
    seen = threading.Event()

    def runner(session):
        session.say("step 1\n")
        session.say('{"a": 1} é\n')
        seen.wait(600)
        raise RuntimeError("ValueError: no data")

    stub.runner = runner
    main(["kaggle", "push", "graphmer"])
    stub.wait_for(lambda: len(stub.sessions[0].log) == 2)
    assert main(["kaggle", "status", "graphmer", "--log"]) == 0
    assert capsys.readouterr().out.endswith(f'{NAME}: running\nstep 1\n{{"a": 1}} é\n\n')
    seen.set()
    stub.settled()
    assert main(["kaggle", "status", NAME]) == 0
    assert f"{NAME}: error (ValueError: no data)" in capsys.readouterr().out


def test_the_plot_is_opened_when_asked_for_and_a_session_that_left_nothing_is_said(stub, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    stub.ended(leaves_results)
    main(["kaggle", "fetch", "graphmer"])
    assert opened == []  # pytest's stdout is no terminal
    main(["kaggle", "fetch", "graphmer", "--open"])
    assert len(opened) == 1 and opened[0].startswith("file:///") and opened[0].endswith("/toy/plots/metrics.png")
    stub.ended(lambda session: session.say("ImportError\n"))
    assert main(["kaggle", "fetch", "graphmer"]) == 2
    assert "left no summary.json" in (error := capsys.readouterr().err) and "session.log" in error
