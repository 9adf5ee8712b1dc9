"""The plan: its choice, its texts, its child process, and its use in a run."""

import dataclasses
import json
import pickle
import random
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from lib.checkpoint.saver import Saver
from lib.errors import BadInput, NotTraceable, TrainingFailed
from lib.planner import make, of_plan, process, search
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, find_card
from lib.planner.process import planned_here
from lib.planner.search import host_memory
from lib.prepared import prepare
from lib.task import load_config, load_task
from lib.training.data import SLOTS_AHEAD
from tests.markup import unbalanced
from tests.toy import Toy
from trainbook import commands, launch
from trainbook.notebook import widgets

TALL = '''
import random

import numpy as np
import torch
from torch import nn
from lib.task import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256)) for _ in range(2))
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

class Tall(Task):
    """Activations of 2 layers; no data at all."""

    def model(self):
        return Net()

    def count(self, batch):
        return {"square": batch["x"].numel()}

    def loss(self, model, batch):
        return {"square": model(batch["x"]).square().sum()}, {}

    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 1024, 256, device=device)}

class Long(Tall):
    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 16384, 256, device=device)}

class Drawn(Tall):
    def example_batch(self, size, device):
        length = int(torch.randint(2, 30, ())) + np.random.randint(2, 30) + random.randrange(2, 30)
        return {"x": torch.zeros(size, length, 256, device=device)}

class Later(Tall):
    """Of two stages the second takes more memory."""

    def parameter_groups(self, model):
        return [{"names": "blocks.1.*", "from_step": 50}]

    def loss(self, model, batch):
        return super().loss(model, batch if self.step >= 50 else {"x": batch["x"][:1]})

class Broken(Tall):
    def loss(self, model, batch):
        raise ValueError("this loss is broken")

class Untraceable(Tall):
    def loss(self, model, batch):
        values = torch.linalg.lstsq(model(batch["x"]), batch["x"]).solution
        return {"square": values.sum()}, {}
'''


@pytest.fixture
def tall(tmp_path):
    """tall(overrides, kind) -> the configuration of a task."""
    (tmp_path / "tall.py").write_text(TALL)

    def make(overrides=None, kind="Tall"):
        path = tmp_path / "tall.yaml"
        training = "{max_steps: 1000, effective_batch: 16, micro_batch_slots: 1}"
        path.write_text(f"task: {tmp_path}/tall.py:{kind}\ntraining: {training}\n")
        return load_config(path, {"training.precision": "fp32", **(overrides or {})})

    return make


def made(config, card, count=0, samples=0):
    return make(config, find_card(card), count, samples)


def peak(config, card, micro_batch, recomputed):
    """An independent trace of one pair."""
    return search._Search(config, find_card(card), 1).predict(micro_batch, recomputed)


