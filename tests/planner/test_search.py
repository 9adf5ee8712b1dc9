"""The plan: what it chooses, what it says, how it is made in a child process and worked into a run."""

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
from lib.planner.search import host_memory
from lib.task import load_config, load_task
from tests.markup import unbalanced
from tests.toy import Toy
from trainbook import commands, launch
from trainbook.launch.run import apply_plan
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
    assert plain.micro_batch == max({*fitting} & {*search.even_sizes(8)}) == 4 < max(fitting)
    assert plain.passes == -(-8 // max(fitting))  # no other size would save a pass


def test_recomputation_is_a_last_resort(tall):
    """Where nothing fits without it, the fewest layers that make room are taken."""
    config = tall({"training.effective_batch": 1}, "Long")
    between = (
        sum(peak(config, "t4", 1, layers).peak_bytes for layers in (0, 2)) / 2 / 0.92
        + CONTEXT_BYTES
    )
    plan = made(config, f"{between / 2**30:.4f} GiB, capability 7.5")
    assert plan.chosen.recomputed > 0
    assert plan.chosen.fits


def test_the_whole_slot_is_taken_if_it_fits_and_times_follow_from_the_bounds(tall):
    plan = made(tall({"training.micro_batch": 5}), "t4")
    assert plan.overrides == {"training.micro_batch": 16, "training.gradient_checkpointing": 0}
    assert plan.chosen.passes == 1
    assert plan.option_of(5, 0).passes == 4
    assert len(plan.options) == 2
    fast, slow = plan.chosen.step_seconds
    flops = (
        3 * 2 * 16 * 1024 * (2 * 256 * 2048) * 2 - 2 * 16 * 1024 * 256 * 2048
    )  # the first input has no gradient
    assert flops / 8.1e12 <= fast < plan.chosen.expected_seconds < slow  # the T4's fp32 peak
    assert plan.chosen.prediction.pass_flops == pytest.approx(flops, rel=0.01)
    assert plan.seconds(1000) == 1000 * plan.chosen.expected_seconds
    epochs = made(tall({"training.epochs": 3}), "t4", 0, 5000)
    assert epochs.max_steps == 938  # 3 * 5000 / 16


def test_slots_are_dealt_to_the_cards_and_what_libraries_take_is_set_aside(tall):
    config = tall({"training.micro_batch_slots": 2})
    one, two = (made(config, "t4", n) for n in (1, 2))
    assert one.chosen.passes == 2
    assert two.chosen.passes == 1
    assert one.usable_bytes - two.usable_bytes == 200 * MIB
    assert made(config, "t4").cards == 2
    assert made(config, "l4").cards == 1  # a Kaggle session has two T4s
    config = tall({"training.micro_batch_slots": 0})  # each card has one
    plans = made(config, "t4"), made(config, "l4"), made(config, "l4", 4)
    assert [(plan.cards, plan.slots) for plan in plans] == [(2, 2), (1, 1), (4, 4)]


def test_a_memory_profile_is_planned_as_it_is_trained(tall):
    profiled = tall({"memory.profile": "ultra_low", "training.effective_batch": 8})
    config = dataclasses.replace(
        profiled, overridden=frozenset({"memory.profile"})
    )  # 8 as if the file gave it
    plan = make(config, find_card("t4"))
    assert plan.effective_batch == 16
    assert plan.option_of(4, 0)
    assert (
        "memory.profile ultra_low: training.effective_batch 8 -> 16" in of_plan(plan).splitlines()
    )


def test_a_plan_draws_nothing_from_the_generators_of_training_and_has_the_stage_that_takes_most_memory(
    tall,
):
    first = made(tall(kind="Drawn"), "t4")
    torch.rand(1), random.random(), np.random.rand()
    state = random.getstate()
    assert made(tall(kind="Drawn"), "t4") == first
    assert random.getstate() == state
    first, second = (
        made(tall(kind=kind), "0.5 GiB, capability 7.5").chosen for kind in ("Tall", "Later")
    )
    assert first.micro_batch == second.micro_batch
    assert second.prediction.peak_bytes == pytest.approx(first.prediction.peak_bytes, rel=0.02)


def test_the_trainers_own_step_is_what_is_traced(toy):
    config = toy({"training.ema_decay": 0.9})
    plan = made(config, "t4")
    model = Toy(config).model()
    assert plan.layers == len(model.blocks)
    assert plan.chosen.prediction.parameters == sum(p.numel() for p in model.parameters())


def test_what_cannot_be_planned_is_refused_in_a_sentence(tall):
    for overrides, card, count, sentence in (
        ({}, "t4", -2, "-2 cards were chosen"),
        ({}, "t4", 3, "3 cards were chosen, and training.micro_batch_slots is 1"),
        (
            {},
            "0.22 GiB, capability 7.5",
            0,
            r"No micro-batch of tall fits .*1 sample.s. at once .*It would fit on t4,",
        ),
        ({"training.precision": "bf16"}, "t4", 0, "bf16, which T4 lacks"),
    ):
        with pytest.raises(BadInput, match=sentence):
            made(tall(overrides), card, count)


# --- in words, as a page, in a file -----------------------------------------------------------------------------------


def test_the_command_prints_tables_layers_and_json_and_writes_a_page(tall, capsys, tmp_path):
    tall()
    path = str(tmp_path / "tall.yaml")
    page = tmp_path / "plan.html"
    cards = ["--gpu", "t4", "--gpu", "6 GiB, capability 7.5"]
    assert commands.main(["plan", path, *cards, "--layers", "--page", str(page)]) == 0
    printed = capsys.readouterr()
    assert "gradients  optimizer  activations  of peak" in printed.out
    assert printed.out.count("2.1 M parameters") == 2
    assert "Where it goes" in page.read_text()
    assert not unbalanced(page.read_text().partition("utf-8>")[2])
    assert commands.main(["plan", path, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["overrides"]["training.micro_batch"] == only["chosen"]["micro_batch"] == 16
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


def test_host_memory_is_the_savers_copy_and_the_batches_that_workers_prepare_for_each_card(
    toy, quick, monkeypatch
):
    savers = []
    prepare = Saver.prepare
    monkeypatch.setattr(
        Saver, "prepare", lambda self, *args: (prepare(self, *args), savers.append(self))[0]
    )
    config = toy({"training.ema_decay": 0.9, "training.max_steps": 2})
    copied, _ = host_memory(load_task(config), config, 1)
    launch.train(config)
    assert copied == sum(buffer.nbytes for buffer in savers[-1]._buffers.values())
    config = toy(
        {"data.num_workers": 2, "data.prefetch_factor": 3, "training.micro_batch_slots": 2}
    )
    batch = sum(
        value.nbytes for value in load_task(config).example_batch(4, torch.device("cpu")).values()
    )
    assert host_memory(load_task(config), config, 2)[1] == 2 * 2 * 3 * batch


# --- in a child process -----------------------------------------------------------------------------------------------


def test_the_exit_code_of_the_child_says_whether_there_is_a_plan(
    tall, tmp_path, capsys, monkeypatch
):
    request = tmp_path / "request"
    answer = tmp_path / "answer"
    popen = subprocess.Popen
    for kind, count, code, sentence, raised in (
        ("Broken", 1, 1, r"this loss is broken \(tall.py:\d+: raise ", TrainingFailed),
        ("Tall", 3, 2, "3 cards", BadInput), ("Untraceable", 1, 3, "cannot be traced", NotTraceable),
        ("Tall", 1, 0, "^$", None),
    ):  # fmt: skip
        config = tall(kind=kind)
        request.write_bytes(pickle.dumps((str(tmp_path / "tall.yaml"), find_card("t4"), count)))
        assert process.write_plan(str(request), str(answer)) == code
        message = capsys.readouterr().err
        assert answer.exists() == (code == 0)
        assert re.search(sentence, message)
        assert "Traceback" not in message
        child = [
            sys.executable,
            "-c",
            f"import sys; print({message!r}, file=sys.stderr); sys.exit({code})",
        ]
        monkeypatch.setattr(
            process.subprocess, "Popen", lambda _, child=child, **options: popen(child, **options)
        )
        if raised:
            with pytest.raises(raised, match=sentence) as error:
                process.plan(config, "t4", count, threading.Event())
            assert error.type is raised


def test_a_plan_that_is_cancelled_or_interrupted_ends_its_process(toy, monkeypatch):
    children = []
    looks = []

    class Endless(subprocess.Popen):
        """The child that planning starts would run for minutes."""

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
    """This machine seems to have a GPU of half a GiB."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: False
    )  # a build with CUDA asks its driver
    monkeypatch.setattr(
        "lib.planner.card.card_of_gpu", lambda index: find_card("0.5 GiB, capability 7.5")
    )


def test_a_micro_batch_of_zero_becomes_the_planned_one_if_there_is_a_gpu_and_a_step_that_can_be_traced(
    tall, request
):
    assert apply_plan(tall(), 1) == (tall(), None, [])
    request.getfixturevalue("small_card")
    request.getfixturevalue("monkeypatch").setattr(
        "lib.planner.process.plan", make
    )  # in this process
    config, plan, (line,) = apply_plan(tall(kind="Untraceable"), 1)
    assert plan is None
    assert config.training.micro_batch == 0
    assert "cannot be traced" in line
    assert "Nothing is planned" in line
    config, plan, lines = apply_plan(tall(), 1)
    assert config.training.micro_batch == plan.chosen.micro_batch < 16
    assert lines[0].startswith(
        f"Planned: training.micro_batch = {plan.chosen.micro_batch} (predicted peak 0."
    )
