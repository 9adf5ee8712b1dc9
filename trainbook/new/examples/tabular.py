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
    Settings, sentinels, kind, metrics = Settings, ("*.csv",), "numbers", ("rmse", "mae", "r2")

    def model(self):
        inputs, width = len(self.settings.features), self.settings.width
        return nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, len(self.names) or 1)
        )

    def read(self, source):
        features, target = self.settings.features, self.settings.target
        rows = records(source, numbers=features if self.kind == "classes" else (*features, target))
        return split([*(row[name] for name in features), row.get(target)] for row in rows)

    def learn(self, samples):
        table = torch.tensor([row[:-1] if self.kind == "classes" else row for row in samples])
        return {
            "mean": table.mean(0).tolist(),
            "deviation": table.std(0, correction=0).clamp(min=1e-6).tolist(),
        }

    def example(self):
        return [
            *(0.0 for _ in self.settings.features),
            "a class" if self.kind == "classes" else 0.0,
        ]

    def batch(self, samples, training):
        x, labels = (
            torch.tensor([row[:-1] for row in samples]),
            torch.tensor([row[-1] for row in samples]),
        )
        mean, deviation = (
            torch.tensor(self.learned()[name])[: x.shape[1]] for name in ("mean", "deviation")
        )
        return {"x": (x - mean) / deviation, "labels": labels}

    def outputs(self, model, batch):
        return (
            model(batch["x"]).float() * self.learned()["deviation"][-1] + self.learned()["mean"][-1]
        )


class Classes(Tabular):  # for a column of words: `task: my_task.py:Classes`
    kind, metrics, outputs = "classes", ("macro_f1", "accuracy"), Supervised.outputs
