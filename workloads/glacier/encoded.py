"""Describes each pixel by the frozen stages of a published encoder of pictures, for boosting.

The encoder sees composites of three bands. Components of its stages are fitted to pixels of the training.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.report.progress import counted

_VISIBLE = (("red", "green", "blue"),)
# Where water, snow and plants differ most; the others for data without near or short infrared
_FALSE = (("swir1", "nir", "green"), ("nir", "red", "green"), ("swir1", "red", "green"))
# Of the encoder: the widest of those of a size, and both of the coarsest
_STAGES = (0, 2, 3, 5, 6, 7)
_COMPONENTS = 10  # of each stage
_ENDS = (1, 99)  # percentiles that a band is stretched between
_HEAD = ("_conv_head", "_bn1", "_fc")  # layers behind the stages, which are not used


def composites(bands: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the places of three bands for each composite that the bands allow: visible, then false colours."""
    places = {name: place for place, name in enumerate(bands)}
    chosen = []
    for choices in (_VISIBLE, _FALSE):
        possible = [names for names in choices if places.keys() >= {*names}]
        chosen += [tuple(places[name] for name in names) for names in possible[:1]]
    return chosen


class Encoded(nn.Module):
    """Whitened components of an encoder's stages for each pixel of a tile.

    All tensors are buffers, so checkpoints and archives hold the encoder too. `ends` (composites, 2, 3) stretch bands;
    `mean` (composites, channels) and `axes` (composites, channels, components) have the channels of all stages.
    """

    ends: Tensor
    mean: Tensor
    axes: Tensor

    def __init__(self, bands: Sequence[str], encoder: Any):
        super().__init__()
        self.composites = composites(bands)
        self.encoder = _without_head(encoder)
        with torch.no_grad():
            maps = self.encoder.eval().stages(torch.zeros(1, 3, 32, 32))
        self.widths = [maps[stage].shape[1] for stage in _STAGES]
        number = len(self.composites)
        channels = sum(self.widths)
        self.register_buffer("ends", torch.zeros(number, 2, 3))
        self.register_buffer("mean", torch.zeros(number, channels))
        self.register_buffer("axes", torch.zeros(number, channels, _COMPONENTS))

    def fit(self, tiles: Sequence[Any], places: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Fits stretch and components to pixels of tiles; returns (pixels, components) float32.

        `places` (pixels, 2) are the numbers of tile and pixel, sorted by tile; `values` (pixels, bands or more) begin
        with the bands.
        """
        for number, bands in enumerate(self.composites):
            ends = np.nanpercentile(values[:, bands], _ENDS, axis=0)
            self.ends[number] = torch.from_numpy(ends)
        seen = [self._at(image, pixels) for image, pixels in _by_tile(tiles, places)]
        raw = np.concatenate(seen)
        parts = []
        for number in range(len(self.composites)):
            for rows in self._rows:
                channels = raw[:, number, rows].astype(np.float32)
                mean, axes = _whitening(channels)
                self.mean[number, rows] = torch.from_numpy(mean)
                self.axes[number, rows, : axes.shape[1]] = torch.from_numpy(axes)
                parts.append((channels - mean) @ self.axes[number, rows].numpy())
        return np.concatenate(parts, 1)

    @property
    def _rows(self) -> list[slice]:
        """The channels of each stage."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def _at(self, image: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """(bands, S, S) -> (pixels, composites, channels) float16: all stages, interpolated."""
        height, width = image.shape[1:]
        down, across = np.divmod(pixels, width)
        x = (2 * across + 1) / width - 1
        y = (2 * down + 1) / height - 1
        grid = torch.from_numpy(np.stack([x, y], 1)).float()[None, None]
        grid = grid.expand(len(self.composites), -1, -1, -1)
        options: dict[str, Any] = {"padding_mode": "border", "align_corners": False}
        stages = self._stages(torch.from_numpy(image))
        columns = [F.grid_sample(stage, grid, **options)[:, :, 0] for stage in stages]
        return torch.cat(columns, 1).permute(2, 0, 1).half().numpy()

    @torch.no_grad()
    def _stages(self, image: Tensor) -> list[Tensor]:
        """(bands, S, S) -> (composites, channels, s, s) of each stage; no data is dark."""
        self.encoder.eval()
        pictures = torch.stack([image[list(bands)] for bands in self.composites])
        low, high = self.ends[..., None, None].unbind(1)
        stretched = (pictures - low) / (high - low).clamp_min(1e-12)
        x = stretched.clamp(0, 1).nan_to_num(0.0)
        if max(x.shape[2:]) < self.encoder.size:
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        x = self.encoder.scaled(x).contiguous(memory_format=torch.channels_last)
        maps = self.encoder.stages(x)
        return [maps[stage] for stage in _STAGES]

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        """(bands, S, S) -> (components, S, S), for each composite those of all stages."""
        planes = []
        with torch.autocast(image.device.type, enabled=False):
            for rows, stage in zip(self._rows, self._stages(image.to(self.ends)), strict=True):
                # Projected first: interpolating is linear, and there are fewer components than channels
                centred = stage.flatten(2).mT - self.mean[:, None, rows]
                small = (centred @ self.axes[:, rows]).mT.unflatten(2, stage.shape[2:])
                size = image.shape[1:]
                planes.append(F.interpolate(small, size=size, mode="bilinear", align_corners=False))
        return torch.cat(planes, 1).flatten(0, 1)


def _whitening(channels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pixels, channels) -> their mean, and (channels, components) axes to white principal components."""
    mean = channels.mean(0)
    centred = channels - mean
    values, vectors = np.linalg.eigh((centred.T @ centred / len(centred)).astype(np.float64))
    first = np.argsort(-values)[:_COMPONENTS]
    axes = vectors[:, first] / np.sqrt(values[first].clip(0) + 1e-8)
    return mean, axes.astype(np.float32)


def _without_head(encoder: Any) -> Any:
    """Drops layers behind the stages, and makes all parameters buffers: nothing of an encoder is trained here."""
    for name in _HEAD:
        setattr(encoder.network, name, nn.Identity())
    for module in encoder.modules():
        for name, value in [*module.named_parameters(recurse=False)]:
            delattr(module, name)
            module.register_buffer(name, value.detach())
    return encoder.to(memory_format=torch.channels_last)


def _by_tile(tiles: Sequence[Any], places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the image of each tile with pixels, and their numbers."""
    numbers, begin = np.unique(places[:, 0], return_index=True)
    pixels = np.split(places[:, 1], begin[1:])
    pairs = list(zip(numbers.tolist(), pixels, strict=True))
    for number, of_tile in counted(pairs, "tiles encoded"):
        yield tiles[number][0], of_tile
