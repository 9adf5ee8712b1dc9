"""Several processes out of one: how many, their environment, relaunches, and what the ranks said last."""

import os
import subprocess
import sys
import threading
import time
from typing import ClassVar

import psutil
import pytest
import torch

from lib import checkpoint, ranks
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.ranks import boot
from lib.training.summary import Summary
from tests import several as scenarios
from tests.conftest import ROOT
from trainbook import launch
from trainbook.launch import several


def processes_of(config):
    return ranks.processes(config.training.micro_batch_slots, config.device.processes)


SLOTS = {"training.micro_batch_slots": 2}


def test_every_gpu_is_used_that_the_slots_can_be_dealt_to_and_no_more(two_gpus, toy, capsys):
    for given, sentence in (
        ({"device.processes": 3}, r"3 processes are configured for 2 GPU"),
        (
            {"device.processes": 2, "training.micro_batch_slots": 1},
            "cannot be dealt to 2 processes",
        ),
    ):
        with pytest.raises(BadInput, match=sentence):
            processes_of(toy(given))
    assert processes_of(toy({"training.micro_batch_slots": 4})) == 2
    assert processes_of(toy({"training.micro_batch_slots": 4, "device.processes": 1})) == 1
    assert processes_of(toy({"training.micro_batch_slots": 1})) == 1
    assert "Until then 1 of 2 GPUs are used" in capsys.readouterr().out


HELD = {"task": f"{scenarios.__file__}:Held", "device.processes": 2, **SLOTS}


