"""Samples that must not be parted: slots, micro-batches, halving, the plan and evaluations keep to whole groups."""

import pytest
import torch
from torch import nn

from lib.config import with_changes
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.planner import make
from lib.planner.card import FITS, find_card
from lib.task import load_task
from lib.training import data, loop
from lib.training.evaluation import evaluate
from lib.training.state import first_state, new_state, restore_state
from lib.training.step import out_of_memory
from tests.toy import Net, Toy
from tests.training.test_loop import endless, gradient, newest
from tests.training.test_step import Plain, rows

GROUP = 8
sizes: list[int] = []  # of the batches that the loss was given


class Contrastive(Toy):
    """Each sample is to be most like the one beside it, of all in its group: negatives within the batch."""

    together = GROUP
    most = 1_000

    def model(self):
        return Net(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))

    def count(self, batch):
        return {"pairs": len(batch["x"])}

    def loss(self, model, batch):
        sizes.append(data.size_of(batch))
        if sizes[-1] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        x = model(batch["x"]).split(self.together)  # of an evaluation the last group may be smaller
        alike = [group @ group.mT + torch.eye(len(group), device=group.device) * -1e4 for group in x]
        pairs = [torch.arange(len(group), device=group.device).roll(1) for group in x]
        terms = [nn.functional.cross_entropy(a, b, reduction="sum") for a, b in zip(alike, pairs, strict=True)]
        return {"pairs": torch.stack(terms).sum()}, {}

    def evaluate(self, model, loader):
        return {"loss": sum(float(self.loss(model, batch)[0]["pairs"]) for batch in loader)}

    def datasets(self):
        return {"train": range(40), "validation": range(21), "test": range(16)}


class Odd(Contrastive):
    together = 0


class Tight(Contrastive):
    most = GROUP


class Tightest(Contrastive):
    most = GROUP - 1


class Large(Contrastive):
    """4 MiB of activations a sample."""

    def model(self):
        return Net(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 256))

    def loss(self, model, batch):
        return {"pairs": model(batch["x"]).square().sum()}, {}

    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 256, 256, device=device)}


@pytest.fixture
def contrastive(toy):
    def config(kind="Contrastive", **overrides):
        sizes.clear()
        return toy({"task": f"{__file__}:{kind}", "training.effective_batch": 32, **overrides})

    return config


def task_of(config):
    """The task of this module, so that `sizes` here is what it fills."""
    kind = globals()[config.task.rpartition(":")[2]]
    return kind(config)


def test_the_gradient_of_in_batch_negatives_does_not_depend_on_the_micro_batch(contrastive):
    whole, *_ = gradient(contrastive(), 32)
    for micro_batch in (8, 16):
        split, *_ = gradient(contrastive(), micro_batch)
        assert ((split - whole).norm() / whole.norm()).item() < 1e-6
    slots, *_ = gradient(contrastive(**{"training.micro_batch_slots": 2, "workload.noise": 0.0}), 8)
    one, *_ = gradient(contrastive(**{"workload.noise": 0.0}), 8)
    assert ((slots - one).norm() / one.norm()).item() < 1e-6


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        ({"training.micro_batch": 12}, "training.micro_batch 12 would part .* 8 in one piece. Write 8 or 16"),
        ({"training.micro_batch": 4}, "training.micro_batch 4 would part .*. Write 8."),
        ({"data.evaluation_batch": 20}, "data.evaluation_batch 20 would part .* 8 in one piece. Write 16 or 24"),
        ({"training.effective_batch": 20}, "effective_batch 20 .one slot. would part .* 8 in one slot. Write 16 or 24"),
        (
            {"training.micro_batch_slots": 8},
            "effective_batch 32 .8 slots of 4. would part samples: Contrastive.together keeps 8 .* Write 64",
        ),
        ({"task": f"{__file__}:Odd"}, "Odd.together is 0. Write a whole number"),
    ],
)
def test_batches_that_would_part_samples_are_refused_by_run_and_plan(contrastive, overrides, sentence):
    config = contrastive(**overrides)
    for refusing in (load_task, lambda config: make(config, find_card("t4"))):
        with pytest.raises(BadInput, match=sentence):
            refusing(config)


