"""A U-Net around an encoder of timm, such as resnet50 or convnext_tiny.

timm is in Kaggle's image, and needs torchvision. It is imported when such an encoder is chosen.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from workloads.glacier.carry import ENCODER
from workloads.glacier.model import STRIDE, Up, normalised
from workloads.glacier.settings import Model


class TimmNet(nn.Module):
    """The decoder of `model.UNet` behind features of timm's, with the normalisation of `model.Net`.

    An encoder may halve the size five times, as a ResNet does, or less often at once, as one of patches does: a stage
    of the decoder whose size no feature has does without. Raises BadInput where timm is missing or has no such encoder.
    """

    def __init__(
        self, bands: int, classes: int, sizes: Model, indices: Sequence[tuple[int, int]] = (), prior: bool = False
    ):
        super().__init__()
        inputs = bands + len(indices)
        self.encoder = features_of(sizes.encoder, inputs)
        channels = dict(zip(self.encoder.feature_info.reduction(), self.encoder.feature_info.channels(), strict=True))
        deepest = max(channels)
        if deepest > STRIDE or deepest & (deepest - 1):
            raise BadInput(
                f"{sizes.encoder} reduces tiles {deepest} times, and this U-Net takes encoders that do so by a power "
                f"of two, at most {STRIDE}. Choose another workload.model.encoder."
            )
        self.first = ENCODER + first_convolution(self.encoder, inputs)
        self.reductions = [deepest >> step for step in range(1, deepest.bit_length())]  # of the decoder's stages
        widths = sizes.decoder[-len(self.reductions) :]
        into = [channels[deepest], *widths[:-1]]
        skips = [channels.get(reduction, 0) for reduction in self.reductions]
        self.blocks = nn.ModuleList(Up(*three) for three in zip(into, skips, widths, strict=True))
        self.head = nn.Conv2d(widths[-1], classes, 3, padding=1)
        self.indices = tuple(map(tuple, indices))
        self.register_buffer("mean", torch.zeros(inputs, 1, 1))
        self.register_buffer("deviation", torch.ones(inputs, 1, 1))
        self.register_buffer("prior", torch.zeros(classes, 1, 1) if prior else None)

    def forward(self, image: Tensor) -> Tensor:
        """(B, bands, S, S) -> (B, classes, S, S). No data becomes the mean of its band."""
        found = self.encoder(normalised(self, image))
        by_size = dict(zip(self.encoder.feature_info.reduction(), found, strict=True))
        x = by_size[max(by_size)]
        for up, reduction in zip(self.blocks, self.reductions, strict=True):
            x = up(x, by_size.get(reduction))
        logits = self.head(x)
        return logits if self.training or self.prior is None else logits + self.prior


def features_of(name: str, inputs: int) -> Any:
    """Returns an encoder of timm with fresh weights that hands out its features. Raises BadInput."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: by a torchvision of another PyTorch
        raise BadInput(
            f"workload.model.encoder is {name}, which is one of timm's, and timm cannot be imported ({error}). It is "
            "in Kaggle's image; elsewhere: pip install timm, with the torchvision that fits your PyTorch. Or leave the "
            "key empty: then the own U-Net trains."
        ) from None
    try:
        return timm.create_model(name, pretrained=False, features_only=True, in_chans=inputs)
    except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
        near = ", ".join(timm.list_models(f"*{name[:6]}*")[:5]) or "timm.list_models() has them"
        raise BadInput(
            f"timm {timm.__version__} makes no encoder of features out of {name!r} ({error}). Correct "
            f"workload.model.encoder; there are: {near}."
        ) from None


def first_convolution(encoder: nn.Module, inputs: int) -> str:
    """Returns the name of the weight of the convolution that sees the bands. Raises BadInput where none does."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Conv2d):
            if module.in_channels == inputs:
                return f"{name}.weight"
            break
    raise BadInput("This encoder does not begin with a convolution of bands. Choose another workload.model.encoder.")
