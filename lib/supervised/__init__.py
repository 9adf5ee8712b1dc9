"""A workload whose samples have a target: what it takes to train, judge and use it follows from five methods."""

from lib.supervised.samples import IGNORED, padded, split
from lib.supervised.scoring import Judged
from lib.supervised.tables import paragraphs, records
from lib.supervised.task import Supervised
from lib.task.contract import fingerprint

__all__ = ["IGNORED", "Judged", "Supervised", "fingerprint", "padded", "paragraphs", "records", "split"]
