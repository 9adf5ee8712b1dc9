"""The U-Net: layers as published, any bands, classes and sizes, recomputation that changes nothing."""

import pytest
import torch
from torch import nn

from lib.training.recomputation import recompute
from workloads.glacier.model import Net, Residual, ScSE, UNet, difference
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


def test_the_shortcut_is_the_convolution_with_a_stride_named_as_in_older_checkpoints():
    torch.manual_seed(0)
    block, image = Residual(4, 6, 2).double(), torch.randn(3, 4, 9, 9, dtype=torch.double)
    names = [name for name, _ in block.named_parameters()]
    assert names[-3:] == ["shortcut.0.weight", "shortcut.1.weight", "shortcut.1.bias"] and len(names) == 9
    block.norm2.weight.data.zero_()  # so that the shortcut alone counts
    got = block(image)
    expected = block.shortcut[1](nn.functional.conv2d(image, block.shortcut[0].weight, stride=2)).relu()
    assert torch.allclose(got, expected, rtol=1e-13, atol=1e-13)
    grads = [torch.autograd.grad(out.square().sum(), block.shortcut[0].weight)[0] for out in (got, expected)]
    assert torch.allclose(*grads, rtol=1e-12, atol=1e-12)


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


def test_indices_are_normalised_differences_that_the_network_sees_beside_the_bands():
    sizes = Model(widths=(4,) * 5, depths=(1,) * 4, decoder=(4,) * 5)
    image = torch.tensor([3.0, 1.0, 0.0, -2.0]).view(1, 4, 1, 1).expand(1, 4, 32, 32).clone()
    assert difference(image, 0, 1).unique().tolist() == [0.5] and difference(image, 1, 0).unique().tolist() == [-0.5]
    assert difference(image, 2, 2).unique().tolist() == [0.0] and difference(image, 0, 3).unique().tolist() == [1.0]
    net = Net(4, 2, sizes, [(0, 1)]).eval()
    assert net.blocks[0][0].in_channels == 5 and net.mean.shape == (5, 1, 1) and "prior" not in net.state_dict()
    seen = []
    net.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image[..., 0, 0] = float("nan")
    assert torch.isfinite(net(image)).all()
    assert seen[0][0, 4, 1, 1] == 0.5 and seen[0][0, :, 0, 0].eq(0).all()
