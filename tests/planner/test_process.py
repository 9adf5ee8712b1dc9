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


def test_a_plan_that_is_cancelled_ends_its_process(monkeypatch, toy):
    begun, cancelled, started = threading.Event(), threading.Event(), []

    class Endless(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            started.append(self)
            begun.set()

    monkeypatch.setattr(process.subprocess, "Popen", Endless)
    raised = []

    def plan():
        try:
            process.plan(toy(), "t4", 1, cancelled)
        except process.Cancelled as error:
            raised.append(error)

    worker = threading.Thread(target=plan)
    worker.start()
    assert begun.wait(600)
    assert started[0].poll() is None, "it runs until it is cancelled"
    cancelled.set()
    worker.join(600)
    assert len(raised) == 1 and started[0].returncode == -signal.SIGKILL


def test_a_plan_that_is_interrupted_leaves_no_process(monkeypatch, toy):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            started.append(self)

        def communicate(self, *_, **__):
            raise KeyboardInterrupt

    monkeypatch.setattr(process.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.plan(toy(), "t4", 1)
    assert started[0].returncode == -signal.SIGKILL
