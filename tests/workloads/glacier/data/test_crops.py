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


def test_the_wanted_part_of_the_crops_lies_around_the_class_and_the_prior_takes_it_back(tiny, tmp_path):
    """A lake of four pixels stands in every second scene."""
    config = tiny({**CROPS, "workload.prior": True})
    for number in range(8):
        image, classes = scene(number)
        classes = np.minimum(classes, 2)
        if number % 2:
            classes[40:42, 9:11] = 3
        write_bands(tmp_path / "scenes", f"img{number:03d}", image, classes, origin=(number * 100_000, 0))
    task = load_task(config)
    train, data = task.datasets()["train"], task.data
    order = Order.of(train, config)
    drawn = np.concatenate([order._epoch(epoch) for epoch in range(200)])
    around = train.draws.classes[drawn]
    assert (around == 3).mean() == pytest.approx(0.5, abs=0.02)
    tiles = np.bincount(train.draws.tiles[drawn[around == ANYWHERE]])
    assert tiles.min() > 0.8 * tiles.mean(), "the others lie evenly"
    counts = np.zeros(4)
    for epoch in range(12):
        samples = [train[int(index)] for index in order._epoch(epoch)[:40]]
        made = task.collate(samples, torch.Generator().manual_seed(epoch))
        assert made["image"].shape[2:] == made["target"].shape[1:] == (32, 32)
        counts += np.bincount(made["target"].flatten(), minlength=256)[:4]
    assert data.drawn_shares == pytest.approx(counts / counts.sum(), rel=0.25)
    true = data.store.table.counts[data.parts.train].sum(0) / data.store.table.counts[data.parts.train].sum()
    assert data.prior == pytest.approx(np.log(true) - np.log(data.drawn_shares)) and data.prior[3] < -0.5
    model, image = task.model().eval(), torch.randn(1, 2, 32, 32)
    with torch.inference_mode():
        model.prior.zero_()
        plain = model(image)
        model.prior.copy_(torch.from_numpy(data.prior).view(-1, 1, 1))
        assert torch.allclose(model(image) - plain, model.prior.expand_as(plain), atol=1e-5)


def test_an_epoch_of_crops_shows_about_as_many_pixels_as_its_tiles_and_each_of_a_class_alike():
    counts = np.array([[4000, 96, 0], [4096, 0, 0], [3000, 1096, 0]])
    draws = Draws.of(counts, None, {1: 0.4, 2: 0.3}, size=4)  # class 2 is absent and leaves its share
    assert draws.tiles.size * 16 == pytest.approx(counts.sum(), rel=0.5)
    share = {}
    for tile, kind, weight in zip(draws.tiles, draws.classes, draws.weights / draws.weights.sum(), strict=True):
        share[tile, kind] = share.get((tile, kind), 0) + weight
    around = {(0, 1): 0.4 * 96 / 1192, (2, 1): 0.4 * 1096 / 1192}
    assert share == pytest.approx({**{(tile, ANYWHERE): 0.2 for tile in range(3)}, **around})
