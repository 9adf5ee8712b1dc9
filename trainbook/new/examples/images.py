"""The class of an image: PNG or JPEG files in a folder for each class."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import nn

from lib.config import option
from lib.supervised import Supervised, split


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("circle", "square", "triangle"), "The names of the class folders.")
    size: int = option(64, "The height and width that images are scaled to.", minimum=8)
    width: int = option(16, "The channels of the first layer.", minimum=1)
    backbone: str = option("", "An image classifier of transformers; empty: a small network.", path=True)
    flip: bool = option(True, "Whether training mirrors half of the images, as where left and right say nothing.")


class Images(Supervised):
    Settings, sentinels, metrics = Settings, ("*/*.png", "*/*.jpg", "*/*.jpeg"), ("accuracy", "macro_f1")

    def model(self):
        if backbone := self.settings.backbone:  # a folder, a mounted model or a name on the Hugging Face hub
            from transformers import AutoModelForImageClassification

            head = {"id2label": dict(enumerate(self.names)), "ignore_mismatched_sizes": True}
            return self.pretrained(backbone, AutoModelForImageClassification, **head)
        width = [3, *(self.settings.width * 2**k for k in range(3))]
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in pairwise(width)
        ]
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width[-1], len(self.names))
        return nn.Sequential(*blocks, *head)

    def read(self, source):
        paths = (path for path in source.glob("*/*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        return split((path, path.parent.name) for path in paths)

    def example(self):
        return Image.new("RGB", (self.settings.size, self.settings.size)), "a class"

    def batch(self, samples, training):
        images = (x if isinstance(x, Image.Image) else Image.open(x) for x, _ in samples)
        scaled = [x.convert("RGB").resize((self.settings.size, self.settings.size)) for x in images]
        x = torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2) / 255
        flips = torch.rand(len(x), 1, 1, 1) < 0.5 * training * self.settings.flip
        labels = torch.tensor([label for _, label in samples])
        return {"pixel_values": torch.where(flips, x.flip(3), x), "labels": labels}  # as transformers names them
