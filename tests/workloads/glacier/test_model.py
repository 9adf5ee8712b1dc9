"""The U-Net, weights carried into it, and each loss against plain loops, with ignored pixels."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetModel

from lib.checkpoint import weights
from lib.task.blocks import find_blocks
from lib.training.recomputation import recompute
from trainbook import IGNORED
from workloads.glacier import losses
from workloads.glacier.losses import distance_maps
from workloads.glacier.model import FIRST, HEAD, STATISTICS, Net, carry, encoder
from workloads.glacier.settings import TERMS, Loss, Model

NARROW = Model(widths=(4, 4, 6, 8, 10), depths=(1, 1, 2, 1), decoder=(8, 6, 6, 4, 4))


def trained(layers):
    """Gradients and buffers of a step; the network is wide enough that no ReLU is dead."""
    torch.manual_seed(0)
    model = Net(5, 4, Model((16,) * 5, (1, 2, 1, 1), (16,) * 5))
    assert recompute(model, layers, find_blocks(model)) == layers
    model(torch.randn(2, 5, 64, 64)).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}, dict(model.named_buffers())


def test_every_parameter_gets_a_gradient_which_recomputation_does_not_change():
    first = trained(0)
    assert all(grad.abs().sum() > 0 for grad in first[0].values())
    for once, again in zip(first, trained(4), strict=True):
        assert all(torch.equal(once[name], again[name]) for name in once)


def test_the_normalisation_is_in_the_weights_and_no_data_is_the_mean_of_its_band():
    torch.manual_seed(0)
    net = Net(2, 3, NARROW).eval()
    plain = Net(2, 3, NARROW).eval()
    plain.load_state_dict(net.state_dict())
    net.mean[:] = 100.0
    net.deviation[:] = 20.0
    image = 100 + 20 * torch.randn(1, 2, 32, 32)
    image[:, 1, :5] = float("nan")
    normal = ((image - 100) / 20).nan_to_num(0.0)
    assert torch.equal(net(image), plain(normal))
    assert {"mean", "deviation"} <= net.state_dict().keys()


LANDSAT7 = ("blue", "green", "red", "nir", "swir1", "thermal", "swir2")
HACK = ("blue", "green", "red", "swir1", "thermal")
PRETRAINED = ("background", "clean ice", "debris")
FINE = ("background", "glacier", "debris", "lake")


def network(bands, classes, seed=0):
    torch.manual_seed(seed)
    return Net(len(bands), len(classes), NARROW)


def test_a_pretrained_network_is_carried_whole_and_counted():
    old = weights.of(network(LANDSAT7, PRETRAINED))
    model = network(HACK, FINE, seed=1)
    fresh = {name: value.clone() for name, value in weights.of(model).items()}
    carried, text = carry(old, fresh, (LANDSAT7, HACK), (PRETRAINED, FINE))
    assert "Head: 2 of 4 classes by name, new: glacier, lake." in text
    counted = weights.transfer(model, carried, 1.0)
    count = len(fresh)
    assert counted.startswith(f"Initial weights: {count} of {count} tensors match; 0 have another")
    new = weights.of(model)
    for name in HEAD:
        assert torch.equal(new[name][[0, 2]], old[name][[0, 2]])  # background and debris
        assert torch.equal(new[name][[1, 3]], fresh[name][[1, 3]])
    others = [name for name in fresh if not name.startswith((FIRST, *HEAD, *STATISTICS))]
    assert len(others) > 20
    assert all(torch.equal(new[name], old[name]) for name in others)


def in_timm(name):
    """The name that timm and torchvision give to a tensor of transformers' ResNet."""
    names = {
        r"embedder\.embedder\.convolution": "conv1", r"embedder\.embedder\.normalization": "bn1",
        r"shortcut\.convolution": "downsample.0", r"shortcut\.normalization": "downsample.1",
        r"layer\.0\.convolution": "conv1", r"layer\.0\.normalization": "bn1",
        r"layer\.1\.convolution": "conv2", r"layer\.1\.normalization": "bn2",
        r"encoder\.stages\.(\d)\.layers": lambda found: f"layer{int(found[1]) + 1}",
    }  # fmt: skip
    for theirs, ours in names.items():
        name = re.sub(theirs, ours, name)
    return name


