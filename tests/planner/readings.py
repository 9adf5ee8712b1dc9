"""Published readings of real cards; none of them was used to choose a rule of the planner.

    python -m tests.bench.bench_readings     predicts all of them, a few minutes; figures go to records/readings.json

Models are written from the published descriptions. `kind` is the value that was read: the driver's
peak (NVML, here the simulated reserved bytes and `more`), torch.cuda.max_memory_reserved, or
max_memory_allocated.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from lib.planner import Prediction, predict
from tests.planner import vision
from tests.trainbook.fits import language

MIB = 2**20
GIB = 2**30
# Memory outside the allocator in xMem's readings: the context and loaded kernels
CONTEXT = 200 * MIB
Made = tuple[Callable[[], Any], Callable[[Any], Any]]  # model, step


@dataclass(frozen=True)
class Reading:
    """A reading of a real card in bytes, and the step that it was taken of."""

    name: str
    measured: int
    kind: str
    card: str
    source: str
    made: Callable[[], Made]
    options: dict[str, Any] = field(default_factory=dict)
    more: int = 0  # bytes of the reading that a prediction does not count
    ran_out: bool = False
    rival: int = 0  # the estimate of the best published method
    benchmark: bool = False  # cuDNN tried all algorithms

    def prediction(self) -> Prediction:
        model, step = self.made()
        with torch.backends.cudnn.flags(enabled=True, benchmark=self.benchmark):
            return predict(model, step, self.card, **self.options)

    def most(self, result: Prediction) -> int:
        """Returns the upper end of the prediction; 0 if no convolution may take a workspace."""
        upper = result.most_reserved_bytes
        if self.kind == "allocated":
            upper = result.most_peak_bytes
        return upper and self.more + upper

    def predicted(self, result: Prediction) -> int:
        if self.kind == "allocated":
            return self.more + result.peak_bytes
        return self.more + result.reserved_bytes


# --- xMem -------------------------------------------------------------------------------------------------------------

XMEM = "the Monte Carlo set of xMem, arXiv 2510.21048: NVML's peak less its start"
_CARDS = {
    3060: "11.75 GiB, capability 8.6, 12.7 TFLOP/s fp32, 360 GB/s",
    4060: "7.747 GiB, capability 8.9",
}
# model, optimizer, batch, RTX card, bytes, whether it ran out of memory, xMem's own estimate
_XMEM = (
    ("resnet101", "SGD", 351, 3060, 8468299776, 0, 8824815616),
    ("resnet101", "SGD", 399, 4060, 7992246272, 1, 8438939648),
    ("resnet152", "Adam", 326, 3060, 11165237248, 0, 11379146752),
    ("vgg16", "SGD", 657, 4060, 7251951616, 1, 8331984896),
    ("vgg16", "AdamW", 560, 3060, 11274289152, 0, 11217666048),
    ("vgg19", "Adam", 339, 3060, 9898557440, 0, 8847884288),
    ("mobilenet_v2", "AdamW", 251, 3060, 4148166656, 0, 3684696064),
    ("mobilenet_v2", "Adagrad", 477, 4060, 6780092416, 0, 6759120896),
    ("mobilenet_v3_small", "AdamW", 638, 3060, 2143289344, 0, 2118123520),
    ("mobilenet_v3_large", "SGD", 603, 3060, 5425332224, 0, 5297405952),
    ("regnet_x_400mf", "Adam", 382, 3060, 2388656128, 0, 2264924160),
    ("regnet_y_400mf", "Adam", 410, 3060, 2726297600, 0, 2715811840),
    ("convnext_base", "Adam", 209, 4060, 7809794048, 0, 8176795648),
    ("convnext_tiny", "AdamW", 261, 4060, 4450156544, 0, 4433379328),
    ("mnasnet1_0", "SGD", 323, 3060, 3514826752, 0, 2975858688),
    ("opt-125m", "AdamW", 11, 4060, 3955228672, 0, 4349493248),
    ("opt-125m", "AdamW", 38, 3060, 8906604544, 0, 9332326400),
    ("opt-350m", "AdamW", 7, 3060, 7442792448, 0, 7874805760),
    ("opt-350m", "AdamW", 13, 3060, 8896118784, 0, 9317646336),
    ("gpt2", "AdamW", 27, 3060, 9823059968, 0, 9992929280),
    ("distilgpt2", "AdamW", 28, 4060, 6916407296, 0, 7438598144),
    ("distilgpt2", "AdamW", 9, 4060, 3038773248, 0, 3231711232),
    ("cerebras-111m", "AdamW", 9, 4060, 3456106496, 0, 3755999232),
    ("t5-small", "AdamW", 29, 4060, 6429868032, 0, 6301941760),
    ("gpt-neo-125m", "AdamW", 8, 4060, 3982491648, 0, 4175429632),
)  # fmt: skip


def image_step(
    batch: int,
    size: int,
    classes: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
):
    """A step on images, which returns (loss, logits)."""

    def step(net):
        x = torch.randn(batch, 3, size, size, device="cuda").to(dtype)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        logits = net(x)
        labels = torch.randint(0, classes, (batch,), device="cuda")
        return F.cross_entropy(logits, labels), logits

    return step


def _xmem_model(name: str, batch: int):
    if name in vision.NETS:
        return functools.partial(vision.make, name), image_step(batch, 86, 10)
    model = language.model(name)
    return model, language.step(batch, 128, language.vocabulary(name))


def _optimizer(name: str):
    if name == "SGD":
        return lambda parameters: torch.optim.SGD(parameters, lr=1e-3)
    return getattr(torch.optim, name)


def xmem() -> list[Reading]:
    """Their loop keeps `outputs` until the next step's; 86 x 86 pixels, or 128 tokens."""
    rows = []
    for name, optimizer, batch, card, size, ran_out, rival in _XMEM:
        made = functools.partial(_xmem_model, name, batch)
        options = {"optimizer": _optimizer(optimizer), "clip_norm": 0, "keeps_outputs": True}
        title = f"{name} {optimizer} batch {batch}, RTX {card}"
        reading = Reading(title, size, "nvml", _CARDS[card], XMEM, made, options, more=CONTEXT)
        rows.append(replace(reading, ran_out=bool(ran_out), rival=rival))
    return rows


