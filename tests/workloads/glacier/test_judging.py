"""Scores of tiles put together by scene, gains over baselines with intervals, votes, and the worst scenes."""

import csv

import numpy as np
import pytest
import torch
from torch import nn

from lib.scores import IGNORE, Confusion, scores_of
from lib.task import load_task
from workloads.glacier import figures
from workloads.glacier.judging import Judged, gains, measured, strongest, tile_counts

CLASSES = ("land", "ice", "lake")


def right(shares, pixels=1000):
    """(tiles, 2, 2) counts of two equal classes of which a share is right."""
    return np.array([[[share, 1 - share], [1 - share, share]] for share in shares]) * pixels


def test_counts_and_measures_of_many_tiles_are_those_of_each():
    draw = np.random.default_rng(0)
    predicted, truth = (torch.from_numpy(draw.integers(0, 3, (4, 5, 6)).astype(np.uint8)) for _ in "ab")
    truth[1], truth[2, :2] = IGNORE, IGNORE
    counts = tile_counts(predicted, truth, 3)
    for tile in range(4):
        alone = Confusion(3)
        alone.add(predicted[tile], truth[tile])
        assert (counts[tile].numpy() == alone.matrix).all()
    counts = draw.integers(0, 50, (6, 3, 3))
    counts[1, :, 2] = counts[1, 2] = 0  # neither there nor predicted
    counts[2, 1:] = 0  # one class alone
    for matrix, (mcc, iou) in zip(counts, measured(counts), strict=True):
        scores = scores_of(matrix, CLASSES)
        assert (mcc, iou) == pytest.approx((scores["mcc"], scores["mean_iou"]), abs=1e-12)
    assert measured(np.zeros((3, 3))).tolist() == [0, 0]


def test_methods_are_paired_by_scene_and_tiles_of_a_scene_are_one_draw():
    """Scenes differ far more than methods do: unpaired, or by tile, the interval would be another one."""
    hard = right([0.55, 0.6, 0.9, 0.95])
    easier = right([0.57, 0.62, 0.92, 0.97])
    gain = gains(easier, hard, list("abcd"))["mcc"]
    assert gain.low == pytest.approx(gain.high) == pytest.approx(0.04)
    hard, uneven = right([0.6] * 8), right([0.62] * 4 + [0.6] * 4)
    by_tile, by_scene = (gains(uneven, hard, units)["mcc"] for units in (list("abcdefgh"), list("aaaabbbb")))
    assert by_tile.value == by_scene.value and by_scene.high - by_scene.low > by_tile.high - by_tile.low
    assert np.isnan(gains(easier, easier, list("aaaa"))["mcc"].low), "one scene has no interval"


def judged(counts, baselines, numbers=None):
    numbers = np.arange(len(counts)) if numbers is None else np.array(numbers)
    scenes = [f"s{index // 2}" for index in range(len(counts))]
    return Judged(("land", "ice"), counts, baselines, numbers, scenes, scenes, "network")


def test_the_strongest_baseline_is_named_and_whether_the_network_is_above_it():
    weak, strong = right([0.6] * 4), right([0.7, 0.8, 0.7, 0.8])
    assert strongest({"weak": weak, "strong": strong}) == "strong"
    text = judged(right([0.9] * 4), {"weak": weak, "strong": strong}).text()
    assert "The network is above the strongest baseline by MCC, strong: +0.300 [" in text
    assert "holds 0" not in text and "draws of 2 scenes, paired" in text
    text = judged(right([0.8, 0.8, 0.7, 0.7]), {"strong": strong}).text()
    assert "The network is level with the strongest baseline" in text and "this test does not tell them apart" in text
    text = judged(right([0.6] * 4), {"strong": strong}).text()
    assert "The network is below the strongest baseline" in text and "holds 0" not in text
    alone = Judged(("land", "ice"), strong, {"weak": right([0.6] * 4)}, np.arange(4), ["s"] * 4, ["s"] * 4)
    assert "one scene alone" in alone.text() and "[" not in alone.text().split("\n\n")[1]
    text = judged(right([1.0, 0.5, 1.0, 0.5]), {"weak": right([0.75, 0.75])}, numbers=[0, 2]).text()
    assert text.startswith("2 of 4 tiles of the test") and "network less weak  +0.500" in text, "on the same tiles"


def test_scenes_are_listed_from_the_worst_and_the_tables_are_written(tmp_path):
    counts = right([0.9, 0.9, 0.6, 0.7, 0.8, 0.8])
    one = judged(counts, {"weak": counts})
    one.write(tmp_path)
    with (tmp_path / "scenes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["scene"] for row in rows] == ["s1", "s2", "s0"] and rows[0]["wrong"] == "0.3500"
    assert rows[0]["pixels"] == "4000" and float(rows[0]["iou_ice"]) == pytest.approx(0.65 / 1.35, abs=1e-4)
    assert (tmp_path / "baselines.csv").read_text().splitlines()[0] == "method,mcc,mean_iou,iou_land,iou_ice"
    assert one.text().split("\n\n")[-1].splitlines()[2].startswith("s1")
    many = right(np.linspace(0.5, 1, 14))
    assert "of 7; scenes.csv has all" in judged(many, {}).text() and "gain" not in judged(many, {}).text()


class Fixed(nn.Module):
    """A model that answers one class, surely."""

    def __init__(self, answer):
        super().__init__()
        self.bias = nn.Parameter(20 * torch.eye(4)[answer])

    def forward(self, image):
        return self.bias.view(1, 4, 1, 1).expand(len(image), 4, *image.shape[-2:])


def test_a_vote_says_what_each_reaches(tiny, tmp_path, without_figures):
    task = load_task(tiny())
    task.members = ["fold0", "fold1"]
    scores, text = task.vote([Fixed(1), Fixed(2)], tmp_path)
    assert scores["recall_glacier"] + scores["recall_debris"] == 1 and scores["recall_background"] == 0
    rows = text.split("\n\n")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["alone,", "fold0", "fold1", "the"]
    assert "vote less boosting of pixels" in text and (tmp_path / "scenes.csv").is_file()
    task = load_task(tiny({"workload.split.test": 0, "workload.split.folds": 3}))
    assert task.vote([Fixed(1), Fixed(2)], tmp_path)[1].startswith("Warning: there is no test of its own")


def test_a_composite_is_white_where_there_is_no_data():
    image = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
    image[:, 2, 3], image[2, 0, 0], image[2, 7, 7] = np.nan, 100, -100
    picture = figures.composite(image)
    assert (picture[2, 3] == 1).all() and picture[0, 0, 0] == 1 and picture[7, 7, 0] == 0
    assert (figures.composite(np.full((2, 4, 4), np.nan)) == 1).all(), "two bands are shown as one grey"
