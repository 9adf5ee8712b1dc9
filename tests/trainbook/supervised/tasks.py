"""Tiny tasks of each kind, and a folder of files that the first of them reads."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from trainbook import IGNORED, Supervised, padded, records, split
from trainbook.supervised.samples import PARTS


class Words(Supervised):
    """Samples are the words of JSON Lines, with the name of their class; there are 4 outputs."""

    metrics = ("macro_f1", "accuracy")

    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 4))

    def read(self, source):
        return split((row["word"], row.get("class")) for row in records(source, "*.jsonl"))

    def example(self):
        return "word", "vowel"

    def batch(self, samples, training):
        x = torch.tensor(
            [[len(word), ord(word[0]) % 7] for word, _ in samples], dtype=torch.float32
        )
        return {"x": x, "labels": torch.tensor([label for _, label in samples])}


class Heights(Supervised):
    """Samples are two numbers and a third one that follows from them; the data is not in files."""

    kind = "numbers"

    def model(self):
        return nn.Linear(2, 1)

    def read(self, source=None):
        rows = [((k / 40, (k * 7 % 40) / 40), k / 40 + 3.0) for k in range(40)]
        return {"train": rows[:28], "validation": rows[28:34], "test": rows[34:]}

    def example(self):
        return (0.0, 0.0), 0.0

    def batch(self, samples, training):
        return {
            "x": torch.tensor([x for x, _ in samples]),
            "labels": torch.tensor([y for _, y in samples]),
        }


class Tags(Supervised):
    """Samples are sequences of numbers, and each of them is its own label, but the 0, which has none."""

    kind = "tokens"
    balanced = True

    def model(self):
        return nn.Embedding(6, 6)

    def read(self, source=None):
        return {
            part: [([k % 5 + 1, 2, 0, 1][: 2 + k % 3], None or "") for k in range(10)]
            for part in PARTS
        }

    def example(self):
        return [1, 1, 1, 1], ""

    def batch(self, samples, training):
        ids = padded([ids for ids, _ in samples], 0, 4)
        return {"ids": ids, "labels": torch.where(ids == 0, IGNORED, ids)}


class Topics(Words):
    """Words with any number of classes: whether they begin with a vowel, and whether they are long."""

    kind = "labels"
    metrics = ("macro_f1", "accuracy", "roc_auc")

    def model(self):
        return nn.Linear(2, len(self.names))

    def read(self, source=None):
        words = [f"{'aebc'[k % 4]}{'x' * (k % 7)}" for k in range(60)]
        rows = [
            (word, ["vowel"] * (word[0] in "ae") + ["long"] * (len(word) > 4)) for word in words
        ]
        return {"train": rows[:40], "validation": rows[40:50], "test": rows[50:]}

    def example(self):
        return "word", ["vowel"]


class Following(Tags):
    """The label of a position is what the position before it is to tell."""

    kind = "next_tokens"
    balanced = False


class Pixels(Supervised):
    """Samples are images of a channel with a class for each pixel, the first of which is unknown; classes second."""

    kind = "tokens"
    metrics = ("mean_iou", "mean_dice", "accuracy")

    def model(self):
        return nn.Conv2d(1, 3, 3, padding=1)  # (B, 1, H, W) -> (B, 3, H, W)

    def read(self, source=None):
        images = [((torch.arange(24) * (k + 3) % 11 / 10.0).view(4, 6), k) for k in range(20)]
        rows = [(image.tolist(), (image * 2.9).long().tolist()) for image, _ in images]
        return {"train": rows[:12], "validation": rows[12:15], "test": rows[15:]}

    def example(self):
        return [[0.0] * 6] * 4, [[0] * 6] * 4

    def batch(self, samples, training):
        labels = torch.tensor([classes for _, classes in samples])
        labels[:, 0, 0] = IGNORED
        return {"x": torch.tensor([image for image, _ in samples]).unsqueeze(1), "labels": labels}


class PixelsLast(Pixels):
    """The same with the classes last."""

    def outputs(self, model, batch):
        return super().outputs(model, batch).movedim(1, -1)


class Marks(Supervised):
    """Samples are scores by which marks were drawn; the network, three times as sure, promises too much."""

    kind = "labels"
    metrics = ("accuracy",)
    shape = (4,)

    def model(self):
        return Thrice()

    def read(self, source=None):
        draw = torch.Generator().manual_seed(0)
        scores = 1.5 * torch.randn(400, *self.shape, generator=draw)
        rows = [*zip(scores.tolist(), self.drawn(scores, draw).tolist(), strict=True)]
        return {"train": rows[:10], "validation": rows[10:200], "test": rows[200:]}

    def drawn(self, scores, draw):
        return torch.bernoulli(scores.sigmoid(), generator=draw)

    def example(self):
        scores = torch.zeros(1, *self.shape)
        (target,) = self.drawn(scores, torch.Generator()).tolist()
        return scores[0].tolist(), target

    def batch(self, samples, training):
        x, labels = (torch.tensor(values) for values in zip(*samples, strict=True))
        return {"x": x, "labels": labels}


class Thrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return self.scale * x


class DrawnTags(Marks):
    """The same of five words with one of three classes each."""

    kind = "tokens"
    shape = (5, 3)

    def drawn(self, scores, draw):
        shares = scores.softmax(-1).flatten(0, -2)
        return torch.multinomial(shares, 1, generator=draw).view(scores.shape[:-1])


class DrawnPixels(DrawnTags):
    """The same of 3 x 4 pixels."""

    shape = (3, 4, 3)


class Digits(Supervised):
    """Scikit-learn's pictures of digits, as 64 numbers, which a linear model tells apart."""

    metrics = ("accuracy", "macro_f1")

    def model(self):
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 10))

    def read(self, source=None):
        digits = load_digits()
        rows = [*zip((digits.data / 16).tolist(), digits.target.tolist(), strict=True)][:500]
        return {"train": rows[:260], "validation": rows[260:380], "test": rows[380:]}

    def example(self):
        return [0.0] * 64, 0

    def batch(self, samples, training):
        x, labels = zip(*samples, strict=True)
        return {"x": torch.tensor(x), "labels": torch.tensor(labels)}
