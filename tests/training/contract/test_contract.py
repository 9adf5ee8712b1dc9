"""Ordinary mistakes, planted in a task of two layers: each is named in one sentence that says the mend."""

import itertools
import os
import random
import re
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.training import contract
from tests.toy import Toy

IMAGES = torch.arange(60.0).view(20, 3) / 60


class Classes(Toy):
    """A classifier of 20 rows into 3 classes, as most people's are."""

    def model(self):
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    def datasets(self):
        rows = [(IMAGES[i].clone(), i % 3) for i in range(20)]
        return {"train": rows[:12], "validation": rows[12:16], "test": rows[16:]}

    def collate(self, samples, generator):
        return {"x": torch.stack([x for x, _ in samples]), "labels": torch.tensor([label for _, label in samples])}

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


# --- losses and counts ------------------------------------------------------------------------------------------------


class MeanLoss(Classes):
    def loss(self, model, batch):
        return {"entropy": F.cross_entropy(model(batch["x"]), batch["labels"])}, {}


class MaskedMean(Classes):
    def loss(self, model, batch):
        each = F.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")
        return {"entropy": each.sum() / (batch["labels"] > 0).sum().clamp(min=1) ** 0.5}, {}


class InBatchNegatives(Classes):
    def loss(self, model, batch):
        scores = model(batch["x"]) @ model(batch["x"]).T
        return {"entropy": F.cross_entropy(scores, torch.arange(len(scores)), reduction="sum")}, {}


class Broadcast(Classes):
    def model(self):
        return nn.Linear(3, 1)

    def loss(self, model, batch):
        return {"entropy": ((model(batch["x"]) - batch["labels"]) ** 2).sum()}, {}

    def evaluate(self, model, loader):
        return {"loss": sum(float(self.loss(model, batch)[0]["entropy"]) for batch in loader)}


class MeanOfADrawingLoss(Classes):
    def loss(self, model, batch):
        noisy = batch["x"] + 0.1 * torch.randn_like(batch["x"])
        return {"entropy": F.cross_entropy(model(noisy), batch["labels"])}, {}


