"""Weights of a network with other bands or classes, brought into the shapes of a new one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lib.errors import BadInput

FIRST, HEAD = "blocks.0.0.weight", ("head.weight", "head.bias")  # names in `model.UNet`
ENCODER = "encoder."  # what names of a published encoder begin with in `encoders.TimmNet`
_PHOTO = ("red", "green", "blue")  # what published encoders see unless `workload.initial.bands` says otherwise
_LEAST_SHARE = 0.9  # of an encoder's tensors


def carry(
    given: Mapping[str, Tensor],
    fresh: Mapping[str, Tensor],
    bands: tuple[Sequence[str], Sequence[str]],
    classes: tuple[Sequence[str], Sequence[str]],
    first: str = FIRST,
) -> tuple[dict[str, Tensor], str]:
    """Returns the given weights with bands and classes in the new network's order, and a sentence that counts them.

    `fresh` are the weights that the new network was initialised with; `bands` and `classes` are names, (of the given
    weights, of the new network); `first` is the name of the first convolution's weight. Raises BadInput where names and
    shapes do not fit, or no band is matched.
    """
    _check(given, first, 1, bands[0], "bands")
    _check(given, HEAD[0], 0, classes[0], "classes")
    filters, message = carry_bands(given[first], *bands)
    carried = {**given, first: filters}
    for name in HEAD:
        rows = [
            given[name][classes[0].index(cls)] if cls in classes[0] else fresh[name][k]
            for k, cls in enumerate(classes[1])
        ]  # a class that the given weights lack stays as initialised
        carried[name] = torch.stack([row.to(fresh[name]) for row in rows])
    old = [name for name in classes[1] if name in classes[0]]
    new = [name for name in classes[1] if name not in classes[0]]
    message += f" Head: {len(old)} of {len(classes[1])} classes by name, new: {_listed(new)}."
    return carried, message


def carry_encoder(
    given: Mapping[str, Tensor], fresh: Mapping[str, Tensor], first: str, seen: Sequence[str], bands: Sequence[str]
) -> tuple[dict[str, Tensor], str]:
    """Returns `fresh` with the published weights of its encoder, and a sentence that counts them.

    Names are matched without regard to dots and underscores, because timm joins some with underscores where it hands
    out features. `seen` are the bands of the given weights, three of a photo if none are named. The first convolution
    follows `carry_bands`; where no band has a name that they saw, each takes the mean. Raises BadInput where less than
    90 % of the encoder's tensors match.
    """
    by_name = {name.replace(".", "_"): value for name, value in given.items()}
    wanted = [name for name in fresh if name.startswith(ENCODER)]
    found = {name: by_name.get(name.removeprefix(ENCODER).replace(".", "_")) for name in wanted}
    carried, message = dict(fresh), ""
    filters = found[first]
    if filters is not None:
        seen = seen or _PHOTO
        if filters.shape[1] != len(seen):
            raise BadInput(
                f"The first convolution of the initial weights sees {filters.shape[1]} bands, and {len(seen)} are "
                f"named for it: {_listed(seen)}. Name them all in workload.initial.bands, in their order."
            )
        if set(seen) & set(bands):
            carried[first], message = carry_bands(filters, seen, bands)
        else:
            mean = filters.mean(1, keepdim=True).expand(-1, len(bands), -1, -1)
            carried[first] = mean * (filters.square().sum() / mean.square().sum()).sqrt()
            message = f"First convolution: no band is called {_listed(seen)}, so each takes the mean of their filters."
    matched = [name for name in wanted if found[name] is not None and found[name].shape == fresh[name].shape]
    carried |= {name: found[name] for name in matched if name != first}
    number = len({*matched, *([first] if filters is not None else [])})
    if number < _LEAST_SHARE * len(wanted):
        raise BadInput(
            f"The initial weights fit {number} of {len(wanted)} tensors of the encoder: they are those of another one. "
            "Name theirs in workload.model.encoder."
        )
    return carried, f"Encoder: {number} of {len(wanted)} tensors. {message}"


def carry_bands(weight: Tensor, source: Sequence[str], target: Sequence[str]) -> tuple[Tensor, str]:
    """(filters, source bands, h, w) -> (filters, target bands, h, w): the rule for the first convolution.

    A band takes the filters of the band of its name, and one that the source lacks takes their mean over all source
    bands: neighbouring bands are alike, so the mean looks for the same edges and textures. Then all are multiplied by
    one factor that keeps the sum of squares, and with it, for standardised bands, the expected square of the response:
    the running statistics of the batch norm behind stay those of its input. One factor for all filters, because a
    filter that looked at missing bands alone would be blown up to noise by a factor of its own.
    """
    matched = [name for name in target if name in source]
    if not matched:
        raise BadInput(
            f"No band of the initial weights is among those of this run: they saw {_listed(source)}, and this run has "
            f"{_listed(target)}. Write the same names for the same parts of the spectrum."
        )
    if list(source) == list(target):
        return weight, f"First convolution: {len(matched)} of {len(target)} bands by name."
    mean = weight.mean(1)
    chosen = [weight[:, source.index(name)] if name in source else mean for name in target]
    carried = torch.stack(chosen, 1)
    factor = (weight.square().sum() / carried.square().sum()).sqrt()
    without = [name for name in target if name not in source]
    dropped = [name for name in source if name not in target]
    return carried * factor, (
        f"First convolution: {len(matched)} of {len(target)} bands by name, the mean of all for: {_listed(without)}, "
        f"left out: {_listed(dropped)}; filters multiplied by {float(factor):.3f}."
    )


def _check(given: Mapping[str, Tensor], name: str, axis: int, names: Sequence[str], what: str) -> None:
    if name not in given:
        raise BadInput(f"The initial weights have no tensor {name}: they are not those of this U-Net.")
    if given[name].shape[axis] != len(names):
        raise BadInput(
            f"The initial weights have {given[name].shape[axis]} {what}, and {len(names)} are named for them: "
            f"{_listed(names)}. Name those that they were trained on, in their order."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
