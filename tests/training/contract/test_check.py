"""Who asks the contract, what is only doubtful, and what must not be taken for a mistake."""

import contextlib
import json
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib import launch
from lib.doctor import rehearsal
from lib.errors import BadInput
from lib.launch import smoke
from lib.machine import hardware
from lib.report.progress import Plain
from lib.task import load_task
from lib.training import contract, loop
from lib.training.contract import losses, samples, scores
from lib.training.contract.asked import alike
from tests.conftest import ROOT
from tests.doctor.conftest import by_name
from tests.toy import Toy
from tests.training.contract.test_contract import IMAGES, Classes, MeanLoss
from tests.training.test_draws import states
from tests.training.test_loop import StopAfter, endless, newest, stable


def examined(cls, toy, **more):
    config = toy()
    return contract.examine(cls(config), config, **more)


# --- sound tasks of unusual kinds -------------------------------------------------------------------------------------


class GlobalDraws(Classes):
    """Draws from all three generators in data set and collate, as transforms do."""

    class Rows(list):
        def __getitem__(self, index):
            x, label = super().__getitem__(index)
            return x + float(torch.rand(())) + random.gauss(0, 1) + np.random.rand(), label

    def datasets(self):
        return {name: self.Rows(rows) for name, rows in super().datasets().items()}

    def collate(self, samples, generator):
        batch = super().collate(samples, generator)
        noise = torch.randn(len(samples), 1) + np.random.randn()
        return {**batch, "x": batch["x"] + noise}


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


class WeightedCount(Classes):
    """Divides by the sum of weights, as a balanced cross-entropy does."""

    weights = torch.tensor([0.03, 0.4, 0.21])

    def count(self, batch):
        return {"entropy": float(self.weights[batch["labels"]].sum())}

    def loss(self, model, batch):
        sums = F.cross_entropy(model(batch["x"]), batch["labels"], self.weights, reduction="sum")
        return {"entropy": sums}, {"mean_label": batch["labels"].float().mean()}


class DrawingLoss(Classes):
    """Adds noise in the loss, as diffusion does: sums agree on average alone."""

    def loss(self, model, batch):
        noisy = batch["x"] + torch.randn_like(batch["x"])
        return {"entropy": F.cross_entropy(model(noisy), batch["labels"], reduction="sum")}, {}


class Detector(Classes):
    """Gives losses in training mode and boxes in evaluation mode, as torchvision's detectors do."""

    class Net(nn.Linear):
        def forward(self, x, labels=None):
            out = super().forward(F.dropout(x, 0.5, self.training))
            return {"entropy": F.cross_entropy(out, labels, reduction="sum")} if self.training else [out]

    def model(self):
        return self.Net(3, 3)

    def loss(self, model, batch):
        return dict(model(batch["x"], batch["labels"]).items()), {}

    def evaluate(self, model, loader):
        return {"loss": float(torch.cat([model(batch["x"])[0] for batch in loader]).mean())}


class NeedsAll(Classes):
    """Evaluates what only a whole set has."""

    def datasets(self):
        rows = super().datasets()["train"]
        validation, test = ([(x + number, label) for x, label in rows] for number in (1, 2))
        return {"train": rows, "validation": validation[:11], "test": test[1:]}

    def evaluate(self, model, loader):
        guesses = torch.cat([model(batch["x"]).argmax(1) for batch in loader])
        labels = torch.tensor([label for _, label in loader.dataset])
        return {"loss": float((guesses != labels).float().mean())}


class TwoTerms(Classes):
    """Has a term without targets in some batches, which `count` and `loss` then leave out."""

    def count(self, batch):
        extra = int((batch["labels"] == 7).sum())
        return {"entropy": len(batch["labels"]), **({"extra": extra} if extra else {})}


class Frozen(Classes):
    """Trains the last layer of a network in half precision."""

    def model(self):
        model = nn.Sequential(nn.Linear(3, 4).to(torch.bfloat16).requires_grad_(False), nn.Linear(4, 3))
        model[0].register_forward_pre_hook(lambda module, inputs: inputs[0].to(torch.bfloat16))
        model[1].register_forward_pre_hook(lambda module, inputs: inputs[0].float())
        return model