def trained(config, folder):
    folder.mkdir()
    return loop.train(task_of(config), config, folder, endless(), Plain())


def test_running_out_of_memory_halves_to_whole_groups(contrastive, tmp_path):
    config = contrastive(**{"training.effective_batch": 40, "training.max_steps": 4, "workload.noise": 0.0})
    easy = trained(with_changes(config, {"training.micro_batch": 8}), tmp_path / "easy")
    tight = trained(with_changes(config, {"task": f"{__file__}:Tight"}), tmp_path / "tight")
    steps = [(row["kind"], row["before"], row["after"]) for row in rows(tmp_path / "tight")]
    assert steps == [("oom_training", "40", "24"), ("oom_training", "24", "16"), ("oom_training", "16", "8")]
    assert tight.state.micro_batch == 8
    ours, theirs = (newest(tmp_path / name).tensors["model"] for name in ("easy", "tight"))
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6) for name in ours)
    assert easy.state.best["value"] == pytest.approx(tight.state.best["value"], rel=1e-4)
    assert set(sizes) == {40, 24, 16, 8, 5}  # 21 are 8, 8 and a rest of 5


def test_memory_that_does_not_suffice_for_one_group_ends_with_a_sentence(contrastive, tmp_path):
    sentence = r"a micro-batch of 8 samples, which the task keeps together, \(tried: 32, 16, 8\). Set training.grad"
    with pytest.raises(TrainingFailed, match=sentence):
        trained(contrastive("Tightest"), tmp_path / "run")
    config = contrastive("Tightest", **{"training.micro_batch": 16})
    state = new_state(task_of(config), config)
    with pytest.raises(TrainingFailed, match=r"step 0 with 8 samples, which the task keeps together, at once \(tried"):
        evaluate(state, task_of(config), config, range(16))
    assert sizes[-2:] == [16, 8]


def test_the_size_for_a_fresh_launch_is_of_whole_groups_or_none(contrastive):
    config = contrastive(**{"training.micro_batch": 24, "training.effective_batch": 48})
    state = new_state(task_of(config), config)
    failure = out_of_memory(state)
    assert isinstance(failure, OutOfMemory) and failure.micro_batch == 16
    state.micro_batch = 8
    assert out_of_memory(state).micro_batch == 0


@pytest.mark.parametrize("most, taken", [(0, 32), (13, 8), (3, 8), (31, 24)])
def test_a_size_of_an_earlier_session_is_rounded_to_whole_groups(contrastive, most, taken):
    """It may have been found before the task kept samples together."""
    config = contrastive()
    assert first_state(task_of(config), config, None, print, most).micro_batch == taken


def test_a_checkpoint_of_a_size_that_parts_groups_resumes_in_whole_ones(contrastive, tmp_path):
    config = contrastive(**{"training.max_steps": 1})
    trained(config, tmp_path / "run")
    saved = newest(tmp_path / "run")
    saved.state["micro_batch"] = 12
    state = new_state(task_of(config), config)
    restore_state(state, saved)
    assert state.micro_batch == 8


def test_a_plan_has_micro_batches_of_whole_groups_alone(contrastive):
    config = contrastive("Large", **{"training.effective_batch": 64, "training.micro_batch_slots": 1})
    roomy = make(config, find_card("t4"))
    assert roomy.chosen.micro_batch == 64
    part = 200 * 2**20 + 0.6 * roomy.chosen.prediction.peak_bytes / FITS
    plan = make(config, find_card(f"{part / 2**30:.6f} GiB, capability 7.5"))
    assert plan.chosen.micro_batch == 24 and all(option.micro_batch % GROUP == 0 for option in plan.options)
    with pytest.raises(BadInput, match="8 sample.s. at once still take"):
        make(config, find_card("0.21 GiB, capability 7.5"))
