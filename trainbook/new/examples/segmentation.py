"""The class of each pixel, by a small U-Net: images and masks of the same names in two folders."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from trainbook import BESIDE_MASKS, Supervised, mask, option, picture, pictures_with_masks


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(
        ("ground", "circle"), "The names of the values 0, 1, ... of a mask."
    )
    codes: tuple[int, ...] = option(
        (), "The values of the classes in a mask, in their order; empty: 0, 1, ..."
    )
    ignored_codes: tuple[int, ...] = option((), "Values of pixels that have no class, 255 say.")
    bad_input_limit: int = option(
        0, "Bad images and masks that are left out; one more refuses the data.", minimum=0
    )
    size: int = option(0, "The height and width of images; 0: the encoder's, or 64.", minimum=0)
    width: int = option(16, "The channels of the first layer from scratch.", minimum=1)
    encoder: str = option("", "A published encoder; empty: one at hand; none: scratch.", path=True)


def block(channels: int, width: int) -> nn.Module:
    layers = []
    for inputs in (channels, width):
        layers.append(nn.Conv2d(inputs, width, 3, padding=1, bias=False))
        layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int, classes: int):
        super().__init__()
        widths = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(block(*pair) for pair in pairwise(widths))
        up = [block(6 * width, 2 * width), block(3 * width, width)]
        self.up = nn.ModuleList(up)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x = self.down[0](x)
        levels = []
        for block in self.down[1:]:
            levels.append(x)
            x = block(F.max_pool2d(x, 2))
        for block, level in zip(self.up, reversed(levels), strict=True):
            x = F.interpolate(x, level.shape[2:])
            x = block(torch.cat([x, level], 1))
        return self.head(x)


class Segmentation(Supervised):
    Settings, sentinels = Settings, BESIDE_MASKS
    kind, metrics = "tokens", ("mean_iou", "mean_dice", "accuracy")
    pictures = "x"  # what an encoder sees of a batch

    def model(self):
        if encoder := self.encoder():
            return self.with_decoder(encoder, len(self.settings.classes))
        return UNet(self.settings.width, len(self.settings.classes))

    def read(self, source):
        return pictures_with_masks(source)

    def example(self):
        return Image.new("RGB", (64, 64)), Image.new("L", (64, 64))

    def scaled(self, image, mode):
        if mode == "RGB":
            return picture(image, self.side(64))
        settings = self.settings
        return mask(image, self.side(64), settings.codes, settings.ignored_codes)

    def batch(self, samples, training):
        images = np.stack([self.scaled(image, "RGB") for image, _ in samples])
        masks = np.stack([self.scaled(mask, "L") for _, mask in samples])
        x = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        return {"x": x, "labels": torch.from_numpy(masks)}
