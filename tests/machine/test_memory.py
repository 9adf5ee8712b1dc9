"""Memory as an event: running out in training and evaluation, killed workers, recomputation, what is written down."""

import csv
import os
import re
import signal
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib import checkpoint, launch
from lib.config import with_changes
from lib.errors import TrainingFailed
from lib.machine import memory
from lib.report.metrics import EventLog
from lib.report.progress import Plain
from lib.task import find_task, load_task
from lib.training import data, loop
from lib.training.evaluation import EvaluationLoader
from lib.training.precision import recompute
from lib.training.state import new_state
from tests.conftest import ROOT
from tests.training.test_loop import endless, fit, newest, same_tensors


class Budget(TorchDispatchMode):
    """Follows real CPU tensors; what would hold more than `most` live bytes in a pass raises as a GPU does.

    `most` has a number for "forward" (all that is not backward), "backward", or both; `peak` is measured for both.
    """

    def __init__(self, most=None):
        super().__init__()
        self.most, self.peak, self.fired = most or {}, {"forward": 0, "backward": 0}, []
        self.live, self.sizes = 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.follow(tensor.untyped_storage())
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        self.peak[phase] = max(self.peak[phase], self.live)
        if self.live > self.most.get(phase, self.live):
            self.fired.append(phase)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return out

    def follow(self, storage):
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.live += self.sizes[key]
            weakref.finalize(storage, self.forget, key)

    def forget(self, key):
        self.live -= self.sizes.pop(key)


class Samples(list):
    """Training samples of which the last, in a loader's process, does what `do` says."""

    do = None

    def __getitem__(self, index):
        if index == len(self) - 1 and torch.utils.data.get_worker_info():
            self.do()
        return super().__getitem__(index)


def run_in(folder, config, monkeypatch, budget=None, **methods):
    """Trains the toy with some of its methods replaced, under a budget."""
    folder.mkdir()
    task = load_task(config)
    for name, method in methods.items():
        monkeypatch.setattr(type(task), name, method)
    with budget or Budget():
        return loop.train(task, config, folder, endless(), Plain())


def wide(self):
    """Activations outweigh parameters and moments, so 256 samples take twice what 128 take."""
    settings = self.config.workload
    norm = nn.BatchNorm1d(64) if settings.batch_norm else nn.Tanh()
    return nn.Sequential(nn.Linear(3, 64), norm, nn.Dropout(settings.dropout), nn.Linear(64, 64), nn.Linear(64, 1))


