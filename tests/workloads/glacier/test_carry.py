"""Weights of seven bands in a network of five: by name, counted, and with a response of the same size."""

import pytest
import torch

from lib.checkpoint import weights
from lib.errors import BadInput
from workloads.glacier.carry import FIRST, HEAD, carry, carry_bands
from workloads.glacier.model import UNet
from workloads.glacier.settings import Model

LANDSAT7 = ("blue", "green", "red", "nir", "swir1", "thermal", "swir2")
HACK = ("blue", "green", "red", "swir1", "thermal")
PRETRAINED, FINE = ("background", "clean ice", "debris"), ("background", "glacier", "debris", "lake")
NARROW = Model(widths=(8, 4, 6, 8, 10), depths=(1, 1, 1, 1), decoder=(8, 6, 6, 4, 4))


def network(bands, classes, seed=0):
    torch.manual_seed(seed)
    return UNet(len(bands), len(classes), NARROW)


def response(weight, x):
    return torch.nn.functional.conv2d(x, weight, stride=2, padding=3).square().mean().item()


@pytest.mark.parametrize("target", [HACK, ("red", "radar"), (*LANDSAT7, "elevation", "slope"), ("thermal",)])
def test_the_response_to_standardised_bands_keeps_its_size(target):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(64, 7, 7, 7, generator=generator)
    weight[:, 3:] *= 0.3  # a network that looks at the visible bands most
    carried, _ = carry_bands(weight, LANDSAT7, target)
    before = response(weight, torch.randn(16, 7, 64, 64, generator=generator))
    after = response(carried, torch.randn(16, len(target), 64, 64, generator=generator))
    assert after == pytest.approx(before, rel=0.05)
    if target == HACK:  # without the factor it would not
        plain = weight[:, [LANDSAT7.index(name) for name in HACK]]
        assert response(plain, torch.randn(16, 5, 64, 64, generator=generator)) < 0.97 * before


def test_bands_are_taken_by_their_names_and_one_that_the_source_lacks_is_the_mean_of_all():
    weight = torch.randn(4, 3, 7, 7)
    assert torch.equal(carry_bands(weight, "abc", "abc")[0], weight)
    assert torch.allclose(carry_bands(weight, "abc", "cab")[0], weight[:, [2, 0, 1]])
    carried, said = carry_bands(weight, ("red", "green", "blue"), ("blue", "radar"))
    factor = carried[:, 0] / weight[:, 2]
    assert torch.allclose(carried[:, 1], weight.mean(1) * factor[0, 0, 0], rtol=1e-4)
    assert "1 of 2 bands by name, the mean of all for: radar" in said


def test_a_pretrained_network_is_carried_whole_and_counted():
    old, new = network(LANDSAT7, PRETRAINED), network(HACK, FINE, seed=1)
    fresh = {name: value.clone() for name, value in weights.of(new).items()}
    carried, said = carry(weights.of(old), fresh, (LANDSAT7, HACK), (PRETRAINED, FINE))
    assert "Head: 2 of 4 classes by name, new: glacier, lake." in said
    counted = weights.transfer(new, carried, 1.0)
    assert counted.startswith(f"Initial weights: {len(fresh)} of {len(fresh)} tensors match; 0 have another shape")
    for name in HEAD:
        got, source = weights.of(new)[name], weights.of(old)[name]
        assert torch.equal(got[0], source[0]) and torch.equal(got[2], source[2])  # background and debris
        assert torch.equal(got[1], fresh[name][1]) and torch.equal(got[3], fresh[name][3])
    same = [name for name in fresh if name not in (FIRST, *HEAD)]
    assert all(torch.equal(weights.of(new)[name], weights.of(old)[name]) for name in same)


@pytest.mark.parametrize(
    "bands, classes, sentence",
    [
        ((LANDSAT7[:6], HACK), (FINE, FINE), "have 7 bands, and 6 are named for them: blue, .*in their order"),
        ((LANDSAT7, HACK), (PRETRAINED, FINE), "have 4 classes, and 3 are named for them: background, clean ice"),
        ((tuple("1234567"), HACK), (FINE, FINE), "No band of the initial weights is among .*1, 2, .*blue, green"),
    ],
)
def test_names_that_do_not_fit_are_refused(bands, classes, sentence):
    given = weights.of(network(LANDSAT7, FINE))
    with pytest.raises(BadInput, match=sentence):
        carry(given, weights.of(network(HACK, FINE)), bands, classes)
    with pytest.raises(BadInput, match=r"no tensor blocks\.0\.0\.weight: they are not those of this U-Net"):
        carry({"encoder.weight": torch.zeros(1)}, {}, (HACK, HACK), (FINE, FINE))