class NoReduction(Classes):
    def loss(self, model, batch):
        return {"entropy": F.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")}, {}


class LossAlone(Classes):
    def loss(self, model, batch):
        return F.cross_entropy(model(batch["x"]), batch["labels"], reduction="sum")


class LossAsFloat(Classes):
    def loss(self, model, batch):
        return {"entropy": super().loss(model, batch)[0]["entropy"].item()}, {}


class NoGradient(Classes):
    def loss(self, model, batch):
        return {"entropy": super().loss(model, batch)[0]["entropy"].detach()}, {}


class NanLoss(Classes):
    def loss(self, model, batch):
        return {"entropy": super().loss(model, batch)[0]["entropy"] * torch.tensor(float("nan"))}, {}


class InfiniteGradient(Classes):
    def loss(self, model, batch):
        out = model(batch["x"])
        return {"entropy": (out - out.detach()).norm(dim=1).sum() + torch.sqrt((out * 0).abs()).sum()}, {}


class LabelTooHigh(Classes):
    def model(self):
        return nn.Linear(3, 2)


class FloatLabels(Classes):
    def collate(self, samples, generator):
        batch = super().collate(samples, generator)
        return {**batch, "labels": batch["labels"].float()}

    def example_batch(self, size, device):
        return {name: value.float() for name, value in super().example_batch(size, device).items()}


class DoubleInputs(Classes):
    def collate(self, samples, generator):
        return {**super().collate(samples, generator), "x": torch.from_numpy(np.random.rand(len(samples), 3))}

    def example_batch(self, size, device):
        return {**super().example_batch(size, device), "x": torch.zeros(size, 3, dtype=torch.float64)}


class WrongWidth(Classes):
    def model(self):
        return nn.Linear(5, 3)


class WrongKey(Classes):
    def loss(self, model, batch):
        return {"entropy": F.cross_entropy(model(batch["images"]), batch["labels"], reduction="sum")}, {}


class OtherTerm(Classes):
    def loss(self, model, batch):
        return {"loss": super().loss(model, batch)[0]["entropy"]}, {}


class CountOfAll(Classes):
    def count(self, batch):
        return {"entropy": 1}


class CountIsANumber(Classes):
    def count(self, batch):
        return len(batch["labels"])


class NegativeCount(Classes):
    def count(self, batch):
        return {"entropy": -len(batch["labels"])}


class PopsLabels(Classes):
    def count(self, batch):
        return {"entropy": len(batch.pop("labels"))}


class ChangesBatch(Classes):
    def loss(self, model, batch):
        batch["x"].mul_(2)
        return super().loss(model, batch)


class OwnGeneratorInLoss(Classes):
    generator = np.random.default_rng()

    def loss(self, model, batch):
        share = self.generator.random()
        return {"entropy": share * super().loss(model, batch)[0]["entropy"]}, {}


class SystemInModel(Classes):
    class Drop(nn.Module):
        def forward(self, x):
            return x * (1000 * random.SystemRandom().random() if self.training else 1)  # two passes are never near

    def model(self):
        return nn.Sequential(super().model(), self.Drop())


class InPlace(Classes):
    class Net(nn.Linear):
        def forward(self, x):
            out = torch.sigmoid(super().forward(x))
            out += 1
            return out.mul_(2)

    def model(self):
        return self.Net(3, 3)


class TextFigure(Classes):
    def loss(self, model, batch):
        return super().loss(model, batch)[0], {"note": "fine"}


class UnknownWeight(Classes):
    def term_weights(self, step):
        return {"other": 0.5}


class WeightsOfFirstSteps(Classes):
    def term_weights(self, step):
        return {"entropy": [0.1, 0.2][step]}


# --- data -------------------------------------------------------------------------------------------------------------


class Rows:
    """Some rows of one's own reading."""

    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return IMAGES[index % 20] + self.noise(index), index % 3

    def noise(self, index):
        return 0.0


class OwnRows(Classes):
    rows = Rows

    def datasets(self):
        return {**super().datasets(), "train": self.rows()}


class OwnGenerator(OwnRows):
    class rows(Rows):
        def __init__(self):
            super().__init__()
            self.generator = np.random.default_rng()

        def noise(self, index):
            return float(self.generator.random())


class SeededOnce(OwnRows):
    class rows(Rows):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def noise(self, index):
            return float(torch.rand((), generator=self.generator))


class Urandom(OwnRows):
    class rows(Rows):
        def noise(self, index):
            return os.urandom(1)[0] / 255 + os.urandom(1)[0]


class Clock(OwnRows):
    class rows(Rows):
        def noise(self, index):
            return time.perf_counter() % 1


class Caches(OwnRows):
    class rows(Rows):
        def __init__(self):
            super().__init__()
            self.kept = {}

        def noise(self, index):
            return self.kept.setdefault(index, float(torch.rand(())))


class ChangesItsStore(Classes):
    class rows(Rows):
        def __init__(self):
            super().__init__()
            self.images = IMAGES.clone()

        def __getitem__(self, index):
            row = self.images[index]
            row -= 0.5
            return row, index % 3

    def datasets(self):
        return {**super().datasets(), "train": self.rows()}


class CollateChangesSamples(Classes):
    def __init__(self, config, source=None):
        super().__init__(config, source)
        self.rows = super().datasets()

    def datasets(self):
        return self.rows

    def collate(self, samples, generator):
        for x, _ in samples:
            x.mul_(2)
        return super().collate(samples, generator)


class CollateDraws(Classes):
    generator = np.random.default_rng()

    def collate(self, samples, generator):
        batch = super().collate(samples, generator)
        return {**batch, "x": batch["x"] + float(self.generator.random())}


class UnseededSplit(Classes):
    def datasets(self):
        rows = list(itertools.chain(*super().datasets().values()))
        random.shuffle(rows)
        return {"train": rows[:12], "validation": rows[12:16], "test": rows[16:]}


class OffByOne(OwnRows):
    class rows(Rows):
        def __getitem__(self, index):
            return [super(OffByOne.rows, self).__getitem__(i) for i in range(11)][index]


class Vector(Classes):
    def collate(self, samples, generator):
        return {**super().collate(samples, generator), "weights": torch.ones(4)}  # as many as samples, by accident


class Scalar(Classes):
    def collate(self, samples, generator):
        return {**super().collate(samples, generator), "scale": torch.tensor(2.0)}


class Names(Classes):
    def collate(self, samples, generator):
        return {**super().collate(samples, generator), "names": ["a"] * len(samples)}


class LeavesOut(Classes):
    def collate(self, samples, generator):
        return super().collate([sample for sample in samples if sample[1] != 0], generator)


class Pair(Classes):
    def collate(self, samples, generator):
        return tuple(super().collate(samples, generator).values())


class Ragged(Classes):
    def collate(self, samples, generator):
        return super().collate([(x[: 1 + label], label) for x, label in samples], generator)


class SmallExample(Classes):
    def example_batch(self, size, device):
        return {**super().example_batch(size, device), "x": torch.zeros(size, 2)}


class ExampleOfOtherKind(Classes):
    def example_batch(self, size, device):
        return {name: value.float() for name, value in super().example_batch(size, device).items()}


class ExampleLacks(Classes):
    def example_batch(self, size, device):
        return {"x": torch.zeros(size, 3)}


class ExampleReads(Classes):
    def example_batch(self, size, device):
        return self.collate([self.datasets()["train"][0]] * size, None)


class NoTest(Classes):
    def datasets(self):
        return {name: rows for name, rows in super().datasets().items() if name != "test"}


class Unreadable(Classes):
    def datasets(self):
        raise KeyError("labels.csv")


class Fingerprint(Classes):
    def fingerprint(self):
        return str(time.perf_counter_ns())


class FingerprintOfObject(Classes):
    def __init__(self, config, source=None):
        super().__init__(config, source)
        self.mark = random.random()

    def fingerprint(self):
        return f"{self.mark}"


class Description(Classes):
    def describe_data(self):
        return f"{len(self.rows)} rows."


# --- model ------------------------------------------------------------------------------------------------------------


class ModelReads(Classes):
    def model(self):
        return nn.Linear(3, len({label for _, label in self.datasets()["train"]}))


class ModelNeedsSource(Classes):
    def model(self):
        return nn.Linear(3, len(list((self.source / "train").iterdir())))


class TaskNeedsSource(Classes):
    def __init__(self, config, source=None):
        super().__init__(config, source)
        self.files = sorted(source.glob("*"))


class OwnWeights(Classes):
    def model(self):
        model = super().model()
        model[0].weight.data = torch.from_numpy(np.random.default_rng().normal(size=(4, 3))).float()
        return model


class SameModel(Classes):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))

    def model(self):
        return self.net


