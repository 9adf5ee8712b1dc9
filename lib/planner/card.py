"""The card of a plan: its memory and speed, and what PyTorch takes of it before the first tensor."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lib.errors import BadInput
from lib.machine.facts import CARDS, Card
from lib.machine.memory import GIB
from lib.planner.allocator import MIB

# A CUDA context with lazily loaded kernels takes 125 to 135 MiB of a T4 that no allocator sees (measured reports,
# 2026-09); 200 leaves room for kernels that load later.
CONTEXT_BYTES = 200 * MIB
# What NCCL takes of each card for its channels, and cuDNN for the algorithms that it tries: assumptions, not measured.
NCCL_BYTES = 200 * MIB
BENCHMARK_BYTES = 1024 * MIB
# Shares of the peak that published training runs reach (tests/planner/speeds.py): fp32 0.76 to 0.92, convolutions by
# Winograd's algorithm among it; tensor cores 0.22 to 0.49; a T4 with convolutions that are not channels last 0.18.
_FP32_SHARE, _TENSOR_SHARE, _COPIED = (0.6, 1.0), (0.31, 0.7), 0.6
_SAME_GIB = 1.5  # what drivers and versions of a card differ by; the RTX 3080 is sold with 10 and with 12 GB
FITS = 0.92  # of what the card has after the context: the rest is for what no trace can see

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
        return int(self.card.memory_gib * GIB) - self.set_aside

    @property
    def limit_bytes(self) -> int:
        """The most bytes that a plan may allocate at its peak."""
        return int(FITS * self.usable_bytes)

    @property
    def cublas_workspace(self) -> int:
        """Bytes that a cuBLAS handle keeps: PyTorch's default :4096:2:16:8, and 32 MiB on Hopper."""
        return 32 * MIB if self.card.capability[0] == 9 else 2 * 4096 * 1024 + 8 * 16 * 1024

    def flops(self, precision: Arithmetic) -> float:
        """Returns the peak FLOP/s of matrix products. Formats without units run as fp32; TF32 has half of bf16."""
        card = self.card
        tf32 = card.bf16_tflops / 2 if card.bf16_tflops else None
        rates = {"fp16": card.fp16_tflops, "bf16": card.bf16_tflops, "tf32": tf32, "fp32": card.fp32_tflops}
        return 1e12 * (rates[precision] or card.fp32_tflops)

    def sustained_share(self, precision: Arithmetic, copied: bool = False) -> tuple[float, float]:
        """Returns the least and the largest share of the peak that training should reach; `copied` as of kernels.py."""
        least, most = _FP32_SHARE if precision == "fp32" else _TENSOR_SHARE
        if precision == "fp16" and self.card.fp16_sustained_tflops:
            most = self.card.fp16_sustained_tflops / self.card.fp16_tflops
            least = 0.6 * most
        slower = _COPIED if copied and self.card.capability >= (7, 0) else 1.0
        return least * slower, most * slower


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
# What a description of one's own card may have, each once, between commas.
_PARTS = {
    "memory": re.compile(rf"{_NUMBER}\s*GiB", re.IGNORECASE),
    "capability": re.compile(r"capability\s*(\d+)\.(\d+)", re.IGNORECASE),
    "half": re.compile(rf"{_NUMBER}\s*TFLOP/s(?:\s*(?:fp16|bf16))?", re.IGNORECASE),
    "single": re.compile(rf"{_NUMBER}\s*TFLOP/s\s*fp32", re.IGNORECASE),
    "bandwidth": re.compile(rf"{_NUMBER}\s*(GB|TB)/s", re.IGNORECASE),
}
_ALIASES = {"a100": "a100-40", "v100": "v100-16", "h100-sxm": "h100", "rtxa6000": "a6000"}
_TPU = re.compile(r"tpu.*|v[2-6][ep]?(-\d+)?")
OWN_FORM = '"24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s"'


def find_card(name: str) -> Target:
    """Returns the card called `name` ("t4", "a100-40", ...), or the user's own by its figures.

    Its figures are "NN GiB, capability X.Y, NN TFLOP/s, NN GB/s": memory and what is known of the rest; TFLOP/s are
    those of fp16 products, or "NN TFLOP/s fp32". The nearest known card fills the gaps, and `assumed` says so. Raises
    BadInput with the known cards and this form.
    """
    key = re.sub(r"\s+", "", name.lower())
    key = _ALIASES.get(key, key)
    if key in CARDS:
        return Target(CARDS[key])
    if _TPU.fullmatch(key):
        raise BadInput(f"{name!r} is a TPU, on which Trainbook does not train. Plan for a GPU; Kaggle's is t4.")
    if given := _own_figures(name):
        return _own(given)
    raise BadInput(
        f"There is no card {name!r}. Known cards: {', '.join(CARDS)}. Write your own as its memory and capability, "
        f'for example "8 GiB, capability 8.6", and its rates where you know them: {OWN_FORM}.'
    )


