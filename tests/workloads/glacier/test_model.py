"""The U-Net: any bands, classes and sizes, and weights of seven bands in a network of five."""

import pytest
import torch

from lib.checkpoint import weights
from lib.errors import BadInput
from lib.training.recomputation import recompute
from workloads.glacier.carry import FIRST, HEAD, carry, carry_bands
from workloads.glacier.model import Net, ScSE, UNet
from workloads.glacier.settings import Model

NARROW = Model(widths=(4, 4, 6, 8, 10), depths=(1, 1, 2, 1), decoder=(8, 6, 6, 4, 4))


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_the_network_has_the_parameters_of_the_published_ones():
    model = UNet(3, 1, Model())
    stem, *stages = model.blocks[:5]
    assert [parameters(stage) for stage in stages] == [221_952, 1_116_416, 6_822_400, 13_114_368]  # layer1 to layer4
    # torchvision's ResNet-34 without its classifier of 512 x 1000 + 1000
    assert parameters(stem) + sum(map(parameters, stages)) == 21_797_672 - 513_000
    # Unet("resnet34", classes=1) of segmentation_models_pytorch
    attention = sum(parameters(module) for module in model.modules() if isinstance(module, ScSE))
    assert parameters(model) - attention == 24_436_369


@pytest.mark.parametrize("bands, classes, size", [(1, 2, (32, 32)), (7, 3, (96, 64))])
def test_logits_come_in_the_size_of_the_tile(bands, classes, size):
    model = UNet(bands, classes, NARROW)
    assert model(torch.randn(2, bands, *size)).shape == (2, classes, *size)
    with pytest.raises(ValueError, match="48 x 64; both must be multiples of 32"):
        model(torch.randn(1, bands, 48, 64))


def test_every_parameter_gets_a_gradient_which_recomputation_does_not_change():
    def trained(layers):
        torch.manual_seed(0)
        model = UNet(5, 4, Model((16,) * 5, (1, 2, 1, 1), (16,) * 5))  # wide enough that no ReLU is dead
        assert recompute(model, layers) == layers
        model(torch.randn(2, 5, 64, 64)).square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters()}, dict(model.named_buffers())

    first = trained(0)
    assert all(grad.abs().sum() > 0 for grad in first[0].values())
    for once, again in zip(first, trained(4), strict=True):
        assert all(torch.equal(once[name], again[name]) for name in once)


def test_the_normalisation_is_in_the_weights_and_no_data_is_the_mean_of_its_band():
    torch.manual_seed(0)
    net = Net(2, 3, NARROW).eval()
    plain = UNet(2, 3, NARROW).eval()
    plain.load_state_dict({name: net.state_dict()[name] for name in plain.state_dict()})
    net.mean[:], net.deviation[:] = 100.0, 20.0
    image = 100 + 20 * torch.randn(1, 2, 32, 32)
    image[:, 1, :5] = float("nan")
    normal = ((image - 100) / 20).nan_to_num(0.0)
    assert torch.equal(net(image), plain(normal)) and {"mean", "deviation"} <= net.state_dict().keys()


LANDSAT7 = ("blue", "green", "red", "nir", "swir1", "thermal", "swir2")
HACK = ("blue", "green", "red", "swir1", "thermal")
PRETRAINED, FINE = ("background", "clean ice", "debris"), ("background", "glacier", "debris", "lake")
SMALL = Model(widths=(8, 4, 6, 8, 10), depths=(1, 1, 1, 1), decoder=(8, 6, 6, 4, 4))


def network(bands, classes, seed=0):
    torch.manual_seed(seed)
    return UNet(len(bands), len(classes), SMALL)


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
