"""Mistakes planted in a task of two layers are named, each in one sentence; sound tasks of unusual kinds pass."""

import itertools
import random
import re
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.errors import BadInput
from lib.task import load_task
from tests.conftest import ROOT
from tests.toy import Toy
from tests.training.test_draws import states
from tests.training.test_loop import fit, newest, same_tensors
from trainbook import launch
from trainbook.launch import checks, smoke

IMAGES = torch.arange(60.0).view(20, 3) / 60


class Classes(Toy):
    """A classifier of 20 rows into 3 classes, as most people's are."""

    def model(self):
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    def datasets(self):
        rows = [(IMAGES[i].clone(), i % 3) for i in range(20)]
        return {"train": rows[:12], "validation": rows[12:16], "test": rows[16:]}

    def collate(self, samples, generator):
        return {
            "x": torch.stack([x for x, _ in samples]),
            "labels": torch.tensor([label for _, label in samples]),
        }

    def example_batch(self, size, device):
        labels = torch.zeros(size, dtype=torch.long, device=device)
        return {"x": torch.zeros(size, 3, device=device), "labels": labels}

    def count(self, batch):
        return {"entropy": len(batch["labels"])}

    def loss(self, model, batch):
        return {"entropy": F.cross_entropy(model(batch["x"]), batch["labels"], reduction="sum")}, {}

    def evaluate(self, model, loader):
        right = [(model(batch["x"]).argmax(1) == batch["labels"]).float() for batch in loader]
        return {"loss": 1 - float(torch.cat(right).mean())}

    def baseline(self):
        return {"loss": 0.7}


def entropy(self, model, batch):
    return Classes.loss(self, model, batch)[0]["entropy"]


def broadcast(self, model, batch):
    return {"entropy": ((model(batch["x"])[:, :1] - batch["labels"]) ** 2).sum()}, {}


def noisy_mean(self, model, batch):
    noisy = batch["x"] + 0.1 * torch.randn_like(batch["x"])
    return {"entropy": F.cross_entropy(model(noisy), batch["labels"])}, {}


def changed_batch(self, model, batch):
    batch["x"].mul_(2)
    return Classes.loss(self, model, batch)


def changed_samples(self, samples, generator):
    for x, _ in samples:
        x.mul_(2)
    return Classes.collate(self, samples, generator)


def unseeded(self):
    rows = list(itertools.chain(*Classes.datasets(self).values()))
    random.shuffle(rows)
    return {"train": rows[:12], "validation": rows[12:16], "test": rows[16:]}


class Remembers(list):
    """Gives the sample that was read first for every other one."""

    def __getitem__(self, index):
        self.first = getattr(self, "first", super().__getitem__(index))
        return self.first


def remembering(self):
    return {**Classes.datasets(self), "train": Remembers(Classes.datasets(self)["train"])}


def training_mode(self, model, loader):
    model.train()
    return Classes.evaluate(self, model, loader)


def trained(kind):
    return lambda self, model, batch: ({"entropy": kind(entropy(self, model, batch))}, {})


MISTAKES = [
    ("loss", noisy_mean, r"loss\(\) gives .* It is a mean"),
    ("loss", broadcast, r"\(n, 1\) and \(n\)"),
    ("loss", trained(torch.Tensor.detach), r"loss\(\) has no gradient"),
    ("loss", lambda s, m, b: Classes.loss(s, m, {"x": b["images"]}), r"'images' \(.*test_checks.py:\d+.*labels"),
    ("loss", changed_batch, "or changes the batch"),
    ("model", lambda s: nn.Linear(3, len(list(s.source.iterdir()))), r"model\(\) raises .*do without data"),
    ("count", lambda s, b: {"entropy": 1}, "is not the sum over a batch's halves"),
    ("datasets", unseeded, "when the data is read again"), ("datasets", remembering, "when the data is read again"),
    ("collate", changed_samples, "another batch of the same samples"),
    ("example_batch", lambda s, n, d: Classes.example_batch(s, 1, d), "plan would be too small"),
    ("fingerprint", lambda s: str(time.perf_counter_ns()), "no run could be resumed"),
    ("evaluate", training_mode, "leaves the model in training mode"),
]  # fmt: skip


