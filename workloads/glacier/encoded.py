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
        side = torch.zeros(1, 3, 32, 32)
        with torch.no_grad():
            maps = encoder.stages(side)
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
        self.encoder.eval()
        parts = []
        for number, bands in enumerate(self.composites):
            ends = np.nanpercentile(values[:, bands], _ENDS, axis=0)
            self.ends[number] = torch.from_numpy(ends)
            seen = [self._at(tile, number, pixels) for tile, pixels in _by_tile(tiles, places)]
            raw = np.concatenate(seen)
            for rows in self._rows():
                self._whiten(number, rows, raw[:, rows].astype(np.float32))
            parts.append(self._projected(number, torch.from_numpy(raw).float()).numpy())
        return np.concatenate(parts, 1)

    def _rows(self) -> list[slice]:
        """Returns the channels of each stage."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def _whiten(self, number: int, rows: slice, raw: np.ndarray) -> None:
        """Sets mean and axes of a stage to the principal components of (pixels, channels)."""
        mean = raw.mean(0)
        centred = raw - mean
        values, vectors = np.linalg.eigh((centred.T @ centred / len(raw)).astype(np.float64))
        first = np.argsort(-values)[:_COMPONENTS]
        axes = vectors[:, first] / np.sqrt(values[first].clip(0) + 1e-8)
        self.mean[number, rows] = torch.from_numpy(mean)
        self.axes[number, rows, : axes.shape[1]] = torch.from_numpy(axes).float()

    @torch.no_grad()
    def _at(self, image: np.ndarray, number: int, pixels: np.ndarray) -> np.ndarray:
        """(bands, S, S) -> (pixels, channels) float16: all stages of a composite, interpolated."""
        height, width = image.shape[1:]
        down, across = np.divmod(pixels, width)
        x = (2 * across + 1) / width - 1
        y = (2 * down + 1) / height - 1
        grid = torch.from_numpy(np.stack([x, y], 1)).float()[None, None]
        stages = self._stages(torch.from_numpy(image), number)
        options: dict[str, Any] = {"padding_mode": "border", "align_corners": False}
        columns = [F.grid_sample(stage, grid, **options)[0, :, 0] for stage in stages]
        return torch.cat(columns).T.half().numpy()

    def _stages(self, image: Tensor, number: int) -> list[Tensor]:
        """(bands, S, S) -> (1, channels, s, s) of each stage, for a composite; no data is dark."""
        low, high = self.ends[number][..., None, None]
        stretched = (image[list(self.composites[number])] - low) / (high - low).clamp_min(1e-12)
        x = stretched.clamp(0, 1).nan_to_num(0.0)[None]
        if max(x.shape[2:]) < self.encoder.size:
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        maps = self.encoder.stages(self.encoder.scaled(x))
        return [maps[stage] for stage in _STAGES]

    def _projected(self, number: int, raw: Tensor) -> Tensor:
        """(pixels, channels) -> (pixels, components) of all stages."""
        parts = []
        for rows in self._rows():
            parts.append((raw[:, rows] - self.mean[number, rows]) @ self.axes[number, rows])
        return torch.cat(parts, 1)

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        """(bands, S, S) -> (components, S, S) of all stages of all composites."""
        self.encoder.eval()
        image = image.to(self.ends)
        planes = []
        for number in range(len(self.composites)):
            with torch.autocast(image.device.type, enabled=False):
                stages = self._stages(image, number)
            for rows, stage in zip(self._rows(), stages, strict=True):
                # Projected first: interpolating is linear, and a component is a 32nd of the channels
                centred = stage[0].flatten(1).T - self.mean[number, rows]
                small = (centred @ self.axes[number, rows]).T.view(1, -1, *stage.shape[2:])
                size = image.shape[1:]
                planes.append(F.interpolate(small, size=size, mode="bilinear", align_corners=False))
        return torch.cat(planes, 1)[0]


def _without_head(encoder: Any) -> Any:
    """Drops layers behind the stages, and makes all parameters buffers: nothing of an encoder is trained here."""
    for name in _HEAD:
        setattr(encoder.network, name, nn.Identity())
    for module in encoder.modules():
        for name, value in [*module.named_parameters(recurse=False)]:
            delattr(module, name)
            module.register_buffer(name, value.detach())
    return encoder.eval()


def _by_tile(tiles: Sequence[Any], places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the image of each tile with pixels, and their numbers."""
    numbers, begin = np.unique(places[:, 0], return_index=True)
    pixels = np.split(places[:, 1], begin[1:])
    pairs = list(zip(numbers.tolist(), pixels, strict=True))
    for number, of_tile in counted(pairs, "tiles encoded"):
        yield tiles[number][0], of_tile
