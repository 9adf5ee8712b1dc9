"""Votes: members are scored with the same views as the vote."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from lib.task import load_task
from workloads.glacier import figures
from workloads.glacier.judging import Tested


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


def test_the_worst_tiles_are_of_different_scenes():
    scenes = np.array([0, 0, 1, 2, 3, 4, 5])
    table = SimpleNamespace(scene=scenes)
    part = SimpleNamespace(store=SimpleNamespace(table=table), chosen=np.arange(7))
    tested = Tested(part, 2)
    wrong = [1, 9, 3, 8, 2, 7, 5]
    target = torch.zeros(7, 4, 4, dtype=torch.uint8)
    predicted = torch.zeros(7, 4, 4, dtype=torch.int64)
    for tile, pixels in enumerate(wrong):
        predicted[tile].view(-1)[:pixels] = 1
    for few in (slice(0, 3), slice(3, 7)):
        tested.add({"image": torch.zeros(7, 1, 4, 4)[few], "target": target[few]}, predicted[few])
    assert [int((tile.predicted != tile.target).sum()) for tile in tested.worst] == [9, 8, 7, 5]
    assert tested.counts.shape == (7, 2, 2) and tested.confusion.matrix[0, 1] == sum(wrong)
    assert len(tested.examples) == 4


def test_a_composite_is_white_where_there_is_no_data_and_runs_have_bars_and_their_mean(tmp_path, monkeypatch):
    image = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
    image[:, 2, 3], image[2, 0, 0], image[2, 7, 7] = np.nan, 100, -100
    picture = figures.composite(image)
    assert (picture[2, 3] == 1).all() and picture[0, 0, 0] == 1 and picture[7, 7, 0] == 0
    assert (figures.composite(np.full((2, 4, 4), np.nan)) == 1).all(), "two bands are shown as one grey"
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    scores = {"fold0": {"mcc": 0.5}, "fold1": {"mcc": 0.7, "iou_lake": 0.1}}
    figures.runs(scores, ("mcc", "iou_lake", "absent"), tmp_path / "a.png")
    assert [ax.get_title() for ax in drawn[0].axes] == ["mcc: mean 0.600", "iou_lake: mean 0.100", ""]
