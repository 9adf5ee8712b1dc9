"""Tiles are weighed and crops drawn towards wanted shares of classes; image and mask change together."""

import numpy as np
import pytest
import torch

from lib.task import load_task
from lib.training.order import Order
from tests.workloads.glacier.files import scene, write_bands
from workloads.glacier.augment import ANYWHERE, Augmentation, augment, corner
from workloads.glacier.data import sampling
from workloads.glacier.settings import Sampling

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


def test_tilted_weights_reach_the_wanted_shares_where_they_can():
    counts = np.random.default_rng(0).dirichlet((2, 1, 0.5, 0.5), 400) * 1000
    wanted = (0.3, 0.3, 0.25, 0.15)
    weight = sampling.tile_weights(counts, Sampling(target_shares=wanted))
    assert np.allclose(weight.mean(), 1) and weight.min() > 0
    assert np.allclose(sampling.reached(counts, weight), wanted, atol=0.01)


@pytest.mark.parametrize("most", [1.5, 2, 4, 20])
def test_a_wanted_class_that_is_rare_everywhere_leaves_no_even_draw(most):
    """The cap is used up even where a share is so far out of reach that a slight pull on it would pass the cap."""
    draw = np.random.default_rng(0)
    ice = draw.uniform(0, 0.6, 200)
    counts = np.stack([1 - ice, ice * 0.7, ice * 0.3, np.full(200, 0.001)], 1) * 9216
    weight = sampling.tile_weights(counts, Sampling(target_shares=(0.1, 0.35, 0.4, 0.15), most_often=most))
    assert 0.75 * min(most, 2) < weight.max() <= most + 1e-6
    assert sampling.reached(counts, weight)[0] < sampling.reached(counts, None)[0] - 0.03


DEVIATION = torch.tensor([1.0, 100.0])


def test_mask_and_image_are_turned_alike_in_all_eight_ways_and_noise_goes_by_the_deviation_of_each_band():
    target = torch.arange(64, dtype=torch.uint8).view(8, 8)
    image, empty, seen, offsets = torch.stack([target.float(), 100.0 * target]), torch.zeros(2, 8, 8), set(), []
    empty[:, 2, 2] = float("nan")

    def changed(seed, image, **options):
        return augment(image, target, DEVIATION, Augmentation(**options), torch.Generator().manual_seed(seed))

    for seed in range(400):
        turned, mask = changed(seed, image, band_noise=0)
        assert torch.equal(turned[0], mask.float()) and torch.equal(turned[1], 100 * mask.float())
        assert torch.equal(changed(seed, image)[1], mask), "with noise too"
        seen.add(tuple(mask.flatten().tolist()))
        noisy, _ = changed(seed, empty, flips=False, rotations=False, band_noise=0.1)
        assert torch.equal(noisy.isnan(), empty.isnan())
        offsets.append(noisy[:, 0, 0])
    assert len(seen) == 8 and torch.stack(offsets).std(0).tolist() == pytest.approx([0.1, 10], rel=0.15)
