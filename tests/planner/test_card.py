"""Cards by name, by their memory, and what a plan may use of them."""

import pytest

from lib.errors import BadInput
from lib.machine.memory import GIB
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, check_room, find_card
from lib.training.precision import precision_on_card


def test_a_card_is_found_by_its_name_or_by_memory_and_capability():
    assert find_card(" T4 ").card == find_card("t4").card and find_card("a100").card == find_card("a100-40").card
    own = find_card("8 GiB, capability 8.6")
    assert (own.card.capability, own.card.memory_gib, find_card("8 GiB").card.capability) == ((8, 6), 8, (7, 5))
    with pytest.raises(BadInput, match="no card 't5'. Known cards: t4"):
        find_card("t5")


@pytest.mark.parametrize("name", ["..5 GiB", "5.5.5 GiB", ". GiB", "-3 GiB", " GiB"])
def test_a_memory_that_is_no_number_is_refused_with_the_form(name):
    with pytest.raises(BadInput, match='for example "8 GiB, capability 8.6"'):
        find_card(name)
    assert (find_card(".5 GiB").card.memory_gib, find_card("5. GiB").card.memory_gib) == (0.5, 5)


def test_a_card_that_the_context_fills_is_refused_in_a_sentence():
    with pytest.raises(BadInput, match="0.1 GiB, capability 7.5: nothing can be planned.*alone take 0.20 of its 0.1"):
        check_room(find_card("0.1 GiB"))
    check_room(find_card("1 GiB"))


def test_a_plan_uses_at_most_92_percent_of_what_the_context_leaves():
    card = find_card("10 GiB, capability 7.5")
    assert card.usable_bytes == 10 * GIB - CONTEXT_BYTES and card.limit_bytes == int(0.92 * card.usable_bytes)
    assert find_card("h200").cublas_workspace == 32 * MIB > card.cublas_workspace


def test_a_format_without_units_runs_at_the_rate_of_fp32():
    t4 = find_card("t4")
    assert t4.flops("bf16") == t4.flops("fp32") < t4.flops("fp16")
    formats = [precision_on_card("auto", find_card(name).card.capability, name) for name in ("t4", "a100")]
    assert formats == ["fp16", "bf16"]
