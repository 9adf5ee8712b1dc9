"""What an epoch trains on: tiles towards wanted shares of classes, or crops, all changed at random."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from workloads.glacier.data.cutter import Store, Table
from workloads.glacier.settings import Sampling

ANYWHERE = -1  # in the place of a class
BAND_NOISE = 0.05  # deviation of a band's random gain and offset, in its own deviations
_LOOKED_AT, _OFTEN, _CODES = 50, 10, 20  # tiles that no-data values are looked for in, pixels, values of a band
# From a tilt that is hardly one (at 100 no weight is off by more than 1 %) to one that reaches what can be reached
_RIDGES = [10 ** (-k / 8) for k in range(-16, 73)]


def tile_weights(counts: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Returns (tiles) weights of mean 1, or None for an even draw; `counts` (tiles, classes) are valid pixels.

    They are as even as can be, and bring the shares of the classes to those wanted. The weights of largest entropy are
    exponential in the shares (Jaynes, 1957); a ridge on their coefficients bounds them. The smallest ridge is taken
    under which no weight is above `most_often`: shares that can be reached are reached, the others are approached.
    """
    if not sampling.target_shares:
        return None
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    # The convex dual: log of the mean of exp(shares c), minus goal c, plus the ridge; c (classes) are the coefficients
    def dual(c: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        return logsumexp(shares @ c) - goal @ c + ridge / 2 * c @ c, softmax(shares @ c) @ shares - goal + ridge * c

    def curvature(c: np.ndarray, ridge: float) -> np.ndarray:
        weight = softmax(shares @ c)
        centred = shares - weight @ shares
        return (centred * weight[:, None]).T @ centred + ridge * np.eye(len(c))

    shares = counts / counts.sum(1, keepdims=True)
    present = shares.any(0)  # no weight moves the share of a class that no tile has
    shares, goal = shares[:, present], np.asarray(sampling.target_shares, np.float64)[present]
    coefficients, best = np.zeros(len(goal)), np.ones(len(shares))
    for ridge in _RIDGES:
        # Out of reach coefficients grow as 1 / ridge, and steps are bounded by the radius, 1,000 unless it is given
        how = {"method": "trust-exact", "options": {"gtol": 1e-10, "max_trust_radius": 1e12}}
        coefficients = minimize(dual, coefficients, (ridge,), jac=True, hess=curvature, **how).x
        weight = softmax(shares @ coefficients) * len(shares)
        if weight.max() > sampling.most_often:
            break
        best = weight
    return None if np.allclose(best, 1) else best / best.mean()


def reached(counts: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Returns (classes) shares of the valid pixels, drawn with these (tiles) weights, else evenly."""
    drawn = counts if weight is None else counts * weight[:, None]
    return drawn.sum(0) / drawn.sum()


class Draws(NamedTuple):
    """What an epoch draws from: each tile for a crop anywhere, and once more for each rare class that it shows.

    All of these stand there as many times as it takes for an epoch to show about as many pixels as its tiles have.
    """

    tiles: np.ndarray
    classes: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, weights: np.ndarray | None, centred: Mapping[int, float], size: int) -> "Draws":
        """`counts` (tiles, classes) are pixels, `weights` (tiles) of crops anywhere, `centred` shares by class."""
        around = [(tile, k) for k in sorted(centred) for tile in np.flatnonzero(counts[:, k])]
        tiles = np.array([*range(len(counts)), *(tile for tile, _ in around)])
        classes = np.array([ANYWHERE] * len(counts) + [k for _, k in around])
        even = np.ones(len(counts)) if weights is None else weights
        shown = {k: share for k, share in centred.items() if counts[:, k].any()}
        parts = [even / even.sum() * (1 - sum(shown.values()))]
        # of a class every pixel is as likely, so a tile comes as often as it has pixels of it
        parts += [shown[k] * counts[counts[:, k] > 0, k] / counts[:, k].sum() for k in sorted(shown)]
        times = max(1, round(float(counts.sum()) / size**2 / len(tiles)))
        return cls(*(np.tile(column, times) for column in (tiles, classes, np.concatenate(parts) * len(tiles))))


def once(table: Table, chosen: np.ndarray, size: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Returns tiles that together show each pixel of the chosen ones, and which pixels of a tile are new.

    Tiles side by side come first. The second value holds (S * S / 8) bits by index, for tiles that overlap earlier
    ones. Metrics must not count a pixel twice.
    """
    new_in: dict[int, np.ndarray] = {}
    needed, corners = [], table.corner[chosen]
    off_grid = (corners % size).any(1)  # the grid of tiles that do not overlap
    order = chosen[np.lexsort((corners[:, 1], corners[:, 0], off_grid, table.scene[chosen]))]
    for scene, tiles in itertools.groupby(order, key=lambda index: table.scene[index]):
        covered = np.zeros(table.corner[table.scene == scene].max(0) + size, bool)
        for index in tiles:
            row, column = table.corner[index]
            window = covered[row : row + size, column : column + size]
            if not window.all():
                needed.append(index)
                new_in |= {int(index): np.packbits(~window)} if window.any() else {}
                window[:] = True
    return np.array(needed, dtype=chosen.dtype), new_in


def tile_statistics(table: Table, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges the moments of the chosen tiles (Chan, Golub and LeVeque, 1983, equation 2.1): (bands) mean, deviation."""
    valid = table.valid[chosen].astype(np.float64)[:, None]  # (n, 1)
    total = max(valid.sum(), 1.0)
    mean = (valid * table.mean[chosen]).sum(0) / total
    variance = (table.squares[chosen] + (valid * (table.mean[chosen] - mean) ** 2)).sum(0) / total
    return mean, np.where(variance > 0, np.sqrt(variance), 1.0)


def unnamed_nodata(store: Store, bands: Sequence[str]) -> list[str]:
    """Returns a sentence on each band whose least value comes often and far below all others, such as -9999."""
    numbers = np.unique(np.linspace(0, len(store) - 1, min(len(store), _LOOKED_AT)).round().astype(int)).tolist()
    tiles, lines = np.stack([store.read(number)[0] for number in numbers], 1), []
    for name, plane in zip(bands, tiles, strict=True):
        values, counts = np.unique(plane[~np.isnan(plane)], return_counts=True)
        # A band of a few codes has gaps, too
        if len(values) > _CODES and counts[0] >= _OFTEN and values[1] - values[0] > (values[-1] - values[1]) / 2:
            share, how = counts[0] / counts.sum(), f"set workload.source.nodata: [{values[0]:g}]"
            what = f"of the pixels of the band {name} are {values[0]:g}, far below all others"
            lines.append(f"Warning: {share:.1%} {what}. If that means no data, {how}.")
    return lines


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