def _own_figures(name: str) -> dict[str, re.Match[str]]:
    """Returns the parts of a description by their names; nothing if it is none."""
    parts: dict[str, re.Match[str]] = {}
    for part in name.split(","):
        matches = {key: match for key, form in _PARTS.items() if (match := form.fullmatch(part.strip()))}
        if len(matches) != 1 or matches.keys() & parts.keys():
            return {}
        parts |= matches
    is_zero = any(key in parts and not float(parts[key][1]) for key in ("half", "single", "bandwidth"))
    return parts if "memory" in parts and not is_zero else {}


def _own(given: dict[str, re.Match[str]]) -> Target:
    """Returns a card by some of its figures, with sentences on the others."""
    capability = given.get("capability")
    level = (int(capability[1]), int(capability[2])) if capability else (7, 5)
    memory = float(given["memory"][1])
    like = _nearest(memory, level)
    rates: dict[str, float | None] = {}
    if bandwidth := given.get("bandwidth"):
        rates["bandwidth_gb_s"] = float(bandwidth[1]) * (1000 if bandwidth[2].upper() == "TB" else 1)
    half = float(given["half"][1]) if "half" in given else None
    single = float(given["single"][1]) if "single" in given else None
    like_half = like.bf16_tflops or like.fp16_tflops
    faster = half / like_half if half else single / like.fp32_tflops if single else None
    if faster:
        rates["fp16_tflops"] = half or faster * like_half
        rates["bf16_tflops"] = rates["fp16_tflops"] if level >= (8, 0) else None
        rates["fp32_tflops"] = single or faster * like.fp32_tflops
        rates["fp16_sustained_tflops"] = None
    name = f"{memory:g} GiB, capability {level[0]}.{level[1]}"
    name += "".join(f", {match[0]}" for key, match in given.items() if key in ("half", "single", "bandwidth"))
    assumed = [] if capability else [f"the capability of {name.partition(',')[0]}: {level[0]}.{level[1]} was taken."]
    lacking = [what for what, known in (("TFLOP/s", faster), ("GB/s", bandwidth)) if not known]
    if lacking:
        assumed.append(_assumed(name, like, lacking))
    elif single is None or half is None:
        other = "fp32" if single is None else "fp16"
        assumed.append(f"the TFLOP/s of {other} of {name}: the ratio to the others was taken from {like.name}.")
    return Target(_like(like, name, level, memory, **rates), assumed=tuple(assumed))


def _like(like: Card, name: str, level: tuple[int, int], memory_gib: float, **rates: float | None) -> Card:
    card = replace(like, name=name, capability=level, memory_gib=memory_gib, source="given", device="", **rates)
    return card if level >= (8, 0) else replace(card, bf16_tflops=None)


def _assumed(name: str, like: Card, lacking: list[str]) -> str:
    rates = {"TFLOP/s": f"{like.fp16_tflops:g} TFLOP/s in fp16", "GB/s": f"{like.bandwidth_gb_s:g} GB/s"}
    taken = " and ".join(rates[what] for what in lacking)
    return f"how fast {name} is: {taken} of {like.name} were taken. Give its own, as in {OWN_FORM}."


def check_room(target: Target) -> None:
    """Raises BadInput for a card that has no memory left for tensors."""
    if target.usable_bytes <= 0:
        aside = f"{target.set_aside / GIB:.2f} of its {target.card.memory_gib:g} GiB"
        raise BadInput(f"{target.card.name}: nothing can be planned. CUDA's context and libraries alone take {aside}.")


def _nearest(memory_gib: float, capability: tuple[int, int]) -> Card:
    """Returns the known card of the same generation, else of the one before, whose memory is nearest."""
    older = [card for card in CARDS.values() if card.capability <= capability] or list(CARDS.values())
    major, minor = capability
    return min(
        older,
        key=lambda c: (abs(c.capability[0] - major), abs(c.capability[1] - minor), abs(c.memory_gib - memory_gib)),
    )


def card_of_gpu(index: int) -> Target:
    """Returns GPU `index` of this machine: its memory and capability, with the rates of its or the nearest card."""
    properties = torch.cuda.get_device_properties(index)
    memory_gib = properties.total_memory / GIB
    name = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", properties.name)
    for card in CARDS.values():
        if re.fullmatch(card.device, name) and abs(card.memory_gib - memory_gib) < _SAME_GIB:
            return Target(replace(card, memory_gib=memory_gib))
    like = _nearest(memory_gib, level := (properties.major, properties.minor))
    card = _like(like, properties.name, level, memory_gib)
    return Target(card, assumed=(_assumed(card.name, like, ["TFLOP/s", "GB/s"]),))
