"""Convolution nets of published readings, after torchvision's definitions (see models.py)."""

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
        self.downsample = None
        if stride > 1 or inside != out:
            self.downsample = conv(inside, out, 1, stride, act=None)

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
        width = 64 * 2**stage
        for number in range(depth):
            stride = 2 if stage and not number else 1
            layers.append(Bottleneck(inside, width, stride))
            inside = 4 * width
    return nn.Sequential(*layers, *pooled_classes(inside))


def pooled_classes(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]


def vgg(repeats) -> nn.Sequential:
    widths = (64, 128, 256, 512, 512)
    layers = []
    inside = 3
    for width, count in zip(widths, repeats, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


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
    for expansion, out, count, stride in _V2:
        for number in range(count):
            wide = expansion * inside
            step = 1 if number else stride
            layers.append(Mobile(inside, wide, out, 3, step, nn.ReLU6))
            inside = out
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, conv(320, 1280, act=nn.ReLU6), *pool, nn.Linear(1280, 1000))


# expansion, width, blocks, stride of the first
_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
RE = nn.ReLU
HS = nn.Hardswish
# width, kernel, wide, width after it, squeeze, activation, stride
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
    out = 16
    for inside, kernel, wide, out, squeeze, act, stride in _V3[size]:
        layers.append(Mobile(inside, wide, out, kernel, stride, act, squeeze, third=True))
    wide = 6 * out
    layers += [conv(out, wide, act=HS), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(wide, last), HS(inplace=True), nn.Dropout(0.2, True)]
    return nn.Sequential(*layers, nn.Linear(last, 1000))


class RegNetBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int, group: int, squeeze: bool):
        super().__init__()
        self.proj = None
        if inside != out or stride != 1:
            self.proj = conv(inside, out, 1, stride, act=None)
        layers = [conv(inside, out), conv(out, out, 3, stride, out // group)]
        if squeeze:
            layers.append(Squeeze(out, round(0.25 * inside), nn.Sigmoid))
        self.f = nn.Sequential(*layers, conv(out, out, act=None))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = (x if self.proj is None else self.proj(x)) + self.f(x)
        return self.activation(x)


def regnet(widths, depths, group: int, squeeze: bool) -> nn.Sequential:
    layers = [conv(3, 32, 3, 2)]
    inside = 32
    for width, depth in zip(widths, depths, strict=True):
        for number in range(depth):
            stride = 1 if number else 2
            layers.append(RegNetBlock(inside, width, stride, group, squeeze))
            inside = width
    return nn.Sequential(*layers, *pooled_classes(inside))


_RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
_VGGS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def make(name: str) -> nn.Module:
    if name in _RESNETS:
        return resnet(_RESNETS[name])
    if name in _VGGS:
        return vgg(_VGGS[name])
    match name:
        case "mobilenet_v2":
            return mobilenet_v2()
        case "mobilenet_v3_small":
            return mobilenet_v3("small", 1024)
        case "mobilenet_v3_large":
            return mobilenet_v3("large", 1280)
        case "regnet_x_400mf":
            return regnet((32, 64, 160, 400), (1, 2, 7, 12), 16, squeeze=False)
        case "regnet_y_400mf":
            return regnet((48, 104, 208, 440), (1, 3, 6, 6), 8, squeeze=True)
        case "convnext_tiny":
            return ConvNextTiny()
        case "convnext_base":
            return convnext((128, 256, 512, 1024), (3, 3, 27, 3), 0.5)
        case "mnasnet1_0":
            return MnasNet()
    raise KeyError(name)


class WideBlock(nn.Module):
    """A block of WRN-28-10, with dropout between its convolutions."""

    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, out, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, stride, 1)
        self.short = nn.Identity()
        if stride != 1 or inside != out:
            self.short = nn.Conv2d(inside, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.conv1(F.relu(self.bn1(x))), 0.3, self.training)
        y = self.conv2(F.relu(self.bn2(y)))
        y += self.short(x)
        return y


def wide_resnet() -> nn.Sequential:
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    inside = 16
    for out, stride in ((160, 1), (320, 2), (640, 2)):
        for number in range(4):
            layers.append(WideBlock(inside, out, 1 if number else stride))
            inside = out
    layers += [nn.BatchNorm2d(640), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(640, 10))


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
        up = nn.Linear(d, 4 * d)
        down = nn.Linear(4 * d, d)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class UNet(nn.Module):
    """mmsegmentation's UNet-S5-D16 with an FCN head and an auxiliary one."""

    def __init__(self, classes: int = 2):
        super().__init__()
        widths = (64, 128, 256, 512)
        self.down = nn.ModuleList([self.two(3, 64)])
        for width in widths:
            self.down.append(nn.Sequential(nn.MaxPool2d(2), *self.two(width, 2 * width)))
        up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.up = nn.ModuleList(nn.Sequential(up, conv(2 * w, w)) for w in widths)
        self.join = nn.ModuleList(self.two(2 * w, w) for w in widths)
        self.heads = nn.ModuleList(self.head(w, classes) for w in (64, 128))

    @staticmethod
    def two(inside: int, out: int) -> nn.Sequential:
        return nn.Sequential(conv(inside, out, 3), conv(out, out, 3))

    @staticmethod
    def head(width: int, classes: int) -> nn.Sequential:
        return nn.Sequential(conv(width, 64, 3), nn.Dropout2d(0.1), nn.Conv2d(64, classes, 1))

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
