"""Figures of tiles: colours by class, white where nothing is known, stretched bands."""

import numpy as np
import pytest

from lib.scores import IGNORE
from workloads.glacier import figures

CLASSES = ("background", "glacier", "debris", "lake")


def tile(seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(5, 8, 8)).astype(np.float32), draw.integers(0, 4, (8, 8), dtype=np.uint8)


def test_a_composite_is_the_first_three_bands_with_white_where_there_is_no_data():
    image, _ = tile()
    image[:, 2, 3] = np.nan
    image[2, 0, 0], image[2, 7, 7] = 100, -100
    picture = figures.composite(image)
    assert picture.shape == (8, 8, 3) and picture.min() >= 0 and picture.max() <= 1
    assert (picture[2, 3] == 1).all() and picture[0, 0, 0] == 1 and picture[7, 7, 0] == 0
    assert figures.composite(image[:2]).shape == (8, 8, 3), "two bands are shown as one grey"
    assert (figures.composite(np.full((3, 4, 4), np.nan)) == 1).all()


def test_where_there_is_no_label_nothing_is_wrong(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    image, target = tile()
    target[:4] = IGNORE
    predicted = np.where(target == IGNORE, 0, (target + 1) % 4).astype(np.uint8)
    figures.predictions([figures.Shown(image, target, predicted)], CLASSES, tmp_path / "a.png")
    _, mask, prediction, wrong = (ax.images[0].get_array() for ax in drawn[0].axes)
    assert (mask[:4] == 1).all() and (prediction[:4] == 1).all() and not wrong[:4].any() and wrong[4:].all()


def test_runs_have_bars_and_their_mean(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    scores = {"fold0": {"mcc": 0.5}, "fold1": {"mcc": 0.7, "iou_lake": 0.1}}
    figures.runs(scores, ("mcc", "iou_lake", "absent"), tmp_path / "a.png")
    titles = [ax.get_title() for ax in drawn[0].axes]
    assert titles == ["mcc: mean 0.600", "iou_lake: mean 0.100", ""]
    assert [bar.get_height() for bar in drawn[0].axes[0].patches] == pytest.approx([0.5, 0.7])


def test_tiles_are_drawn_above_their_masks(tmp_path):
    path = figures.tiles([tile(1), tile(2)], CLASSES, tmp_path / "plots" / "tiles.png")
    assert path.read_bytes().startswith(b"\x89PNG")
