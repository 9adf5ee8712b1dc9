"""Image and mask change together, by the generator alone, and every view can be undone."""

import pytest
import torch

from workloads.glacier.augment import Augmentation, augment, undo, view

DEVIATION = torch.tensor([1.0, 100.0])


def tile():
    target = torch.arange(64, dtype=torch.uint8).view(8, 8)
    return torch.stack([target.float(), 100.0 * target]), target


def test_mask_and_image_are_turned_alike_in_all_eight_ways_with_noise_or_without():
    def changed(seed, **options):
        return augment(*tile(), DEVIATION, Augmentation(**options), torch.Generator().manual_seed(seed))

    seen = set()
    for seed in range(100):
        image, target = changed(seed, band_noise=0)
        assert torch.equal(image[0], target.float()) and torch.equal(image[1], 100 * target.float())
        assert torch.equal(changed(seed)[1], target)
        seen.add(tuple(target.flatten().tolist()))
    assert len(seen) == 8


def test_noise_goes_by_the_deviation_of_each_band_and_keeps_nan():
    image, target = tile()
    image[:, 2, 2] = float("nan")
    zero = torch.zeros_like(image).masked_fill(image.isnan(), float("nan"))
    options = Augmentation(flips=False, rotations=False, band_noise=0.1)
    offsets = []
    for seed in range(400):
        noisy, _ = augment(zero, target, DEVIATION, options, torch.Generator().manual_seed(seed))
        assert torch.equal(noisy.isnan(), zero.isnan())
        offsets.append(noisy[:, 0, 0])
    spread = torch.stack(offsets).std(0)
    assert spread[0].item() == pytest.approx(0.1, rel=0.15) and spread[1].item() == pytest.approx(10, rel=0.15)


def test_every_view_is_undone_and_no_two_are_the_same():
    image = torch.randn(2, 3, 8, 8)
    assert len({tuple(v.flatten().tolist()) for v in (view(image, number) for number in range(8))}) == 8
    for number in range(8):
        assert torch.equal(undo(view(image, number), number), image)