# The rule for workspaces of convolutions was chosen among nine by these readings, and no constant of it was fitted.
WORKSPACES_CHOSEN = (
    "vgg19 Adam batch 339, RTX 3060",
    "mobilenet_v2 AdamW batch 251, RTX 3060",
    "resnet101 SGD batch 351, RTX 3060",
    "U-Net S5-D16 fp32, 4 x 64 x 64",
    "U-Net S5-D16 fp32, 4 x 256 x 256",
)
# Readings that the rule is compared with; they had been seen when it was chosen.
WORKSPACES_COMPARED = (
    "resnet152 Adam batch 326, RTX 3060",
    "vgg16 AdamW batch 560, RTX 3060",
    "mnasnet1_0 SGD batch 323, RTX 3060",
    "mobilenet_v2 Adagrad batch 477, RTX 4060",
    "mobilenet_v3_small AdamW batch 638, RTX 3060",
    "mobilenet_v3_large SGD batch 603, RTX 3060",
    "regnet_x_400mf Adam batch 382, RTX 3060",
    "regnet_y_400mf Adam batch 410, RTX 3060",
    "convnext_base Adam batch 209, RTX 4060",
    "convnext_tiny AdamW batch 261, RTX 4060",
    "U-Net S5-D16 fp32, 4 x 128 x 128",
)

# --- other sources ----------------------------------------------------------------------------------------------------

A100 = "a100-40"
V100 = "15.78 GiB, capability 7.0, 112 TFLOP/s, 14 TFLOP/s fp32, 900 GB/s"
_GPT = "rasbt/LLMs-from-scratch, ch05/10_llm-training-speed: A100, torch 2.6, memory_reserved"
_VIT = "rasbt/pytorch-memory-optim, logs.md: A100, torch 2.1-dev, max_memory_reserved"
_BERT = "transformers' documentation of 2022, performance on one GPU: V100, NVML, 1343 MiB of it kernels alone"
_UNET = "mmsegmentation, unet_s5-d16: four V100, DDP, cudnn.benchmark, max_memory_allocated; with DDP's buckets added"
_LLAMA = "Lightning-AI/lit-gpt, resource tables: A100, LoRA of rank 8, bf16, max_memory_allocated"


# name, GiB, arguments of `language.gpt`, batch
_GPT_ROWS = (
    ("fp32, batch 8", 26.2617, ("stored",), 8),
    ("fp32, batch 8, mask made anew", 26.2422, ("anew",), 8),
    ("bf16 weights, batch 8", 13.7871, ("anew", False, True), 8),
    ("bf16 weights, batch 8, fused norm and GELU", 11.5645, ("anew", True, True), 8),
    ("bf16 weights, batch 8, fused attention", 5.9004, ("fused", True, True), 8),
    ("bf16 weights, batch 32, compiled", 22.5078, ("fused", True, True, 50304), 32),
)


