"""What a frozen encoder makes of samples stands beside what simple methods see of them, each sample encoded once."""

import json
import zlib
from collections import Counter

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from trainbook import IGNORED, Supervised, padded
from trainbook.supervised import simple
from trainbook.supervised.simple import encoded, fit, restored
from trainbook.supervised.simple import rows as collecting

HOUR = 3600.0
SEEN = Counter()  # how often each sample was encoded
pytestmark = pytest.mark.usefixtures("quick", "few")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(encoded, "_KEPT", encoded._Kept())
    SEEN.clear()


class Meanings(Supervised):
    """Every text has words of its own; a vector alone tells its class, by the number in the text."""

    metrics, classes = ("macro_f1",), ("odd", "even")
    turn = 0.0  # makes another encoder

    def read(self, source=None):
        numbers = torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist()
        rows = [(f"word{number} {number}", number % 2) for number in numbers]
        return {"train": rows[:120], "validation": rows[120:160], "test": rows[160:]}

    def example(self):
        return "an example 207", 1

    def batch(self, samples, training):
        texts, labels = zip(*samples, strict=True)
        return {"texts": texts, "labels": torch.tensor(labels)}

    def features(self, batch):
        return batch["texts"]

    def encoded(self, batch):
        SEEN.update(batch["texts"])
        numbers = torch.tensor([float(text.split()[-1]) for text in batch["texts"]])
        plain = torch.stack([(-1) ** numbers, torch.ones_like(numbers), numbers / 200], 1)
        return plain + self.turn * plain.flip(1)


def tag_of(word):
    return zlib.crc32(word.encode()) % 2


class Places(Supervised):
    """Tags that only the vector of a position tells; texts of one to four words."""

    kind, metrics = "tokens", ("accuracy",)
    classes = ("a", "b")

    def read(self, source=None):
        rows = []
        for number in range(80):
            words = [f"w{number}-{place}" for place in range(1 + number % 4)]
            rows.append((words, [*map(tag_of, words)]))
        return {"train": rows[:48], "validation": rows[48:60], "test": rows[60:]}

    def example(self):
        return ["w0-0"] * 4, [0] * 4

    def batch(self, samples, training):
        words, tags = zip(*samples, strict=True)
        return {"words": words, "labels": padded(list(tags), IGNORED, 4)}

    def features(self, batch):
        return batch["words"]

    def encoded(self, batch):
        SEEN.update(map(tuple, batch["words"]))
        tags = padded([[*map(tag_of, words)] for words in batch["words"]], 0, 4)
        return torch.eye(2)[tags]


class Stripes(Supervised):
    """Pictures of noise, whose encoder sees what is in them."""

    metrics = ("accuracy",)
    classes = ("no", "yes")

    def read(self, source=None):
        draw = torch.Generator().manual_seed(0)
        rows = [(torch.rand(3, 8, 8, generator=draw), number % 2) for number in range(120)]
        for picture, label in rows:
            picture[0, 0, 0] = label / 100
        return {"train": rows[:80], "validation": rows[80:100], "test": rows[100:]}

    def example(self):
        return torch.zeros(3, 8, 8), 1

    def batch(self, samples, training):
        pictures, labels = zip(*samples, strict=True)
        return {"x": torch.stack(pictures), "labels": torch.tensor(labels)}

    def encoded(self, batch):
        first = batch["x"][:, 0, :1, 0]
        return torch.cat([first, 1 + batch["x"][:, 1, 0]], 1)


def made(configured, cls, **members):
    return type(cls.__name__, (cls,), members)(configured("Words"))


@pytest.mark.parametrize(("cls", "name"), [
    (Meanings, "linear model of words and the encoder"),
    (Places, "linear model of neighbours and the encoder"),
    (Stripes, "linear model of the encoder's features"),
])  # fmt: skip
def test_vectors_tell_what_nothing_else_tells_and_are_kept_with_the_method(configured, cls, name):
    task = made(configured, cls)
    methods = fit(task, HOUR)
    assert methods[0].name == name
    batch = task.labelled(task.parts["test"].samples)
    known = batch["labels"] >= 0
    scores = methods[0].scores(task, batch)
    assert (scores.argmax(-1) == batch["labels"])[known].float().mean() >= 0.95
    again = restored(task, json.loads(json.dumps(simple.as_json(methods))))
    assert torch.equal(again[0].scores(task, batch), scores)


@pytest.mark.parametrize("cls", [Meanings, Places])
def test_a_batch_is_encoded_once_whoever_asks(configured, cls):
    for _ in range(2):
        task = made(configured, cls)
        fit(task, HOUR)
        task.baseline()
    example = task.labelled([task._numbered(task.example())])
    times = Counter(SEEN)
    for text in task.features(example):
        times.pop(text if isinstance(text, str) else tuple(text))
    assert len(times) == len(task.parts["train"]) + len(task.parts["test"])
    assert set(times.values()) == {1}


def test_another_encoder_and_a_missing_one_are_refused(configured):
    task = made(configured, Meanings)
    values = simple.as_json(fit(task, HOUR))
    other = made(configured, Meanings, turn=0.5)
    batch = other.labelled(other.parts["test"].samples)
    with pytest.raises(BadInput, match="fitted with another encoder: the vectors of example"):
        restored(other, values)[0].scores(other, batch)
    none = made(configured, Meanings, encoded=Supervised.encoded)
    with pytest.raises(BadInput, match="needs the encoder that it was fitted with"):
        restored(none, values)[0].scores(none, batch)
    plain = restored(none, values)[-1]  # of words alone, which needs no encoder
    assert torch.equal(plain.scores(none, batch), plain.scores(task, batch))


def test_without_time_vectors_end_before_the_rows_and_the_cut_is_said(
    configured, monkeypatch, capsys
):
    seconds = iter(range(0, 10_000, 40))
    monkeypatch.setattr(collecting.time, "monotonic", lambda: 0.0)
    clock = collecting.Clock(100.0)
    task = made(configured, Meanings)
    _ = task._probe  # outside the measured time
    monkeypatch.setattr(collecting.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(collecting.Clock, "left", 100.0)
    rows = collecting.collected(task, np.arange(2), clock)
    assert (len(rows.values), len(rows.vectors)) == (120, 32)


def test_a_wrong_shape_and_numbers_that_are_none_are_refused(configured):
    flat = made(configured, Meanings, encoded=lambda self, batch: torch.ones(3))
    with pytest.raises(BadInput, match=r"shape \(3,\) for a batch of 1. Return \(samples, D\)"):
        _ = flat._probe
    broken = made(configured, Meanings, encoded=lambda self, batch: torch.full((1, 3), torch.nan))
    with pytest.raises(BadInput, match="NaN or infinity"):
        _ = broken._probe
