"""Networks on a published encoder for the chips of `tests.bench.water`: a small head, and a U-Net trained from it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.published import Encoder, UNet, rebuilt
from workloads.glacier import losses
from workloads.glacier.baselines import sample
from workloads.glacier.encoded import Encoded, composites
from workloads.glacier.model import difference

HEAD, TUNED, SCRATCH = "small head", "U-Net", "U-Net from scratch"
NAMES = (HEAD, TUNED, SCRATCH)
_EPOCHS = 8
_TILES = 16  # of a step
_RATE = 2e-3
_OF_ENCODER = 3e-4  # a rate that keeps published weights
_WIDTH = 64  # of the head
_PLANES = 16  # of the U-Net
_PIXELS = 20_000  # that composites are stretched by
_ENDS = (1, 99)  # percentiles


class Network(nn.Module):
    """(B, bands, S, S) -> (B, classes, S, S): 1 x 1 convolutions over `number` planes beside bands and indices."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, planes: nn.Module, number: int, task: Any):
        super().__init__()
        self.planes = planes
        self.indices = task.settings.index_places
        for name in ("mean", "deviation"):
            values = torch.from_numpy(getattr(task.data.normalisation, name)).float()
            self.register_buffer(name, values.view(-1, 1, 1))
        inputs = number + len(self.mean)
        last = nn.Conv2d(_WIDTH, len(task.classes), 1)
        self.head = nn.Sequential(nn.Conv2d(inputs, _WIDTH, 1), nn.ReLU(), last)

    def forward(self, image: Tensor) -> Tensor:
        differences = [difference(image, *pair) for pair in self.indices]
        bands = (torch.cat([image, *differences], 1) - self.mean) / self.deviation
        return self.head(torch.cat([self.planes(image), bands.nan_to_num(0.0)], 1))


class Components(nn.Module):
    """Components of the frozen encoder's stages, which boosting sees too; computed once a tile."""

    def __init__(self, encoded: Encoded):
        super().__init__()
        self.encoded = encoded
        self._kept = dict[str, Tensor]()

    def forward(self, image: Tensor) -> Tensor:
        return torch.stack([self._of(tile) for tile in image])

    def _of(self, tile: Tensor) -> Tensor:
        key = hashlib.sha256(tile.numpy().tobytes()).hexdigest()
        if key not in self._kept:
            self._kept[key] = self.encoded(tile).half()
        return self._kept[key].float()


class Composite(nn.Module):
    """A U-Net over three bands, stretched from 0 to 1 between percentiles of training pixels."""

    ends: Tensor

    def __init__(self, encoder: Encoder, bands: Sequence[int], values: np.ndarray):
        super().__init__()
        self.unet = UNet(encoder, _PLANES)
        self.bands = [*bands]
        ends = np.nanpercentile(values[:, self.bands], _ENDS, axis=0)
        self.register_buffer("ends", torch.from_numpy(ends).float()[..., None, None])

    def forward(self, image: Tensor) -> Tensor:
        low, high = self.ends
        stretched = (image[:, self.bands] - low) / (high - low)
        return self.unet(stretched.clamp(0, 1).nan_to_num(0.0))


def trained(name: str, task: Any, encoder: Encoder, seed: int) -> nn.Module:
    """Returns a trained network of NAMES."""
    torch.manual_seed(seed)
    bands = task.settings.source.bands
    values, _, places = sample(task.data.whole_tiles, seed, _PIXELS)
    if name == HEAD:
        encoded = Encoded(bands, encoder)
        components = encoded.fit(task.data.whole_tiles, places, values)
        network = Network(Components(encoded), components.shape[1], task)
        _train(network, [{"params": network.head.parameters(), "lr": _RATE}], task, False)
        return network.eval()
    if name == SCRATCH:
        encoder = _from_scratch(encoder.facts)
    # The second composite has false colours, where water differs most
    network = Network(Composite(encoder, composites(bands)[-1], values), _PLANES, task)
    _train(network, _groups(network, encoder, name), task, True)
    return network.eval()


def _from_scratch(facts: Mapping[str, Any]) -> Encoder:
    """Returns the encoder with random weights, whose batch norms are trained as those of any network."""
    encoder = rebuilt(facts)
    encoder.train = lambda mode=True: nn.Module.train(encoder, mode)  # type: ignore[method-assign]
    return encoder


def _groups(network: nn.Module, encoder: Encoder, name: str) -> list[dict[str, Any]]:
    """Returns groups of parameters; the layers behind the encoder's stages have no gradient and no group."""
    of_encoder = {*encoder.parameters()}
    rest = [value for value in network.parameters() if value not in of_encoder]
    blocks = [value for key, value in encoder.named_parameters() if "_head" not in key]
    rate = _RATE if name == SCRATCH else _OF_ENCODER
    return [{"params": rest, "lr": _RATE}, {"params": blocks, "lr": rate}]


def _train(network: nn.Module, groups: list[dict[str, Any]], task: Any, augments: bool) -> None:
    tiles = task.data.whole_tiles
    steps = _EPOCHS * -(-len(tiles) // _TILES)
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    network.train()
    for _ in range(_EPOCHS):
        for numbers in torch.randperm(len(tiles), generator=generator).split(_TILES):
            samples = [tiles[number] for number in numbers.tolist()]
            batch = task.data.batch(samples, generator if augments else None)
            loss = _loss(network(batch["image"]), batch, task)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def _loss(logits: Tensor, batch: Mapping[str, Tensor], task: Any) -> Tensor:
    options = task.settings.loss
    sums = losses.sums(options, logits, batch["labels"])
    counts = losses.count(options, batch["labels"])
    weights = losses.weights(options, 0)
    return torch.stack([weights[term] * sums[term] / max(1, counts[term]) for term in sums]).sum()
