"""The table of facts and cards."""

import re

import pytest

from lib.machine.facts import CARDS, FACTS


def test_cards_agree_with_their_capabilities():
    assert len(CARDS) == 20
    for card in CARDS.values():
        assert (card.bf16_tflops is not None) == (card.capability >= (8, 0)), card.name
        assert card.fp16_sustained_tflops is None or card.fp16_sustained_tflops < card.fp16_tflops
    t4_mib = FACTS["kaggle_t4_memory_mib"].value
    assert CARDS["t4"].memory_gib == pytest.approx(t4_mib / 1024, abs=0.01)


def test_the_rates_of_a_card_are_those_of_a_data_sheet():
    for card in CARDS.values():
        sheet, _, memory = card.source.partition("; ")
        assert re.match(r"https://[a-z]+\.nvidia\.com/\S+( \(SXM2?\))?$", sheet), card.name
        assert memory.startswith("memory: ") and card.device, card.name
        half = card.bf16_tflops or card.fp16_tflops
        assert card.fp32_tflops < half < 17 * card.fp32_tflops and 200 < card.bandwidth_gb_s < 5000