def test_the_micro_batch_is_the_largest_even_one_that_fits(tall):
    """By brute force over every size."""
    card = "0.5 GiB, capability 7.5"
    config = tall({"training.effective_batch": 8})
    plain = next(option for option in made(config, card).options if option.recomputed == 0)
    fitting = [m for m in range(1, 9) if peak(config, card, m, 0).fits]
    assert plain.micro_batch == 4 < max(fitting)
    assert plain.micro_batch == max({*fitting} & {*search.even_sizes(8)})
    assert plain.passes == -(-8 // max(fitting))  # no other size would save a pass


def test_recomputation_is_a_last_resort(tall):
    """If nothing fits without it, the fewest layers that make room are recomputed."""
    config = tall({"training.effective_batch": 1}, "Long")
    peaks = [peak(config, "t4", 1, layers).peak_bytes for layers in (0, 2)]
    between = sum(peaks) / 2 / 0.92 + CONTEXT_BYTES
    plan = made(config, f"{between / 2**30:.4f} GiB, capability 7.5")
    assert plan.chosen.recomputed > 0
    assert plan.chosen.fits


def test_the_whole_slot_is_taken_if_it_fits(tall):
    plan = made(tall({"training.micro_batch": 5}), "t4")
    assert plan.overrides == {"training.micro_batch": 16, "training.gradient_checkpointing": 0}
    assert plan.chosen.passes == 1
    assert plan.option_of(5, 0).passes == 4
    assert len(plan.options) == 2


def test_times_follow_from_the_bounds(tall):
    plan = made(tall(), "t4")
    fast, slow = plan.chosen.step_seconds
    product = 2 * 16 * 1024 * 256 * 2048
    flops = 3 * 4 * product - product  # the first input has no gradient
    assert flops / 8.1e12 <= fast < plan.chosen.expected_seconds < slow  # the T4's fp32 peak
    assert plan.chosen.prediction.pass_flops == pytest.approx(flops, rel=0.01)
    assert plan.seconds(1000) == 1000 * plan.chosen.expected_seconds


def test_a_number_of_samples_turns_epochs_into_steps(tall):
    plan = made(tall({"training.epochs": 3}), "t4", 0, 5000)
    assert plan.max_steps == 938  # 3 * 5000 / 16


def test_slots_are_dealt_to_the_cards_and_memory_of_libraries_is_set_aside(tall):
    config = tall({"training.micro_batch_slots": 2})
    one = made(config, "t4", 1)
    two = made(config, "t4", 2)
    assert one.chosen.passes == 2
    assert two.chosen.passes == 1
    assert one.usable_bytes - two.usable_bytes == 200 * MIB
    assert made(config, "t4").cards == 2
    assert made(config, "l4").cards == 1  # a Kaggle session has two T4s


@pytest.mark.parametrize("card, count, cards", [("t4", 0, 2), ("l4", 0, 1), ("l4", 4, 4)])
def test_zero_slots_are_one_for_each_card(tall, card, count, cards):
    plan = made(tall({"training.micro_batch_slots": 0}), card, count)
    assert plan.cards == plan.slots == cards


def test_a_memory_profile_is_planned_as_it_is_trained(tall):
    profiled = tall({"memory.profile": "ultra_low", "training.effective_batch": 8})
    # 8 as if the file gave it
    config = dataclasses.replace(profiled, overridden=frozenset({"memory.profile"}))
    plan = make(config, find_card("t4"))
    assert plan.effective_batch == 16
    assert plan.option_of(4, 0)
    change = "memory.profile ultra_low: training.effective_batch 8 -> 16"
    assert change in of_plan(plan).splitlines()


def test_a_plan_draws_nothing_from_the_generators_of_training(tall):
    first = made(tall(kind="Drawn"), "t4")
    torch.rand(1), random.random(), np.random.rand()
    state = random.getstate()
    assert made(tall(kind="Drawn"), "t4") == first
    assert random.getstate() == state


def test_a_plan_is_that_of_the_stage_with_the_highest_peak(tall):
    card = "0.5 GiB, capability 7.5"
    tall_plan = made(tall(), card)
    later_plan = made(tall(kind="Later"), card)
    assert tall_plan.chosen.micro_batch == later_plan.chosen.micro_batch
    peak_bytes = tall_plan.chosen.prediction.peak_bytes
    assert later_plan.chosen.prediction.peak_bytes == pytest.approx(peak_bytes, rel=0.02)


def test_the_trainers_own_step_is_traced(toy):
    config = toy({"training.ema_decay": 0.9})
    plan = made(config, "t4")
    model = Toy(config).model()
    assert plan.layers == len(model.blocks)
    assert plan.chosen.prediction.parameters == sum(p.numel() for p in model.parameters())


NOTHING_FITS = r"No micro-batch of tall fits .*1 sample.s. at once .*It would fit on t4,"


@pytest.mark.parametrize(
    "overrides, card, count, sentence",
    [
        ({}, "t4", -2, "-2 cards were chosen"),
        ({}, "t4", 3, "3 cards were chosen, and training.micro_batch_slots is 1"),
        ({}, "0.22 GiB, capability 7.5", 0, NOTHING_FITS),
        ({"training.precision": "bf16"}, "t4", 0, "bf16, which T4 lacks"),
    ],
)
def test_an_impossible_plan_is_refused_in_a_sentence(tall, overrides, card, count, sentence):
    with pytest.raises(BadInput, match=sentence):
        made(tall(overrides), card, count)


# --- in words, as a page, in a file -----------------------------------------------------------------------------------


@pytest.fixture
def path(tall, tmp_path):
    """The file of the configuration of `tall`."""
    tall()
    return str(tmp_path / "tall.yaml")


def test_the_command_prints_tables_and_layers_and_writes_a_page(path, capsys, tmp_path):
    page = tmp_path / "plan.html"
    cards = ["--gpu", "t4", "--gpu", "6 GiB, capability 7.5"]
    assert commands.main(["plan", path, *cards, "--layers", "--page", str(page)]) == 0
    printed = capsys.readouterr()
    assert "gradients  optimizer  activations  of peak" in printed.out
    assert printed.out.count("2.1 M parameters") == 2
    assert "Where it goes" in page.read_text()
    assert not unbalanced(page.read_text().partition("utf-8>")[2])


def test_the_command_prints_a_plan_as_json(path, capsys):
    assert commands.main(["plan", path, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["chosen"]["micro_batch"] == 16
    assert only["overrides"]["training.micro_batch"] == 16


def test_the_command_refuses_an_unknown_card(path, capsys):
    assert commands.main(["plan", path, "--gpu", "t5"]) == 2
    assert "Known cards" in capsys.readouterr().err


def test_a_written_plan_is_found_for_its_configuration_alone(toy, tmp_path, capsys):
    overrides = {"training.micro_batch": 4, "workload.dropout": 0.5}
    path = widgets.write(tmp_path / "runs", "toy", overrides)
    assert widgets.find(path.parent, "toy", toy) == (path, overrides)
    assert widgets.find(path.parent, "other", toy) is None
    assert not capsys.readouterr().out
    for text in ("{", '{"training.micro_batch": 4.5}'):
        path.write_text(text)
        assert widgets.find(path.parent, "toy", toy) is None
        assert "plan-toy.json is ignored: " in capsys.readouterr().out


def test_host_memory_is_the_savers_copy(toy, quick, monkeypatch):
    savers = []
    prepare = Saver.prepare

    def noted(self, *args):
        savers.append(self)
        return prepare(self, *args)

    monkeypatch.setattr(Saver, "prepare", noted)
    config = toy({"training.ema_decay": 0.9, "training.max_steps": 2})
    copied, _ = host_memory(load_task(config), config, 1)
    launch.train(config)
    assert copied == sum(buffer.nbytes for buffer in savers[-1]._buffers.values())


def test_host_memory_has_the_batches_that_workers_prepare_for_each_card(toy):
    config = toy({"training.micro_batch_slots": 2, "data.num_workers": 3})
    task = load_task(config)
    batch = task.example_batch(4, torch.device("cpu"))
    size = sum(value.nbytes for value in batch.values())
    assert host_memory(task, config, 2)[1] == 2 * 3 * SLOTS_AHEAD * size


# --- in a child process -----------------------------------------------------------------------------------------------


@pytest.fixture
def request_of(path, tmp_path):
    """request_of(count) -> the file that asks a child for a plan on so many cards."""

    def write(count):
        request = tmp_path / "request"
        request.write_bytes(pickle.dumps((path, find_card("t4"), count)))
        return str(request)

    return write


def test_a_child_writes_its_plan(request_of, tmp_path, capsys):
    answer = tmp_path / "answer"
    assert process.write_plan(request_of(1), str(answer)) == 0
    assert answer.exists()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "kind, count, code, sentence, raised",
    [
        ("Broken", 1, 1, r"this loss is broken \(tall.py:\d+: raise ", TrainingFailed),
        ("Tall", 3, 2, "3 cards", BadInput),
        ("Untraceable", 1, 3, "cannot be traced", NotTraceable),
    ],
)
def test_a_child_without_a_plan_ends_with_a_code_and_a_sentence(
    tall, request_of, tmp_path, capsys, monkeypatch, kind, count, code, sentence, raised
):
    request = request_of(count)
    config = tall(kind=kind)
    answer = tmp_path / "answer"
    assert process.write_plan(request, str(answer)) == code
    assert not answer.exists()
    message = capsys.readouterr().err
    assert re.search(sentence, message)
    assert "Traceback" not in message

    popen = subprocess.Popen
    script = f"import sys; print({message!r}, file=sys.stderr); sys.exit({code})"

    def child(_, **options):
        return popen([sys.executable, "-c", script], **options)

    monkeypatch.setattr(process.subprocess, "Popen", child)
    with pytest.raises(raised, match=sentence) as error:
        process.plan(config, "t4", count, threading.Event())
    assert error.type is raised


def test_a_plan_that_is_cancelled_or_interrupted_ends_its_process(toy, monkeypatch):
    children = []
    looks = []

    class Endless(subprocess.Popen):
        """A child that would run for minutes."""

        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            children.append(self)

    class ThirdLook(threading.Event):
        def is_set(self):
            looks.append(children[0].poll())
            return len(looks) == 3

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(process.subprocess, "Popen", Endless)
    with pytest.raises(process.Cancelled):
        process.plan(toy(), "t4", 1, ThirdLook())
    assert looks == [None] * 3
    monkeypatch.setattr(Endless, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.plan(toy(), "t4", 1, threading.Event())
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2


# --- worked into a run ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_card(monkeypatch):
    """Gives this machine a GPU of half a GiB, and plans in this process."""
    card = find_card("0.5 GiB, capability 7.5")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    # a build with CUDA asks its driver
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("lib.planner.process.card_of_gpu", lambda index: card)
    monkeypatch.setattr("lib.planner.process.plan_in_child", make)


def test_a_run_without_a_gpu_is_not_planned(toy, monkeypatch):
    monkeypatch.setattr(
        "lib.planner.process.planned_here", lambda *_: pytest.fail("it was planned")
    )
    run = prepare(toy())
    assert run.plan is None
    assert not any("Planned" in line for line in run.lengths)


@pytest.mark.usefixtures("small_card")
def test_a_run_is_not_planned_if_its_step_cannot_be_traced(tall):
    config, plan, (line,) = planned_here(tall(kind="Untraceable"), 1)
    assert plan is None
    assert config.training.micro_batch == 0
    assert "cannot be traced" in line
    assert "Nothing is planned" in line


@pytest.mark.usefixtures("small_card")
def test_a_micro_batch_of_zero_becomes_the_planned_one(tall):
    config, plan, lines = planned_here(tall(), 1)
    planned = plan.chosen.micro_batch
    assert config.training.micro_batch == planned < 16
    assert lines[0].startswith(f"Planned: training.micro_batch = {planned} (predicted peak 0.")
