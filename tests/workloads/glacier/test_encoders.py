"""Encoders of timm: published weights adapted to the bands, and a clear sentence where timm is missing."""

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.task import load_task
from tests.conftest import ROOT
from workloads.glacier import encoders
from workloads.glacier.carry import carry_encoder
from workloads.glacier.encoders import TimmNet, first_convolution
from workloads.glacier.settings import Model

SIZES = Model(decoder=(8, 6, 6, 4, 4), encoder="toy")
NAME = "encoder.stem_0.weight"  # as timm joins names where it hands out features


class Encoder(nn.Module):
    """Stands for one of timm's: a feature a reduction, names joined by underscores."""

    def __init__(self, inputs, reductions=(2, 4, 8, 16, 32)):
        super().__init__()
        self.stem_0 = nn.Conv2d(inputs, 4, 3, reductions[0], 1)
        later = itertools.pairwise(reductions)
        self.stages = nn.ModuleList(nn.Conv2d(4, 4, 3, b // a, 1) for a, b in later)
        channels = [4] * len(reductions)
        self.feature_info = SimpleNamespace(reduction=lambda: list(reductions), channels=lambda: channels)

    def forward(self, x):
        found = [self.stem_0(x)]
        for stage in self.stages:
            found.append(stage(found[-1]))
        return found


@pytest.fixture
def timm(monkeypatch):
    """timm.create_model gives the encoder above."""
    made = SimpleNamespace(reductions=(2, 4, 8, 16, 32))

    def create(name, pretrained, features_only, in_chans):
        assert name == "toy" and features_only and not pretrained, "no weights come over the internet"
        return Encoder(in_chans, made.reductions)

    fake = SimpleNamespace(create_model=create, __version__="1", list_models=lambda _: [])
    monkeypatch.setitem(sys.modules, "timm", fake)
    return made


def published(bands=3, seed=0):
    """Weights as they are published: with dots, and with a head for another purpose."""
    torch.manual_seed(seed)
    plain = Encoder(bands).state_dict()
    return {name.replace("stem_0", "stem.0"): value for name, value in plain.items()} | {"fc.weight": torch.ones(3, 4)}


def fresh(bands):
    torch.manual_seed(9)
    return {**{f"encoder.{k}": v for k, v in Encoder(bands).state_dict().items()}, "head.bias": torch.ones(2)}


@pytest.mark.parametrize("reductions", [(2, 4, 8, 16, 32), (4, 8, 16, 32), (2, 4, 8, 16), (8, 16)])
def test_logits_have_the_size_of_the_tile_whatever_the_encoder_halves(timm, reductions):
    timm.reductions = reductions
    net = TimmNet(5, 4, SIZES, [(0, 1)], prior=True).eval()
    image = torch.randn(2, 5, 64, 32)
    image[:, :, 3] = float("nan")
    assert net(image).shape == (2, 4, 64, 32) and torch.isfinite(net(image)).all()
    assert net.first == NAME and net.state_dict()[NAME].shape[1] == 6, "five bands and an index"
    before = net(image)
    net.prior[1] = 5.0
    assert torch.allclose(net(image) - before, net.prior.expand(2, 4, 64, 32), atol=1e-5)


def test_an_encoder_of_other_reductions_is_refused(timm):
    timm.reductions = (14,)
    with pytest.raises(BadInput, match="toy reduces tiles 14 times"):
        TimmNet(3, 2, SIZES)


def test_published_filters_go_to_the_bands_of_their_colours():
    given = published()
    carried, said = carry_encoder(given, fresh(5), NAME, (), ("blue", "green", "red", "swir1", "thermal"))
    ratio = carried[NAME][:, :3] / given["stem.0.weight"][:, [2, 1, 0]]
    assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio), rtol=1e-4)
    assert carried[NAME].square().sum() == pytest.approx(given["stem.0.weight"].square().sum().item(), rel=1e-5)
    assert torch.equal(carried["encoder.stages.1.weight"], given["stages.1.weight"])
    assert torch.equal(carried["head.bias"], torch.ones(2)) and "fc.weight" not in carried
    assert "10 of 10 tensors" in said and "3 of 5 bands by name, the mean of all for: swir1, thermal" in said


def test_bands_without_a_colour_take_the_mean_and_named_bands_of_a_satellite_are_matched():
    given = published()
    carried, said = carry_encoder(given, fresh(2), NAME, (), ("vv", "vh"))
    assert torch.equal(carried[NAME][:, 0], carried[NAME][:, 1]) and "no band is called red, green, blue" in said
    assert carried[NAME].square().sum() == pytest.approx(given["stem.0.weight"].square().sum().item(), rel=1e-5)
    with pytest.raises(BadInput, match="sees 4 bands, and 3 are named .* workload.initial.bands"):
        carry_encoder(published(4), fresh(2), NAME, (), ("vv", "vh"))
    four = published(4)
    carried, _ = carry_encoder(four, fresh(2), NAME, ("a", "vh", "vv", "b"), ("vv", "vh"))
    ratio = carried[NAME] / four["stem.0.weight"][:, [2, 1]]
    assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio), rtol=1e-4)


def test_weights_of_another_encoder_are_refused():
    given = {name: value for name, value in published().items() if not name.startswith("stages")}
    with pytest.raises(BadInput, match="fit 2 of 10 tensors of the encoder"):
        carry_encoder(given, fresh(5), NAME, (), ("red",) * 5)


def test_the_task_takes_published_weights_and_its_own_for_such_a_network(timm, tiny):
    task = load_task(tiny({"workload.model.encoder": "toy"}))
    model = task.model()
    adapted, said = task.adapt(published(), model)
    assert adapted.keys() == model.state_dict().keys() and said.startswith("Encoder: 10 of 10")
    own, said = task.adapt(model.state_dict(), model)
    assert torch.equal(own[NAME], model.state_dict()[NAME]) and "classes by name" in said
    with pytest.raises(BadInput, match="carries the own U-Net alone"):
        task.solution([model], ROOT)


def test_the_first_convolution_must_see_the_bands():
    assert first_convolution(nn.Sequential(nn.Identity(), nn.Conv2d(5, 3, 1)), 5) == "1.weight"
    with pytest.raises(BadInput, match="does not begin with a convolution of bands"):
        first_convolution(nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 3, 1)), 5)


def test_without_timm_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match="resnet50, which is one of timm's, .* Kaggle's image; .*pip install timm"):
        encoders.features_of("resnet50", 5)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_real_encoders_of_timm_are_wrapped_and_take_their_published_names(name):
    try:
        import timm
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision of another PyTorch
        pytest.skip("timm is not there, or its torchvision does not fit")
    net = TimmNet(5, 4, Model(encoder=name)).eval()
    assert net(torch.randn(1, 5, 64, 64)).shape == (1, 4, 64, 64)
    given = timm.create_model(name, pretrained=False).state_dict()
    bands = ("blue", "green", "red", "swir1", "thermal")
    carried, said = carry_encoder(given, net.state_dict(), net.first, (), bands)
    wanted = sum(key.startswith("encoder.") for key in carried)
    assert f"Encoder: {wanted} of {wanted} tensors" in said and "3 of 5 bands by name" in said
    with pytest.raises(BadInput, match="makes no encoder of features"):
        encoders.features_of("no_such_encoder", 5)
