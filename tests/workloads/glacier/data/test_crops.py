"""Crops show rare classes as often as is asked, at ever new places, as functions of seed, epoch and index."""

import numpy as np
import pytest
import torch

from lib.task import load_task
from lib.training.order import Order
from tests.workloads.glacier.files import scene, write_bands
from workloads.glacier.augment import ANYWHERE, corner
from workloads.glacier.data.sampling import Draws

CROPS = {
    "workload.tiles.size": 64, "workload.tiles.stride": 0, "workload.sampling.crop": 32,
    "workload.sampling.target_shares": "[]",
    "workload.sampling.centred": "{lake: 0.5}",
}  # fmt: skip


@pytest.fixture
def rare(tiny, tmp_path):
    """Scenes on which a lake of four pixels stands in every second one."""
    for number in range(8):
        image, classes = scene(number)
        classes = np.minimum(classes, 2)
        if number % 2:
            classes[40:42, 9:11] = 3
        write_bands(tmp_path / "scenes", f"img{number:03d}", image, classes, origin=(number * 100_000, 0))
    return lambda **changes: load_task(tiny({**CROPS, **changes}))


def batch(task, epoch, size=40):
    part = task.datasets()["train"]
    order = Order.of(part, task.config)
    samples = [part[int(index)] for index in order._epoch(epoch)[:size]]
    return samples, task.collate(samples, torch.Generator().manual_seed(epoch))


def test_a_crop_around_a_class_shows_one_of_its_pixels_anywhere_and_stays_in_the_tile():
    target = torch.zeros(96, 96, dtype=torch.uint8)
    target[3, 90] = target[50, 50] = 2
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(300):
        top, left = corner(target, 32, 2, generator)
        assert 0 <= top <= 64 and 0 <= left <= 64
        window = target[top : top + 32, left : left + 32]
        assert (window == 2).any()
        seen |= {tuple(place) for place in (window == 2).nonzero().tolist()}
    assert len(seen) > 120, "the pixel lies at ever new places of the crop"
    places = np.array([corner(target, 32, ANYWHERE, generator) for _ in range(600)])
    assert places.min() == 0 and places.max() == 64 and abs(places.mean() - 32) < 4


def test_the_wanted_part_of_the_crops_lies_around_the_class(rare):
    task = rare()
    train = task.datasets()["train"]
    drawn = np.concatenate([Order.of(train, task.config)._epoch(epoch) for epoch in range(200)])
    around = train.draws.classes[drawn]
    assert (around == 3).mean() == pytest.approx(0.5, abs=0.02)
    tiles = np.bincount(train.draws.tiles[drawn[around == ANYWHERE]])
    assert tiles.min() > 0.8 * tiles.mean(), "the others lie evenly"
    _, made = batch(task, 0)
    assert made["image"].shape[2:] == made["target"].shape[1:] == (32, 32)


def test_every_pixel_of_a_class_is_as_likely_and_a_class_that_is_absent_leaves_its_share():
    counts = np.array([[90, 10, 0], [70, 30, 0], [100, 0, 0]])
    draws = Draws.of(counts, None, {1: 0.4, 2: 0.3}, size=10)
    assert draws.tiles.tolist() == [0, 1, 2, 0, 1] and draws.classes.tolist() == [-1, -1, -1, 1, 1]
    assert draws.weights / draws.weights.sum() == pytest.approx([0.2, 0.2, 0.2, 0.1, 0.3])


def test_drawn_shares_are_those_of_the_crops_and_the_prior_takes_them_back(rare):
    task = rare(**{"workload.prior": True})
    counts = np.zeros(4)
    for epoch in range(12):
        counts += np.bincount(batch(task, epoch)[1]["target"].flatten(), minlength=256)[:4]
    data = task.data
    assert data.drawn_shares == pytest.approx(counts / counts.sum(), rel=0.25)
    true = data.store.table.counts[data.parts.train].sum(0) / data.store.table.counts[data.parts.train].sum()
    assert data.prior == pytest.approx(np.log(true) - np.log(data.drawn_shares)) and data.prior[3] < -0.5
    model = task.model()
    image = torch.randn(1, 2, 32, 32)
    with torch.inference_mode():
        model.train()
        model.prior.zero_()
        model.eval()
        plain = model(image)
        model.prior.copy_(torch.from_numpy(data.prior).view(-1, 1, 1))
        assert torch.allclose(model(image) - plain, model.prior.expand_as(plain), atol=1e-5)


@pytest.mark.parametrize("size", [4, 64])
def test_an_epoch_of_crops_shows_about_as_many_pixels_as_its_tiles_however_small_the_crops_are(size):
    counts = np.array([[4000, 96], [4096, 0], [3000, 1096]])
    draws = Draws.of(counts, None, {1: 0.2}, size)
    assert draws.tiles.size * size**2 == pytest.approx(counts.sum(), rel=0.5) or size == 64
    assert draws.tiles.size == draws.classes.size == draws.weights.size
    around = draws.classes == 1
    assert draws.weights[around].sum() / draws.weights.sum() == pytest.approx(0.2)
    assert sorted(set(zip(draws.tiles.tolist(), draws.classes.tolist(), strict=True))) == [
        (0, ANYWHERE), (0, 1), (1, ANYWHERE), (2, ANYWHERE), (2, 1)
    ]  # fmt: skip
