"""A language model from scratch: text files, of which it learns the tokens too, and writes on."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from trainbook import option
from trainbook.supervised.language import Language


@dataclass(frozen=True)
class Settings:
    vocabulary: int = option(1024, "The different tokens, which the run learns.", minimum=257)
    length: int = option(256, "The tokens that a guess sees at most.", minimum=2)
    layers: int = option(4, "The layers.", minimum=1)
    heads: int = option(4, "The heads of attention, of 32 numbers each.", minimum=1)
    written: int = option(200, "The tokens that predict writes behind a text.", minimum=1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixed = nn.Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.joined = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, turns):  # (B, L, D)
        mixed = self.mixed(self.norms[0](x)).unflatten(2, (3, -1, 32))
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)  # (B, heads, L, numbers)
        queries, keys = turned(F.rms_norm(queries, queries.shape[-1:]), turns), turned(keys, turns)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norms[1](x))).square())


def turned(x, turns):
    """Turns pairs of numbers by angles that grow with the position (RoPE: Su et al., 2021)."""
    (one, other), (cos, sin) = x.chunk(2, -1), turns
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Gpt(nn.Module):
    def __init__(self, settings):
        super().__init__()
        width = 32 * settings.heads
        self.tokens = nn.Embedding(settings.vocabulary, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, ids):
        speeds = 10_000 ** -(torch.arange(16, device=ids.device) / 16)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * speeds
        turns, x = (angles.cos(), angles.sin()), self.tokens(ids)
        for layer in self.layers:
            x = layer(x, turns)
        return self.norm(x), self.tokens.weight  # the head is the embedding


class Texts(Language):
    Settings = Settings

    def model(self):
        return Gpt(self.settings)