class NoModel(Classes):
    def model(self):
        super().model()


class Frozen(Classes):
    def model(self):
        return super().model().requires_grad_(False)


# --- evaluation -------------------------------------------------------------------------------------------------------


class TrainsInEvaluation(Classes):
    def evaluate(self, model, loader):
        model.train()
        return super().evaluate(model, loader)


class ManyNumbers(Classes):
    def evaluate(self, model, loader):
        return {"loss": torch.cat([model(batch["x"]) for batch in loader])}


class Squeezes(Classes):
    def datasets(self):
        return {**super().datasets(), "validation": super().datasets()["train"][:9]}  # one more than a batch

    def evaluate(self, model, loader):
        hits = [(model(batch["x"]).squeeze().argmax(1) == batch["labels"]).float() for batch in loader]
        return {"loss": float(torch.cat(hits).mean())}


class FailsOnTest(Classes):
    def evaluate(self, model, loader):
        if len(loader.dataset) == 4 and loader.dataset[0][1] == 1:
            return {"loss": 1 / 0}
        return super().evaluate(model, loader)


class Selection(Classes):
    selection = ("f1", "max")


class BaselineRaises(Classes):
    def baseline(self):
        return {"loss": self.config.workload.nothing}


class BaselineKeys(Classes):
    def baseline(self):
        return {"loss": 0.5, "mae": 1.0}