def examined(toy, cls=Classes, thorough=True, **members):
    config = toy()
    task = type("Faulty", (cls,), members)(config)
    return checks.examine(task, config, thorough)


def test_each_planted_mistake_is_named_in_one_sentence(toy):
    for name, member, sentence in MISTAKES:
        bad = [
            finding.value for finding in examined(toy, **{name: member}) if finding.verdict == "bad"
        ]
        assert len(bad) == 1, (
            name,
            sentence,
            bad,
        )
        assert re.search(sentence, bad[0]), (
            name,
            sentence,
            bad,
        )
        assert "\n" not in bad[0], (
            name,
            sentence,
            bad,
        )


# --- sound tasks of unusual kinds -------------------------------------------------------------------------------------


class DrawsElsewhere(Classes):
    """Draws from NumPy and random in model(), in a layer, in the loss and in an evaluation."""

    class Drop(nn.Module):
        def forward(self, x):
            return x + np.random.randn() * random.random()

    def model(self):
        model = super().model()
        model[0].weight.data = torch.from_numpy(np.random.randn(4, 3)).float()
        return nn.Sequential(model, self.Drop())

    def loss(self, model, batch):
        return {"entropy": (0.5 + random.random()) * super().loss(model, batch)[0]["entropy"]}, {}

    def evaluate(self, model, loader):
        return {"loss": super().evaluate(model, loader)["loss"] + np.random.rand()}


class Detector(Classes):
    """Gives losses in training mode and boxes in evaluation mode, as torchvision's detectors do."""

    class Net(nn.Linear):
        def forward(self, x, labels=None):
            out = super().forward(F.dropout(x, 0.5, self.training))
            if self.training:
                return {"entropy": F.cross_entropy(out, labels, reduction="sum")}
            return [out]

    def model(self):
        return self.Net(3, 3)

    def loss(self, model, batch):
        return dict(model(batch["x"], batch["labels"]).items()), {}

    def evaluate(self, model, loader):
        return {"loss": float(torch.cat([model(batch["x"])[0] for batch in loader]).mean())}


class NeedsAll(Classes):
    """Evaluates what only a whole split has."""

    def datasets(self):
        rows = super().datasets()["train"]
        validation, test = ([(x + number, label) for x, label in rows] for number in (1, 2))
        return {"train": rows, "validation": validation[:11], "test": test[1:]}

    def evaluate(self, model, loader):
        guesses = torch.cat([model(batch["x"]).argmax(1) for batch in loader])
        labels = torch.tensor([label for _, label in loader.dataset])
        return {"loss": float((guesses != labels).float().mean())}


SOUND = [Toy, DrawsElsewhere, Detector, NeedsAll]


@pytest.mark.parametrize("cls", SOUND, ids=lambda cls: cls.__name__)
def test_an_unusual_task_that_keeps_its_promises_passes(cls, toy):
    assert examined(toy, cls) == []


@pytest.mark.parametrize("cls", ["Heights", "Topics"])
def test_tasks_with_targets_pass(cls, toy):
    """Also for a batch of one sample, whose number is no more than a scalar to squeeze()."""
    config = toy({"task": f"{ROOT / 'tests' / 'trainbook' / 'supervised' / 'tasks.py'}:{cls}"})
    findings = checks.examine(load_task(config), config)
    assert all("too. Split them" in finding.value for finding in findings), findings


def copied(name, part):
    """Returns a datasets() with copies of training samples in another split."""
    rows = lambda self: Classes.datasets(self)["train"][part]  # noqa: E731
    return lambda self: {
        **Classes.datasets(self),
        name: [(x.clone(), label) for x, label in rows(self)],
    }