def published_resnet_34():
    """A ResNet-34 of transformers whose batch norms are not the identity."""
    torch.manual_seed(0)
    sizes = {"depths": [3, 4, 6, 3], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
    published = ResNetModel(ResNetConfig(**sizes))
    for module in published.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
    return published


def test_the_weights_of_a_published_resnet_34_compute_the_same_here():
    published = published_resnet_34()
    net = Net(3, 4, Model())
    given = {in_timm(name): value for name, value in published.state_dict().items()}
    given["fc.weight"] = torch.ones(9, 512)
    carried, text = encoder(given, ("red", "green", "blue"))
    assert not net.load_state_dict(carried, strict=False).unexpected_keys
    assert "3 of 3 bands by name" in text
    image = torch.randn(2, 3, 64, 64)
    seen = []
    net.blocks[4].register_forward_hook(lambda *given: seen.append(given[2]))
    with torch.no_grad():
        net.eval()(image)
        want = published.eval()(image).last_hidden_state
    torch.testing.assert_close(seen[0], want, rtol=1e-3, atol=1e-3)
    other, _ = encoder(given, ("red", "nir", "blue"))
    assert other[FIRST].shape == (64, 3, 7, 7)


ALL = Loss(focal=1, dice=1, mcc=1, boundary=1)


def only(term, **more):
    return Loss(**{**dict.fromkeys(TERMS, 0.0), term: 1.0, **more})


def maps(mask, classes=4):
    return torch.stack([torch.from_numpy(distance_maps(tile.numpy(), classes)) for tile in mask])


def scene(tiles=3, classes=4, size=8, ignored=0.2, dtype=torch.float64):
    """Logits, masks with coherent regions and ignored pixels, and distance maps."""
    generator = torch.Generator().manual_seed(classes)
    shape = (tiles, size // 2, size // 2)
    coarse = torch.randint(classes, shape, generator=generator, dtype=torch.uint8)
    mask = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2).short()
    mask[torch.rand(mask.shape, generator=generator) < ignored] = IGNORED
    logits = 2 * torch.randn(tiles, classes, size, size, generator=generator, dtype=dtype)
    return logits, mask, maps(mask, classes)


def slow(term, logits, mask):
    """A term of one tile by plain loops over its valid pixels."""
    valid = (mask != IGNORED).numpy()
    p = logits.double().softmax(0)[:, valid].T.numpy()  # (pixels, classes)
    true = mask.numpy()[valid].astype(int)  # (pixels)
    classes = sorted(set(true.tolist()))
    if term == "focal":
        right = p[np.arange(len(true)), true]
        return -((1 - right) ** 2 * np.log(right)).sum()
    if term == "dice":
        return slow_dice(p, true, classes)
    if len(classes) < 2:
        return 0.0
    if term == "mcc":
        return slow_mcc(p, np.eye(len(logits))[true])
    total = 0.0
    for k in classes:
        phi = slow_distance(mask.numpy(), k)[valid] / max(mask.shape)
        total += (p[:, k] * phi).sum()
    return total / len(p) / len(classes)


def slow_dice(p, true, classes):
    losses = []
    for k in classes:
        is_class = true == k
        overlap = p[is_class, k].sum()
        losses.append(1 - 2 * overlap / (p[:, k].sum() + is_class.sum()))
    return np.mean(losses) if losses else 0.0


def slow_mcc(p, truth):
    """Gorodkin's first definition, of covariances of indicators, not by the confusion matrix."""
    covariance = ((truth - truth.mean(0)) * (p - p.mean(0))).sum(1).mean()
    # the variance of the prediction is that of shares: 1 - sum of squares of its mean, as for hard labels
    true_spread = 1 - (truth.mean(0) ** 2).sum()
    spread = 1 - (p.mean(0) ** 2).sum()
    return 1 - covariance / math.sqrt(true_spread * spread + 1e-8)


def slow_distance(mask, k):
    """Signed, in pixels, by looking at every pair of pixels."""
    places = [*np.ndindex(mask.shape)]
    inside = [place for place in places if mask[place] == k]
    others = [place for place in places if mask[place] not in (k, IGNORED)]
    distance = np.zeros(mask.shape)
    for place in places:
        if mask[place] == k:
            distance[place] = 1 - min(math.dist(place, other) for other in others)
        else:
            distance[place] = min(math.dist(place, other) for other in inside)
    return distance


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("classes, ignored", [(4, 0.2), (2, 0.0)])
def test_each_term_equals_its_slow_reference(term, classes, ignored):
    logits, mask, distances = scene(classes=classes, ignored=ignored)
    got = losses.sums(only(term), logits, mask, distances)
    want = sum(slow(term, *tile) for tile in zip(logits, mask, strict=True))
    # float16 distance maps bound the boundary term: 11 bits each
    assert got.keys() == {term}
    assert float(got[term]) == pytest.approx(want, rel=2e-4 if term == "boundary" else 1e-6)


@pytest.mark.parametrize("term", TERMS)
def test_an_ignored_pixel_has_no_gradient_and_its_logits_do_not_matter(term):
    logits, mask, distances = scene()
    ignored = (mask == IGNORED)[:, None].expand_as(logits)
    once = logits.clone().requires_grad_()
    value = losses.sums(only(term), once, mask, distances)[term]
    value.backward()
    assert (once.grad[ignored] == 0).all()
    assert once.grad[~ignored].abs().sum() > 0
    other = torch.where(ignored, 30.0, logits)
    assert torch.allclose(losses.sums(only(term), other, mask, distances)[term], value)


def test_a_tile_without_valid_pixels_is_zero_in_loss_gradient_and_count():
    logits, mask, _ = scene(dtype=torch.float32)
    mask[1] = IGNORED
    distances = maps(mask)
    logits.requires_grad_()
    values = losses.sums(ALL, logits, mask, distances)
    sum(values.values()).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[1] == 0).all()
    assert logits.grad[0].abs().sum() > 0
    rest = losses.sums(ALL, logits[[0, 2]], mask[[0, 2]], distances[[0, 2]])
    assert all(torch.allclose(values[term], rest[term]) for term in TERMS)
    assert losses.count(ALL, mask[1:2]) == dict.fromkeys(TERMS, 0)


