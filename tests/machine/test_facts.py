"""The table of facts and cards."""

import re

import pytest

from lib.machine.facts import CARDS, FACTS


@pytest.mark.parametrize("entry", [*FACTS.values(), *CARDS.values()], ids=str)
def test_every_fact_and_card_has_a_source_and_a_month(entry):
    assert entry.source
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", entry.checked)


def test_cards_agree_with_their_capabilities():
    assert set(CARDS) == {"t4", "p100", "rtx3050", "l4", "a100-40", "a100-80", "h200"}
    for card in CARDS.values():
        assert (card.bf16_tflops is not None) == (card.capability >= (8, 0)), card.name
        assert card.fp16_sustained_tflops is None or card.fp16_sustained_tflops < card.fp16_tflops
    t4_mib = FACTS["kaggle_t4_memory_mib"].value
    assert CARDS["t4"].memory_gib == pytest.approx(t4_mib / 1024, abs=0.01)