def rows(folder):
    with (folder / "events.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Saved at the end alone: what a save keeps on the CPU would count against the budget, which stands for a GPU's memory.
WIDE = {
    "checkpoint.every_steps": 0,
    "training.effective_batch": 256,
    "training.max_steps": 4,
    "workload.dropout": 0.5,
    "workload.noise": 0.0,
}


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_running_out_at_a_byte_budget_ends_in_the_weights_of_the_planned_run(
    toy, tmp_path, monkeypatch, capsys, phase, batch_norm
):
    config = toy({**WIDE, "workload.batch_norm": batch_norm, "training.evaluate_every_steps": 0})
    half = with_changes(config, {"training.micro_batch": 128})
    first = {"training.max_steps": 1}
    large, small = Budget(), Budget()
    run_in(tmp_path / "large", with_changes(config, first), monkeypatch, large, model=wide)
    run_in(tmp_path / "small", with_changes(half, first), monkeypatch, small, model=wide)
    run_in(tmp_path / "planned", half, monkeypatch, model=wide)
    budget = Budget({phase: (large.peak[phase] + small.peak[phase]) // 2})
    outcome = run_in(tmp_path / "surprised", config, monkeypatch, budget, model=wide)
    assert budget.fired == [phase] and outcome.state.micro_batch == 128
    surprised, planned = newest(tmp_path / "surprised"), newest(tmp_path / "planned")
    assert same_tensors(surprised.tensors["model"], planned.tensors["model"])
    assert same_tensors(surprised.tensors["optimizer"], planned.tensors["optimizer"])
    text = "Memory ran out at step 0: the step is repeated in micro-batches of 128 instead of 256; the effective batch "
    assert f"{text}stays." in capsys.readouterr().out
    assert rows(tmp_path / "surprised") == [
        {"step": "0", "kind": "oom_training", "before": "256", "after": "128", "text": f"{text}stays."}
    ]


def test_the_error_at_one_sample_says_what_was_tried(toy, tmp_path, monkeypatch):
    with pytest.raises(TrainingFailed, match=r"one sample \(tried: 8, 4, 2, 1\). Set .*gradient_checkpointing"):
        run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(0, training=True))


# --- evaluation -------------------------------------------------------------------------------------------------------


def tight(most, training=False):
    """A loss that bears `most` samples at once where it is evaluated (or trained), and any number elsewhere."""

    def loss(self, model, batch):
        if model.training == training and data.size_of(batch) > most:
            raise RuntimeError("CUDA error: out of memory")
        return original(self, model, batch)

    original = find_task(TOY_TASK).loss
    return loss


TOY_TASK = str(ROOT / "tests" / "toy.py") + ":Toy"


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_evaluation_that_runs_out_starts_again_in_smaller_pieces_with_the_same_metrics(
    toy, tmp_path, monkeypatch, capsys, noise
):
    config = toy({"workload.noise": noise})
    easy = run_in(tmp_path / "easy", config, monkeypatch)
    hard = run_in(tmp_path / "hard", config, monkeypatch, loss=tight(1))
    assert hard.state.micro_batch == 8 and hard.state.evaluation_batch == 1
    assert hard.state.best["value"] == pytest.approx(easy.state.best["value"], rel=1e-6)
    assert same_tensors(newest(tmp_path / "easy").tensors["model"], newest(tmp_path / "hard").tensors["model"])
    out = capsys.readouterr().out
    assert out.count("Memory ran out in the evaluation at step 4") == 3  # 8 -> 4 -> 2 -> 1, and never again
    assert out.count("Memory ran out") == 3
    assert [(row["kind"], row["before"], row["after"]) for row in rows(tmp_path / "hard")] == [
        ("oom_evaluation", "8", "4"), ("oom_evaluation", "4", "2"), ("oom_evaluation", "2", "1"),
    ]  # fmt: skip


def test_an_evaluation_of_one_sample_that_does_not_fit_says_what_was_tried(toy, tmp_path, monkeypatch):
    with pytest.raises(TrainingFailed, match=r"evaluation at step 4 with one sample.*\(tried: 8, 4, 2, 1\)"):
        run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(0))


def test_another_error_in_an_evaluation_is_raised_as_it_is(toy, tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run_in(tmp_path / "run", toy(), monkeypatch, evaluate=lambda *_: 1 / 0)


def test_slices_of_an_evaluation_hold_what_the_whole_batches_hold(toy):
    task = load_task(toy({"workload.noise": 0.5}))
    whole = list(EvaluationLoader(task, range(11), 4, torch.device("cpu")))
    counted = []
    loader = EvaluationLoader(
        task, range(11), 4, torch.device("cpu"), on_batch=lambda done, total: counted.append((done, total)), most=3
    )
    parts = list(loader)
    assert [data.size_of(part) for part in parts] == [3, 1, 3, 1, 3] and len(loader) == 5
    assert counted == [(n, 5) for n in range(1, 6)]
    for name in ("x", "y", "id"):
        assert torch.equal(torch.cat([b[name] for b in whole]), torch.cat([b[name] for b in parts]))


# --- the host ---------------------------------------------------------------------------------------------------------


def test_a_loader_worker_that_the_system_kills_is_reported_as_host_memory(toy, tmp_path, monkeypatch):
    samples = Samples(range(37))
    samples.do = lambda: os.kill(os.getpid(), signal.SIGKILL)
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    config = toy({"data.num_workers": 1})
    with pytest.raises(TrainingFailed, match=r"At step \d+ the system killed.*RAM.*data.num_workers \(now 1"):
        run_in(tmp_path / "run", config, monkeypatch, datasets=lambda self: sets)


def test_an_error_inside_a_loader_worker_is_raised_as_it_is(toy, tmp_path, monkeypatch):
    samples = Samples(range(37))
    samples.do = lambda: 1 / 0
    sets = {"train": samples, "validation": range(5), "test": range(5)}
    with pytest.raises(ZeroDivisionError):
        run_in(tmp_path / "run", toy({"data.num_workers": 1}), monkeypatch, datasets=lambda self: sets)


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("DataLoader worker (pid(s) 12, 13) exited unexpectedly", "RAM was full"),
        ("DataLoader worker (pid 12) is killed by signal: Killed. ", "RAM was full"),
        ("DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that", "/dev/shm.* is full"),
    ],
)
def test_every_sentence_of_torch_about_killed_workers_is_known(sentence, words):
    with pytest.raises(TrainingFailed, match=words), data.naming_killed_workers(lambda: 7, 2):
        raise RuntimeError(sentence)


def test_a_killed_worker_is_named_also_where_its_error_broke_something_else():
    """torch raises from a signal handler: inside Thread.start, say, which then trips over its own bookkeeping."""
    with pytest.raises(TrainingFailed, match="RAM was full"), data.naming_killed_workers(lambda: 7, 2):
        try:
            raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")
        except RuntimeError:
            raise KeyError("a thread")  # noqa: B904  as threading does


@pytest.mark.parametrize("sentence", ["anything", "DataLoader worker (pid 1) is killed by signal: Segmentation fault."])
def test_a_crash_in_a_worker_is_not_taken_for_memory(sentence):
    with pytest.raises(RuntimeError, match=re.escape(sentence)) as caught, data.naming_killed_workers(lambda: 7, 2):
        raise RuntimeError(sentence)
    assert not isinstance(caught.value, TrainingFailed)


def lost_connection(message=""):
    """A connection that breaks inside torch's loader."""
    code = compile(f"raise ConnectionResetError({message!r})", "site-packages/torch/utils/data/dataloader.py", "exec")
    exec(code)


