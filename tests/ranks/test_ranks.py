"""Several ranks train what one process trains: the same bits with two slots, and one end for all of them."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
import torch

from lib import checkpoint, launch, ranks
from lib.checkpoint import weights
from lib.config import Device
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.launch import torchrun
from lib.ranks import sharding, sums
from lib.ranks.sums import _buckets, add_up, decays
from lib.report.metrics import VOLATILE_COLUMNS, read
from lib.report.summary import Summary
from lib.task import load_task
from lib.training import data
from lib.training.evaluation import evaluate
from lib.training.order import Order
from lib.training.precision import allow_tf32
from lib.training.state import new_state
from tests import several
from tests.conftest import ROOT, TOY

SLOTS = {"training.micro_batch_slots": 2}


def run(name, overrides=None, **more):
    return {"config": {**SLOTS, "run.name": name, **(overrides or {})}, **more}


# Each of these is done by one process and by two.
BOTH = [
    run("dropout", {"workload.dropout": 0.5, "training.ema_decay": 0.9, "data.num_workers": 1}),
    run("branches", task="Branching"),
    run("not finite", {"workload.poison_from": 35}),
    run("norms", {"workload.batch_norm": True}),
    run("cumulative norms", {"workload.batch_norm": True}, task="CumulativeNorm"),
    run("four slots", {"training.micro_batch_slots": 4, "training.effective_batch": 8, "training.max_steps": 60}),
    run("sharded", {"training.fully_shard": True, "training.clip_norm": 0}),
    run("sharded and clipped", {"training.fully_shard": True, "training.clip_norm": 0.05, "training.ema_decay": 0.9}),
    run("tight", task="Tight"),
    run("recomputed and sharded", {"training.fully_shard": True, "training.gradient_checkpointing": "all"}),
]
# And these by two alone.
TWO = [
    run("undecided", task="Undecided"),
    run("three slots", {"training.micro_batch_slots": 3, "training.effective_batch": 9}),
    run("missing", task="Missing"),
    run("deadline", cut=5, on=1),
]
# These change hands: some steps in one process, then on two ranks, then on shards or not, then in one again.
PLAIN = {"training.clip_norm": 0}
MOVED = [run("moved", PLAIN, cut=n) for n in (3, 4)]
SHARDED = [run("shards", {**PLAIN, **sharded}, cut=4) for sharded in ({}, {"training.fully_shard": True})]


class Ends:
    """What both ways of doing the same runs left behind."""

    def __init__(self, base):
        self.base = base
        several.here(base / "two", MOVED[:1])
        there = [*BOTH, *TWO, MOVED[1], *SHARDED]
        several.here(base / "one", [*BOTH, run("plain", PLAIN)])
        names = [each["config"]["run.name"] for each in there]
        results = zip(*several.on_ranks(base / "two", there), strict=True)
        self.said = dict(zip(names, results, strict=True))
        several.here(base / "two", [run("moved", PLAIN), run("shards", PLAIN)])

    def newest(self, place, name):
        return checkpoint.load_newest(self.base / place / "runs" / name / "checkpoints")[0]

    def rows(self, place, name):
        rows = read(self.base / place / "runs" / name / "metrics.csv")
        return [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in rows]

    def summary(self, name):
        return json.loads((self.base / "two" / "runs" / name / "summary.json").read_text())

    def furthest(self, name, group="model", one=None):
        """The largest difference in any tensor of a group."""
        a, b = (self.newest(*where).tensors[group] for where in (("one", one or name), ("two", name)))
        assert a.keys() == b.keys()
        return max(float((a[key].double() - b[key].double()).abs().max()) for key in a)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    return Ends(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ["dropout", "branches", "not finite", "sharded", "recomputed and sharded"])
def test_one_process_with_two_slots_is_two_processes_with_one_bit_for_bit(ends, name):
    one, two = ends.newest("one", name), ends.newest("two", name)
    assert one.step == two.step == 12
    for group in one.tensors:
        assert ends.furthest(name, group) == 0
    assert ends.rows("one", name) == ends.rows("two", name)  # losses and validations are those of all samples
    ours = {key: value for key, value in one.state.items() if key != "identity"}
    assert ours == {key: value for key, value in two.state.items() if key != "identity"}


@pytest.mark.parametrize("name", ["moved", "shards"])
def test_a_run_may_move_between_one_process_ranks_and_shards_without_a_trace(ends, name):
    assert ends.newest("two", name).step == 12
    assert ends.furthest(name, one="plain") == ends.furthest(name, "optimizer", one="plain") == 0
    assert ends.rows("one", "plain") == ends.rows("two", name)
    files = {path.name for path in ends.newest("two", "sharded").path.iterdir()}
    assert files == {path.name for path in ends.newest("one", "sharded").path.iterdir()}


def test_a_parameter_that_one_rank_alone_uses_gets_its_gradient_and_one_that_none_uses_stays(ends):
    got = ends.newest("two", "branches").tensors
    assert float(got["model"]["seldom"]) != 1 and float(got["model"]["never"]) == 1
    assert not any("never" in name for name in got["optimizer"])


def test_steps_that_are_not_finite_on_one_rank_are_skipped_by_all(ends):
    assert ends.summary("not finite")["skipped_steps"] == ends.newest("one", "not finite").state["skipped_steps"] > 0


@pytest.mark.parametrize("name", ["norms", "cumulative norms"])
def test_batch_statistics_are_those_of_one_process(ends, name):
    assert ends.furthest(name) < 1e-5
    counted = ends.newest("two", name).tensors["model"]["blocks.1.num_batches_tracked"]
    assert int(counted) == 12 * 2


def test_more_slots_see_the_same_samples_and_differ_by_rounding(ends):
    assert ends.furthest("four slots") < 1e-3


def test_a_sharded_gradient_is_clipped_by_the_norm_of_the_whole(ends):
    assert ends.furthest("sharded and clipped") < 1e-6
    assert ends.furthest("sharded and clipped", "ema") < 1e-6


def test_memory_that_runs_out_on_one_rank_repeats_the_step_on_all(ends):
    assert ends.furthest("tight") < 1e-5 and ends.summary("tight")["micro_batch"] == 2
    rows = (ends.base / "two" / "runs" / "tight" / "events.csv").read_text().splitlines()
    assert len(rows) == 2 and rows[1].startswith("0,oom_training,4,2,")


def test_weights_that_the_seed_does_not_reach_are_those_of_the_first_rank(ends):
    first, second = ends.said["undecided"]
    assert first["reason"] == second["reason"] == "completed"  # and the ranks' steps fit together:
    assert ends.newest("two", "undecided").step == 12


def test_a_deadline_on_one_rank_stops_all_at_the_same_step(ends):
    assert {(each["reason"], each["step"]) for each in ends.said["deadline"]} == {("deadline", 5)}


def test_the_summary_tells_the_ranks_and_the_samples_that_each_saw(ends):
    summary = ends.summary("dropout")
    assert (summary["world_size"], summary["samples_seen"]) == (2, [48, 48])


def test_what_one_rank_lacks_is_a_sentence_on_every_rank(ends):
    for each in ends.said["missing"]:
        assert each["kind"] == "BadInput"
        assert each["error"] == f"Rank 1 on {socket.gethostname()}: There is no graph in /data."
    assert not (ends.base / "two" / "runs" / "missing").exists()


def test_slots_that_the_ranks_do_not_divide_are_refused_on_every_rank(ends):
    for each in ends.said["three slots"]:
        assert "training.micro_batch_slots is 3, which cannot be dealt to 2 processes" in each["error"]
        assert "Rank" not in each["error"]  # all of them say it, so it is said once


# --- without other processes ------------------------------------------------------------------------------------------


def test_every_slot_is_dealt_to_one_rank():
    order = Order(10, 0, 12, 6)
    assert [[*order.share(rank, 3)] for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("sizes", [[1], [3, 3], [10, 1, 1], [1, 9, 2, 2, 2]])
def test_buckets_hold_everything_once_and_none_too_much(monkeypatch, sizes):
    monkeypatch.setattr(sums, "BUCKET_BYTES", 16)  # four numbers
    tensors = [torch.full((size,), float(n)) for n, size in enumerate(sizes)]
    found = list(_buckets(tensors))
    assert [t for bucket in found for t in bucket] == tensors or all(
        a is b for a, b in zip([t for bucket in found for t in bucket], tensors, strict=True)
    )
    assert all(sum(t.nbytes for t in bucket) <= 16 or len(bucket) == 1 for bucket in found)


def test_buckets_do_not_mix_kinds_of_numbers():
    kinds = [torch.zeros(2), torch.zeros(2, dtype=torch.float16), torch.zeros(2)]
    assert [len(bucket) for bucket in _buckets(kinds)] == [1, 1, 1]


def test_in_one_process_everything_is_as_it_was_given():
    assert ranks.highest(1, 2.5) == [1, 2.5] and ranks.gathered("a") == ["a"] and ranks.from_first({}) == {}
    tensor = torch.ones(2)
    add_up([tensor])
    assert tensor.tolist() == [1, 1] and ranks.world() == 1 and ranks.is_first()
    assert sharding.whole(tensor) is tensor and sharding.sharded_like(tensor, tensor) is tensor


def test_the_statistics_of_ranks_in_a_chain_are_those_of_one_process(monkeypatch):
    """Three ranks with two micro-batches each, against a batch norm that sees all six."""
    batches = [torch.randn(8, 3, generator=torch.Generator().manual_seed(n)) * (n + 1) for n in range(6)]
    for momentum in (0.1, None):
        alone = torch.nn.BatchNorm1d(3, momentum=momentum)
        alone(batches[0])
        start = {name: value.clone() for name, value in alone.state_dict().items() if "running" in name}
        seen = int(alone.num_batches_tracked)
        total = {name: torch.zeros(3) for name in start}
        for rank in range(3):
            monkeypatch.setattr(ranks, "_here", ranks._Place(rank, 3))
            mine = torch.nn.BatchNorm1d(3, momentum=momentum)
            mine.load_state_dict({**alone.state_dict(), **start, "num_batches_tracked": torch.tensor(seen)})
            for batch in batches[2 * rank : 2 * rank + 2]:
                mine(batch)
            decay, whole, share = decays(momentum, 2, seen)
            for name, value in total.items():
                value += share * (mine.state_dict()[name] - decay * start[name])
        for batch in batches:
            alone(batch)
        for name, value in total.items():
            torch.testing.assert_close(value + whole * start[name], alone.state_dict()[name])


def test_weights_are_listed_once_also_where_they_are_tied():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert [*weights.of(model)] == ["a.weight"]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_gpus_that_are_not_there_are_named():
    with pytest.raises(BadInput, match=r"device.gpu_ids asks for GPU 0, but there is no GPU"):
        ranks.cards(Device(gpu_ids=(0,)))


def test_more_processes_than_gpus_are_refused(two_gpus, toy):
    with pytest.raises(BadInput, match=r"3 processes are asked for on a machine whose run may use 2 GPU"):
        torchrun.processes(toy({"device.processes": 3}))
    with pytest.raises(BadInput, match=r"asks for GPU 2, but there are 2 \(0 to 1\)"):
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


def test_more_ranks_than_gpus_under_torchrun_are_refused_before_they_join(two_gpus, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="4 processes are asked for.*--nproc-per-node"):
        ranks.start(Device())


def test_a_port_in_use_is_a_sentence(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "scenarios.json").write_text(json.dumps([run("port")]))
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        first = several.start_rank(tmp_path, 0, 2, taken.getsockname()[1])
        out = first.communicate(timeout=60)[0]
    (result,) = json.loads((tmp_path / "results-0.json").read_text())
    assert "another program uses this port" in result["error"], out


class Usage:
    free = 3 * 2**20


def test_shared_memory_that_is_too_small_means_fewer_workers_and_a_sentence(toy, monkeypatch):
    config = toy({"data.num_workers": 2, "data.prefetch_factor": 2})
    task = load_task(config)
    monkeypatch.setattr(data.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(data.os, "process_cpu_count", lambda: 8, raising=False)
    assert data.limit_workers(task, 8, config.data) == (config.data, "")
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _: Usage)
    slot = 40_000  # samples of 28 bytes, two slots: 2.1 MiB
    fitting, said = data.limit_workers(task, slot, config.data)
    assert fitting.num_workers == 1 and "/dev/shm has 3 MiB free, and a worker keeps up to 2 MiB" in said
    fitting, said = data.limit_workers(task, 10 * slot, config.data)
    assert fitting.num_workers == 0 and ": 0 load data" in said


def test_workers_beyond_the_cpus_are_left_out(toy, monkeypatch):
    config = toy({"data.num_workers": 8})
    monkeypatch.setattr(data.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(data.os, "process_cpu_count", lambda: 4, raising=False)
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2, 2))
    fitting, said = data.limit_workers(load_task(config), 8, config.data)
    assert fitting.num_workers == 2 and "4 CPUs serve 2 process(es): 2 load data" in said


# --- switches of the device -------------------------------------------------------------------------------------------


def test_what_concerns_the_loader_reaches_it(toy, monkeypatch):
    asked = {}

    def loader(dataset, **options):
        asked.update(options)
        return []

    monkeypatch.setattr(data, "DataLoader", loader)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def options(**changes):
        config = toy({f"data.{key}": value for key, value in changes.items()})
        list(data.train_batches(None, None, Order(8, 0, 8, 1), range(0), config.data))
        return asked["pin_memory"], asked["prefetch_factor"], asked["persistent_workers"]

    assert options(num_workers=2, prefetch_factor=3) == (True, 3, False)
    assert options(num_workers=2, pin_memory=False, persistent_workers=True) == (False, 2, True)
    assert options(num_workers=0, persistent_workers=True) == (True, None, False)


def test_compiling_and_benchmarking_are_switches(toy, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: compiled.append(model))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    launch.train(toy({"training.max_steps": 1}))
    assert not compiled and not torch.backends.cudnn.benchmark
    switches = {"training.compile": True, "training.cudnn_benchmark": True}
    launch.train(toy({"training.max_steps": 1, "run.name": "other", **switches}))
    assert len(compiled) == 1 and torch.backends.cudnn.benchmark


def test_benchmarking_and_determinism_exclude_each_other(toy):
    with pytest.raises(BadInput, match="training.cudnn_benchmark picks algorithms by their speed"):
        toy({"training.deterministic": "true", "training.cudnn_benchmark": "true"})


def test_tf32_is_for_cards_that_have_it_and_not_for_fp32(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    gpu = torch.device("cuda", 0)
    for capability in ((7, 5), (8, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        for precision in ("fp32", "fp16"):
            allow_tf32(precision, gpu)
    allow_tf32("bf16", torch.device("cpu"))
    assert asked == ["highest", "highest", "highest", "high"]


# --- the launcher -----------------------------------------------------------------------------------------------------

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


def test_memory_that_runs_out_in_an_evaluation_under_shards_ends_the_launch_too(toy, monkeypatch):
    """The other ranks wait inside a layer; an agreement would never come."""
    config = toy({"training.micro_batch": 4})
    task = load_task(config)
    state = new_state(task, config)
    state.sharded = True

    def tight(self, model, loader):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(task), "evaluate", tight)
    with pytest.raises(OutOfMemory, match="training.fully_shard") as raised:
        evaluate(state, task, config, range(5))
    assert raised.value.micro_batch == 2


def words(place, rank, error):
    torchrun._write(place / f"failed-{rank}.json", torchrun._last_words(rank, error))


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
    assert isinstance(failure, torchrun.RankFailed)
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


def test_deaths_without_progress_end_after_three_launches(toy, tmp_path, monkeypatch, capsys):
    launches = []

    class Dying(torchrun._Launch):
        def run(self):
            launches.append(self.config)
            self.said = "the last words"
            return torchrun._Died("Rank 1 was killed or crashed.")

    monkeypatch.setattr(torchrun, "_Launch", Dying)
    config = toy({"device.processes": 2, **SLOTS})
    with pytest.raises(TrainingFailed, match="3. time without a new checkpoint.*\n.*the last words"):
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