def gpt_made(kind: tuple, batch: int) -> Made:
    return functools.partial(language.gpt, *kind), language.gpt_step(batch, *kind[3:])


def _gpt() -> list[Reading]:
    rows = []
    options = {"clip_norm": 0, "keeps_outputs": True}
    for name, gib, kind, batch in _GPT_ROWS:
        size = int(gib * GIB)
        made = functools.partial(gpt_made, kind, batch)
        rows.append(Reading(f"GPT-124M {name}", size, "reserved", A100, _GPT, made, options))
    return rows


# name, GB, batch, passes, bf16 weights, precision
_VIT_ROWS = (
    ("fp32, batch 64", 26.79, 64, 1, False, "fp32"),
    ("fp16 autocast, batch 64", 18.21, 64, 1, False, "fp16"),
    ("bf16 weights, batch 64", 13.82, 64, 1, True, "fp32"),
    ("bf16 weights, batch 16", 5.69, 16, 1, True, "fp32"),
    ("bf16 weights, batch 4 x 4", 3.91, 4, 4, True, "fp32"),
)


def vit_made(batch: int, is_half: bool) -> Made:
    dtype = torch.bfloat16 if is_half else torch.float32

    def model():
        return vision.PatchEncoder().to(dtype)

    return model, image_step(batch, 224, 10, dtype)


def _vit() -> list[Reading]:
    """Its loop drops the gradients after the forward pass."""
    loop = {"clip_norm": 0, "keeps_outputs": True, "zeroes_after_forward": True}
    rows = []
    for name, gb, batch, passes, is_half, precision in _VIT_ROWS:
        size = int(gb * 1e9)
        made = functools.partial(vit_made, batch, is_half)
        options = {"optimizer": torch.optim.Adam, "accumulation": passes, "precision": precision}
        rows.append(Reading(f"ViT-L/16 {name}", size, "reserved", A100, _VIT, made, loop | options))
    return rows


# name, MiB, batch, passes, recomputed, precision
_BERT_ROWS = (
    ("fp32, batch 4", 14949, 4, 1, False, "fp32"),
    ("fp32, batch 1 x 4", 8681, 1, 4, False, "fp32"),
    ("fp32, batch 1 x 4, recomputed", 6775, 1, 4, True, "fp32"),
    ("fp16, batch 4", 13939, 4, 1, False, "fp16"),
    ("fp16, batch 1 x 4, recomputed", 7275, 1, 4, True, "fp16"),
)


def _bert_made(batch: int, recomputed: bool) -> Made:
    return functools.partial(language.bert_large, recomputed), language.bert_step(batch)


def _bert() -> list[Reading]:
    rows = []
    for name, mib, batch, passes, recomputed, precision in _BERT_ROWS:
        made = functools.partial(_bert_made, batch, recomputed)
        options = {"accumulation": passes, "precision": precision}
        options["optimizer"] = language.OldAdamW
        reading = Reading(f"bert-large {name}", mib * MIB, "nvml", V100, _BERT, made, options)
        rows.append(replace(reading, more=1343 * MIB))
    return rows


def _unet_made(size: int) -> Made:
    return vision.UNet, vision.unet_step(4, size)


def _unet() -> list[Reading]:
    buckets = 4 * 29_060_676  # one more copy of the gradients

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)

    options = {"optimizer": sgd, "clip_norm": 0}
    rows = []
    for size, gib in ((64, 0.680), (128, 0.968), (256, 2.525)):
        name = f"U-Net S5-D16 fp32, 4 x {size} x {size}"
        made = functools.partial(_unet_made, size)
        reading = Reading(name, int(gib * GIB), "allocated", V100, _UNET, made, options)
        rows.append(replace(reading, more=buckets, benchmark=True))
    return rows


def _llama_made(size: str, batch: int) -> Made:
    return functools.partial(language.llama, size), language.llama_step(batch)


def _llama() -> list[Reading]:
    options = {"optimizer": language.trained_only, "clip_norm": 0}
    rows = []
    for size, batch, gb in (("7B", 2, 29.07), ("13B", 1, 38.12)):
        name = f"Llama-2 {size} LoRA bf16, batch {batch}, 1304 tokens"
        made = functools.partial(_llama_made, size, batch)
        rows.append(Reading(name, int(gb * 1e9), "allocated", A100, _LLAMA, made, options))
    return rows


