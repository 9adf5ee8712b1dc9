"""A number, or a class, from a row of a table: CSV files with a column for each feature and one for the target."""

from dataclasses import dataclass

import torch
from torch import nn

from trainbook import Supervised, option, records, split
from trainbook.supervised import columns, members


@dataclass(frozen=True)
class Settings:
    features: tuple[str, ...] = option((), "The columns that are given; empty: all but the target.")
    words: tuple[str, ...] = option((), "Columns whose cells are names, even if they are digits.")
    target: str = option("price", "The column that is predicted.")
    width: int = option(96, "The width of the layers.", minimum=1)
    members: int = option(8, "Networks in one, whose mean is the answer.", minimum=1)


class Network(nn.Module):
    def __init__(self, encoder, number, width, outputs):
        super().__init__()
        self.encoder = encoder
        self.first = members.Shared(number, encoder.width, width, differ=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(members.Shared(number, width, width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.heads = members.Heads(number, width, outputs)

    def forward(self, numbers, gaps, words):  # (B, columns) each -> (B, members, outputs)
        x = self.first(self.encoder(numbers, gaps, words)[:, None])
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + self.dropout(layer(nn.functional.silu(norm(x))))
        return self.heads(nn.functional.silu(x))


class Tabular(Supervised):
    Settings, sentinels, kind, metrics = Settings, ("*.csv",), "numbers", ("rmse", "mae", "r2")

    def model(self):
        settings, outputs = self.settings, len(self.names) or 1
        return Network(columns.Encoder(self.learned()), settings.members, settings.width, outputs)

    def read(self, source):
        target = self.settings.target
        samples = []
        for row in records(source, numbers=(target,) if self.kind == "numbers" else ()):
            names = self.settings.features or [name for name in row if name != target]
            samples.append(({name: row[name] for name in names}, row.get(target)))
        return split(samples)

    def learn(self, samples):
        rows, targets = zip(*samples, strict=True)
        scale = columns.spread(targets) if self.kind == "numbers" else (0.0, 1.0)
        return {**columns.learned(rows, self.settings.words), "target": scale}

    def describe_data(self):
        learned = self.learn(self.parts["train"].samples)
        return f"{super().describe_data()}\n{columns.described(learned)}"

    def example(self):
        return dict.fromkeys(self.settings.features, 0), 0.0 if self.kind == "numbers" else "yes"

    def batch(self, samples, training):
        rows, labels = zip(*samples, strict=True)
        return {**columns.tensors(self.learned(), rows), "labels": torch.tensor(labels)}

    def features(self, batch):
        return columns.plain(batch, self.learned())

    def outputs(self, model, batch):
        mean, deviation = self.learned()["target"]
        answers = mean + deviation * super().outputs(model, batch).float()
        return answers if model.training else members.joined(self, answers)

    def summed_loss(self, outputs, labels):
        return members.loss_of_each(super().summed_loss, outputs, labels)


class Classes(Tabular):  # for a column of words: `task: my_task.py:Classes`
    kind, metrics = "classes", ("macro_f1", "accuracy")
