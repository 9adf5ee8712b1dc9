"""The card of a plan: its memory and speed, and what PyTorch takes of it before the first tensor."""

import re
from dataclasses import dataclass, replace

import torch

from lib.errors import BadInput
from lib.machine.facts import CARDS, Card
from lib.machine.memory import GIB
from lib.planner.allocator import MIB
from lib.training.precision import Precision

# A CUDA context with lazily loaded kernels takes 125 to 135 MiB of a T4 that no allocator sees (measured reports,
# 2026-09); 200 leaves room for kernels that load later.
CONTEXT_BYTES = 200 * MIB
# What NCCL takes of each card for its channels, and cuDNN for the algorithms that it tries: assumptions, not measured.
NCCL_BYTES = 200 * MIB
BENCHMARK_BYTES = 1024 * MIB
FITS = 0.92  # of what the card has after the context: the rest is for what no trace can see


@dataclass(frozen=True)
class Target:
    """A card, and the part of its memory that tensors cannot have."""

    card: Card
    set_aside: int = CONTEXT_BYTES  # bytes of it that are not for tensors

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

    def flops(self, precision: Precision) -> float:
        """Returns the peak FLOP/s of matrix products; formats without units on the card run at the rate of fp32."""
        rates = {"fp16": self.card.fp16_tflops, "bf16": self.card.bf16_tflops, "fp32": self.card.fp32_tflops}
        return 1e12 * (rates[precision] or self.card.fp32_tflops)

    def sustained_share(self, precision: Precision) -> tuple[float, float]:
        """Returns the least and the largest share of the peak that training's matrix products should reach."""
        if precision == "fp16" and self.card.fp16_sustained_tflops:
            known = self.card.fp16_sustained_tflops / self.card.fp16_tflops
            return 0.6 * known, known
        return 0.3, 0.7


_OWN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*GiB\s*(?:,\s*capability\s*(\d+)\.(\d+))?\s*", re.IGNORECASE)


def find_card(name: str) -> Target:
    """Returns the card called `name` ("t4", "a100-40", ...), or one's own as "NN GiB, capability X.Y".

    Raises BadInput, with the cards that are known and the form for one's own.
    """
    key = {"a100": "a100-40"}.get(name.strip().lower(), name.strip().lower())
    if key in CARDS:
        return Target(CARDS[key])
    if own := _OWN.fullmatch(name):
        return Target(_like_known(float(own[1]), (int(own[2] or 7), int(own[3] or 5))))
    raise BadInput(
        f"There is no card {name!r}. Known cards: {', '.join(CARDS)}. Write your own as its memory and capability, "
        'for example "8 GiB, capability 8.6".'
    )


def check_room(target: Target) -> None:
    """Raises BadInput for a card that has no memory left for tensors."""
    if target.usable_bytes <= 0:
        raise BadInput(
            f"{target.card.name}: nothing can be planned, because CUDA's context and libraries alone take "
            f"{target.set_aside / GIB:.2f} of its {target.card.memory_gib:g} GiB. Take a card with more memory."
        )


def _like_known(memory_gib: float, capability: tuple[int, int]) -> Card:
    """Returns a card of which only memory and capability are known, with the rates of the nearest known one."""
    older = [card for card in CARDS.values() if card.capability <= capability] or list(CARDS.values())
    like = min(older, key=lambda card: (abs(card.capability[0] - capability[0]), abs(card.memory_gib - memory_gib)))
    name = f"{memory_gib:g} GiB, capability {capability[0]}.{capability[1]}"
    source = f"the rates are those of {like.name}"
    return replace(like, name=name, capability=capability, memory_gib=memory_gib, source=source)


def card_of_gpu(index: int) -> Target:
    """Returns GPU `index` of this machine: its own memory and capability, with the rates of its card in the table."""
    properties = torch.cuda.get_device_properties(index)
    memory_gib = properties.total_memory / GIB
    known = [c for c in CARDS.values() if c.name.split()[0] in properties.name and abs(c.memory_gib - memory_gib) < 2]
    if known:
        return Target(replace(known[0], memory_gib=memory_gib))
    return Target(replace(_like_known(memory_gib, (properties.major, properties.minor)), name=properties.name))
