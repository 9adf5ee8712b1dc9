"""A U-Net with a ResNet-34 encoder and scSE attention in the decoder, for any bands and classes.

ResNet: He et al., CVPR 2016, table 1. U-Net: Ronneberger et al., MICCAI 2015. scSE: Roy et al., MICCAI 2018.
"""

import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput
from workloads.glacier.settings import Model

FIRST = "blocks.0.0.weight"
HEAD = ("head.weight", "head.bias")  # names of weights
STATISTICS = (
    "mean",
    "deviation",
    "prior",
    "boosted.",
)  # how names begin of what belongs to the training data
_PUBLISHED = {  # names in a ResNet of timm or torchvision, and here
    r"^conv1\.": "blocks.0.0.", r"^bn1\.": "blocks.0.1.", r"^layer(\d)": r"blocks.\1", r"\.bn(\d)": r".norm\1",
    r"\.downsample\.": ".shortcut.",
}  # fmt: skip


class Net(nn.Module):
    """Maps tiles of raw bands, NaN where there is no data, to the logits of `classes`, in the tile's own size.

    The normalisation belongs to the weights. `indices` are pairs of bands whose normalised difference is an input too.
    With a `prior` logits are corrected where the network does not train. `blocks` holds the ten stages in the order of
    the forward pass: stem, four of the encoder, five of the decoder, the coarsest first.
    """

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
        depths = sizes.depths
        decoder = sizes.decoder
        if (len(widths), len(depths), len(decoder)) != (5, 4, 5):
            raise ValueError(
                "A U-Net has five encoder widths, four depths and five decoder widths."
            )
        self.indices, inputs = tuple(map(tuple, indices)), bands + len(indices)
        first = nn.Conv2d(inputs, widths[0], 7, stride=2, padding=3, bias=False)
        stem = nn.Sequential(first, nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        # The first stage follows a pooling that halves already
        encoder = [nn.Sequential(
            Residual(widths[i], widths[i + 1], stride=1 if i == 0 else 2),
            *(Residual(widths[i + 1], widths[i + 1], stride=1) for _ in range(depths[i] - 1)),
        ) for i in range(4)]  # fmt: skip
        skips = [
            *reversed(widths[:4]),
            0,
        ]  # the finest decoder stage has no encoder stage of its size
        up = [Up(*sizes) for sizes in zip([widths[4], *decoder[:4]], skips, decoder, strict=True)]
        self.blocks = nn.ModuleList([stem, *encoder, *up])
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.head = nn.Conv2d(decoder[4], classes, 3, padding=1)
        for module in (
            self.modules()
        ):  # as He et al. (ICCV 2015), so that variances stay the same through the ReLUs
            if isinstance(module, nn.Conv2d) and module is not self.head:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.register_buffer("mean", torch.zeros(inputs, 1, 1))
        self.register_buffer("deviation", torch.ones(inputs, 1, 1))
        self.register_buffer("prior", torch.zeros(classes, 1, 1) if prior else None)

    def forward(self, image: Tensor) -> Tensor:
        """(B, bands, H, W) -> (B, classes, H, W); H and W are multiples of 32."""
        if self.indices:
            image = torch.cat([image, *(difference(image, *pair) for pair in self.indices)], 1)
        normal = (image - self.mean) / self.deviation
        stem, *encoder = self.blocks[:5]
        # Channels last: 12 % less time a step at full width on a CPU, 25 % at the small preset's
        x = torch.where(normal.isnan(), 0.0, normal).contiguous(memory_format=torch.channels_last)
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


def difference(image: Tensor, one: int, other: int) -> Tensor:
    """(..., bands, S, S) -> (..., 1, S, S): (a - b) / (|a| + |b|) of two bands, between -1 and 1; 0 where both are 0.

    For bands without negative values it is the usual normalised difference.
    """
    a = image[..., one : one + 1, :, :]
    b = image[..., other : other + 1, :, :]
    return (a - b) / (a.abs() + b.abs()).clamp_min(torch.finfo(image.dtype).tiny)


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside the identity, or a 1 x 1 convolution where the shape changes (He et al., figure 5).

    The shortcut takes every `stride`-th pixel and then convolves without a stride, which gives the same numbers:
    oneDNN's backward of a 1 x 1 convolution with a stride writes past its workspace where few channels lie last
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
    """A decoder stage: twice the size, joined with the encoder's stage of that size, two convolutions, scSE."""

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
        self.squeeze = nn.Conv2d(channels, max(1, channels // 2), 1)
        self.excite = nn.Conv2d(max(1, channels // 2), channels, 1)
        self.spatial = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        mean = x.mean((2, 3), keepdim=True)  # (B, C, 1, 1)
        channel = torch.sigmoid(self.excite(F.relu(self.squeeze(mean))))
        pixel = torch.sigmoid(self.spatial(x))  # (B, 1, H, W)
        return x * (channel + pixel)


def encoder(given: Mapping[str, Tensor], bands: Sequence[str]) -> tuple[dict[str, Tensor], str]:
    """Returns the weights of a published ResNet by the names of this encoder, its three colours matched to bands.

    They are of two 3 x 3 convolutions a block, as ResNet-18 and -34 have them; its classes are left out.
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
    """Returns the given weights with bands and classes in the new network's order, and a sentence that counts them.

    `fresh` are the new network's weights, of which the normalisation stays; `bands` and `classes` are names, (given,
    new). Raises BadInput if names and shapes do not fit, or no band is matched.
    """
    for name, axis, names, what in (
        (FIRST, 1, bands[0], "bands"),
        (HEAD[0], 0, classes[0], "classes"),
    ):
        if name not in given:
            raise BadInput(
                f"The initial weights have no tensor {name}: they are not those of this U-Net."
            )
        if given[name].shape[axis] != len(names):
            how = f"named for them: {', '.join(names)}. Name those that they were trained on, in their order."
            raise BadInput(
                f"The initial weights have {given[name].shape[axis]} {what}, and {len(names)} are {how}"
            )
    filters, message = carry_bands(given[FIRST], *bands)
    carried = {name: value for name, value in given.items() if not name.startswith(STATISTICS)} | {
        FIRST: filters
    }
    carried |= {name: value for name, value in fresh.items() if name.startswith(STATISTICS)}
    for name in HEAD:  # a class that the given weights lack stays as initialised
        rows = [given[name][classes[0].index(cls)] if cls in classes[0] else fresh[name][k]
                for k, cls in enumerate(classes[1])]  # fmt: skip
        carried[name] = torch.stack([row.to(fresh[name]) for row in rows])
    new = [name for name in classes[1] if name not in classes[0]]
    total = len(classes[1])
    return (
        carried,
        f"{message} Head: {total - len(new)} of {total} classes by name, new: {', '.join(new) or 'none'}.",
    )


def carry_bands(weight: Tensor, source: Sequence[str], target: Sequence[str]) -> tuple[Tensor, str]:
    """(filters, source bands, h, w) -> (filters, target bands, h, w): the rule for the first convolution.

    A band takes the filters of the band of its name, and one that the source lacks takes their mean over all source
    bands. Then all are multiplied by one factor that keeps the sum of squares, and with it the running statistics of
    the batch norm behind. One factor for all: a filter that looked at missing bands alone would be blown up to noise.
    """
    new = [name for name in target if name not in source]
    unused = [name for name in source if name not in target]
    matched = f"First convolution: {len(target) - len(new)} of {len(target)} bands by name"
    if len(new) == len(target):
        how = f"and this run has {', '.join(target)}. Write the same names for the same parts of the spectrum."
        raise BadInput(
            f"No band of the initial weights is among this run's: they saw {', '.join(source)}, {how}"
        )
    if list(source) == list(target):
        return weight, f"{matched}."
    mean = weight.mean(1)
    carried = torch.stack(
        [weight[:, source.index(name)] if name in source else mean for name in target], 1
    )
    factor = (weight.square().sum() / carried.square().sum()).sqrt()
    names = (
        f"the mean of all for: {', '.join(new) or 'none'}, left out: {', '.join(unused) or 'none'}"
    )
    return carried * factor, f"{matched}, {names}; filters multiplied by {float(factor):.3f}."
