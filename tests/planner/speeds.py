"""Published training speeds of real cards, to hold the planner's interval against; see readings.py.

The expected speed is the geometric mean of the two bounds. Where a wall time contains validations, the published speed
is an interval.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from lib.planner import Prediction, predict, predict_inference
from tests.planner import vision
from tests.planner.readings import A100, V100, image_step
from tests.trainbook.fits import language

_CESHINE = "blog.ceshine.net/post/apex-t4-p100: 10 epochs of CIFAR-10, with 0 to 30 validations"
_NVIDIA = "NVIDIA/DeepLearningExamples, resnet50v1.5"
_TIMM = "rwightman/pytorch-image-models#1491"
_GPT = "rasbt/LLMs-from-scratch, ch05/10_llm-training-speed"
_VIT = (
    "rasbt/pytorch-memory-optim, logs.md: whole epochs, a validation counted as a third of training"
)


@dataclass(frozen=True)
class Speed:
    """A published speed: units a second, least and most, and how many units a step has."""

    name: str
    card: str
    published: tuple[float, float]
    units: int
    source: str
    made: Callable[[], tuple[Callable[[], Any], Callable[[Any], Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    tf32: bool = False  # products of fp32 were
    training: bool = True  # or forward passes alone

    @property
    def middle(self) -> float:
        return math.sqrt(self.published[0] * self.published[1])

    def forecast(self) -> tuple[float, float]:
        """Returns the bounds in units a second."""
        model, step = self.made()
        with _tf32(self.tf32):
            result = self.predicted(model, step)
        passes = self.options.get("accumulation", 1)
        fast, slow = (
            passes * a + b for a, b in zip(result.pass_seconds, result.rest_seconds, strict=True)
        )
        return self.units / slow, self.units / fast

    def predicted(self, model: Any, step: Any) -> Prediction:
        if not self.training:
            return predict_inference(model, lambda net: step(net)[1], self.card, **self.options)
        return predict(model, step, self.card, clip_norm=0, **self.options)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _epochs(seconds: float) -> tuple[float, float]:
    return 500_000 / seconds, 600_000 / seconds


def _wide(precision: str, card: str, seconds: float) -> Speed:
    return Speed(
        f"WRN-28-10 {precision}, batch 128, {card}", card, _epochs(seconds), 128, _CESHINE,
        lambda: (vision.wide_resnet, image_step(128, 32, 10)), {"optimizer": sgd, "precision": precision},
    )  # fmt: skip


def _resnet(
    name: str,
    card: str,
    published: Any,
    batch: int,
    source: str,
    precision: str,
    channels_last: bool,
):
    def made():
        def model():
            net = vision.make("resnet50")
            if channels_last:
                return net.to(memory_format=torch.channels_last)
            return net

        return model, image_step(batch, 224, 1000, channels_last=channels_last)

    options = {"optimizer": sgd, "precision": precision}
    span = published if isinstance(published, tuple) else (published, published)
    return Speed(f"ResNet-50 {name}, batch {batch}", card, span, batch, source, made, options)


def _forward(precision: str, published: float) -> Speed:
    row = _resnet(
        f"{precision} forward alone, T4",
        "t4",
        published,
        64,
        _NVIDIA,
        precision,
        precision == "fp16",
    )
    return replace(row, options={"precision": precision}, training=False)


def _gpt(name: str, published: float, kind: tuple, batch: int = 8, tf32: bool = False) -> Speed:
    return Speed(
        f"GPT-124M {name}, batch {batch}, A100", A100, (published, published), 1024 * batch, _GPT,
        lambda: (functools.partial(language.gpt, *kind), language.gpt_step(batch, *kind[3:] or (50257,))), tf32=tf32,
    )  # fmt: skip


def _vit(
    name: str, minutes: float, batch: int, half: bool, passes: int = 1, precision: str = "fp32"
) -> Speed:
    published = (45000 + 5000 / 3) / 60 / minutes
    dtype = torch.bfloat16 if half else torch.float32

    def made() -> tuple[Callable[[], nn.Module], Callable[[Any], Any]]:
        return lambda: vision.PatchEncoder().to(dtype), image_step(batch, 224, 10, dtype)

    options = {"optimizer": torch.optim.Adam, "precision": precision, "accumulation": passes}
    return Speed(
        f"ViT-L/16 {name}, A100", A100, (published, published), batch * passes, _VIT, made, options
    )


def every() -> list[Speed]:
    return [
        _wide("fp32", "t4", 57 * 60 + 17), _wide("fp16", "t4", 31 * 60 + 14), _wide("fp32", "p100", 47 * 60 + 1),
        _wide("fp16", "p100", 47 * 60 + 34), _resnet("fp16 NHWC, A100", "a100-80", 2470, 256, _NVIDIA, "fp16", True),
        _resnet("fp16 NHWC, A100", "a100-80", 2600, 512, _TIMM, "fp16", True),
        _resnet("fp32, V100", V100, 367, 128, _NVIDIA, "fp32", False),
        _resnet("fp16 NHWC, V100", V100.replace("15.78", "31.7"), (1156, 1200), 256, _NVIDIA, "fp16", True),
        _resnet("TF32 NHWC, A100", "a100-80", 938, 256, _NVIDIA, "fp32", True), _forward("fp32", 428),
        _forward("fp16", 1165), _gpt("fp32", 12525, ("stored",)), _gpt("TF32", 27648, ("anew",), tf32=True),
        _gpt("bf16 weights", 45486, ("anew", False, True)),
        _gpt("bf16 weights, fused norm and GELU", 55256, ("anew", True, True)),
        _gpt("bf16 weights, fused attention", 91901, ("fused", True, True)), _vit("fp32, batch 64", 17.94, 64, False),
        _vit("fp16 autocast, batch 64", 3.45, 64, False, 1, "fp16"), _vit("bf16 weights, batch 64", 2.88, 64, True),
        _vit("bf16 weights, batch 16", 3.96, 16, True), _vit("bf16 weights, batch 4 x 4", 12.91, 4, True, 4),
    ]  # fmt: skip
