"""A workload whose samples have a target: what it takes to train, judge and use it follows from five methods."""

from lib.supervised.folders import BESIDE_MASKS, IN_FOLDERS, labelled_pictures, pictures_with_masks
from lib.supervised.pictures import mask, picture
from lib.supervised.samples import IGNORED, padded, split
from lib.supervised.scoring import Judged
from lib.supervised.tables import paragraphs, records
from lib.supervised.task import Supervised
from lib.task.contract import fingerprint

__all__ = [
    "BESIDE_MASKS", "IGNORED", "IN_FOLDERS", "Judged", "Supervised", "fingerprint", "labelled_pictures", "mask",
    "padded", "paragraphs", "picture", "pictures_with_masks", "records", "split",
]  # fmt: skip
