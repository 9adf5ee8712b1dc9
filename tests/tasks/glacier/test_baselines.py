"""The per-pixel baseline: bounded, reproducible, and blind to whatever is ignored."""

import numpy as np
import pytest

from lib.errors import BadInput
from lib.scores import IGNORE
from lib.tasks.glacier.baselines import PixelBaseline

SMALL = {"pixels": 1500, "rounds": 10}


class Tiles:
    """Endless tiles whose class is written in their bands, under noise; notes which ones are read."""

    def __init__(self, count, classes=3, size=24, noise=0.4):
        self.count, self.classes, self.size, self.noise, self.read = count, classes, size, noise, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.read.append(index)
        rng = np.random.default_rng(index)
        mask = rng.choice(self.classes, (self.size, self.size)).astype(np.uint8)
        bands = np.stack([mask == k for k in range(self.classes)]) + self.noise * rng.standard_normal(
            (self.classes, self.size, self.size)
        )
        mask[:3] = IGNORE
        return bands.astype(np.float32), mask


def fitted(tiles, seed=0, **more):
    return PixelBaseline(3, seed, **{**SMALL, **more}).fit(tiles)


def test_it_finds_what_a_single_pixel_shows():
    scores = fitted(Tiles(5)).score(Tiles(8)[i] for i in (6, 7)).scores("abc")
    assert scores["mcc"] > 0.75
    # the Bayes rule of this noise, the largest of the bands, is the most that one pixel can give
    best = [np.mean(bands.argmax(0)[3:] == mask[3:]) for bands, mask in (Tiles(8)[6], Tiles(8)[7])]
    assert scores["accuracy"] < np.mean(best) + 0.01


def test_the_same_seed_gives_the_same_masks_and_another_one_another_sample():
    tile, _ = Tiles(9)[8]
    first, again, other = (fitted(Tiles(5), seed).predict(tile) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_the_sample_is_bounded_in_pixels_and_tiles():
    tiles = Tiles(50)
    features, labels = PixelBaseline(3, 0, pixels=1000, tiles=7)._sample(tiles)
    assert features.shape == (1000, 3) and labels.shape == (1000,) and features.dtype == np.float32
    assert len(tiles.read) == len(set(tiles.read)) == 7


def test_a_sample_of_everything_holds_every_valid_pixel_once():
    tiles = Tiles(3)
    features, labels = PixelBaseline(3, 0, pixels=10**6)._sample(tiles)
    assert len(labels) == 3 * 21 * 24 and IGNORE not in labels
    want = np.concatenate([tiles[i][0].reshape(3, -1)[:, 3 * 24 :].T for i in range(3)])
    assert (features == want).all()


def test_every_valid_pixel_is_scored_and_no_ignored_one():
    counts = fitted(Tiles(3)).score([Tiles(9)[8]])
    assert counts.matrix.sum() == 21 * 24


def test_missing_values_in_a_band_are_borne():
    bands, mask = Tiles(9)[8]
    bands[1, ::2] = np.nan
    assert fitted([(bands, mask)]).predict(bands).shape == (24, 24)


def test_a_training_split_of_one_class_predicts_it():
    bands, mask = Tiles(1)[0]
    mask[mask != IGNORE] = 2
    assert (fitted([(bands, mask)]).predict(bands) == 2).all()


def test_no_valid_pixel_at_all_is_said():
    bands, mask = Tiles(1)[0]
    for nothing in ([(bands, np.full_like(mask, IGNORE))], []):
        with pytest.raises(BadInput, match="no valid labelled pixel"):
            fitted(nothing)


def test_indices_of_bands_are_features_of_sample_and_prediction():
    """Two classes that differ in the ratio of two bands alone, whatever the light."""

    def tile(seed):
        rng = np.random.default_rng(seed)
        mask = rng.choice(2, (24, 24)).astype(np.uint8)
        light = rng.uniform(1, 1000, mask.shape)
        return np.stack([light, light * np.where(mask, 1.02, 0.98)]).astype(np.float32), mask

    few = {"pixels": 500, "rounds": 5}
    plain = PixelBaseline(2, 0, **few).fit([tile(0)]).score([tile(1)]).scores("ab")
    with_index = PixelBaseline(2, 0, **few, indices=[(0, 1)]).fit([tile(0)]).score([tile(1)]).scores("ab")
    assert with_index["accuracy"] == 1.0 > plain["accuracy"] + 0.05