MISTAKES = [
    (MeanLoss, r"MeanLoss.loss\(\) gives .* as 'entropy' of a batch, and .* It is a mean. Return the sum"),
    (MaskedMean, r"loss\(\) gives .* Either it is a mean over what is valid"),
    (InBatchNegatives, r"loss\(\) gives .* samples see each other"),
    (Broadcast, r"loss\(\) gives .* shapes such as \(n, 1\) and \(n\) that are broadcast"),
    (MeanOfADrawingLoss, r"loss\(\) gives .* It is a mean"),
    (NoReduction, r"returns 'entropy' of shape \(4,\). Return one number: .sum\(\)"),
    (LossAlone, r"loss\(\) returns a Tensor. Return two mappings"),
    (LossAsFloat, r"'entropy' as a float, from which no gradient comes"),
    (NoGradient, r"'entropy' without a gradient, so nothing is trained.*detach"),
    (NanLoss, r"gives nan as 'entropy' of real samples and new weights. Look for a division by zero"),
    (InfiniteGradient, r"gives '.*' a gradient that is not finite.*sqrt"),
    (LabelTooHigh, r"loss\(\) raises IndexError: Target 2 is out of bounds. \(.*test_contract.py:\d+: .*cross_entropy.*"
                   r"Number the classes from 0, give the model one output for each class"),
    (FloatLabels, r"loss\(\) raises .*test_contract.py:\d+.*Class labels and indices are torch.long"),
    (DoubleInputs, r"loss\(\) raises .*NumPy's float64 must be converted"),
    (WrongWidth, r"loss\(\) raises .*shapes cannot be multiplied.*Compare the sizes of the layers with what collate"),
    (WrongKey, r"loss\(\) raises KeyError: 'images' \(.*\). The batch has x, labels."),
    (OtherTerm, r"returned the loss term 'loss', and OtherTerm.count has no such term.*Both must name the same"),
    (CountOfAll, r"count\(\) has 1 of 'entropy' in a batch, and 2 in its 2 pieces.*Count targets"),
    (CountIsANumber, r"count\(\) returns 4. Return a number for each loss term by its name"),
    (NegativeCount, r"count returned -4 .*a finite number, 0 or more"),
    (PopsLabels, r"count\(\) changes the batch.*Only read it there"),
    (ChangesBatch, r"loss\(\) changes 'x' of the batch in place.*\.clone\(\)"),
    (OwnGeneratorInLoss, r"another 'entropy' for the same batch and the same seed.*Draw from torch, np.random or rand"),
    (SystemInModel, r"or the model gives another 'entropy'.*not from a generator of your own, the system or the clock"),
    (InPlace, r"backward pass of InPlace.loss\(\) raises .*changed in place. Write `x = x \+ y`"),
    (TextFigure, r"by its figures, raises ValueError.*Return numbers"),
    (UnknownWeight, r"term_weights weighs 'other', which is no loss term"),
    (WeightsOfFirstSteps, r"term_weights\(\) raises IndexError.*from 0 to the last"),
    (OwnGenerator, r"gives another sample when the same one is read again.*not from a generator of your own"),
    (SeededOnce, r"gives another sample when the same one is read again.*Draw from torch, np.random or random"),
    (Urandom, r"gives another sample when the same one is read again.*the system"),
    (Clock, r"gives another sample when the same one is read again.*the clock"),
    (Caches, r"keeps what it drew when a sample was first read.*draw each time"),
    (ChangesItsStore, r"gives another sample.*change copies of what is kept"),
    (CollateChangesSamples, r"collate\(\) changes the samples that it is handed in place.*Copy before changing"),
    (CollateDraws, r"collate\(\) makes another batch of the same samples.*Draw from its generator"),
    (UnseededSplit, r"datasets\(\)\['train'\] has other samples when it is made again.*random.Random\(0\)"),
    (OffByOne, r"datasets\(\)\['train'\]\[11\] raises IndexError.*Indices run from 0 to 11, by its __len__"),
    (Vector, r"A batch of 5 samples has a tensor 'weights' of shape \(4,\)"),
    (Scalar, r"has a tensor 'scale' of shape \(\).*Repeat it for each sample"),
    (Names, r"has a value 'names' of type list.*tensors of shape"),
    (LeavesOut, r"collate\(\) makes \d rows of 4 samples.*leave samples out in datasets"),
    (Pair, r"collate\(\) returns a tuple. Return tensors by name"),
    (Ragged, r"collate\(\) raises RuntimeError: stack expects.*Pad or crop them to one size"),
    (SmallExample, r"example_batch\(\) has 'x' of shape \(4, 2\), and a real batch has \(4, 3\)"),
    (ExampleOfOtherKind, r"example_batch\(\) has 'labels' as torch.float32 where a real batch has torch.int64"),
    (ExampleLacks, r"example_batch\(\) has no 'labels', which collate returns"),
    (ExampleReads, r"asks for datasets\(\). Both must do without data"),
    (NoTest, r"datasets\(\) returns 'train', 'validation'. It must return"),
    (Unreadable, r"Unreadable.datasets\(\) raises KeyError: 'labels.csv' \(.*\). Look at data.dir"),
    (Fingerprint, r"fingerprint\(\) returns '\d+' and then '\d+', so no run could ever be resumed"),
    (FingerprintOfObject, r"fingerprint\(\) differs when the data is read again"),
    (Description, r"describe_data\(\) raises AttributeError: .*'rows' \(.*test_contract.py:\d+"),
    (ModelReads, r"ModelReads.model\(\) or example_batch\(\) asks for datasets\(\)"),
    (ModelNeedsSource, r"model\(\) raises TypeError.*model\(\) must do without data.*workload:"),
    (TaskNeedsSource, r"TaskNeedsSource\(config\) without data raises AttributeError.*Read it in datasets"),
    (OwnWeights, r"model\(\) makes other weights from the same seed, such as '0.weight'. Draw them from torch, np"),
    (SameModel, r"model\(\) returns the same weights each time it is called. Make a new model in it"),
    (NoModel, r"model\(\) returns a NoneType. Return the model: a torch.nn.Module"),
    (Frozen, r"model\(\) has no weights to train. Set requires_grad"),
    (TrainsInEvaluation, r"evaluate\(\) leaves the model in training mode.*take out model.train\(\)"),
    (ManyNumbers, r"evaluate returned 'loss' as a Tensor. Return a number"),
    (Squeezes, r"evaluate\(\) of validation samples raises IndexError.*test_contract.py:\d+"),
    (FailsOnTest, r"evaluate\(\) of test samples raises ZeroDivisionError.*test_contract.py:\d+"),
    (Selection, r"Selection.selection is \('f1', 'max'\). Name a metric that Selection.evaluate returns \(loss\)"),
    (BaselineRaises, r"baseline\(\) raises AttributeError: .*test_contract.py:\d+"),
    (BaselineKeys, r"baseline\(\) has 'mae', which evaluate\(\) does not return.*'loss'"),
]  # fmt: skip


def faulty(cls, toy, tmp_path):
    config = toy()
    needs = cls in (ModelNeedsSource, TaskNeedsSource)
    (tmp_path / "train").mkdir()
    return cls(config, tmp_path if needs else None), config


@pytest.mark.parametrize("cls, sentence", MISTAKES, ids=[cls.__name__ for cls, _ in MISTAKES])
def test_a_mistake_is_named_in_one_sentence_with_its_mend(cls, sentence, toy, tmp_path):
    found = contract.findings(*faulty(cls, toy, tmp_path))
    assert len(found) == 1, found
    assert any(re.search(sentence, one) for one in found), found
    assert all("\n" not in one and one.endswith((".", ")")) for one in found)


@pytest.mark.parametrize("cls", [Toy, Classes])
def test_a_sound_task_breaks_nothing(cls, toy, tmp_path):
    for config in (toy(), toy({"workload.batch_norm": True, "workload.dropout": 0.5, "training.micro_batch": 3})):
        found = contract.examine(cls(config), config)
        assert (found.wrong, found.doubts) == ([], [])