class Queue(Classes):
    """Keeps a running statistic in a buffer that each loss changes."""

    class Net(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen += x.sum(0)
            return super().forward(x) + self.seen.mean()

    def model(self):
        return self.Net()


SOUND = [GlobalDraws, DrawsElsewhere, WeightedCount, DrawingLoss, Detector, NeedsAll, TwoTerms, Frozen]


@pytest.mark.parametrize("cls", SOUND, ids=lambda cls: cls.__name__)
def test_an_unusual_task_that_keeps_its_promises_is_not_refused(cls, toy):
    found = examined(cls, toy)
    assert (found.wrong, found.doubts) == ([], [])


def test_a_statistic_that_each_loss_changes_is_put_back_before_sums_are_compared(toy):
    config = toy()
    task = Queue(config)
    model = task.model()
    asked = contract.Asked(task, config)
    batch = samples.batches(asked)[0]
    before = model.seen.clone()
    one, other = (losses._without_trace(asked, model, batch, {"entropy": 4}) for _ in range(2))
    assert torch.equal(model.seen, before) and torch.equal(one["entropy"], other["entropy"])


def trained(task, config, folder, session=None):
    folder.mkdir(exist_ok=True)
    return loop.train(task, config, folder, session or endless(), Plain(), newest(folder))


@pytest.mark.parametrize("cls", [GlobalDraws, DrawsElsewhere, WeightedCount])
def test_draws_and_weighted_counts_train_and_figures_are_logged(cls, toy, tmp_path):
    """All of them once trained in silence to another result."""
    for name, cut in (("whole", 0), ("parts", 5)):
        config = toy({"workload.samples": 12})
        trained(cls(config), config, tmp_path / name, StopAfter(cut))
    trained(cls(config), config, tmp_path / "parts")
    whole, parts = (newest(tmp_path / name).tensors for name in ("whole", "parts"))
    assert alike(whole, parts)
    rows = stable(tmp_path / "whole" / "metrics.csv")
    assert rows == stable(tmp_path / "parts" / "metrics.csv")
    logged = [row for row in rows if row["split"] == "train"]
    highest = 3 if cls is not DrawsElsewhere else 6  # whose losses are weighed by up to 1.5
    assert all(0.3 < float(row["loss"]) < highest for row in logged), "an even guess has log(3)"
    assert all(0 < float(row["mean_label"]) < 2 for row in logged if cls is WeightedCount)


@pytest.mark.parametrize("cls", ["Words", "Heights", "Tags", "Following", "Topics"])
def test_tasks_with_targets_keep_their_promises(cls, toy, tmp_path):
    """Also for a batch of one sample, whose number is no more than a scalar to squeeze()."""
    (tmp_path / "data").mkdir()
    rows = [{"word": letter * number, "class": "vowel" if letter in "aeiou" else "consonant"}
            for letter in "abcdefghi" for number in range(1, 9)]  # fmt: skip
    (tmp_path / "data" / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = {"data.dir": str(tmp_path / "data")} if cls == "Words" else {}
    config = toy({"task": f"{ROOT / 'tests' / 'supervised' / 'tasks.py'}:{cls}", **source})
    assert contract.findings(load_task(config), config) == []


# --- what may be meant ------------------------------------------------------------------------------------------------


class SameSets(Classes):
    def datasets(self):
        sets = super().datasets()
        return {**sets, "validation": [(x.clone(), label) for x, label in sets["train"]]}


class Beginning(Classes):
    def datasets(self):
        rows = super().datasets()["train"]
        return {**super().datasets(), "validation": rows[:5]}


class Ending(Classes):
    def datasets(self):
        rows = super().datasets()["train"]
        return {**super().datasets(), "test": [(x.clone(), label) for x, label in rows[-5:]]}


class NothingValid(Classes):
    def count(self, batch):
        return {"entropy": 0}


class NoSuchCurve(Classes):
    shown = ("accuracy",)


class NanScore(Classes):
    def evaluate(self, model, loader):
        return {"loss": float("nan")}


@pytest.mark.parametrize(
    "cls, sentence",
    [
        (SameSets, "datasets() has the same samples as 'train' and as 'validation', so the scores say nothing"),
        (Beginning, "datasets() has the same samples as 'train' and as 'validation', so the scores say nothing"),
        (Ending, "datasets() has the same samples as 'train' and as 'test', so the scores say nothing"),
        (NothingValid, "count() has no valid target in 12 samples"),
        (NoSuchCurve, "shown names 'accuracy', which evaluate() does not return"),
        (NanScore, "evaluate() gives nan as 'loss' of two batches of validation"),
    ],
)
def test_what_may_be_meant_is_a_doubt_and_stops_nothing(cls, sentence, toy, capsys):
    config = toy()
    found = contract.examine(cls(config), config)
    assert found.wrong == [] and any(sentence in doubt for doubt in found.doubts)
    assert any(sentence in doubt for doubt in contract.require(cls(config), config))


def test_samples_with_targets_that_are_in_two_parts_and_a_softmax_before_the_loss_are_doubts(toy, monkeypatch):
    config = toy({"task": f"{ROOT / 'tests' / 'supervised' / 'tasks.py'}:Heights"})
    task = load_task(config)
    rows = task.read()
    assert contract.examine(task, config).doubts == []
    leaks = {**rows, "test": [*rows["test"], *((x, -y) for x, y in rows["train"][3:5])]}
    monkeypatch.setattr(type(task), "read", lambda self, source=None: leaks)
    found = contract.examine(load_task(config), config)
    assert found.wrong == [] and any("has 2 of the 8 samples of 'test' in 'train' too" in one for one in found.doubts)
    monkeypatch.setattr(type(task), "read", lambda self, source=None: rows)
    monkeypatch.setattr(type(task), "kind", "classes")
    monkeypatch.setattr(type(task), "metrics", ("accuracy",))
    monkeypatch.setattr(type(task), "selection", ("accuracy", "max"))
    monkeypatch.setattr(type(task), "shown", ())
    of_two = {part: [(x, int(y > 3.5)) for x, y in samples] for part, samples in rows.items()}
    monkeypatch.setattr(type(task), "read", lambda self, source=None: of_two)
    monkeypatch.setattr(type(task), "example", lambda self: ((0.0, 0.0), 0))
    for last, doubts in ((nn.Softmax(-1), 1), (nn.Sigmoid(), 0)):
        monkeypatch.setattr(type(task), "model", lambda self, last=last: nn.Sequential(nn.Linear(2, 2), last))
        found = contract.examine(load_task(config), config, thorough=False)
        assert found.wrong == [] and sum("as after a softmax" in one for one in found.doubts) == doubts


def test_an_error_of_two_batches_is_a_doubt_where_the_whole_set_takes_long(toy, monkeypatch):
    monkeypatch.setattr(scores, "_PATIENCE", 0.0)
    found = examined(NeedsAll, toy)
    assert found.wrong == [] and "Two batches were evaluated alone" in found.doubts[0]


def test_memory_that_runs_out_in_the_check_is_a_doubt(toy):
    class Large(Classes):
        def loss(self, model, batch):
            raise torch.OutOfMemoryError("CUDA out of memory")

    found = examined(Large, toy)
    assert found.wrong == [] and "Memory ran out while the contract of Large was checked" in found.doubts[0]


def test_data_is_not_read_a_second_time_where_it_might_not_fit_or_must_be_quick(toy, monkeypatch):
    class Counted(Classes):
        read = 0

        def datasets(self):
            Counted.read += 1
            return super().datasets()

    examined(Counted, toy)
    twice, Counted.read = Counted.read, 0
    examined(Counted, toy, thorough=False)
    assert twice == 2 and Counted.read == 1
    monkeypatch.setattr(hardware, "ram", lambda: hardware.Ram(1, 2, False))
    Counted.read = 0
    examined(Counted, toy)
    assert Counted.read == 1


# --- who asks ---------------------------------------------------------------------------------------------------------

OWN = """
import torch
from tests.toy import Toy

class Own(Toy):
{body}
"""


@pytest.fixture
def own(toy, tmp_path):
    """own("method") -> the configuration of a task file with this method in its class."""

    def write(body="    pass", **changes):
        (tmp_path / "own.py").write_text(OWN.format(body=body))
        return toy({"task": f"{tmp_path / 'own.py'}:Own", **changes})

    return write


MEAN = "    def loss(self, model, batch):\n        return {'squared': model(batch['x']).pow(2).mean()}, {}"
RAISES = "    def baseline(self):\n        return {'rmse': undefined}"
UNREADABLE = "    def datasets(self):\n        return {}['train']"
NO_MODEL = "    def model(self):\n        return torch.nn.Linear(3)"


def test_the_test_of_one_line_raises_all_sentences_at_once(own, tmp_path):
    contract.check(own())
    with pytest.raises(BadInput) as refused:
        contract.check(own(f"{MEAN}\n{RAISES}"))
    text = str(refused.value)
    assert text.startswith("The task Own breaks its contract in 2 places. Correct that before a run costs quota:\n- ")
    assert "It is a mean" in text and "own.py:9: return {'rmse': undefined}" in text


def test_the_test_of_one_line_takes_a_path_and_warns_of_what_is_doubtful(own, tmp_path):
    own("    shown = ('f1',)")
    (tmp_path / "my.yaml").write_text("task: own.py:Own\ntraining: {max_steps: 2, effective_batch: 8}\n")
    with pytest.warns(UserWarning, match="shown names 'f1'"):
        contract.check(tmp_path / "my.yaml")
    own()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contract.check(str(tmp_path / "my.yaml"))


def test_doctor_names_every_mistake_and_shows_no_traceback(own):
    found = by_name(rehearsal.check_run(own(f"{MEAN}\n{RAISES}")))["contract"]
    assert found.verdict == "bad" and found.value == "Own breaks it in 2 places"
    assert "It is a mean" in found.advice and "own.py:9" in found.advice
    sound = by_name(rehearsal.check_run(own()))["contract"]
    assert (sound.verdict, sound.value) == ("ok", "Own keeps it, by some samples of each data set")
    assert by_name(rehearsal.check_run(own("    shown = ('f1',)")))["contract"].verdict == "warning"


@pytest.mark.parametrize("body, name, line", [(UNREADABLE, "data", "own.py:7"), (NO_MODEL, "model", "own.py:7")])
def test_doctor_says_the_line_of_an_error_in_data_or_model(own, body, name, line):
    found = by_name(rehearsal.check_run(own(body)))[name]
    assert found.verdict == "bad" and line in found.advice and "raises" in found.advice


def test_the_smoke_test_stops_before_its_steps_at_a_broken_contract(own, monkeypatch):
    monkeypatch.setattr(smoke, "few_steps", lambda run: pytest.fail("it trained"))
    with pytest.raises(BadInput, match="It is a mean"):
        smoke.test(launch.prepare(own(MEAN)))


def test_the_smoke_test_asks_a_sound_task_once_and_a_broken_one_each_time(toy, monkeypatch):
    asked = []
    real = contract.examine
    monkeypatch.setattr(contract, "examine", lambda *of, **more: asked.append(of) or real(*of, **more))
    config = toy()
    for task, times in ((Toy(config), 1), (MeanLoss(config), 2)):
        asked.clear()
        for _ in range(2):
            with contextlib.suppress(BadInput):
                contract.require(task, config)
        assert len(asked) == times


def test_a_run_after_the_check_is_bit_for_bit_the_run_without_one(toy, tmp_path):
    config = toy({"workload.batch_norm": True, "workload.dropout": 0.5})
    for name in ("alone", "asked"):
        task, before = Toy(config), states()
        if name == "asked":
            contract.examine(task, config)
        assert states() == before
        trained(task, config, tmp_path / name)
    assert alike(newest(tmp_path / "alone").tensors, newest(tmp_path / "asked").tensors)


def test_the_baseline_of_the_check_is_that_of_the_runs_end(toy):
    times = []

    class Counted(Classes):
        def baseline(self):
            times.append(1)
            return super().baseline()

    config = toy()
    task = Counted(config)
    assert contract.examine(task, config).wrong == []
    assert contract.baseline_of(task) == {"loss": 0.7} and len(times) == 1
    contract.baseline_of(task)["loss"] = 2.0
    assert contract.baseline_of(task) == {"loss": 0.7}, "the caller's own copy"


# --- comparing --------------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "make, other",
    [
        (lambda: torch.tensor([float("nan"), 0.0]), torch.tensor([float("nan"), -0.0])),
        (lambda: IMAGES[:1, :1], IMAGES[1:2, :1]),
        (lambda: torch.zeros(0), torch.zeros(1)),
        (lambda: np.array([1.0, np.nan]), np.array([1.0, 2.0])),
        (lambda: np.array(["a", None], dtype=object), np.array(["a", 1], dtype=object)),
        (lambda: {"a": [IMAGES[0], (1, float("nan"))]}, {"a": [IMAGES[1], (1, float("nan"))]}),
        (lambda: Holder([IMAGES[0]]), Holder([IMAGES[1]])),
        (lambda: torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (lambda: 1, 1.0),
    ],
)
def test_values_are_compared_to_the_last_bit_whatever_they_are_made_of(make, other):
    assert alike(make(), make()) and not alike(make(), other)
