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
from lib.launch import endings, torchrun
from lib.report.summary import Summary
from tests import several
from tests.conftest import ROOT, TOY

SLOTS = {"training.micro_batch_slots": 2}


def test_more_processes_than_gpus_are_refused(two_gpus, toy):
    with pytest.raises(BadInput, match=r"3 processes are configured on a machine whose run may use 2 GPU"):
        torchrun.processes(toy({"device.processes": 3}))
    with pytest.raises(BadInput, match=r"names GPU 2, but there are 2 \(0 to 1\)"):
        torchrun.processes(toy({"device.gpu_ids": [0, 2]}))
    with pytest.raises(BadInput, match=r"names a GPU twice"):
        torchrun.processes(toy({"device.gpu_ids": [1, 1]}))


def test_every_gpu_is_used_that_the_slots_can_be_dealt_to(two_gpus, toy, capsys):
    assert torchrun.processes(toy({"training.micro_batch_slots": 4})) == 2
    assert torchrun.processes(toy({"training.micro_batch_slots": 4, "device.gpu_ids": [1]})) == 1
    assert torchrun.processes(toy()) == 1
    assert "Until then 1 of 2 GPUs are used" in capsys.readouterr().out
    with pytest.raises(BadInput, match="cannot be dealt to 2 processes"):
        torchrun.processes(toy({"device.processes": 2}))


