"""A number from a row of a table: CSV files with a column for each feature and one for the target."""

from dataclasses import dataclass

import torch
from torch import nn

from lib.config import option
from lib.supervised import Supervised, records, split


@dataclass(frozen=True)
class Settings:
    features: tuple[str, ...] = option(("rooms", "area", "age"), "The columns that are given.")
    target: str = option("price", "The column that is predicted.")
    width: int = option(32, "The width of the hidden layers.", minimum=1)


class Tabular(Supervised):
    Settings, sentinels, kind, metrics = Settings, ("*.csv",), "numbers", ("rmse", "mae", "r2")

    def model(self):
        width = self.settings.width
        layers = nn.Linear(len(self.settings.features), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(width, 1))

    def read(self, source):
        rows = records(source, "*.csv")
        return split([([float(row[name]) for name in self.settings.features], row.get(self.settings.target)) for row in rows])

    def learn(self, samples):
        x = torch.tensor([features for features, _ in samples])
        return {"mean": x.mean(0).tolist(), "deviation": x.std(0).tolist()}

    def example(self):
        return [0.0] * len(self.settings.features), 0.0

    def batch(self, samples, training):
        x = torch.tensor([features for features, _ in samples])
        ...
