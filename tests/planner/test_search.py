"""The plan: what it chooses, what it says, and how it is worked into a run."""

import dataclasses
import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import planner
from lib.errors import BadInput, TrainingFailed
from lib.launch import run
from lib.launch.run import apply_plan
from lib.planner import make, search
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, find_card
from lib.planner.trace import NotTraceable
from lib.task import find_task, load_config
from lib.text import duration
from tests.conftest import ROOT
from tests.toy import Toy
from trainbook import commands

TALL = '''
import random

import numpy as np
import torch
from torch import nn
from lib.task import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256)) for _ in range(4))
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

class Tall(Task):
    """Activations of 4 layers; no data at all."""

    def model(self):
        return Net()

    def count(self, batch):
        return {"square": batch["x"].numel()}

    def loss(self, model, batch):
        return {"square": model(batch["x"]).square().sum()}, {}

    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 512, 256, device=device)}

class Long(Tall):
    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 8192, 256, device=device)}

class Drawn(Tall):
    def example_batch(self, size, device):
        length = int(torch.randint(2, 30, ())) + np.random.randint(2, 30) + random.randrange(2, 30)
        return {"x": torch.zeros(size, length, 256, device=device)}

class Later(Tall):
    """Of two stages the second takes more memory."""

    def parameter_groups(self, model):
        return [{"names": "blocks.3.*", "from_step": 50}]

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
    """tall(overrides, kind) -> the configuration of a task whose activations take 9 MiB a sample."""
    (tmp_path / "tall.py").write_text(TALL)

    def make(overrides=None, kind="Tall"):
        path = tmp_path / "tall.yaml"
        training = "{max_steps: 1000, effective_batch: 16, micro_batch_slots: 1}"
        path.write_text(f"task: {tmp_path}/tall.py:{kind}\ntraining: {training}\n")
        return load_config(path, {"training.precision": "fp32", **(overrides or {})})

    return make


def made(config, card, count=0):
    return make(config, find_card(card), count)


def peak(config, card, micro_batch, recomputed):
    """An independent trace of one pair."""
    return search._Search(find_task(config.task)(config), config, find_card(card), 1).predict(micro_batch, recomputed)


@pytest.mark.parametrize("gib", [0.45, 0.6, 0.8])
def test_the_micro_batch_is_the_largest_even_one_that_fits(tall, gib):
    """By brute force over every size."""
    card = f"{gib} GiB, capability 7.5"
    plan = made(tall(), card)
    plain = next(option for option in plan.options if option.recomputed == 0)
    fitting = [m for m in range(1, 17) if peak(tall(), card, m, 0).fits]
    assert plain.micro_batch == max({*fitting} & {*search._even_sizes(16)})
    assert plain.passes == -(-16 // max(fitting))  # no other size would save a pass


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.integers(1, 64))
def test_even_sizes_are_those_that_split_a_slot_best(slot):
    smallest = (min(m for m in range(1, slot + 1) if -(-slot // m) <= passes) for passes in range(1, slot + 1))
    assert search._even_sizes(slot) == sorted({*smallest})


def test_recomputation_is_a_last_resort(tall):
    """Where nothing fits without it, the fewest layers that make room are taken."""
    config = tall({"training.effective_batch": 1}, "Long")
    needs = [peak(config, "t4", 1, layers).peak_bytes for layers in (0, 4)]
    between = (sum(needs) / 2 / 0.92 + CONTEXT_BYTES) / 2**30
    plan = made(config, f"{between:.4f} GiB, capability 7.5")
    assert plan.chosen.recomputed > 0 and plan.chosen.fits
    assert plan.chosen.relative_compute > 1.05


def test_the_whole_slot_is_taken_if_it_fits_and_the_configured_size_is_among_the_options(tall):
    plan = made(tall({"training.micro_batch": 5}), "t4")
    assert plan.overrides == {"training.micro_batch": 16, "training.gradient_checkpointing": 0}
    assert plan.chosen.passes == 1 and plan.evaluation is None
    assert plan.option_of(5, 0).passes == 4 and len(plan.options) == 2


def test_slots_are_dealt_to_the_cards(tall):
    config = tall({"training.micro_batch_slots": 2})
    assert [made(config, "t4", n).chosen.passes for n in (1, 2)] == [2, 1]
    assert made(config, "t4").cards == 2 and made(config, "l4").cards == 1  # a Kaggle session has two T4s
    config = tall({"training.micro_batch_slots": 0})  # each card has one
    plans = made(config, "t4"), made(config, "t4", 1), made(config, "l4"), made(config, "l4", 4)
    assert [(plan.cards, plan.slots) for plan in plans] == [(2, 2), (1, 1), (1, 1), (4, 4)]


def test_what_libraries_take_is_set_aside_and_said(tall):
    config = tall({"training.micro_batch_slots": 2, "training.cudnn_benchmark": True, "training.compile": True})
    plain, both = made(tall(), "t4"), made(config, "t4", 2)
    assert plain.usable_bytes - both.usable_bytes == (200 + 1024) * MIB
    said = " ".join(both.chosen.prediction.unseen)
    assert "NCCL" in said and "cuDNN tries" in said and "torch.compile" in said
    assert "NCCL" not in " ".join(plain.chosen.prediction.unseen)


def test_a_memory_profile_is_planned_as_it_is_trained(tall):
    profiled = tall({"memory.profile": "ultra_low", "training.effective_batch": 8})
    config = dataclasses.replace(profiled, overridden=frozenset({"memory.profile"}))  # 8 as if the file gave it
    plan = make(config, find_card("t4"))
    assert plan.effective_batch == 16 and plan.option_of(4, 0)
    assert "memory.profile ultra_low: training.effective_batch 8 -> 16" in planner.of_plan(plan).splitlines()
    kept = planner.plan(profiled, "t4")
    assert kept.effective_batch == 8 and kept.changed, "an override wins over the profile, in the child process too"
    assert kept == make(profiled, find_card("t4")), "a plan comes out of its own process the same"


def test_a_length_in_epochs_has_hours_for_1000_samples_or_for_those_that_are_given(tall):
    config = tall({"training.epochs": 3})
    open_ended, known = (make(config, find_card("t4"), 0, samples) for samples in (0, 5000))
    assert (open_ended.max_steps, open_ended.steps_for(1000)) == (0, 188)  # 3 * 1000 / 16
    tenth = make(tall({"training.epochs": 3, "data.subset_ratio": 0.1}), find_card("t4"))
    assert tenth.steps_for(1000) == 19  # 3 * 100 / 16
    time = duration(open_ended.seconds(188))
    assert f"for each 1,000 training samples they are 188 steps and take {time}" in planner.of_plan(open_ended)
    assert known.max_steps == 938 and "each 1,000" not in planner.of_plan(known)
    assert "training.epochs 3 -> training.max_steps 938" in planner.of_plan(known)


def test_a_plan_is_the_same_every_time_whatever_the_example_is_drawn_from(tall):
    config = tall(kind="Drawn")
    first = make(config, find_card("t4"))
    torch.rand(1), random.random(), np.random.rand()
    state = random.getstate()
    assert make(config, find_card("t4")) == first
    assert random.getstate() == state, "planning draws nothing from the generators of training"


def test_states_that_are_divided_are_not_planned_but_counted(tall):
    """Four layers of 1.05 million weights with AdamW: 16 bytes each, and one layer of 4.2 MB is whole at once."""
    divided = tall({"training.fully_shard": True, "training.micro_batch_slots": 2})
    with pytest.raises(NotTraceable, match="These states are 67.3 MB, 33.6 MB on each of 2 cards, and up to 4.2 MB"):
        made(divided, "t4", 2)
    assert made(divided, "t4", 1).chosen.fits, "with one card nothing is divided"


@pytest.mark.parametrize(
    "card, count, sentence",
    [
        ("8 GiB", -2, "for -2 cards"), ("0.1 GiB", 0, "nothing can be planned"),
        ("t4", 3, "3 cards were chosen, and training.micro_batch_slots is 1"),
        ("0.22 GiB", 0, r"No micro-batch of tall fits .*1 sample.s. at once .*It would fit on t4,"),
    ],
)  # fmt: skip
def test_cards_that_cannot_be_are_refused_in_a_sentence(tall, card, count, sentence):
    with pytest.raises(BadInput, match=sentence):
        made(tall(), card, count)


def test_precision_follows_the_card(tall):
    assert made(tall({"training.precision": "auto"}), "t4").precision == "fp16"
    assert made(tall({"training.precision": "auto"}), "a100").precision == "bf16"
    with pytest.raises(BadInput, match="bf16, which T4 lacks"):
        made(tall({"training.precision": "bf16"}), "t4")


def test_time_follows_from_the_bounds(tall):
    plan = made(tall(), "t4")
    fast, slow = plan.chosen.step_seconds
    assert 0 < fast < plan.chosen.expected_seconds < slow
    flops = 3 * 2 * 16 * 512 * (2 * 256 * 2048) * 4 - 2 * 16 * 512 * 256 * 2048  # the first input needs no gradient
    assert plan.chosen.prediction.pass_flops == pytest.approx(flops, rel=0.01)
    assert fast >= flops / 8.1e12  # the T4's fp32 peak
    text = planner.of_plan(plan)
    assert "100,000" in text and "A week's 30 GPU hours give about" in text
    seconds = 1000 * plan.chosen.expected_seconds
    assert plan.seconds(1000) == seconds and re.search(rf" 1,000 +{duration(seconds)} ", text)


def test_a_loss_that_fails_is_a_sentence_with_its_line(tall):
    with pytest.raises(TrainingFailed, match="failed in the task's own code") as caught:
        planner.plan(tall(kind="Broken"), "t4")
    assert re.search(r"this loss is broken \(tall.py:\d+: raise ", str(caught.value).splitlines()[-1])
    assert "Traceback" not in str(caught.value)


def test_the_command_prints_tables_and_json(tall, capsys, tmp_path):
    tall()
    path = str(tmp_path / "tall.yaml")
    assert commands.main(["plan", path, "--gpu", "t4", "--gpu", "6 GiB, capability 7.5"]) == 0
    text = capsys.readouterr().out
    assert "steps a week" in text and text.count("4.2 M parameters") == 2 and "1 x T4" in text
    assert commands.main(["plan", path, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["overrides"]["training.micro_batch"] == only["chosen"]["micro_batch"] == 16
    assert commands.main(["plan", path, "--gpu", "t5"]) == 2
    assert "Known cards" in capsys.readouterr().err


# --- worked into a run ------------------------------------------------------------------------------------------------


def test_without_a_gpu_nothing_is_planned(tall):
    config = tall()
    assert apply_plan(config, 1) == (config, None, [])


@pytest.fixture
def small_card(monkeypatch):
    """This machine seems to have a GPU of half a GiB."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a build with CUDA asks its driver
    monkeypatch.setattr(run, "card_of_gpu", lambda index: find_card("0.5 GiB, capability 7.5"))


def test_the_stage_of_a_run_that_takes_most_memory_is_planned(tall):
    plans = [make(tall(kind=kind), find_card("0.5 GiB, capability 7.5")) for kind in ("Tall", "Later")]
    assert plans[0].chosen.micro_batch == plans[1].chosen.micro_batch
    assert plans[1].chosen.prediction.peak_bytes == pytest.approx(plans[0].chosen.prediction.peak_bytes, rel=0.02)


def test_a_micro_batch_of_zero_becomes_the_planned_one_and_a_given_one_stays(tall, small_card, monkeypatch):
    monkeypatch.setattr(run.process, "plan", make)  # in this process
    config, plan, lines = apply_plan(tall(), 1)
    assert config.training.micro_batch == plan.chosen.micro_batch < 16
    assert lines[0].startswith(f"Planned: training.micro_batch = {plan.chosen.micro_batch} (predicted peak 0.")
    config, plan, lines = apply_plan(tall({"training.micro_batch": 4}), 1)
    assert config.training.micro_batch == 4 and not lines
    assert plan.option_of(4, 0).prediction.peak_bytes > 16 * 4_200_000


def test_a_step_that_cannot_be_traced_trains_unplanned_and_says_so(tall, small_card):
    config, plan, (line,) = apply_plan(tall(kind="Untraceable"), 1)
    assert plan is None and config.training.micro_batch == 0
    assert "cannot be traced" in line and "nothing is planned" in line


def test_the_trainers_own_step_is_what_is_traced(tmp_path):
    """Micro-batches, recomputation, averaged weights and clipping are those of the trainer; nothing is imitated."""
    path = tmp_path / "toy.yaml"
    path.write_text(f"task: {ROOT}/tests/toy.py:Toy\ntraining: {{max_steps: 12, effective_batch: 8, ema_decay: 0.9}}\n")
    config = load_config(path)
    plan = made(config, "t4")
    assert plan.layers == len(Toy(config).model().blocks)
    assert plan.chosen.prediction.parameters == sum(p.numel() for p in Toy(config).model().parameters())
    assert list(plan.chosen.prediction.moments) == [
        "after load", "after forward", "after backward", "after optimizer step",
    ]  # fmt: skip


def test_planning_takes_less_than_2_gb(tmp_path):
    code = (
        "import resource, sys\nfrom lib.planner import find_card, make\nfrom lib.task import load_config\n"
        f"make(load_config(r'{ROOT}/configs/graphmer.yaml'), find_card('t4'))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout) * 1024 < 2e9


def test_an_evaluations_own_batch_is_predicted_and_said(tall):
    plan = make(tall({"data.evaluation_batch": 64, "training.effective_batch": 2}), find_card("t4"))
    # Inputs, sum and the widest layer twice, before and after its activation: 512 * 4 * (2 * 256 + 2 * 2048) a sample
    activations = 64 * 512 * 4 * (2 * 256 + 2 * 2048)
    states = 12 * plan.parameters
    assert plan.evaluation.fitting == 64
    assert 0.9 * activations < plan.evaluation.peak_bytes - states < 1.2 * activations
    size = f"{plan.evaluation.peak_bytes / 2**30:.2f} GiB"
    assert f"takes 64 samples at once (data.evaluation_batch): {size} at the peak of" in planner.of_plan(plan)


def test_an_evaluations_own_batch_that_does_not_fit_is_said_with_one_that_does(tall, monkeypatch):
    config = tall({"data.evaluation_batch": 100, "training.effective_batch": 2})
    plan = make(config, find_card("0.6 GiB, capability 7.5"))
    assert plan.evaluation.fitting == 25
    assert "more than the 0.37 GiB that a plan may use: 25 fit. A run halves them" in planner.of_plan(plan)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "card_of_gpu", lambda index: find_card("0.6 GiB"))
    monkeypatch.setattr(run.ranks, "cards", lambda device: [0])
    monkeypatch.setattr(run.process, "plan", lambda *_: plan)
    for taken in (config, tall({"data.evaluation_batch": 100, "training.micro_batch": 2})):
        assert "25 fit" in apply_plan(taken, 1)[2][-1], "a run says it too"
