"""Crops, flips, quarter turns and noise of the bands, all drawn from the generator that is handed in."""

import torch
from torch import Tensor

ANYWHERE = -1  # in the place of a class
BAND_NOISE = 0.05  # deviation of a band's random gain and offset, in its own deviations


def augment(image: Tensor, target: Tensor, deviation: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Changes (bands, S, S) and (S, S) alike, NaN stays; `deviation` is (bands)."""
    mirrored, turns = torch.randint(2, (), generator=generator), torch.randint(4, (), generator=generator)
    gain, offset = torch.randn(2, len(image), 1, 1, generator=generator)
    if mirrored:
        image, target = image.flip(2), target.flip(1)
    if turns:
        image, target = image.rot90(int(turns), (1, 2)), target.rot90(int(turns), (0, 1))
    shift = BAND_NOISE * deviation.view(-1, 1, 1) * offset
    return torch.addcmul(shift, image, 1 + BAND_NOISE * gain), target  # in one pass over the pixels


def corner(target: Tensor, size: int, around: int, generator: torch.Generator) -> tuple[int, int]:
    """Draws where a crop begins in (S, S) classes: anywhere, or so that it shows a pixel of a class; by three draws."""
    pixel, down, across = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    rest = [length - size for length in target.shape]
    places = (target == around).nonzero() if around != ANYWHERE else target.new_empty(0)
    if not len(places):
        return int(down * (rest[0] + 1)), int(across * (rest[1] + 1))
    row, column = places[int(pixel * len(places))].tolist()
    top, left = row - int(down * size), column - int(across * size)
    return min(max(top, 0), rest[0]), min(max(left, 0), rest[1])
