"""The image classifier of own.md in Lightning 2.6: python images_lightning.py DATA, where DATA has a folder a class."""

import sys
import zlib
from itertools import pairwise
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

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
        return x, CLASSES.index(path.parent.name)


def split(files):
    parts = {"train": [], "validation": [], "test": []}
    for path in sorted(files):
        share = zlib.crc32(path.name.encode()) / 2**32
        parts["test" if share < 0.15 else "validation" if share < 0.3 else "train"].append(path)
    return parts


class Classifier(L.LightningModule):
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
        self.accuracy = MulticlassAccuracy(len(CLASSES), average="micro")
        self.macro_f1 = MulticlassF1Score(len(CLASSES), average="macro")

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def _evaluate(self, batch, part):
        logits = self.net(batch[0])
        self.accuracy(logits, batch[1])
        self.macro_f1(logits, batch[1])
        self.log(f"{part}_loss", F.cross_entropy(logits, batch[1]))
        self.log_dict(
            {f"{part}_accuracy": self.accuracy, f"{part}_macro_f1": self.macro_f1}, on_epoch=True
        )

    def validation_step(self, batch, index):
        self._evaluate(batch, "validation")

    def test_step(self, batch, index):
        self._evaluate(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(data):
    L.seed_everything(0)
    parts = split([path for path in Path(data).glob("*/*") if path.suffix in (".png", ".jpg")])
    loaders = {
        part: DataLoader(Images(files, part == "train"), batch_size=32, shuffle=part == "train")
        for part, files in parts.items()
    }
    best = ModelCheckpoint(monitor="validation_accuracy", mode="max", save_last=True)
    trainer = L.Trainer(max_epochs=10, callbacks=[best], gradient_clip_val=1.0, log_every_n_steps=1)
    trainer.fit(Classifier(), loaders["train"], loaders["validation"], ckpt_path="last")
    trainer.test(dataloaders=loaders["test"], ckpt_path="best")


if __name__ == "__main__":
    main(sys.argv[1])
