"""The card of a plan: its memory and speed, and what PyTorch takes of it before the first tensor."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from lib.errors import BadInput
from lib.machine.facts import CARDS, Card
from lib.machine.memory import GIB
from lib.planner.allocator import MIB

# A CUDA context with lazily loaded kernels takes 125 to 135 MiB of a T4 that no allocator sees (measured reports,
# 2026-09); 200 leaves room for kernels that load later.
CONTEXT_BYTES = 200 * MIB
NCCL_BYTES = 200 * MIB  # what NCCL takes of each card for its channels: an assumption, not measured
# Shares of the peak that published training runs reach (tests/planner/speeds.py): fp32 0.76 to 0.92, convolutions by
# Winograd's algorithm among it; tensor cores 0.22 to 0.49; a T4 with convolutions that are not channels last 0.18.
_FP32_SHARE = (0.6, 1.0)
_TENSOR_SHARE = (0.31, 0.7)
_COPIED = 0.6
_SAME_GIB = 1.5  # what drivers and versions of a card differ by; the RTX 3080 is sold with 10 and with 12 GB
FITS = 0.92  # share of the memory after the context; the rest is for allocations that no trace sees

Arithmetic = Literal["fp32", "tf32", "fp16", "bf16"]


@dataclass(frozen=True)
class Target:
    """A card, and the part of its memory that tensors cannot have."""

    card: Card
    set_aside: int = CONTEXT_BYTES  # bytes of it that are not for tensors
    assumed: tuple[str, ...] = ()  # sentences on figures that were not given

    @property
    def usable_bytes(self) -> int:
        """Bytes for tensors: the memory that torch sees, without context and libraries."""
        return max(1, int(self.card.memory_gib * GIB) - self.set_aside)

    @property
    def limit_bytes(self) -> int:
        return int(FITS * self.usable_bytes)

    @property
    def cublas_workspace(self) -> int:
        """Bytes that a cuBLAS handle keeps: PyTorch's default :4096:2:16:8, and 32 MiB on Hopper."""
        if self.card.capability[0] == 9:
            return 32 * MIB
        return 2 * 4096 * 1024 + 8 * 16 * 1024

    def flops(self, precision: Arithmetic) -> float:
        """Returns the peak FLOP/s of matrix products. Formats without units run as fp32."""
        card = self.card
        bf16 = card.bf16_tflops or 0.0
        tf32 = bf16 / 2
        rates = {"fp16": card.fp16_tflops, "bf16": bf16, "tf32": tf32, "fp32": card.fp32_tflops}
        return 1e12 * (rates[precision] or card.fp32_tflops)

    def sustained_share(self, precision: Arithmetic, copied: bool) -> tuple[float, float]:
        """Returns the smallest and largest share of the peak that training should reach.

        `copied`: the kernel copies its inputs to channels last first.
        """
        least, most = _FP32_SHARE if precision == "fp32" else _TENSOR_SHARE
        if precision == "fp16" and self.card.fp16_sustained_tflops:
            most = self.card.fp16_sustained_tflops / self.card.fp16_tflops
            least = 0.6 * most
        slower = _COPIED if copied and self.card.capability >= (7, 0) else 1.0
        return least * slower, most * slower


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
# Parts of the description of a user's card, each at most once, between commas.
_PARTS = {
    "memory": rf"{_NUMBER}\s*GiB", "capability": r"capability\s*(\d+)\.(\d+)", "bandwidth": rf"{_NUMBER}\s*GB/s",
    "half": rf"{_NUMBER}\s*TFLOP/s", "single": rf"{_NUMBER}\s*TFLOP/s\s*fp32",
}  # fmt: skip
_RATES = ("half", "single", "bandwidth")
_ALIASES = {"a100": "a100-40", "v100": "v100-16"}
OWN_FORM = '"24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s"'


def find_card(name: str) -> Target:
    """Returns the card called `name` ("t4", "a100-40", ...), or a card described by its figures.

    "NN GiB, capability X.Y, NN TFLOP/s, NN GB/s": memory, capability and known rates, of fp16, or
    "NN TFLOP/s fp32". The nearest known card fills the gaps, and `assumed` names it. Raises BadInput.
    """
    key = re.sub(r"\s+", "", name.lower())
    if card := CARDS.get(_ALIASES.get(key, key)):
        return Target(card)
    pieces = [piece.strip() for piece in name.split(",")]
    parts: dict[str, re.Match[str]] = {}
    for piece in pieces:
        for key, form in _PARTS.items():
            if match := re.fullmatch(form, piece, re.IGNORECASE):
                parts[key] = match
    rates = {key: float(parts[key][1]) for key in _RATES if key in parts}
    is_whole = len(parts) == len(pieces) and {"memory", "capability"} <= parts.keys()
    if not is_whole or 0 in rates.values():
        raise BadInput(
            f"There is no card {name!r}. Known cards: {', '.join(CARDS)}. Write your own as its memory"
            f' and capability, for example "8 GiB, capability 8.6", and rates that you know: {OWN_FORM}.'
        )
    major, minor = map(int, parts["capability"].groups())
    return _like_nearest(name.strip(), float(parts["memory"][1]), (major, minor), rates)


def _like_nearest(
    name: str, memory_gib: float, level: tuple[int, int], rates: Mapping[str, float]
) -> Target:
    """Returns a card with `rates`; the nearest known card, no newer than it, has the missing ones."""
    place = (*level, memory_gib)

    def distance(card: Card) -> list[float]:
        figures = (*card.capability, card.memory_gib)
        return [abs(a - b) for a, b in zip(figures, place, strict=True)]

    known = list(CARDS.values())
    older = [card for card in known if card.capability <= level]
    like = min(older or known, key=distance)
    half, single, bandwidth = map(rates.get, _RATES)
    like_half = like.bf16_tflops or like.fp16_tflops
    faster = None
    if half:
        faster = half / like_half
    elif single:
        faster = single / like.fp32_tflops
    figures: dict[str, Any] = {"bandwidth_gb_s": bandwidth or like.bandwidth_gb_s}
    if faster:
        figures["fp16_tflops"] = half or faster * like_half
        figures["bf16_tflops"] = figures["fp16_tflops"]
        figures["fp32_tflops"] = single or faster * like.fp32_tflops
        figures["fp16_sustained_tflops"] = None
    if level < (8, 0):
        figures["bf16_tflops"] = None
    figures |= {"name": name, "capability": level, "memory_gib": memory_gib}
    card = replace(like, source="given", device="", **figures)
    if half and single and bandwidth:
        return Target(card)
    assumed = (
        f"how fast {name} is: missing rates were taken from {like.name}."
        f" Give its own, as in {OWN_FORM}."
    )
    return Target(card, assumed=(assumed,))


def card_of_gpu(index: int) -> Target:
    """Returns GPU `index` of this machine, with the rates of its card or the nearest."""
    properties = torch.cuda.get_device_properties(index)
    memory_gib = properties.total_memory / GIB
    name = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", properties.name)
    for card in CARDS.values():
        if re.fullmatch(card.device, name) and abs(card.memory_gib - memory_gib) < _SAME_GIB:
            return Target(replace(card, memory_gib=memory_gib))
    return _like_nearest(properties.name, memory_gib, (properties.major, properties.minor), {})
