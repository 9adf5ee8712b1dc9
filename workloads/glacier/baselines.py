"""Baselines of the network: gradient boosting on pixels, alone or with their surroundings, out of a bounded sample."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lib.errors import BadInput
from lib.scores import IGNORE, Confusion
from workloads.glacier.judging import tile_counts
from workloads.glacier.model import difference

Tile = tuple[Any, ...]  # begins with bands (C, H, W) floats and mask (H, W) integers or IGNORE

SIDES = (5, 15)  # pixels of the squares around a pixel whose means it sees
# Pairs of bands by their names: water, snow and water, plants, and two that tell lakes from shadow
_USUAL = (("green", "nir"), ("green", "swir1"), ("nir", "red"), ("blue", "red"), ("red", "swir1"))
_EVERY = 2  # pixel of the sample is learnt from where surroundings are seen too, which are three times the numbers
_MOST_TILES, _MOST_PIXELS = 400, 2_000_000  # that are scored, so that the time has a bound whatever the data


@dataclass(frozen=True)
class Method:
    """One of the baselines; `sides` are those of the squares that it sees the means of."""

    name: str
    sides: tuple[int, ...] = ()
    balanced: bool = False  # whether every class counts alike, however rare


METHODS = (
    Method("boosting of pixels"),
    Method("boosting with surroundings", SIDES),
    Method("balanced boosting with surroundings", SIDES, balanced=True),
)


class PixelBaseline:
    """Histogram gradient boosting (LightGBM, Ke et al., NeurIPS 2017, as scikit-learn has it) of pixels.

    It sees the bands of one pixel, the differences of `indices`, and the means of both over squares of `sides` pixels.
    Fitted on at most `pixels` valid pixels out of at most `tiles` training tiles, so that memory and time have a bound
    whatever the data: 9 bytes a pixel and feature or so, and `rounds` trees a class. A function of the tiles, the
    settings and the seed.
    """

    def __init__(
        self,
        classes: int,
        seed: int,
        pixels: int = 200_000,
        tiles: int = 400,
        rounds: int = 100,
        indices: Sequence[tuple[int, int]] = (),
        sides: Sequence[int] = (),
        balanced: bool = False,
    ):
        """`indices` are pairs of bands whose normalised differences are features too."""
        self.indices, self.sides, self.balanced = indices, sides, balanced
        self.classes, self.seed, self.pixels, self.tiles, self.rounds = classes, seed, pixels, tiles, rounds
        self._model: Any = None
        self._only: int | None = None  # the class, where the sample has but one

    def fit(self, tiles: Sequence[Tile]) -> "PixelBaseline":
        """Fits on a sequence that is read tile by tile. Raises BadInput where no pixel is valid."""
        return self.fit_on(*self._sample(tiles))

    def fit_on(self, features: np.ndarray, labels: np.ndarray) -> "PixelBaseline":
        """Fits on (N, features) and (N) classes. Raises BadInput where there are none."""
        # Imported here: it takes a second that only a run's last minute needs
        from sklearn.ensemble import HistGradientBoostingClassifier

        if labels.size == 0:
            raise BadInput("The per-pixel baseline found no valid labelled pixel in the training tiles.")
        classes = np.unique(labels)
        self._only = int(classes[0]) if classes.size == 1 else None
        if self._only is None:
            # No early stopping: it would hold pixels out, and neighbours of theirs would be trained on
            model = HistGradientBoostingClassifier(
                max_iter=self.rounds, early_stopping=False, random_state=self.seed % 2**32,
                class_weight="balanced" if self.balanced else None,
            )  # fmt: skip
            self._model = model.fit(features, labels)
        return self

    def _sample(self, tiles: Sequence[Tile]) -> tuple[np.ndarray, np.ndarray]:
        """Draws (N, features) float32 and (N) classes: as many valid pixels of each tile, whatever their class."""
        rng = np.random.default_rng(self.seed)
        chosen = rng.permutation(len(tiles))[: self.tiles]
        quota = -(-self.pixels // max(1, len(chosen)))
        features, labels = [], []
        for index in sorted(chosen):
            bands, mask = tiles[int(index)][:2]
            valid = np.flatnonzero(mask.reshape(-1) != IGNORE)
            valid = np.sort(rng.permutation(valid)[:quota])
            features.append(self.features(bands)[valid])
            labels.append(mask.reshape(-1)[valid])
        if not features:
            return np.empty((0, 0), np.float32), np.empty(0, np.uint8)
        return np.concatenate(features)[: self.pixels], np.concatenate(labels)[: self.pixels]

    def features(self, bands: np.ndarray) -> np.ndarray:
        """(C, H, W) -> (H * W, features) float32: bands, indices, and their means over each square."""
        image = torch.from_numpy(np.ascontiguousarray(bands, np.float32))
        own = torch.cat([image, *(difference(image, *pair) for pair in self.indices)]).numpy()
        planes = np.concatenate([own, *(surroundings(own, side) for side in self.sides)])
        return planes.reshape(len(planes), -1).T

    def predict(self, bands: np.ndarray) -> np.ndarray:
        """(C, H, W) -> (H, W) uint8. NaN in a band counts as missing."""
        return self.classify(self.features(bands)).reshape(bands.shape[1:])

    def classify(self, features: np.ndarray) -> np.ndarray:
        """(N, features) -> (N) uint8."""
        if self._only is not None:
            return np.full(len(features), self._only, np.uint8)
        if self._model is None:
            raise RuntimeError("PixelBaseline.predict was called before fit.")
        return self._model.predict(features).astype(np.uint8)

    def score(self, tiles: Iterable[Tile]) -> Confusion:
        """Counts the confusion matrix over all valid pixels of tiles that it was not fitted on."""
        counts = Confusion(self.classes)
        for bands, mask, *_ in tiles:
            counts.add(torch.from_numpy(self.predict(bands)), torch.from_numpy(np.ascontiguousarray(mask)))
        return counts


def surroundings(planes: np.ndarray, side: int) -> np.ndarray:
    """(C, H, W) -> the same: the mean over the square around each pixel, of what is there; NaN where nothing is."""
    from scipy.ndimage import uniform_filter

    square = {"size": (1, side, side), "mode": "constant"}
    known = ~np.isnan(planes)
    total = uniform_filter(np.where(known, planes, 0), **square)
    number = uniform_filter(known.astype(np.float32), **square)
    return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0.5 / side**2)


def usual_indices(bands: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Returns the places of the usual pairs of bands of which both are there by their names."""
    return tuple((bands.index(a), bands.index(b)) for a, b in _USUAL if a in bands and b in bands)


