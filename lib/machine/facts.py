"""Facts that the code uses, with source and month; docs/facts.py has the printed ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GB = 10**9


@dataclass(frozen=True)
class Fact:
    """One number about a platform: `checked` is the month of `source`."""

    value: float | str
    unit: str
    source: str
    checked: str = "2026-10"


@dataclass(frozen=True)
class Card:
    """A GPU: GiB that torch sees (the lower figure), GB/s, TFLOP/s with sums in fp32, None without support."""

    name: str
    capability: tuple[int, int]
    memory_gib: float
    bandwidth_gb_s: float
    fp16_tflops: float
    fp16_sustained_tflops: float | None
    bf16_tflops: float | None
    fp32_tflops: float
    source: str
    checked: str = "2026-10"  # or the month of the edition of a data sheet
    device: str = ""  # pattern of what torch calls it, behind the words NVIDIA, Tesla and GeForce
    note: str = ""


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return json.loads(Path(__file__).with_name(name).read_text("utf-8"))


def _card(row: dict[str, Any]) -> Card:
    return Card(**{**row, "capability": tuple(row["capability"])})


FACTS = {key: Fact(**row) for key, row in _rows("facts.json").items()}
CARDS = {key: _card(row) for key, row in _rows("cards.json").items()}
