"""The per-pixel baseline: bounded, reproducible, and blind to whatever is ignored."""

import numpy as np
import pytest

from lib.errors import BadInput
from lib.scores import IGNORE, scores_of
from workloads.glacier import baselines
from workloads.glacier.baselines import compared, features, sample, scored, surroundings, usual_indices

METHODS = list(baselines.METHODS)
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


def plain(train, test, classes=3, indices=(), **more):
    """The counts of the first method: boosting of pixels."""
    return compared(train, test, classes, 0, indices, **{**SMALL, **more})[METHODS[0]].sum(0)


def test_it_finds_what_a_single_pixel_shows_and_scores_every_valid_pixel_and_no_ignored_one():
    counts = plain(Tiles(5), [Tiles(8)[i] for i in (6, 7)])
    assert counts.sum() == 2 * 21 * 24 and scores_of(counts, "abc")["mcc"] > 0.75
    # the Bayes rule of this noise, the largest of the bands, is the most that one pixel can give
    best = [np.mean(bands.argmax(0)[3:] == mask[3:]) for bands, mask in (Tiles(8)[6], Tiles(8)[7])]
    assert scores_of(counts, "abc")["accuracy"] < np.mean(best) + 0.01


def test_the_sample_is_bounded_in_pixels_and_tiles(monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_TILES", 7)
    tiles = Tiles(50)
    values, labels = sample(tiles, 0, 1000, features)
    assert values.shape == (1000, 3) and labels.shape == (1000,) and values.dtype == np.float32
    assert len(tiles.read) == len(set(tiles.read)) == 7
    values, labels = sample(Tiles(3), 0, 10**6, features)
    assert len(labels) == 3 * 21 * 24 and IGNORE not in labels
    assert (values == np.concatenate([Tiles(3)[i][0].reshape(3, -1)[:, 3 * 24 :].T for i in range(3)])).all()


def test_missing_values_and_one_class_are_scored_and_no_pixel_at_all_is_refused():
    bands, mask = Tiles(9)[8]
    bands[1, ::2] = np.nan
    assert plain([(bands, mask)], [(bands, mask)]).sum() == 21 * 24
    single = np.where(mask == IGNORE, mask, 2)
    assert plain([(bands, single)], [(bands, mask)])[:, 2].sum() == 21 * 24
    for nothing in ([(bands, np.full_like(mask, IGNORE))], []):
        with pytest.raises(BadInput, match="no valid labelled pixel"):
            plain(nothing, [(bands, mask)])


def test_indices_of_bands_tell_classes_that_differ_in_a_ratio_alone():
    def tile(seed):
        rng = np.random.default_rng(seed)
        mask = rng.choice(2, (24, 24)).astype(np.uint8)
        light = rng.uniform(1, 1000, mask.shape)
        return np.stack([light, light * np.where(mask, 1.02, 0.98)]).astype(np.float32), mask

    without, with_index = (
        scores_of(plain([tile(0)], [tile(1)], 2, indices, pixels=500, rounds=5), "ab")["accuracy"]
        for indices in ((), [(0, 1)])
    )
    assert with_index == 1.0 > without + 0.05
    assert usual_indices(("blue", "green", "red", "swir1", "thermal")) == ((1, 3), (0, 2), (2, 3))


def test_surroundings_are_means_over_what_is_there():
    planes = np.random.default_rng(0).normal(1000, 30, (2, 9, 7)).astype(np.float32)
    planes[1, 2, 3] = planes[0, :5, :5] = np.nan
    got = surroundings(planes, 5)
    for plane, row, column in np.ndindex(planes.shape):
        square = planes[plane, max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
        if np.isnan(square).all():
            assert np.isnan(got[plane, row, column])
        else:
            assert got[plane, row, column] == pytest.approx(np.nanmean(square), rel=1e-5)
    assert np.isnan(got[0, 2, 2])


def test_of_very_many_tiles_and_pixels_an_even_share_is_scored(monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_TILES", 4)
    monkeypatch.setattr(baselines, "_MOST_PIXELS", 1200)
    tiles = Tiles(10)
    assert scored(tiles).tolist() == [0, 3, 6, 9] and len(scored(Tiles(3))) == 3
    counts = compared(Tiles(2), tiles, 3, 0, (), rounds=1)["boosting of pixels"]
    assert tiles.read == [0, 3, 6, 9]
    share = counts.sum((1, 2)) / (21 * 24)  # of the valid pixels of each
    assert np.abs(share - 1200 / (4 * 24 * 24)).max() < 0.12, "four deviations and more"
