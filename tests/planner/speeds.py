"""Published training speeds of real cards, to compare with the planner's interval; see readings.py.

The expected speed is the geometric mean of the two bounds. If a wall time contains validations, the
published speed is an interval.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lib.planner import Prediction, predict, predict_inference
from tests.planner import vision
from tests.planner.readings import A100, V100, Made, gpt_made, image_step, vit_made

_CESHINE = "blog.ceshine.net/post/apex-t4-p100: 10 epochs of CIFAR-10, with 0 to 30 validations"
_NVIDIA = "NVIDIA/DeepLearningExamples, resnet50v1.5"
_TIMM = "rwightman/pytorch-image-models#1491"
_GPT = "rasbt/LLMs-from-scratch, ch05/10_llm-training-speed"
_VIT = "rasbt/pytorch-memory-optim, logs.md: epochs; a validation counts as a third of training"


@dataclass(frozen=True)
class Speed:
    """A published speed: units a second, least and most, and how many units a step has."""

    name: str
    card: str
    published: tuple[float, float]
    units: int
    source: str
    made: Callable[[], Made]
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
        fast = passes * result.pass_seconds[0] + result.rest_seconds[0]
        slow = passes * result.pass_seconds[1] + result.rest_seconds[1]
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


def _wide_made() -> Made:
    return vision.wide_resnet, image_step(128, 32, 10)


def _wide(precision: str, card: str, minutes: int, seconds: int) -> Speed:
    name = f"WRN-28-10 {precision}, batch 128, {card}"
    published = _epochs(60 * minutes + seconds)
    options = {"optimizer": sgd, "precision": precision}
    return Speed(name, card, published, 128, _CESHINE, _wide_made, options)


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
    name = f"{precision} forward alone, T4"
    is_last = precision == "fp16"
    row = _resnet(name, "t4", published, 64, _NVIDIA, precision, channels_last=is_last)
    return replace(row, options={"precision": precision}, training=False)


def _gpt(name: str, published: float, kind: tuple, tf32: bool = False) -> Speed:
    batch = 8
    title = f"GPT-124M {name}, batch {batch}, A100"
    made = functools.partial(gpt_made, kind, batch)
    return Speed(title, A100, (published, published), 1024 * batch, _GPT, made, tf32=tf32)


def _vit(
    name: str, minutes: float, batch: int, half: bool, passes: int = 1, precision: str = "fp32"
) -> Speed:
    published = (45000 + 5000 / 3) / 60 / minutes
    made = functools.partial(vit_made, batch, half)
    options = {"optimizer": torch.optim.Adam, "precision": precision, "accumulation": passes}
    title = f"ViT-L/16 {name}, A100"
    return Speed(title, A100, (published, published), batch * passes, _VIT, made, options)


def every() -> list[Speed]:
    return [*_wide_resnets(), *_resnets(), *_gpts(), *_vits()]


def _wide_resnets() -> Iterator[Speed]:
    yield _wide("fp32", "t4", 57, 17)
    yield _wide("fp16", "t4", 31, 14)
    yield _wide("fp32", "p100", 47, 1)
    yield _wide("fp16", "p100", 47, 34)


def _resnets() -> Iterator[Speed]:
    large_v100 = V100.replace("15.78", "31.7")
    yield _resnet("fp16 NHWC, A100", "a100-80", 2470, 256, _NVIDIA, "fp16", True)
    yield _resnet("fp16 NHWC, A100", "a100-80", 2600, 512, _TIMM, "fp16", True)
    yield _resnet("fp32, V100", V100, 367, 128, _NVIDIA, "fp32", False)
    yield _resnet("fp16 NHWC, V100", large_v100, (1156, 1200), 256, _NVIDIA, "fp16", True)
    yield _resnet("TF32 NHWC, A100", "a100-80", 938, 256, _NVIDIA, "fp32", True)
    yield _forward("fp32", 428)
    yield _forward("fp16", 1165)


def _gpts() -> Iterator[Speed]:
    yield _gpt("fp32", 12525, ("stored",))
    yield _gpt("TF32", 27648, ("anew",), tf32=True)
    yield _gpt("bf16 weights", 45486, ("anew", False, True))
    yield _gpt("bf16 weights, fused norm and GELU", 55256, ("anew", True, True))
    yield _gpt("bf16 weights, fused attention", 91901, ("fused", True, True))


def _vits() -> Iterator[Speed]:
    yield _vit("fp32, batch 64", 17.94, 64, False)
    yield _vit("fp16 autocast, batch 64", 3.45, 64, False, 1, "fp16")
    yield _vit("bf16 weights, batch 64", 2.88, 64, True)
    yield _vit("bf16 weights, batch 16", 3.96, 16, True)
    yield _vit("bf16 weights, batch 4 x 4", 12.91, 4, True, 4)
