"""What a model is expected to score on data like its own, kept as expected.json and said beside a submission."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib import untrusted
from lib.machine import disk
from trainbook.supervised.intervals import Interval

FILE = "expected.json"
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Expected:
    """A metric with its 95 % interval, and `way`, how it was found: "folds", "validation" or "test".

    `members` are the runs that answer together; `share` is that of their networks beside the simple
    method, None where that has none.
    """

    metric: str
    better: str  # "max" or "min"
    value: float
    low: float = math.nan
    high: float = math.nan
    way: str = "folds"
    share: float | None = None
    members: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Returns "expected: macro_f1 0.870 [0.850, 0.890] by folds"."""
        return f"expected: {self.metric} {Interval(self.value, self.low, self.high)} by {self.way}"

    def write(self, folder: Path) -> None:
        values = {key: value for key, value in asdict(self).items() if value == value}
        disk.write_text(folder / FILE, json.dumps(values, indent=1) + "\n")


def read(folder: Path) -> Expected | None:
    """Returns what the runs of a folder are expected to score; None if the file is missing or damaged."""
    try:
        values = untrusted.objects(untrusted.read(folder / FILE, _MOST_BYTES))
        expected = untrusted.parse(values, Expected)
    except (OSError, ValueError, TypeError):
        return None
    is_share = expected.share is None or 0 <= expected.share <= 1
    return expected if is_share else None