def others() -> list[Reading]:
    return [*_gpt(), *_vit(), *_bert(), *_unet(), *_llama()]


def every() -> list[Reading]:
    return [*xmem(), *others()]


# --- language models with adapters ------------------------------------------------------------------------------------

_CAN = "DaoyuanLi2816/can-i-finetune-this, benchmarks/: RTX 4080 16 GB, torch 2.6, max_memory_allocated and _reserved"
_FMS = (
    "foundation-model-stack/fms-acceleration, refs/a100_80gb.csv: A100 80 GB, max_memory_allocated"
)
RTX_4080 = "15.6 GiB, capability 8.9, 97 TFLOP/s, 717 GB/s"
# model, method, batch, length, layers recomputed, paged optimizer, GiB allocated, GiB reserved
_CAN_ROWS = (
    ("Qwen2.5-0.5B", "lora", 1, 1024, True, True, 3.03, 3.79),
    ("Qwen2.5-0.5B", "qlora", 1, 1024, True, True, 3.12, 3.30),
    ("Qwen2.5-0.5B", "qlora", 1, 2048, True, True, 5.52, 6.28),
    ("Qwen2.5-0.5B", "lora", 1, 512, True, False, 1.99, 2.38),
    ("Qwen2.5-1.5B", "qlora", 1, 512, True, True, 2.79, 2.91),
    ("Qwen2.5-1.5B", "qlora", 1, 1024, True, True, 4.04, 4.36),
    ("Qwen2.5-1.5B", "qlora", 1, 1024, False, True, 9.34, 9.55),
    ("Qwen2.5-1.5B", "qlora", 2, 1024, True, True, 6.53, 6.88),
    ("Qwen2.5-1.5B", "qlora", 1, 2048, True, True, 6.53, 7.10),
    ("Qwen2.5-1.5B", "qlora", 1, 4096, True, True, 11.51, 13.56),
    ("Qwen2.5-3B", "qlora", 1, 1024, True, True, 5.17, 5.54),
    ("Qwen2.5-7B", "qlora", 1, 1024, True, True, 10.00, 11.23),
)
_FMS_ROWS = (
    ("lora", 4, "", 24.32),
    ("lora", 8, "", 34.55),
    ("qlora", 4, "nf4", 21.26),
    ("qlora", 8, "nf4", 37.51),
)


_AS_PEFT = {"trainer": True, "targets": ("q_proj", "k_proj", "v_proj", "o_proj"), "dropout": 0.05}


@dataclass(frozen=True)
class Asked(Reading):
    """A reading of adapters: a question to `trainbook.fits.language`, and the reserved bytes if read."""

    question: Any = None
    reserved: int = 0

    def prediction(self) -> Prediction:
        from trainbook.fits.language import fits

        return fits(self.question)


def adapters() -> list[Asked]:
    return [*_can(), *_fms()]


def _can() -> list[Asked]:
    """Own loops over models in bf16, without autocast."""
    from trainbook.fits.language import Question

    rows = []
    for model, method, batch, length, recomputed, paged, gib, reserved in _CAN_ROWS:
        options = {"rank": 8, "optimizer": "adamw", "recomputed": recomputed, "autocast": False}
        if paged:
            options |= {"rank": 16, "optimizer": "paged_adamw_8bit"}
        if method == "qlora":
            options["quantised"] = "nf4-dq"
        question = Question(model, method, RTX_4080, batch, length, **_AS_PEFT, **options)
        name = f"{model} {method}, {batch} x {length}, rank {question.rank}"
        if not recomputed:
            name += ", nothing recomputed"
        row = Asked(name, int(gib * GIB), "allocated", RTX_4080, _CAN, _not_made, question=question)
        rows.append(replace(row, reserved=int(reserved * GIB)))
    return rows


def _fms() -> list[Asked]:
    """A trainer's loop."""
    from trainbook.fits.language import Question

    rows = []
    card = "a100-80"
    for method, batch, kind, gib in _FMS_ROWS:
        question = Question("Mistral-7B", method, card, batch, 4096, quantised=kind, **_AS_PEFT)
        name = f"Mistral-7B {method}, {batch} x 4096"
        rows.append(
            Asked(name, int(gib * GIB), "allocated", card, _FMS, _not_made, question=question)
        )
    return rows


def _not_made() -> Made:
    raise NotImplementedError("`trainbook.fits.language` makes the model of a question")
