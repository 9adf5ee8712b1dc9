"""A U-Net over the feature maps of a published encoder."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainbook.published.encoder import Encoder

_WIDTH = 16  # of the branch at full size
_MOST = 128  # channels of a layer of the decoder


class UNet(nn.Module):
    """(B, 3, H, W) from 0 to 1 -> (B, outputs, H, W), by an encoder's maps from the smallest to the largest."""

    def __init__(self, encoder: Encoder, outputs: int):
        super().__init__()
        self.encoder = encoder
        self.full = _block(3, _WIDTH)
        widths = [_WIDTH, *encoder.widths]
        inputs = widths.pop()
        steps = list[nn.Module]()
        for width in reversed(widths):
            steps.append(_block(inputs + width, min(width, _MOST)))
            inputs = min(width, _MOST)
        self.up = nn.ModuleList(steps)
        self.head = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.encoder.scaled(x)
        *levels, x = self.full(scaled), *self.encoder.pyramid(scaled)
        for step, level in zip(self.up, reversed(levels), strict=True):
            x = F.interpolate(x, level.shape[2:], mode="bilinear")
            x = step(torch.cat([x, level], 1))
        return self.head(x)


def _block(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