def scored(part: Sequence[Tile]) -> np.ndarray:
    """Returns the numbers of the tiles of a part on which baselines are scored: all, or so many evenly out of them."""
    return np.unique(np.linspace(0, len(part) - 1, min(len(part), _MOST_TILES)).round().astype(np.int64))


def compared(
    train: Sequence[Tile],
    part: Sequence[Tile],
    classes: int,
    seed: int,
    indices: Sequence[tuple[int, int]],
    **bounds: int,
) -> dict[str, np.ndarray]:
    """Fits each of METHODS on training tiles; returns (tiles of `scored`, classes, classes) counts of it by its name.

    `bounds` are those of `PixelBaseline`. Raises BadInput where no pixel of the training is valid.
    """
    made = [
        PixelBaseline(classes, seed, indices=indices, sides=method.sides, balanced=method.balanced, **bounds)
        for method in METHODS
    ]
    widest = max(made, key=lambda one: len(one.sides))
    features, labels = widest._sample(train)
    own = features.shape[-1] // (1 + len(widest.sides))  # bands and indices, which come first
    widths = [own * (1 + len(one.sides)) for one in made]
    for one, width in zip(made, widths, strict=True):
        some = slice(None, None, _EVERY if one.sides else 1)
        one.fit_on(features[some, :width], labels[some])
    found: list[list[np.ndarray]] = [[] for _ in made]
    for pixels, truth in _scored_pixels(part, widest):
        for counts, one, width in zip(found, made, widths, strict=True):
            guess = torch.from_numpy(one.classify(pixels[:, :width]))
            counts.append(tile_counts(guess[None], torch.from_numpy(truth)[None], classes).numpy())
    return {method.name: np.concatenate(counts) for method, counts in zip(METHODS, found, strict=True)}


def _scored_pixels(part: Sequence[Tile], widest: PixelBaseline) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (N, features) and (N) classes of the valid pixels of each tile that is scored; of very many an even share.

    A share that is the same in every tile leaves scores over all of them what they are, but for chance.
    """
    numbers, rng = scored(part), np.random.default_rng(widest.seed)
    for index in numbers:
        bands, mask = part[int(index)][:2]
        share = min(1.0, _MOST_PIXELS / (len(numbers) * mask.size))
        keep = mask.reshape(-1) != IGNORE
        if share < 1:
            keep &= rng.random(keep.size) < share
        yield widest.features(bands)[keep], mask.reshape(-1)[keep]