class Unused(Classes):
    def model(self):
        model = super().model()
        model.extra = nn.Linear(2, 2)
        model.forward = lambda x: model[2](model[1](model[0](x)))
        return model


DOUBTS = [
    (
        Classes,
        {"datasets": copied("validation", slice(None))},
        "12 of the 12 samples of 'validation' in 'train' too",
    ),
    (Classes, {"datasets": copied("test", slice(-5, None))}, "samples of 'test' in 'train' too"),
    (Classes, {"evaluate": lambda s, m, loader: {"loss": float("nan")}}, "gives nan as 'loss'"),
    (Unused, {}, "2 of 6 trained parameters, such as 'extra.weight', get no gradient"),
    (
        Classes,
        {"loss": lambda *_: exec("raise torch.OutOfMemoryError('CUDA out of memory')")},
        "Memory ran out while",
    ),
]


def test_what_may_be_meant_is_a_doubt_and_stops_nothing(toy):
    for cls, members, sentence in DOUBTS:
        findings = examined(toy, cls, **members)
        assert [finding.verdict for finding in findings] == ["warning"] * len(findings), findings
        assert any(sentence in finding.value for finding in findings), (sentence, findings)


def test_samples_with_targets_that_are_in_two_splits_are_counted(toy, monkeypatch):
    config = toy({"task": f"{ROOT / 'tests' / 'trainbook' / 'supervised' / 'tasks.py'}:Heights"})
    task = load_task(config)
    rows = task.read()
    leaks = {**rows, "test": [*rows["test"], *((x, -y) for x, y in rows["train"][3:5])]}
    monkeypatch.setattr(type(task), "read", lambda self, source=None: leaks)
    (finding,) = checks.examine(load_task(config), config)
    assert finding.verdict == "warning"
    assert "has 2 of the 8 samples of 'test' in 'train' too" in finding.value


# --- who calls the checks ---------------------------------------------------------------------------------------------

OWN = """
import torch
from tests.toy import Toy

class Own(Toy):
{body}
"""
MEAN = "    def loss(self, model, batch):\n        return {'squared': model(batch['x']).pow(2).mean()}, {}"
RAISES = "    def baseline(self):\n        return {'rmse': undefined}"
NAN = "    def evaluate(self, model, loader):\n        return {'loss': float('nan'), 'rmse': 1.0}"


def test_the_test_of_one_line_raises_all_mistakes_at_once_and_warns_of_doubts(
    toy, tmp_path, monkeypatch
):
    own = tmp_path / "own.py"
    own.write_text(OWN.format(body=f"{MEAN}\n{RAISES}"))
    config = toy({"task": f"{own}:Own"})
    with pytest.raises(BadInput) as refused:
        checks.check(config)
    text = str(refused.value)
    assert text.startswith("The task Own breaks its contract:\n- ")
    assert text.count("\n- ") == 2
    assert "It is a mean" in text
    assert "own.py:9: return {'rmse': undefined}" in text
    monkeypatch.setattr(smoke, "few_steps", lambda run: pytest.fail("it trained"))
    with pytest.raises(BadInput, match="It is a mean"):
        smoke.test(launch.prepare(config))
    own.write_text(OWN.format(body=NAN))
    (tmp_path / "my.yaml").write_text(
        "task: own.py:Own\ntraining: {max_steps: 2, effective_batch: 8}\n"
    )
    with pytest.warns(UserWarning, match="gives nan as 'loss'"):
        checks.check(tmp_path / "my.yaml")


def test_a_run_after_the_checks_is_bit_for_bit_the_run_without(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.dropout": 0.5})
    for name in ("alone", "examined"):
        task = Toy(config)
        before = states()
        if name == "examined":
            checks.examine(task, config)
        assert states() == before
        fit(config, tmp_path / name, task=task)
    alone, examined = (newest(tmp_path / name).tensors for name in ("alone", "examined"))
    assert all(same_tensors(alone[group], examined[group]) for group in alone)
