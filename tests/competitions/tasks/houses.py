"""Prices of houses: `my_task.py` with words, dates and empty cells, learned as logarithms."""

import datetime
import zlib

import torch
from my_task import Tabular
from torch import nn

from trainbook import records, split

NUMBERS = ("area", "built")
WORDS = ("district", "garage")
DATE = "sold"
TARGET = "SalePrice"
SLOTS = 16  # that the words of a column are hashed to


class Houses(Tabular):
    metrics = ("rmsle", "mae")

    def model(self):
        inputs = 1 + 2 * len(NUMBERS) + SLOTS * len(WORDS)
        return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 1))

    def read(self, source):
        columns = (*NUMBERS, *WORDS, DATE)
        rows = []
        for row in records(source):
            cells = [row[name] for name in columns]
            price = row.get(TARGET)  # new data has none
            rows.append((*cells, None if price is None else float(price)))
        return split(rows)

    def learn(self, samples):
        cells = [*zip(*samples, strict=True)]
        columns = [[*map(float, filter(None, column))] for column in cells[: len(NUMBERS)]]
        columns = [torch.tensor(column or [0.0]) for column in columns]
        prices = torch.tensor([*map(float, cells[-1])])
        columns.append(prices.log1p())
        deviations = [column.std(correction=0).clamp(min=1e-6).item() for column in columns]
        return {"mean": [column.mean().item() for column in columns], "deviation": deviations}

    def example(self):
        return "1.0", "1.0", "a", "b", "2020-01-01", 0.0

    def vector(self, row):
        years = datetime.date.fromisoformat(row[-2]).toordinal() / 365 - 2021
        vector = [years]
        for n, cell in enumerate(row[: len(NUMBERS)]):
            mean, deviation = (self.learned()[key][n] for key in ("mean", "deviation"))
            if cell:
                vector += [(float(cell) - mean) / deviation, 0.0]
            else:
                vector += [0.0, 1.0]
        for word in row[len(NUMBERS) : -2]:
            slots = [0.0] * SLOTS
            slots[zlib.crc32(word.encode()) % SLOTS] = 1.0
            vector += slots
        return vector

    def batch(self, samples, training):
        x = torch.tensor([self.vector(row) for row in samples])
        return {"x": x, "labels": torch.tensor([row[-1] for row in samples])}

    def outputs(self, model, batch):
        mean, deviation = (self.learned()[key][-1] for key in ("mean", "deviation"))
        return (model(batch["x"]).float() * deviation + mean).expm1()

    def summed_loss(self, outputs, labels):
        outputs, labels = self.matched(outputs, labels)
        return ((outputs.clamp(min=0).log1p() - labels.log1p()) ** 2).sum()
