"""Models of the planner's tests: an encoder whose memory can be counted by hand, and two of torchvision's.

ConvNeXt-T and MnasNet are written here because torchvision has no build for CPUs where these tests
run; they follow the papers' tables (arXiv 2201.03545, figure 4 and section 2; arXiv 1807.11626,
figure 7).
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, d: int, heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.fc1 = nn.Linear(d, 4 * d)
        self.fc2 = nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        B, L, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, d)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return x + F.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))), self.dropout, self.training)


class Encoder(nn.Module):
    def __init__(self, layers: int, d: int):
        super().__init__()
        self.blocks = nn.ModuleList(Layer(d) for _ in range(layers))
        self.head = nn.Linear(d, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, d: int, drop: float):
        super().__init__()
        self.mix = nn.Conv2d(d, d, 7, padding=3, groups=d)
        up = nn.Linear(d, 4 * d)
        down = nn.Linear(4 * d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), up, nn.GELU(), down)
        self.scale = nn.Parameter(torch.full((d, 1, 1), 1e-6))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * self.mlp(self.mix(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.drop:
            keep = torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_(1 - self.drop)
            y = y * keep.div_(1 - self.drop)
        return y + x


def convnext(widths, depths, most: float) -> nn.Sequential:
    """`most`: the stochastic depth of the last block."""
    layers: list[nn.Module] = []
    inside = 0
    drops = iter(torch.linspace(0, most, sum(depths), device="cpu").tolist())
    for width, depth in zip(widths, depths, strict=True):
        if inside:
            layers += [ChannelNorm(inside), nn.Conv2d(inside, width, 2, 2)]
        else:
            layers += [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
        layers += [ConvNextBlock(width, next(drops)) for _ in range(depth)]
        inside = width
    pooled = [nn.AdaptiveAvgPool2d(1), ChannelNorm(inside), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, nn.Linear(inside, 1000))


# 28.6 M parameters
ConvNextTiny = functools.partial(convnext, (96, 192, 384, 768), (3, 3, 9, 3), 0.1)


def conv(inside: int, out: int, kernel=1, stride=1, groups=1, act=nn.ReLU) -> nn.Sequential:
    padding = kernel // 2
    layers = [nn.Conv2d(inside, out, kernel, stride, padding, groups=groups, bias=False)]
    layers.append(nn.BatchNorm2d(out))
    if act:
        layers.append(act(inplace=True))
    return nn.Sequential(*layers)


class Inverted(nn.Module):
    def __init__(self, inside: int, out: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = inside * expansion
        middle = conv(wide, wide, kernel, stride, wide)
        self.layers = nn.Sequential(conv(inside, wide), middle, conv(wide, out, act=None))
        self.residual = inside == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        if self.residual:
            return self.layers(x) + x
        return self.layers(x)


class MnasNet(nn.Module):
    """MnasNet-B1, 4.4 M parameters."""

    STAGES = (  # in, out, kernel, stride, expansion, repeats
        (16, 24, 3, 2, 3, 3), (24, 40, 5, 2, 3, 3), (40, 80, 5, 2, 6, 3),
        (80, 96, 3, 1, 6, 2), (96, 192, 5, 2, 6, 4), (192, 320, 3, 1, 6, 1),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        layers = [conv(3, 32, 3, 2), conv(32, 32, 3, 1, 32), conv(32, 16, act=None)]
        for inside, out, kernel, stride, expansion, repeats in self.STAGES:
            layers += [Inverted(inside, out, kernel, stride, expansion)]
            layers += [Inverted(out, out, kernel, 1, expansion) for _ in range(repeats - 1)]
        self.features = nn.Sequential(*layers, conv(320, 1280))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class LanguageModel(nn.Module):
    """An embedding, two layers and a head over the same table."""

    def __init__(self, vocabulary: int = 4000, d: int = 128):
        super().__init__()
        self.token = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(Layer(d) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(x, self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
