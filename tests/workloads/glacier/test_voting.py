"""Votes: members are scored with the same views as the vote."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lib.scores import scores_of
from lib.task import load_task
from tests.workloads.glacier.test_maps import Directed
from workloads.glacier.settings import Split
from workloads.glacier.tested import Alone, Tested, flattered


def test_a_member_alone_has_the_views_of_the_vote():
    part = {"image": torch.randn(2, 2, 32, 32), "target": torch.zeros(2, 32, 32, dtype=torch.uint8)}
    part["target"][..., 16:] = 1
    alone = Alone(1, 2)
    eight = alone.add([Directed()], part, 8)[0]
    assert torch.allclose(eight, torch.full_like(eight, 0.5), atol=1e-6), "with one view it would see the direction"
    once = Alone(1, 2)
    once.add([Directed()], part, 1)
    assert scores_of(once._counts[0], "ab")["mcc"] == pytest.approx(-1)
    table = once.table(["fold0"], {"mcc": 0.5, "mean_iou": 0.5, "iou_a": 0.25}, "ab", 1)
    assert table.splitlines()[0].split()[:3] == ["alone,", "1", "views"] and "fold0" in table.splitlines()[1]
    assert "-1.0000" in table.splitlines()[1] and table.splitlines()[-1].split()[-1] == "0.2500"


def test_a_vote_without_a_test_of_its_own_is_said_to_flatter():
    assert "no test of its own" in flattered(Split(test=0, folds=5), 5)
    assert flattered(Split(test=0), 1) == "" == flattered(Split(test=0.15, folds=5), 5)


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
