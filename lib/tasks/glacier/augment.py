"""Flips, quarter turns and noise of the bands, all drawn from the generator that is handed in."""

import torch
from torch import Tensor

from lib.tasks.glacier.settings import Augmentation


def augment(
    image: Tensor, target: Tensor, deviation: Tensor, options: Augmentation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Changes (bands, S, S) and (S, S) in the same way. NaN stays NaN. `deviation` is (bands).

    The draws are the same in number whatever is switched off, so that one switch leaves the others' draws alone.
    """
    mirrored, turns = torch.randint(2, (), generator=generator), torch.randint(4, (), generator=generator)
    gain, offset = torch.randn(2, len(image), 1, 1, generator=generator)
    if options.flips and mirrored:
        image, target = image.flip(2), target.flip(1)
    if options.rotations and turns:
        image, target = image.rot90(int(turns), (1, 2)), target.rot90(int(turns), (0, 1))
    if options.band_noise:
        shift = options.band_noise * deviation.view(-1, 1, 1) * offset
        image = torch.addcmul(shift, image, 1 + options.band_noise * gain)  # in one pass over the pixels
    return image, target


def view(image: Tensor, number: int) -> Tensor:
    """(..., S, S) -> the same: applies flip and quarter turn `number` of 8 to the last two dimensions."""
    mirrored = image.flip(-1) if number >= 4 else image
    return mirrored.rot90(number % 4, (-2, -1))


def undo(image: Tensor, number: int) -> Tensor:
    """(..., S, S) -> the same: takes back what `view` did."""
    turned = image.rot90(-(number % 4), (-2, -1))
    return turned.flip(-1) if number >= 4 else turned
