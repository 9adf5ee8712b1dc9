"""Convolution nets of published readings, after torchvision's definitions; see models.py for why they stand here."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.planner.models import ConvNextTiny, MnasNet, conv, convnext

NETS = (
    "resnet101", "resnet152", "vgg16", "vgg19", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large",
    "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny", "convnext_base", "mnasnet1_0",
)  # fmt: skip


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            conv(inside, out, 1, stride, act=None) if stride > 1 or inside != out else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def resnet(depths) -> nn.Sequential:
    layers = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, depth in enumerate(depths):
        for number in range(depth):
            width = 64 * 2**stage
            layers.append(Bottleneck(inside, width, 2 if stage and not number else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def vgg(repeats) -> nn.Sequential:
    layers = []
    inside = 3
    for width, count in zip((64, 128, 256, 512, 512), repeats, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width
        layers.append(nn.MaxPool2d(2, 2))
    head = [
        nn.Linear(512 * 49, 4096),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(True),
        nn.Dropout(),
    ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head, nn.Linear(4096, 1000)
    )


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, inner: int, gate: type[nn.Module]):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(width, inner, 1)
        self.fc2 = nn.Conv2d(inner, width, 1)
        self.act = nn.ReLU()
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.fc2(self.act(self.fc1(self.pool(x))))) * x


class Mobile(nn.Module):
    """An inverted residual of MobileNet V2, or of V3, which adds its input in place."""

    def __init__(self, inside, wide, out, kernel, stride, act, squeeze=False, third=False):
        super().__init__()
        self.third = third
        layers = [conv(inside, wide, act=act)] if wide != inside else []
        layers.append(conv(wide, wide, kernel, stride, wide, act))
        if squeeze:
            layers.append(Squeeze(wide, round_by_8(wide // 4), nn.Hardsigmoid))
        self.block = nn.Sequential(*layers, conv(wide, out, act=None))
        self.residual = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        if self.residual and self.third:
            y += x
        elif self.residual:
            y = x + y
        return y


def round_by_8(value: float) -> int:
    rounded = max(8, int(value + 4) // 8 * 8)
    if rounded < 0.9 * value:
        return rounded + 8
    return rounded


def mobilenet_v2() -> nn.Sequential:
    layers = [conv(3, 32, 3, 2, act=nn.ReLU6)]
    inside = 32
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, out, count, stride in stages:
        for number in range(count):
            layers.append(
                Mobile(inside, expansion * inside, out, 3, 1 if number else stride, nn.ReLU6)
            )
            inside = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, conv(320, 1280, act=nn.ReLU6), *head)


RE = nn.ReLU
HS = nn.Hardswish
_V3 = {
    "small": ((16, 3, 16, 16, True, RE, 2), (16, 3, 72, 24, False, RE, 2), (24, 3, 88, 24, False, RE, 1),
              (24, 5, 96, 40, True, HS, 2), (40, 5, 240, 40, True, HS, 1), (40, 5, 240, 40, True, HS, 1),
              (40, 5, 120, 48, True, HS, 1), (48, 5, 144, 48, True, HS, 1), (48, 5, 288, 96, True, HS, 2),
              (96, 5, 576, 96, True, HS, 1), (96, 5, 576, 96, True, HS, 1)),
    "large": ((16, 3, 16, 16, False, RE, 1), (16, 3, 64, 24, False, RE, 2), (24, 3, 72, 24, False, RE, 1),
              (24, 5, 72, 40, True, RE, 2), (40, 5, 120, 40, True, RE, 1), (40, 5, 120, 40, True, RE, 1),
              (40, 3, 240, 80, False, HS, 2), (80, 3, 200, 80, False, HS, 1), (80, 3, 184, 80, False, HS, 1),
              (80, 3, 184, 80, False, HS, 1), (80, 3, 480, 112, True, HS, 1), (112, 3, 672, 112, True, HS, 1),
              (112, 5, 672, 160, True, HS, 2), (160, 5, 960, 160, True, HS, 1), (160, 5, 960, 160, True, HS, 1)),
}  # fmt: skip


def mobilenet_v3(size: str, last: int) -> nn.Sequential:
    layers = [conv(3, 16, 3, 2, act=HS)]
    layers += [
        Mobile(i, wide, out, k, stride, act, se, True)
        for i, k, wide, out, se, act, stride in _V3[size]
    ]
    out = _V3[size][-1][3]
    head = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6 * out, last),
        HS(inplace=True),
        nn.Dropout(0.2, True),
    ]
    return nn.Sequential(*layers, conv(out, 6 * out, act=HS), *head, nn.Linear(last, 1000))


class RegNetBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int, group: int, squeeze: bool):
        super().__init__()
        self.proj = conv(inside, out, 1, stride, act=None) if inside != out or stride != 1 else None
        if squeeze:
            gate = [Squeeze(out, round(0.25 * inside), nn.Sigmoid)]
        else:
            gate = []
        middle = conv(out, out, 3, stride, out // group)
        self.f = nn.Sequential(conv(inside, out), middle, *gate, conv(out, out, act=None))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = (x if self.proj is None else self.proj(x)) + self.f(x)
        return self.activation(x)


def regnet(widths, depths, group: int, squeeze: bool) -> nn.Sequential:
    layers = [conv(3, 32, 3, 2)]
    inside = 32
    for width, depth in zip(widths, depths, strict=True):
        for number in range(depth):
            layers.append(RegNetBlock(inside, width, 1 if number else 2, group, squeeze))
            inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def make(name: str) -> nn.Module:
    makers = {
        "resnet50": lambda: resnet((3, 4, 6, 3)), "resnet101": lambda: resnet((3, 4, 23, 3)),
        "resnet152": lambda: resnet((3, 8, 36, 3)), "vgg16": lambda: vgg((2, 2, 3, 3, 3)),
        "vgg19": lambda: vgg((2, 2, 4, 4, 4)), "mobilenet_v2": mobilenet_v2,
        "mobilenet_v3_small": lambda: mobilenet_v3("small", 1024),
        "mobilenet_v3_large": lambda: mobilenet_v3("large", 1280),
        "regnet_x_400mf": lambda: regnet((32, 64, 160, 400), (1, 2, 7, 12), 16, False),
        "regnet_y_400mf": lambda: regnet((48, 104, 208, 440), (1, 3, 6, 6), 8, True), "convnext_tiny": ConvNextTiny,
        "convnext_base": lambda: convnext((128, 256, 512, 1024), (3, 3, 27, 3), 0.5), "mnasnet1_0": MnasNet,
    }  # fmt: skip
    return makers[name]()


class WideBlock(nn.Module):
    """A block of WRN-28-10, with dropout between its convolutions."""

    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, out, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, stride, 1)
        self.short = (
            nn.Conv2d(inside, out, 1, stride) if stride != 1 or inside != out else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.conv1(F.relu(self.bn1(x))), 0.3, self.training)
        y = self.conv2(F.relu(self.bn2(y)))
        y += self.short(x)
        return y


def wide_resnet() -> nn.Sequential:
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    inside = 16
    for out, stride in zip((160, 320, 640), (1, 2, 2), strict=True):
        for number in range(4):
            layers.append(WideBlock(inside, out, 1 if number else stride))
            inside = out
    return nn.Sequential(
        *layers, nn.BatchNorm2d(640), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(640, 10)
    )


class PatchEncoder(nn.Module):
    """ViT-L/16 of torchvision at 224 x 224, with ten classes."""

    def __init__(self, layers: int = 24, d: int = 1024, heads: int = 16, classes: int = 10):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.position = nn.Parameter(torch.zeros(1, 197, d))
        self.blocks = nn.Sequential(*(PatchLayer(d, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class PatchLayer(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class UNet(nn.Module):
    """mmsegmentation's UNet-S5-D16 with an FCN head and an auxiliary one."""

    def __init__(self, classes: int = 2):
        super().__init__()
        w = [64, 128, 256, 512, 1024]
        pairs = zip([3, *w], w, strict=False)
        self.down = nn.ModuleList(
            nn.Sequential(*([nn.MaxPool2d(2)] if i != 3 else []), conv(i, o, 3), conv(o, o, 3))
            for i, o in pairs
        )
        up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.up = nn.ModuleList(nn.Sequential(up, conv(2 * o, o)) for o in w[:4])
        self.join = nn.ModuleList(nn.Sequential(conv(2 * o, o, 3), conv(o, o, 3)) for o in w[:4])
        self.heads = nn.ModuleList(
            nn.Sequential(conv(i, 64, 3), nn.Dropout2d(0.1), nn.Conv2d(64, classes, 1))
            for i in w[:2]
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        decoded = {}
        for level in (3, 2, 1, 0):
            x = decoded[level] = self.join[level](torch.cat([skips[level], self.up[level](x)], 1))
        return self.heads[0](decoded[0]), self.heads[1](decoded[1])


def unet_step(batch: int, size: int):
    def step(net):
        target = torch.randint(0, 2, (batch, size, size), device="cuda")
        main, more = net(torch.randn(batch, 3, size, size, device="cuda"))
        main, more = (F.interpolate(t, size=(size, size), mode="bilinear") for t in (main, more))
        return F.cross_entropy(main, target) + 0.4 * F.cross_entropy(more, target)

    return step