def wait_for(condition, seconds=300):
    """The first true value of `condition`."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return found


def two_below(number):
    """The two ranks that this process has started, in their order, or none."""
    below = [
        child for child in psutil.Process(number).children() if boot.__file__ in child.cmdline()
    ]
    if len(below) == 2:
        return below
    return []


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_killed_launcher_leaves_no_orphan_and_a_killed_rank_restarts(
    toy, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    saved = tmp_path / "runs" / "toy" / "checkpoints"
    hold = tmp_path / "hold"
    pairs = [f"--set={key}={value}" for key, value in {**HELD, "run.name": "orphan"}.items()]
    toy()
    command = [sys.executable, "-m", "trainbook", "train", "toy.yaml", *pairs]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    below = wait_for(lambda: two_below(process.pid))
    process.kill()
    process.wait()
    wait_for(lambda: all(map(is_gone, below)))

    def kill_a_rank():
        try:
            wait_for(lambda: checkpoint.steps(saved))
            next(each for each in two_below(os.getpid()) if each.environ()["RANK"] == "1").kill()
        finally:
            hold.unlink()  # until then every rank waits in a step

    hold.write_text("1")
    killer = threading.Thread(target=kill_a_rank)
    killer.start()
    summary = launch.train(toy(HELD))
    killer.join()
    assert summary.reason == "completed"
    assert summary.world_size == 2
    said = capsys.readouterr().out
    assert "Rank 1 was ended by signal 9 (SIGKILL)." in said, said
    assert "Starting again from step 3" in said, said
    assert "relaunch" in (tmp_path / "runs" / "toy" / "events.csv").read_text()

    scenarios.here(tmp_path / "whole", [{"config": {**HELD, "device.processes": 1}}])
    one = checkpoint.load_newest(tmp_path / "whole" / "runs" / "toy" / "checkpoints")[0]
    two = checkpoint.load_newest(saved)[0]
    assert one.step == two.step == 12
    for group, named in one.tensors.items():
        assert all(torch.equal(value, two.tensors[group][name]) for name, value in named.items())


@pytest.fixture
def ended(toy, tmp_path):
    launched = several._Launch(toy(), 2, None)
    launched._place = tmp_path
    return launched


def test_the_rank_that_failed_first_is_named_with_its_traceback(ended, tmp_path):
    several.write_last_words(
        tmp_path, 0, RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection reset by peer")
    )
    try:
        scenarios.Held.loss(None, None, {}["x"])
    except KeyError as error:
        several.write_last_words(tmp_path, 1, error)
    failure = ended._verdict({0: 1, 1: 1})
    assert isinstance(failure, several.RankFailed)
    assert str(failure).startswith("Rank 1 failed:\nTraceback")
    assert "scenarios.Held.loss(None" in str(failure)
    several.write_last_words(tmp_path, 1, OutOfMemory("Memory ran out.", 4))
    assert ended._verdict({0: 1, 1: 1}).micro_batch == 4
    (tmp_path / "failed-1.json").unlink()
    assert str(ended._verdict({0: 1, 1: -6})) == "Rank 1 was ended by signal 6 (SIGABRT).", (
        "the other lost it"
    )


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """launches(*failures) -> the list of launches that end so, with their micro-batches and the limit before them."""

    def end(*ends):
        rows = []
        left = list(ends)

        class Ended(several._Launch):
            errors = "the last words"

            def run(self):
                before = Summary.read(tmp_path / "runs" / "toy")
                rows.append(
                    (
                        self.config.training.micro_batch,
                        before.limit.get("samples") if before else None,
                    )
                )
                Summary("toy", self.config.task, "completed", 12, 12).write(
                    tmp_path / "runs" / "toy"
                )
                return left.pop(0) if left else None

        Ended.__init__ = lambda self, config, *_: setattr(self, "config", config)
        monkeypatch.setattr(several, "_Launch", Ended)
        return rows

    return end


def test_deaths_without_progress_end_after_three_launches(toy, tmp_path, launches):
    rows = launches(*[several._Died("Rank 1 was killed or crashed.")] * 4)
    with pytest.raises(
        TrainingFailed, match="3 times without a new checkpoint.*\n.*the last words"
    ):
        launch.train(toy({"device.processes": 2, **SLOTS}))
    summary = Summary.read(tmp_path / "runs" / "toy")
    assert len(rows) == 3
    assert summary.reason == "failed"
    assert "Rank 1 was killed" in summary.error


def test_memory_that_runs_out_on_a_rank_starts_again_with_half_the_micro_batch(
    toy, tmp_path, launches
):
    rows = launches(OutOfMemory("Memory ran out.", 2, before=4))
    launch.train(toy({"device.processes": 2, **SLOTS, "training.micro_batch": 4}))
    assert rows == [(4, None), (4, 2)]
    assert "oom_relaunch,4,2" in (tmp_path / "runs" / "toy" / "events.csv").read_text()


SHOUTING = """
import json, sys

for number in range(30_000):
    print("line", number, "x" * 100)
    print("error", number, "x" * 100, file=sys.stderr)
words = {"rank": 0, "kind": "ValueError", "text": "the cause", "time": 0, "traceback": "the cause", "lost": False}
open(sys.argv[1], "w").write(json.dumps(words))
print("the last line")
raise SystemExit(1)
"""


def test_the_last_lines_of_a_rank_that_prints_much_before_it_fails_are_shown(toy, monkeypatch):
    class Shown:
        """A slow one: at the first line it is held up until the rank has ended."""

        lines: ClassVar = []
        rank = None

        def note(self, line):
            self.rank.wait()
            self.lines.append(line)

        def update(self, *counts):
            pass

    def start(self, errors):
        words = str(self._place / "failed-0.json")
        command = [sys.executable, "-c", SHOUTING, words]
        shown.rank = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        self._ranks.append(shown.rank)

    monkeypatch.setattr(several._Launch, "_start", start)
    shown = Shown()
    ended = several._Launch(toy(), 1, shown)
    assert "the cause" in str(ended.run())
    assert shown.lines[-1] == "the last line"
    assert len(shown.lines) == 30_001
    assert ended.errors.splitlines()[-1].startswith("error 29999")
    assert len(ended.errors.splitlines()) == 30
