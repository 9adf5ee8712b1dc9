"""The pixels of salt: `my_task.py` with masks as run lengths in a table."""

import numpy as np
from my_task import Segmentation
from PIL import Image

from trainbook import picture, records, split

SIDE = 48  # pixels of a picture


def mask_of(runs):
    flat = np.zeros(SIDE * SIDE, np.uint8)
    numbers = [*map(int, runs.split())]
    for start, length in zip(numbers[::2], numbers[1::2], strict=True):
        flat[start - 1 : start - 1 + length] = 1
    return flat.reshape(SIDE, SIDE).T  # down the columns


def runs_of(mask):
    flat = np.concatenate([[0], mask.T.flatten(), [0]])
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    pairs = zip(changes[::2], changes[1::2], strict=True)
    return " ".join(f"{start} {end - start}" for start, end in pairs)


class Salt(Segmentation):
    sentinels = ("train.csv",)

    def read(self, source):
        rows = records(source / "train.csv")
        pictures = source / "train"
        return split((pictures / f"{row['id']}.png", row["rle_mask"]) for row in rows)

    def read_new(self, source):
        return [(path, "") for path in sorted(source.glob("*.png"))]

    def example(self):
        return Image.new("RGB", (SIDE, SIDE)), ""

    def scaled(self, value, mode):
        if mode == "RGB":
            return picture(value, SIDE)
        return mask_of(value).astype(np.int64)

    def answers(self, models, samples):
        rows = super().answers(models, samples)
        masks = [np.asarray(row["prediction"]) for row in rows]
        return [{"rle_mask": runs_of(mask)} for mask in masks]
