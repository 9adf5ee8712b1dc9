"""Prices of houses: `my_task.py` with words, dates and empty cells, learned as logarithms."""

import datetime
import math

from my_task import Tabular

from trainbook import records, split
from trainbook.supervised import members

COLUMNS = ("area", "built", "district", "garage", "sold")
TARGET = "SalePrice"


class Houses(Tabular):
    metrics = ("rmsle", "mae")

    def read(self, source):
        samples = []
        for row in records(source, numbers=(TARGET,)):
            cells = {name: row[name] for name in COLUMNS}
            cells["sold"] = datetime.date.fromisoformat(cells["sold"]).toordinal()
            samples.append((cells, row.get(TARGET)))  # new data has none
        return split(samples)

    def learn(self, samples):
        return super().learn([(cells, math.log1p(price)) for cells, price in samples])

    def example(self):
        return dict.fromkeys(COLUMNS, 0.0), 0.0

    def outputs(self, model, batch):
        return super().outputs(model, batch).expm1()

    def summed_loss(self, outputs, labels):
        return members.loss_of_each(self.of_logarithms, outputs, labels)

    def of_logarithms(self, outputs, labels):
        outputs, labels = self.matched(outputs, labels)
        return ((outputs.clamp(min=0).log1p() - labels.log1p()) ** 2).sum()
