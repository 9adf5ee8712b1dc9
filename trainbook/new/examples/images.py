"""The class of an image: pictures in a folder for each class, or in a table with their names."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import nn

from trainbook import IN_FOLDERS, Supervised, labelled_pictures, option, picture


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("circle", "square", "triangle"), "The names of the classes.")
    table: str = option(
        "", "The table that lists the images; empty: the one that has their names, if there is one."
    )
    target: str = option("", "Its column of the class; empty: the one beside the names.")
    size: int = option(0, "The height and width of images; 0: the encoder's, or 64.", minimum=0)
    width: int = option(16, "The channels of the first layer from scratch.", minimum=1)
    encoder: str = option("", "A published encoder; empty: one at hand; none: scratch.", path=True)
    flip: bool = option(
        True, "Whether training mirrors half of the images, as where left and right say nothing."
    )
    bad_input_limit: int = option(
        0, "Bad images that are left out; one more refuses the data.", minimum=0
    )


class Images(Supervised):
    Settings, sentinels, metrics = Settings, IN_FOLDERS, ("accuracy", "macro_f1")
    pictures = "pixel_values"  # what an encoder sees of a batch

    def model(self):
        if encoder := self.encoder():
            return self.with_head(encoder, len(self.names))
        width = [3, *(self.settings.width * 2**k for k in range(3))]
        blocks = []
        for a, b in pairwise(width):
            convolution = nn.Conv2d(a, b, 3, padding=1)
            blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)))
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width[-1], len(self.names))
        return nn.Sequential(*blocks, *head)

    def read(self, source):
        settings = self.settings
        return labelled_pictures(source, settings.classes, settings.table, settings.target)

    def example(self):
        return Image.new("RGB", (64, 64)), "a class"

    def batch(self, samples, training):
        scaled = [picture(image, self.side(64)) for image, _ in samples]
        x = torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2) / 255
        flips = torch.rand(len(x), 1, 1, 1) < 0.5 * training * self.settings.flip
        x = torch.where(flips, x.flip(3), x)
        labels = torch.tensor([label for _, label in samples])
        return {"pixel_values": x, "labels": labels}
