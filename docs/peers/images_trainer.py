"""The image classifier of own.md with the Trainer of transformers 5: python images_trainer.py DATA."""

import sys
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

CLASSES = ("circle", "square", "triangle")
SIZE = 64
WIDTH = 16


class Images(Dataset):
    def __init__(self, files, training):
        self.files = files
        self.training = training

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image = np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE)))
        x = torch.from_numpy(image.copy()).permute(2, 0, 1) / 255
        if self.training and torch.rand(()) < 0.5:
            x = x.flip(2)
        return {"x": x, "labels": CLASSES.index(path.parent.name)}


def split(files):
    parts = {"train": [], "validation": [], "test": []}
    for path in sorted(files):
        share = zlib.crc32(path.name.encode()) / 2**32
        parts["test" if share < 0.15 else "validation" if share < 0.3 else "train"].append(path)
    return {part: Images(files, part == "train") for part, files in parts.items()}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        width = [3, WIDTH, 2 * WIDTH, 4 * WIDTH]
        blocks = [
            nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)
            )
            for a, b in pairwise(width)
        ]
        self.net = nn.Sequential(
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width[-1], len(CLASSES))
        )

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def scores(predicted):
    guess = predicted.predictions.argmax(-1)
    true = predicted.label_ids
    return {
        "accuracy": accuracy_score(true, guess),
        "macro_f1": f1_score(true, guess, average="macro"),
    }


def main(data, out="trainer-out"):
    parts = split([path for path in Path(data).glob("*/*") if path.suffix in (".png", ".jpg")])
    arguments = TrainingArguments(
        out,
        num_train_epochs=10,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=1,
        report_to="none",
        seed=0,
    )
    trainer = Trainer(
        Classifier(),
        arguments,
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        compute_metrics=scores,
    )
    last = get_last_checkpoint(out) if Path(out).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    print(trainer.evaluate(parts["test"], metric_key_prefix="test"))


if __name__ == "__main__":
    main(sys.argv[1])