def test_threads_are_the_containers_cpus_divided_among_the_ranks(toy, small_container, monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = torchrun._Launch(toy(), 2, 1, {}, None)._environment(tmp_path)
    assert environment["OMP_NUM_THREADS"] == "1"


def test_without_affinity_as_on_macos_the_ranks_get_an_environment(toy, monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    environment = torchrun._Launch(toy(), 2, 7, {}, None)._environment(tmp_path)
    assert (environment["OMP_NUM_THREADS"], environment["TRAINBOOK_SESSION"]) == ("4", "7")


SLOW = {"task": f"{several.__file__}:Slow", "device.processes": 2, **SLOTS, "training.max_steps": 24}


def start(tmp_path, **overrides):
    (tmp_path / "toy.yaml").write_text(TOY)
    pairs = [f"--set={key}={value}" for key, value in {**SLOW, "run.name": "slow", **overrides}.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = (tmp_path / "log.txt").open("wb")
    command = [sys.executable, "-m", "lib", "train", "toy.yaml", *pairs]
    return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)


def wait_for(condition, seconds=90):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return found


def ranks_below(process):
    """The ranks that a launcher started, by number."""
    agents = psutil.Process(process.pid).children()
    return {int(child.environ()["RANK"]): child for agent in agents for child in agent.children()}


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_killed_launcher_leaves_no_orphan_and_a_killed_rank_is_started_again_to_the_same_bytes(tmp_path):
    saved = tmp_path / "runs" / "slow" / "checkpoints"
    process = start(tmp_path, **{"data.num_workers": 1})
    wait_for(lambda: checkpoint.steps(saved))
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 5  # torchrun, two ranks, a loader process each
    process.kill()
    process.wait()
    wait_for(lambda: all(map(is_gone, below)), seconds=10)

    before = checkpoint.steps(saved)[-1]
    process = start(tmp_path)
    wait_for(lambda: checkpoint.steps(saved)[-1] > before)
    ranks_below(process)[1].kill()
    assert process.wait(timeout=90) == 0, (tmp_path / "log.txt").read_text()
    said = (tmp_path / "log.txt").read_text()
    assert "Rank 1 was killed or crashed. Starting again from step" in said and "Traceback" not in said
    assert "relaunch" in (tmp_path / "runs" / "slow" / "events.csv").read_text()
    summary = json.loads((tmp_path / "runs" / "slow" / "summary.json").read_text())
    assert (summary["reason"], summary["world_size"], summary["session"]) == ("completed", 2, 1)

    several.here(tmp_path / "whole", [{"config": {**SLOW, "device.processes": 1, "run.name": "slow"}}])
    one = checkpoint.load_newest(tmp_path / "whole" / "runs" / "slow" / "checkpoints")[0]
    two = checkpoint.load_newest(saved)[0]
    assert one.step == two.step == 24
    for group, named in one.tensors.items():
        assert all(torch.equal(value, two.tensors[group][name]) for name, value in named.items())


def words(place, rank, error):
    endings.write_last_words(place, rank, error)


@pytest.fixture
def ended(toy):
    launched = torchrun._Launch(toy(), 2, 1, {}, None)

    class Agent:
        returncode = 1

    launched._agent = Agent()
    return launched


def test_the_rank_that_failed_first_is_told_with_its_traceback_and_not_those_that_lost_it(ended, tmp_path):
    words(tmp_path, 0, RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection reset by peer"))
    try:
        several.Slow.loss(None, None, {}["x"])
    except KeyError as error:
        words(tmp_path, 1, error)
    failure = ended._verdict(tmp_path)
    assert isinstance(failure, endings.RankFailed)
    assert str(failure).startswith("Rank 1 failed:\nTraceback") and "several.Slow.loss(None" in str(failure)


def test_sentences_of_a_rank_stay_what_they_are(ended, tmp_path):
    words(tmp_path, 0, BadInput("There is no graph."))
    failure = ended._verdict(tmp_path)
    assert type(failure) is BadInput and str(failure) == "There is no graph."
    words(tmp_path, 0, OutOfMemory("Memory ran out.", 4))
    assert ended._verdict(tmp_path).micro_batch == 4


def test_a_rank_that_others_waited_for_in_vain_is_called_hung(ended, tmp_path):
    words(tmp_path, 0, RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 120000ms for recv"))
    assert str(ended._verdict(tmp_path)) == "Rank 1 hung."


def test_a_rank_that_is_gone_before_the_others_notice_is_named(ended, tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ended._ranks = {0: psutil.Process(), 1: psutil.Process(sleeper.pid)}
    assert not ended._is_settled(tmp_path)
    (tmp_path / "failed-0.json.4711.tmp").touch()  # a rank is writing its words just now
    sleeper.kill()
    sleeper.wait()
    assert ended._is_settled(tmp_path)
    assert str(ended._verdict(tmp_path)) == "Rank 1 was killed or crashed."


def test_deaths_without_progress_end_after_three_launches(toy, tmp_path, monkeypatch, capsys):
    launches = []

    class Dying(torchrun._Launch):
        def run(self):
            launches.append(self.config)
            self.errors = "the last words"
            return torchrun._Died("Rank 1 was killed or crashed.")

    monkeypatch.setattr(torchrun, "_Launch", Dying)
    config = toy({"device.processes": 2, **SLOTS})
    with pytest.raises(TrainingFailed, match="3 times without a new checkpoint.*\n.*the last words"):
        launch.train(config)
    assert len(launches) == 3
    summary = json.loads((tmp_path / "runs" / "toy" / "summary.json").read_text())
    assert summary["reason"] == "failed" and "Rank 1 was killed" in summary["error"]


def test_memory_that_runs_out_under_shards_starts_again_with_half_the_micro_batch(toy, tmp_path, monkeypatch):
    launches = []

    class Tight(torchrun._Launch):
        def run(self):
            launches.append(self.config.training.micro_batch)
            Summary("toy", self.config.task, "completed", 12, 12).write(tmp_path / "runs" / "toy")
            return OutOfMemory("Memory ran out.", 2) if len(launches) == 1 else None

    monkeypatch.setattr(torchrun, "_Launch", Tight)
    launch.train(toy({"device.processes": 2, **SLOTS, "training.micro_batch": 4}))
    assert launches == [4, 2]
    assert "oom_sharded,4,2" in (tmp_path / "runs" / "toy" / "events.csv").read_text()
