"""The next values of a series: CSV files with a column of times, one of values, and one that names the series."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from trainbook import Supervised, option
from trainbook.supervised import series


@dataclass(frozen=True)
class Settings:
    time: str = option("time", "The column of times: numbers or dates.")
    value: str = option("value", "The column of values; an empty cell is a gap.")
    series: str = option("", "The column that names the series; empty: each file is one.")
    history: int = option(48, "The past values that a forecast sees.", minimum=2)
    horizon: int = option(12, "The next values that are forecast.", minimum=1)
    season: int = option(12, "The steps of a season, for the seasonal naive forecast.", minimum=1)
    width: int = option(256, "The width of the hidden layers.", minimum=1)

    @staticmethod
    def mistakes(values):
        if values["season"] >= values["history"]:
            yield "season", "workload.season must be smaller than workload.history."


class Series(Supervised):
    Settings, sentinels, kind, unit = Settings, ("*.csv",), series.Absolute, "window"
    metrics = ("mae", "rmse")

    def model(self):
        settings = self.settings
        layers = []
        for inputs in (settings.history, *[settings.width] * 3):
            layers += [nn.Linear(inputs, settings.width), nn.SiLU()]
        return nn.Sequential(*layers, nn.Linear(settings.width, settings.horizon))

    def values(self, source):
        return series.read(source, self.settings.time, self.settings.value, self.settings.series)

    def read(self, source):
        return series.windows(self.values(source), self.settings.history, self.settings.horizon)

    def read_new(self, source):
        return series.last(self.values(source), self.settings.history, self.settings.horizon)

    def example(self):
        return "a series", 0, (0.0,) * self.settings.history, (0.0,) * self.settings.horizon

    def batch(self, samples, training):
        _, _, past, following = zip(*samples, strict=True)
        return {"past": torch.tensor(past), "labels": torch.tensor(following)}

    def outputs(self, model, batch):  # in units of each window's own middle and spread
        past = batch["past"]
        middle, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-6
        return middle + spread * model((past - middle) / spread).float()

    def baselines(self):
        season, horizon = self.settings.season, self.settings.horizon
        naive = [series.naive(past, season, horizon) for *_, past, _ in self.parts["test"].samples]
        others = {"seasonal naive": np.array(naive), **series.scaled_forest(self.parts)}
        return {**super().baselines(), **others}

    def columns(self, judged):
        return {"mase": series.mase(judged, self.parts, self.settings.season)}
