"""A U-Net with a ResNet-34 encoder and scSE attention in the decoder, for any bands and classes.

ResNet: He et al., CVPR 2016, table 1. U-Net: Ronneberger et al., MICCAI 2015. scSE: Roy et al., MICCAI 2018.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput
from workloads.glacier.settings import Model

FIRST = "blocks.0.0.weight"
HEAD = ("head.weight", "head.bias")
# Prefixes of buffers that belong to the training data
STATISTICS = ("mean", "deviation", "prior", "boosted.")
_PUBLISHED = {  # names in a ResNet of timm or torchvision, and here
    r"^conv1\.": "blocks.0.0.", r"^bn1\.": "blocks.0.1.", r"^layer(\d)": r"blocks.\1", r"\.bn(\d)": r".norm\1",
    r"\.downsample\.": ".shortcut.",
}  # fmt: skip


class Normalisation(NamedTuple):
    """Mean and deviation of each input, and a correction of each class's logit or None."""

    mean: np.ndarray
    deviation: np.ndarray
    prior: np.ndarray | None


class Net(nn.Module):
    """Maps tiles of raw bands, NaN for missing data, to logits of `classes` in the tile's size.

    The normalisation is part of the weights. `indices` are pairs of bands whose normalised difference is an input too.
    With a `prior` logits are corrected in evaluation mode. `blocks` holds ten stages in the order of the forward pass:
    stem, four of the encoder, five of the decoder, the coarsest first.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        bands: int,
        classes: int,
        sizes: Model,
        indices: Sequence[tuple[int, int]] = (),
        prior: bool = False,
    ):
        super().__init__()
        widths = sizes.widths
        decoder = sizes.decoder
        if (len(widths), len(sizes.depths), len(decoder)) != (5, 4, 5):
            raise ValueError(
                "A U-Net has five encoder widths, four depths and five decoder widths."
            )
        self.indices = tuple(map(tuple, indices))
        inputs = bands + len(indices)
        first = nn.Conv2d(inputs, widths[0], 7, stride=2, padding=3, bias=False)
        stem = nn.Sequential(first, nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        # The first stage follows a pooling, which halves the size
        strides = (1, 2, 2, 2)
        shapes = zip(widths[:4], widths[1:], sizes.depths, strides, strict=True)
        encoder = [_stage(*shape) for shape in shapes]
        # The finest decoder stage lacks an encoder stage of its size
        skips = [*reversed(widths[:4]), 0]
        channels = zip([widths[4], *decoder[:4]], skips, decoder, strict=True)
        up = [Up(*of_stage) for of_stage in channels]
        self.blocks = nn.ModuleList([stem, *encoder, *up])
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.head = nn.Conv2d(decoder[4], classes, 3, padding=1)
        # He et al. (ICCV 2015): variances stay equal through the ReLUs
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module is not self.head:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.register_buffer("mean", torch.zeros(inputs, 1, 1))
        self.register_buffer("deviation", torch.ones(inputs, 1, 1))
        self.register_buffer("prior", torch.zeros(classes, 1, 1) if prior else None)

    def normalise(self, values: Normalisation) -> None:
        """Copies the normalisation into the buffers of its names."""
        for name, numbers in values._asdict().items():
            if numbers is not None:
                self.get_buffer(name).copy_(torch.from_numpy(numbers).view(-1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """(B, bands, H, W) -> (B, classes, H, W); H and W are multiples of 32."""
        if self.indices:
            differences = [difference(image, *pair) for pair in self.indices]
            image = torch.cat([image, *differences], 1)
        normal = (image - self.mean) / self.deviation
        known = torch.where(normal.isnan(), 0.0, normal)
        # Channels last: 12 % less time a step at full width on a CPU, 25 % at the small preset's
        x = known.contiguous(memory_format=torch.channels_last)
        stem, *encoder = self.blocks[:5]
        x = stem(x)  # (B, widths[0], H/2, W/2)
        skips = [x]
        x = self.pool(x)
        for stage in encoder:
            x = stage(x)  # H/4, H/8, H/16, H/32
            skips.append(x)
        for up, skip in zip(self.blocks[5:], [*skips[-2::-1], None], strict=True):
            x = up(x, skip)
        logits = self.head(x)
        if self.training or self.prior is None:
            return logits
        return logits + self.prior


def _stage(inputs: int, outputs: int, depth: int, stride: int) -> nn.Sequential:
    """Returns a stage of the encoder: `depth` residual blocks, the first with the stride."""
    blocks = [Residual(inputs, outputs, stride)]
    blocks += [Residual(outputs, outputs, stride=1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def difference(image: Tensor, one: int, other: int) -> Tensor:
    """(..., bands, S, S) -> (..., 1, S, S): (a - b) / (|a| + |b|) of two bands, 0 if both are 0.

    For bands without negative values this is the usual normalised difference.
    """
    a = image[..., one : one + 1, :, :]
    b = image[..., other : other + 1, :, :]
    least = torch.finfo(image.dtype).tiny
    return (a - b) / (a.abs() + b.abs()).clamp_min(least)


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside the identity, or a 1 x 1 convolution if the shape changes (He et al., figure 5).

    The shortcut takes every `stride`-th pixel and then convolves without stride, which gives the same numbers: oneDNN's
    backward of a strided 1 x 1 convolution writes past its workspace for few channels in channels-last layout
    (uxlfoundation/oneDNN, issue 6035).
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H/stride, W/stride)."""
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        beside = self.shortcut(x[..., :: self.stride, :: self.stride])
        return F.relu(self.norm2(self.conv2(inner)) + beside, inplace=True)


