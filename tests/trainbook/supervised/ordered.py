"""A task whose kind is its own: grades, classes in an order, judged by how far a guess is away."""

import torch
from torch import nn
from torch.nn import functional as F

from trainbook import Classes, Supervised


class Grades(Classes):
    """Classes in an order: the loss is of cumulative shares, the guess is the median grade."""

    metrics = ("quadratic_kappa", "accuracy")

    def loss(self, task, outputs, labels):
        known = self.known(labels)
        return self.losses(outputs[known], labels[known], None).sum()

    def losses(self, scores, target, weights):
        true = F.one_hot(target, scores.shape[-1])
        distance = (scores.softmax(-1) - true).cumsum(-1)
        return (distance**2).sum(-1)

    def chosen(self, shares):
        return (shares.cumsum(-1) < 0.5).sum(-1).clamp(max=shares.shape[-1] - 1)

    def guess(self, outputs):
        return self.chosen(outputs.softmax(-1))


class Essays(Supervised):
    """Samples are two numbers and a grade from 0 to 3 that follows from the first."""

    kind = Grades
    classes = ("poor", "fair", "good", "best")

    def model(self):
        return nn.Linear(2, 4)

    def read(self, source=None):
        rows = [((k / 20, (k * 7 % 10) / 10), k // 20) for k in range(80)]
        return {"train": rows[::2], "validation": rows[1::4], "test": rows[3::4]}

    def example(self):
        return (0.0, 0.0), 0

    def batch(self, samples, training):
        x, labels = zip(*samples, strict=True)
        return {"x": torch.tensor(x), "labels": torch.tensor(labels)}
