"""Several processes out of one: how many, their environment, relaunches, and what the ranks said last."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
import torch

from lib import checkpoint, launch
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.launch import several
from lib.launch.run import processes
from lib.report.summary import Summary
from tests import several as scenarios
from tests.conftest import ROOT, TOY

SLOTS = {"training.micro_batch_slots": 2}


def test_every_gpu_is_used_that_the_slots_can_be_dealt_to_and_no_more(two_gpus, toy, capsys):
    for given, sentence in (
        ({"device.processes": 3}, r"3 processes are configured on a machine whose run may use 2 GPU"),
        ({"device.processes": 2, "training.micro_batch_slots": 1}, "cannot be dealt to 2 processes"),
    ):
        with pytest.raises(BadInput, match=sentence):
            processes(toy(given))
    assert processes(toy({"training.micro_batch_slots": 4})) == 2
    assert processes(toy({"training.micro_batch_slots": 4, "device.processes": 1})) == 1
    assert processes(toy({"training.micro_batch_slots": 1})) == 1
    assert "Until then 1 of 2 GPUs are used" in capsys.readouterr().out


HELD = {"task": f"{scenarios.__file__}:Held", "device.processes": 2, **SLOTS, "training.max_steps": 24}


def start(tmp_path, **overrides):
    (tmp_path / "toy.yaml").write_text(TOY)
    pairs = [f"--set={key}={value}" for key, value in {**HELD, "run.name": "held", **overrides}.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = (tmp_path / "log.txt").open("wb")
    command = [sys.executable, "-m", "trainbook", "train", "toy.yaml", *pairs]
    return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)


def wait_for(condition, process=None, log=None, seconds=600):
    """The first true value of `condition`; `process` must not end before."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        has_ended = process is not None and process.poll() is not None
        assert time.monotonic() < until and not has_ended, log.read_text() if log else "waited in vain"
        time.sleep(0.02)
    return found


def ranks_below(process):
    """The ranks that a launcher started, by number."""
    return {int(child.environ()["RANK"]): child for child in psutil.Process(process.pid).children()}


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_killed_launcher_leaves_no_orphan_and_a_killed_rank_is_started_again_to_the_same_bytes(tmp_path):
    saved, log, hold = tmp_path / "runs" / "held" / "checkpoints", tmp_path / "log.txt", tmp_path / "hold"
    hold.write_text("1")  # so that no run ends before it is disturbed
    process = start(tmp_path, **{"data.num_workers": 1})
    wait_for(lambda: checkpoint.steps(saved), process, log)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 8  # two ranks; of each a loader worker, the server above it, and a tracker
    process.kill()
    process.wait()
    wait_for(lambda: all(map(is_gone, below)))
    assert not (tmp_path / "runs" / "held" / "summary.json").exists()  # nobody took the launcher's end for a failure

    before = checkpoint.steps(saved)[-1]
    hold.write_text(str(before + 1))
    process = start(tmp_path)
    wait_for(lambda: checkpoint.steps(saved)[-1] > before, process, log)
    ranks_below(process)[1].kill()
    hold.unlink()
    assert process.wait(timeout=600) == 0, log.read_text()
    said = log.read_text()
    assert "Rank 1 was ended by signal 9 (SIGKILL)." in said and "Starting again from step" in said, said
    assert "Traceback" not in said, said
    assert "relaunch" in (tmp_path / "runs" / "held" / "events.csv").read_text()
    summary = json.loads((tmp_path / "runs" / "held" / "summary.json").read_text())
    assert (summary["reason"], summary["world_size"], summary["session"]) == ("completed", 2, 1)

    scenarios.here(tmp_path / "whole", [{"config": {**HELD, "device.processes": 1, "run.name": "held"}}])
    one = checkpoint.load_newest(tmp_path / "whole" / "runs" / "held" / "checkpoints")[0]
    two = checkpoint.load_newest(saved)[0]
    assert one.step == two.step == 24
    for group, named in one.tensors.items():
        assert all(torch.equal(value, two.tensors[group][name]) for name, value in named.items())


