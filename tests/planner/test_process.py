"""The child process that plans: its answers and its refusals; whole plans are compared in test_search.py."""

import pickle
import signal
import subprocess
import sys
import threading

import pytest

from lib.planner import process
from lib.planner.card import find_card


@pytest.mark.parametrize("changes, code", [({}, 0), ({"fully_shard": True}, 3), ({"task": "nothing"}, 2)])
def test_the_exit_code_says_whether_there_is_a_plan(toy, tmp_path, changes, code, capsys):
    toy()
    text = (tmp_path / "toy.yaml").read_text()
    if "task" in changes:
        text = text.replace(":Toy", ":Nothing")
    elif changes:
        text = text.replace("training:", "training:\n  fully_shard: true\n  micro_batch_slots: 2")
    (tmp_path / "toy.yaml").write_text(text)
    request, answer = tmp_path / "request", tmp_path / "answer"
    cards = 2 if "fully_shard" in changes else 1
    request.write_bytes(pickle.dumps((str(tmp_path / "toy.yaml"), find_card("t4"), cards)))
    assert process.write_plan(str(request), str(answer)) == code
    assert answer.exists() == (code == 0) and bool(capsys.readouterr().err) == (code != 0)


@pytest.fixture
def endless(monkeypatch):
    """The children that planning starts; each would run for minutes."""
    children = []

    class Endless(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            children.append(self)

    monkeypatch.setattr(process.subprocess, "Popen", Endless)
    return children


def test_a_plan_that_is_cancelled_ends_its_process(toy, endless):
    looks = []

    class Later(threading.Event):
        """Is set at the third look; the child runs until then."""

        def is_set(self):
            looks.append(endless[0].poll())
            return len(looks) == 3

    with pytest.raises(process.Cancelled):
        process.plan(toy(), "t4", 1, Later())
    assert looks == [None] * 3 and endless[0].returncode == -signal.SIGKILL


def test_a_plan_that_is_interrupted_leaves_no_process(monkeypatch, toy, endless):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(process.subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.plan(toy(), "t4", 1)
    assert endless[0].returncode == -signal.SIGKILL
