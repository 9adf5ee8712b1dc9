"""A number, or a class, from a row of a table: CSV files with a column for each feature and one for the target."""

from dataclasses import dataclass

import torch
from torch import nn

from trainbook import Supervised, option, records, split


@dataclass(frozen=True)
class Settings:
    features: tuple[str, ...] = option(("rooms", "area", "age"), "The columns that are given.")
    target: str = option("price", "The column that is predicted.")
    width: int = option(32, "The width of the hidden layer.", minimum=1)


class Tabular(Supervised):
    Settings = Settings
    sentinels = ("*.csv",)
    kind = "numbers"
    metrics = ("rmse", "mae", "r2")

    def model(self):
        inputs = len(self.settings.features)
        width = self.settings.width
        head = nn.Linear(width, len(self.names) or 1)
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), head)

    def read(self, source):
        features = self.settings.features
        target = self.settings.target
        numbers = features if self.kind == "classes" else (*features, target)
        rows = records(source, numbers=numbers)
        return split([*(row[name] for name in features), row.get(target)] for row in rows)

    def learn(self, samples):
        columns = len(self.settings.features)
        if self.kind == "numbers":  # the target too
            columns += 1
        table = torch.tensor([row[:columns] for row in samples])
        deviation = table.std(0, correction=0).clamp(min=1e-6)
        return {"mean": table.mean(0).tolist(), "deviation": deviation.tolist()}

    def example(self):
        target = "a class" if self.kind == "classes" else 0.0
        return [*(0.0 for _ in self.settings.features), target]

    def batch(self, samples, training):
        x = torch.tensor([row[:-1] for row in samples])
        labels = torch.tensor([row[-1] for row in samples])
        learned = self.learned()
        mean = torch.tensor(learned["mean"])[: x.shape[1]]
        deviation = torch.tensor(learned["deviation"])[: x.shape[1]]
        return {"x": (x - mean) / deviation, "labels": labels}

    def outputs(self, model, batch):
        learned = self.learned()
        y = model(batch["x"]).float()
        return y * learned["deviation"][-1] + learned["mean"][-1]


class Classes(Tabular):  # for a column of words: `task: my_task.py:Classes`
    kind = "classes"
    metrics = ("macro_f1", "accuracy")

    def outputs(self, model, batch):
        return Supervised.outputs(self, model, batch)
