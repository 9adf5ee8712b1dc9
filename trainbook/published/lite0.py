"""EfficientNet-Lite0, whose parts have the names of the published weights.

Tan and Le 2019 (arXiv:1905.11946), in the form without squeeze-and-excitation and with ReLU6.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Of each stage: layers, kernel, stride, expansion, channels
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
WIDTH = 1280
WIDTHS = (_STEM, *(stage[-1] for stage in _STAGES))


class _Convolution(nn.Conv2d):
    """A convolution that pads as TensorFlow does: with a stride, an odd pixel comes behind."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return super().forward(x)
        padding = list[int]()
        for size in reversed(x.shape[2:]):
            steps = -(-size // stride)
            missing = max(0, (steps - 1) * stride + kernel - size)
            padding += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, padding))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _Block(nn.Module):
    """Widens, mixes each channel's surroundings, and narrows; beside a skip where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        self.skips = stride == 1 and inputs == outputs
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = _Convolution(inputs, inner, 1)
            self._bn0 = _norm(inner)
        self._depthwise_conv = _Convolution(inner, inner, kernel, stride, inner)
        self._bn1 = _norm(inner)
        self._project_conv = _Convolution(inner, outputs, 1)
        self._bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expands:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class Lite0(nn.Module):
    """The network without its classifier of 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _Convolution(3, _STEM, 3, 2)
        self._bn0 = _norm(_STEM)
        blocks = []
        self.ends = list[int]()  # the last block of each stage
        inputs = _STEM
        for layers, kernel, stride, expansion, outputs in _STAGES:
            for number in range(layers):
                first = stride if number == 0 else 1
                blocks.append(_Block(inputs, outputs, kernel, first, expansion))
                inputs = outputs
            self.ends.append(len(blocks) - 1)
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _Convolution(inputs, WIDTH, 1)
        self._bn1 = _norm(WIDTH)

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        """(B, 3, H, W) -> `WIDTHS` wide, at 1/2, 1/2, 1/4, 1/8, 1/16, 1/16, 1/32, 1/32 of the size."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        maps = [x]
        for number, block in enumerate(self._blocks):
            x = block(x)
            if number in self.ends:
                maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, WIDTH)"""
        x = self.stages(x)[-1]
        x = F.relu6(self._bn1(self._conv_head(x)))
        return torch.mean(x, (2, 3))
