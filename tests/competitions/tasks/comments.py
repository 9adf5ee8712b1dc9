"""The labels of a comment: `my_task.py` with any number of them, in a column each of a CSV file."""

import torch
from my_task import Text

from trainbook import records, split


class Comments(Text):
    kind = "labels"
    metrics = ("roc_auc",)
    sentinels = ("train.csv",)
    balanced = False

    def read(self, source):
        tags = self.settings.classes
        rows = records(source, "train.csv", numbers=tags)
        return split((row["comment_text"], [row.get(tag) for tag in tags]) for row in rows)

    def group(self, sample):
        return None

    def example(self):
        return "word " * self.settings.length, [0.0] * len(self.settings.classes)

    def batch(self, samples, training):
        texts = super().batch([(None, text, 0) for text, _ in samples], training)
        return {**texts, "labels": torch.tensor([marks for _, marks in samples])}
