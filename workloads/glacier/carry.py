"""Weights of a network with other bands or classes, brought into the shapes of a new one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lib.errors import BadInput

FIRST, HEAD = "blocks.0.0.weight", ("head.weight", "head.bias")  # names in `model.UNet`


def carry(
    given: Mapping[str, Tensor], fresh: Mapping[str, Tensor],
    bands: tuple[Sequence[str], Sequence[str]], classes: tuple[Sequence[str], Sequence[str]],
) -> tuple[dict[str, Tensor], str]:  # fmt: skip
    """Returns the given weights with bands and classes in the new network's order, and a sentence that counts them.

    `fresh` are the weights that the new network was initialised with; `bands` and `classes` are names, (of the given
    weights, of the new network). Raises BadInput if names and shapes do not fit, or no band is matched.
    """
    for name, axis, names, what in ((FIRST, 1, bands[0], "bands"), (HEAD[0], 0, classes[0], "classes")):
        if name not in given:
            raise BadInput(f"The initial weights have no tensor {name}: they are not those of this U-Net.")
        if given[name].shape[axis] != len(names):
            raise BadInput(
                f"The initial weights have {given[name].shape[axis]} {what}, and {len(names)} are named for them: "
                f"{_listed(names)}. Name those that they were trained on, in their order."
            )
    filters, message = carry_bands(given[FIRST], *bands)
    carried = {**given, FIRST: filters}
    for name in HEAD:  # a class that the given weights lack stays as initialised
        rows = [given[name][classes[0].index(cls)] if cls in classes[0] else fresh[name][k]
                for k, cls in enumerate(classes[1])]  # fmt: skip
        carried[name] = torch.stack([row.to(fresh[name]) for row in rows])
    new = [name for name in classes[1] if name not in classes[0]]
    total = len(classes[1])
    return carried, f"{message} Head: {total - len(new)} of {total} classes by name, new: {_listed(new)}."


def carry_bands(weight: Tensor, source: Sequence[str], target: Sequence[str]) -> tuple[Tensor, str]:
    """(filters, source bands, h, w) -> (filters, target bands, h, w): the rule for the first convolution.

    A band takes the filters of the band of its name, and one that the source lacks takes their mean over all source
    bands: neighbouring bands are alike, so the mean looks for the same edges and textures. Then all are multiplied by
    one factor that keeps the sum of squares, and with it, for standardised bands, the expected square of the response:
    the running statistics of the batch norm behind stay those of its input. One factor for all filters, because a
    filter that looked at missing bands alone would be blown up to noise by a factor of its own.
    """
    without = [name for name in target if name not in source]
    matched = f"First convolution: {len(target) - len(without)} of {len(target)} bands by name"
    if len(without) == len(target):
        raise BadInput(
            f"No band of the initial weights is among those of this run: they saw {_listed(source)}, and this run has "
            f"{_listed(target)}. Write the same names for the same parts of the spectrum."
        )
    if list(source) == list(target):
        return weight, f"{matched}."
    mean = weight.mean(1)
    carried = torch.stack([weight[:, source.index(name)] if name in source else mean for name in target], 1)
    factor = (weight.square().sum() / carried.square().sum()).sqrt()
    return carried * factor, (
        f"{matched}, the mean of all for: {_listed(without)}, left out: "
        f"{_listed([name for name in source if name not in target])}; filters multiplied by {float(factor):.3f}."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