def test_a_tile_of_one_class_has_no_mcc_and_no_boundary():
    logits, mask, _ = scene(tiles=1)
    mask[mask != IGNORED] = 0
    values = losses.sums(ALL, logits, mask, maps(mask))
    assert values["mcc"].item() == values["boundary"].item() == 0
    pixels = int((mask == 0).sum())
    assert losses.count(ALL, mask) == {"focal": pixels, "dice": 1, "mcc": 0, "boundary": 0}


def test_sure_answers_have_finite_gradients():
    _, mask, _ = scene(tiles=1)
    mask[mask != IGNORED] = 0
    mask[:, :4] = 1
    sure = torch.zeros(1, 4, 8, 8)
    sure[:, 0] = 1e4  # p is exactly 0 or 1, and the MCC has no spread
    sure.requires_grad_()
    values = losses.sums(Loss(1, 1, 1, 1, 0.5), sure, mask, maps(mask))
    sum(values.values()).backward()
    assert torch.isfinite(sure.grad).all()


@pytest.fixture
def mixed():
    """Five tiles, of which one has no valid pixel and one a single class."""
    logits, mask, _ = scene(tiles=5)
    mask[2] = IGNORED
    mask[3] = torch.where(mask[3] == IGNORED, IGNORED, 1)
    return logits, mask, maps(mask)


@pytest.mark.parametrize("term", TERMS)
def test_sums_and_counts_add_up_over_micro_batches(mixed, term):
    logits, mask, distances = mixed
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]
    total = sum(losses.sums(ALL, logits[s], mask[s], distances[s])[term] for s in parts)
    number = sum(losses.count(ALL, mask[s])[term] for s in parts)
    assert torch.allclose(total, losses.sums(ALL, logits, mask, distances)[term])
    counts = {"focal": int((mask != IGNORED).sum()), "dice": 4, "mcc": 3, "boundary": 3}
    assert number == losses.count(ALL, mask)[term] == counts[term]


def test_sums_stay_in_single_precision_under_autocast(mixed):
    logits, mask, distances = mixed
    logits = logits.bfloat16()
    want = losses.sums(ALL, logits.float(), mask, distances)
    with torch.autocast("cpu", torch.bfloat16):
        got = losses.sums(ALL, logits, mask, distances)
    for term in TERMS:
        assert got[term].dtype == torch.float32
        assert torch.equal(got[term], want[term])


def test_terms_without_weight_are_neither_computed_nor_counted():
    logits, mask, _ = scene()
    loss = Loss(focal=0.6, dice=0.4)
    assert losses.sums(loss, logits, mask).keys() == {"focal", "dice"}
    assert losses.count(loss, mask).keys() == {"focal", "dice"}


def test_the_weight_of_the_boundary_rises_by_steps():
    loss = Loss(0.25, 0.25, 0.35, 0.15, ramp_steps=30)
    assert losses.weights(loss, 0) == {"focal": 0.25, "dice": 0.25, "mcc": 0.35, "boundary": 0.0}
    assert losses.weights(loss, 10)["boundary"] == pytest.approx(0.05)
    assert losses.weights(loss, 30) == losses.weights(Loss(0.25, 0.25, 0.35, 0.15), 0)