@pytest.fixture
def ended(toy, tmp_path):
    launched = several._Launch(toy(), 2, None)
    launched._place = tmp_path
    return launched


def test_threads_are_the_containers_cpus_divided_among_the_ranks(ended, small_container, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(several.subprocess, "Popen", lambda command, env, **_: env)
    ended._start(None)
    assert [(env["OMP_NUM_THREADS"], env["RANK"]) for env in ended._ranks] == [("1", "0"), ("1", "1")]


def test_the_rank_that_failed_first_is_told_with_its_traceback_and_not_those_that_lost_it(ended, tmp_path):
    several.write_last_words(tmp_path, 0, RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection reset by peer"))
    try:
        scenarios.Held.loss(None, None, {}["x"])
    except KeyError as error:
        several.write_last_words(tmp_path, 1, error)
    failure = ended._verdict({0: 1, 1: 1})
    assert isinstance(failure, several.RankFailed)
    assert str(failure).startswith("Rank 1 failed:\nTraceback") and "scenarios.Held.loss(None" in str(failure)
    for error in (BadInput("There is no graph."), OutOfMemory("Memory ran out.", 4)):
        several.write_last_words(tmp_path, 1, error)
        again = ended._verdict({0: 1, 1: 1})
        assert type(again) is type(error) and str(again) == str(error)
    assert again.micro_batch == 4


def test_a_rank_that_left_no_words_is_named_by_its_end_and_not_those_that_lost_it(ended, tmp_path):
    (tmp_path / "failed-0.json.4711.tmp").touch()  # a rank is writing its words just now
    assert ended._verdict({0: 0, 1: 0}) is None
    assert str(ended._verdict({0: None, 1: -6})) == "Rank 1 was ended by signal 6 (SIGABRT)."
    several.write_last_words(tmp_path, 0, RuntimeError("Connection reset by peer"))
    assert str(ended._verdict({0: 1, 1: -6})) == "Rank 1 was ended by signal 6 (SIGABRT).", "the others lost it"
    assert str(ended._verdict({0: 1, 1: None})) == "Rank 1 was killed or crashed."
    several.write_last_words(tmp_path, 0, RuntimeError("Timed out waiting"))
    assert str(ended._verdict({0: 1, 1: None})) == "Rank 1 hung."
    assert str(ended._verdict({0: 1, 1: 0})).startswith("The ranks lost each other. Timed out")


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """launches(*failures) -> the list of launches that end so, with their micro-batches and the limit before them."""

    def end(*ends):
        rows, left = [], list(ends)

        class Ended(several._Launch):
            errors = "the last words"

            def run(self):
                before = Summary.read(tmp_path / "runs" / "toy")
                rows.append((self.config.training.micro_batch, before.limit.get("samples") if before else None))
                Summary("toy", self.config.task, "completed", 12, 12).write(tmp_path / "runs" / "toy")
                return left.pop(0) if left else None

        Ended.__init__ = lambda self, config, *_: setattr(self, "config", config)
        monkeypatch.setattr(several, "_Launch", Ended)
        return rows

    return end


def test_deaths_without_progress_end_after_three_launches(toy, tmp_path, launches):
    rows = launches(*[several._Died("Rank 1 was killed or crashed.")] * 4)
    with pytest.raises(TrainingFailed, match="3 times without a new checkpoint.*\n.*the last words"):
        launch.train(toy({"device.processes": 2, **SLOTS}))
    summary = Summary.read(tmp_path / "runs" / "toy")
    assert len(rows) == 3 and summary.reason == "failed" and "Rank 1 was killed" in summary.error


def test_memory_that_runs_out_on_a_rank_starts_again_with_half_the_micro_batch(toy, tmp_path, launches):
    rows = launches(OutOfMemory("Memory ran out.", 2, before=4))
    launch.train(toy({"device.processes": 2, **SLOTS, "training.micro_batch": 4}))
    assert rows == [(4, None), (4, 2)]
    assert "oom_relaunch,4,2" in (tmp_path / "runs" / "toy" / "events.csv").read_text()