def test_a_batch_that_a_dead_worker_still_owed_is_reported_as_host_memory(monkeypatch):
    waited = []
    monkeypatch.setattr(data.time, "sleep", waited.append)
    with pytest.raises(TrainingFailed, match="RAM was full"), data.naming_killed_workers(lambda: 7, 2):
        lost_connection()
    assert waited == [1.0]  # for torch's signal handler, whose error would come up elsewhere


@pytest.mark.parametrize("message", ["", "Caught ConnectionResetError in DataLoader worker process 0."])
def test_a_connection_that_the_data_set_lost_is_raised_as_it_is(message):
    with pytest.raises(ConnectionResetError), data.naming_killed_workers(lambda: 7, 2):
        if message:
            lost_connection(message)
        raise ConnectionResetError


# --- events and the cache ---------------------------------------------------------------------------------------------


def test_events_of_several_sessions_stand_under_one_header_and_a_full_disk_only_warns(tmp_path, monkeypatch, capsys):
    for step in (3, 5):
        EventLog(tmp_path / "events.csv").record(step, "oom_training", 8, 4, "Half, from now on.")
    lines = (tmp_path / "events.csv").read_text().splitlines()
    assert lines == [
        "step,kind,before,after,text",
        '3,oom_training,8,4,"Half, from now on."',
        '5,oom_training,8,4,"Half, from now on."',
    ]
    EventLog(tmp_path / "nowhere" / "events.csv").record(1, "oom_training", 2, 1, "Text.")
    assert "could not be written" in capsys.readouterr().out


def test_the_test_after_training_writes_into_the_same_log(toy, tmp_path, monkeypatch):
    config = toy({"training.evaluate_every_steps": 0, "checkpoint.keep_best": 0})
    run = launch.prepare(config)
    original = type(run.task).evaluate

    def evaluate(self, model, loader):
        if len(loader.dataset) == 7 and loader.most > 4:
            raise MemoryError
        return original(self, model, loader)

    monkeypatch.setattr(type(run.task), "evaluate", evaluate)
    launch.train(run)
    assert [row["after"] for row in rows(run.folder)] == ["4"]


# --- recomputation and steps that are not finite ----------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recomputation_updates_batch_statistics_once(momentum):
    def trained(layers):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8, momentum=momentum)
        model = nn.Module()
        model.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh()), nn.Linear(8, 1)])
        recompute(model, layers)
        for step in range(3):
            out = torch.randn(16, 4, generator=torch.Generator().manual_seed(step), requires_grad=True)
            for block in model.blocks:
                out = block(out)
            out.square().sum().backward()
        return {**dict(model.named_buffers()), **{n: p.grad for n, p in model.named_parameters()}}

    plain, recomputed = trained(0), trained("all")
    assert plain["blocks.0.1.num_batches_tracked"] == 3
    assert same_tensors(plain, recomputed)


def test_a_run_with_recomputed_batch_statistics_ends_in_the_same_bytes(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.dropout": 0.5, "training.micro_batch": 3})
    fit(config, tmp_path / "plain")
    fit(with_changes(config, {"training.gradient_checkpointing": "all"}), tmp_path / "recomputed")
    assert same_tensors(newest(tmp_path / "plain").tensors["model"], newest(tmp_path / "recomputed").tensors["model"])


def test_a_skipped_step_leaves_batch_statistics_as_they_were(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.samples": 40, "workload.poison_from": 39})
    outcome = fit(config, tmp_path / "run")
    assert outcome.state.skipped_steps > 0
    assert all(torch.isfinite(value).all() for value in outcome.state.model.state_dict().values())


def test_a_diverged_run_names_its_last_good_checkpoint(toy, tmp_path, monkeypatch):
    fit(toy(), tmp_path / "run")
    config = toy({"training.max_steps": 40, "workload.poison_from": 0, "checkpoint.every_steps": 4})
    expected = checkpoint.path_of(tmp_path / "run" / "checkpoints", 12)
    with pytest.raises(TrainingFailed, match="20 steps in a row.*step 31 on samples") as caught:
        fit(config, tmp_path / "run", resume=newest(tmp_path / "run"))
    assert f"The last good checkpoint is {expected}, from before them (step 12)." in str(caught.value)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(TrainingFailed, match="There is no checkpoint from before them."):
        fit(config, tmp_path / "elsewhere")


def test_what_belongs_to_a_session_is_in_no_checkpoint(toy, tmp_path, monkeypatch):
    run_in(tmp_path / "run", toy(), monkeypatch, loss=tight(2))
    assert not {"evaluation_batch", "events", "resumed_from"} & set(newest(tmp_path / "run").state)
    assert new_state(load_task(toy()), toy()).evaluation_batch == 0


# --- readings ---------------------------------------------------------------------------------------------------------


def test_check_memory_names_ram_and_says_that_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = memory.check_memory()
    assert text.startswith("RAM: ") and "this process" in text and "No GPU" in text


@pytest.mark.parametrize("share, words", [(0.2, "free to start"), (0.7, "small run"), (0.9, "lower data.num_workers")])
def test_the_verdict_follows_the_share(share, words):
    total = 100 * memory.GIB
    assert words in memory._verdict(memory.Reading("RAM", int(share * total), total))