class Up(nn.Module):
    """A decoder stage: doubles the size, joins the encoder's stage of that size, convolves twice, scSE."""

    def __init__(self, inputs: int, skip: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs + skip, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.attention = ScSE(outputs)

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """x (B, inputs, H, W), skip (B, skip, 2H, 2W) or None -> (B, outputs, 2H, 2W)."""
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = x if skip is None else torch.cat([x, skip], 1)
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return self.attention(F.relu(self.norm2(self.conv2(x)), inplace=True))


class ScSE(nn.Module):
    """Concurrent spatial and channel squeeze and excitation: U_scSE = U_cSE + U_sSE (Roy et al. 2018, section 2)."""

    def __init__(self, channels: int):
        super().__init__()
        inner = max(1, channels // 2)
        self.squeeze = nn.Conv2d(channels, inner, 1)
        self.excite = nn.Conv2d(inner, channels, 1)
        self.spatial = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        mean = x.mean((2, 3), keepdim=True)  # (B, C, 1, 1)
        channel = torch.sigmoid(self.excite(F.relu(self.squeeze(mean))))
        pixel = torch.sigmoid(self.spatial(x))  # (B, 1, H, W)
        return x * (channel + pixel)


def encoder(given: Mapping[str, Tensor], bands: Sequence[str]) -> tuple[dict[str, Tensor], str]:
    """Renames the weights of a published ResNet-18 or -34 for this encoder, and matches its colours to bands.

    Leaves out its classifier.
    """
    renamed = {name: value for name, value in given.items() if not name.startswith("fc.")}
    for pattern, new in _PUBLISHED.items():
        renamed = {re.sub(pattern, new, name): value for name, value in renamed.items()}
    filters, message = carry_bands(renamed[FIRST], ("red", "green", "blue"), bands)
    return renamed | {FIRST: filters}, f"{message} The decoder begins with random weights."


def carry(
    given: Mapping[str, Tensor], fresh: Mapping[str, Tensor],
    bands: tuple[Sequence[str], Sequence[str]], classes: tuple[Sequence[str], Sequence[str]],
) -> tuple[dict[str, Tensor], str]:  # fmt: skip
    """Returns given weights with bands and classes in the new network's order, and a sentence that counts them.

    `fresh` are the new network's weights, whose normalisation stays; `bands` and `classes` are names, (given, new).
    Raises BadInput for names that do not fit the shapes, or without a common band.
    """
    _check_names(given, FIRST, 1, bands[0], "bands")
    _check_names(given, HEAD[0], 0, classes[0], "classes")
    filters, message = carry_bands(given[FIRST], *bands)
    carried = {name: value for name, value in given.items() if not name.startswith(STATISTICS)}
    carried[FIRST] = filters
    for name, value in fresh.items():
        if name.startswith(STATISTICS):
            carried[name] = value
    known, wanted = classes
    for name in HEAD:
        rows = []
        for place, cls in enumerate(wanted):
            # New classes stay as initialised
            row = given[name][known.index(cls)] if cls in known else fresh[name][place]
            rows.append(row.to(fresh[name]))
        carried[name] = torch.stack(rows)
    new = [cls for cls in wanted if cls not in known]
    matched = len(wanted) - len(new)
    names = ", ".join(new) or "none"
    return carried, f"{message} Head: {matched} of {len(wanted)} classes by name, new: {names}."


def _check_names(
    given: Mapping[str, Tensor], tensor: str, axis: int, names: Sequence[str], kind: str
) -> None:
    """Raises BadInput if the given weights lack the tensor, or its axis has another length than the names."""
    if tensor not in given:
        raise BadInput(
            f"The initial weights have no tensor {tensor}, so they belong to another network."
        )
    size = given[tensor].shape[axis]
    if size != len(names):
        raise BadInput(
            f"The initial weights have {size} {kind}, and {len(names)} are named for them: {', '.join(names)}. "
            f"Name the {kind} of their training, in order."
        )


def carry_bands(weight: Tensor, source: Sequence[str], target: Sequence[str]) -> tuple[Tensor, str]:
    """(filters, source bands, h, w) -> (filters, target bands, h, w), for the first convolution.

    A band takes the filters of the source band of its name; a new band takes the mean over all source bands. One factor
    for all then restores the sum of squares, which the running statistics of the batch norm behind depend on. A factor
    for each filter would turn filters of missing bands into noise.
    """
    new = [name for name in target if name not in source]
    unused = [name for name in source if name not in target]
    if len(new) == len(target):
        raise BadInput(
            f"No band of the initial weights is among this run's: they saw {', '.join(source)}, and this run has "
            f"{', '.join(target)}. Write the same names for the same parts of the spectrum."
        )
    matched = f"First convolution: {len(target) - len(new)} of {len(target)} bands by name"
    if list(source) == list(target):
        return weight, f"{matched}."
    filters = dict(zip(source, weight.unbind(1), strict=True))
    mean = weight.mean(1)
    carried = torch.stack([filters.get(name, mean) for name in target], 1)
    factor = (weight.square().sum() / carried.square().sum()).sqrt()
    by_mean = ", ".join(new) or "none"
    left_out = ", ".join(unused) or "none"
    return carried * factor, (
        f"{matched}, the mean of all for: {by_mean}, left out: {left_out}; "
        f"filters multiplied by {float(factor):.3f}."
    )
