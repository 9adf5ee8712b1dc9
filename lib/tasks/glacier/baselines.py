"""The baseline of the network: gradient boosting on the spectra of single pixels, out of a bounded sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from lib.errors import BadInput
from lib.scores import IGNORE, Confusion
from lib.tasks.glacier.model import difference

Tile = tuple[Any, ...]  # begins with bands (C, H, W) floats and mask (H, W) integers or IGNORE


class PixelBaseline:
    """Histogram gradient boosting (LightGBM, Ke et al., NeurIPS 2017, as scikit-learn has it) of single pixels.

    It sees the bands of one pixel and no neighbours. Fitted on at most `pixels` valid pixels out of at most `tiles`
    training tiles, so that memory and time have a bound whatever the data: 9 bytes a pixel and band or so, and
    `rounds` trees a class. A function of the tiles, the settings and the seed.
    """

    def __init__(
        self,
        classes: int,
        seed: int,
        pixels: int = 200_000,
        tiles: int = 400,
        rounds: int = 100,
        indices: Sequence[tuple[int, int]] = (),
    ):
        """`indices` are pairs of bands whose normalised differences are features too."""
        self.indices = indices
        self.classes, self.seed, self.pixels, self.tiles, self.rounds = classes, seed, pixels, tiles, rounds
        self._model: Any = None
        self._only: int | None = None  # the class, where the sample has but one

    def fit(self, tiles: Sequence[Tile]) -> "PixelBaseline":
        """Fits on a sequence that is read tile by tile. Raises BadInput where no pixel is valid."""
        # Imported here: it takes a second that only a run's last minute needs
        from sklearn.ensemble import HistGradientBoostingClassifier

        features, labels = self._sample(tiles)
        if labels.size == 0:
            raise BadInput("The per-pixel baseline found no valid labelled pixel in the training tiles.")
        classes = np.unique(labels)
        self._only = int(classes[0]) if classes.size == 1 else None
        if self._only is None:
            # No early stopping: it would hold pixels out, and neighbours of theirs would be trained on
            model = HistGradientBoostingClassifier(
                max_iter=self.rounds, early_stopping=False, random_state=self.seed % 2**32
            )
            self._model = model.fit(features, labels)
        return self

    def _sample(self, tiles: Sequence[Tile]) -> tuple[np.ndarray, np.ndarray]:
        """Draws (N, C) float32 and (N) classes: as many valid pixels from each drawn tile, whatever their class."""
        rng = np.random.default_rng(self.seed)
        chosen = rng.permutation(len(tiles))[: self.tiles]
        quota = -(-self.pixels // max(1, len(chosen)))
        features, labels = [], []
        for index in sorted(chosen):
            bands, mask = tiles[int(index)][:2]
            bands = self._features(bands)
            valid = np.flatnonzero(mask.reshape(-1) != IGNORE)
            valid = np.sort(rng.permutation(valid)[:quota])
            features.append(bands.reshape(len(bands), -1)[:, valid].T.astype(np.float32))
            labels.append(mask.reshape(-1)[valid])
        if not features:
            return np.empty((0, 0), np.float32), np.empty(0, np.uint8)
        return np.concatenate(features)[: self.pixels], np.concatenate(labels)[: self.pixels]

    def _features(self, bands: np.ndarray) -> np.ndarray:
        """(C, H, W) -> (C and indices, H, W)."""
        if not self.indices:
            return bands
        image = torch.from_numpy(bands.astype(np.float32))
        return torch.cat([image, *(difference(image, *pair) for pair in self.indices)]).numpy()

    def predict(self, bands: np.ndarray) -> np.ndarray:
        """(C, H, W) -> (H, W) uint8. NaN in a band counts as missing."""
        if self._only is not None:
            return np.full(bands.shape[1:], self._only, np.uint8)
        if self._model is None:
            raise RuntimeError("PixelBaseline.predict was called before fit.")
        bands = self._features(bands)
        flat = bands.reshape(len(bands), -1).T.astype(np.float32)
        return self._model.predict(flat).astype(np.uint8).reshape(bands.shape[1:])

    def score(self, tiles: Iterable[Tile]) -> Confusion:
        """Counts the confusion matrix over all valid pixels of tiles that it was not fitted on."""
        counts = Confusion(self.classes)
        for bands, mask, *_ in tiles:
            counts.add(torch.from_numpy(self.predict(bands)), torch.from_numpy(np.ascontiguousarray(mask)))
        return counts
