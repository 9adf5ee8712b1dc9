"""The example of tables on rows that are divided already: `train.csv`, `validation.csv` and `test.csv`."""

import sys
from pathlib import Path

from trainbook import records
from trainbook.supervised.samples import PARTS

sys.path.append(str(Path(__file__).parents[2] / "trainbook" / "new" / "examples"))
import tabular


class Given:
    def read(self, source):
        target = self.settings.target
        numbers = (target,) if self.kind == "numbers" else ()
        parts = {part: [] for part in PARTS}
        for part, samples in parts.items():
            for row in records(source / f"{part}.csv", numbers=numbers):
                samples.append(({name: row[name] for name in row if name != target}, row[target]))
        return parts

    def baselines(self):
        return {}  # boosting is tuned beside it


class Numbers(Given, tabular.Tabular):
    pass


class Names(Given, tabular.Classes):
    pass
