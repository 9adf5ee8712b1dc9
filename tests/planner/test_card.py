"""Cards by name, by their memory, and what a plan may use of them."""

import types

import pytest
import torch

from lib.errors import BadInput
from lib.machine.memory import GIB
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, card_of_gpu, find_card


def rates(target):
    card = target.card
    return card.fp16_tflops, card.bf16_tflops, card.fp32_tflops, card.bandwidth_gb_s


def test_a_card_is_found_by_its_name():
    assert find_card(" T4 ").card == find_card("t4").card
    assert find_card("a100").card == find_card("a100-40").card


@pytest.mark.parametrize("name", ["RTX 3090", "rtx 3090", "V100"])
def test_nothing_is_assumed_about_a_known_card(name):
    assert not find_card(name).assumed


def test_a_card_is_described_by_memory_and_capability():
    own = find_card("8 GiB, capability 8.6")
    assert own.card.capability == (8, 6)
    assert own.card.memory_gib == 8
    assert own.usable_bytes == 8 * GIB - CONTEXT_BYTES
    assert own.limit_bytes == int(0.92 * own.usable_bytes)
    assert find_card("h200").cublas_workspace == 32 * MIB > own.cublas_workspace


def test_a_format_without_units_runs_as_fp32():
    t4 = find_card("t4")
    assert t4.flops("bf16") == t4.flops("fp32") < t4.flops("fp16")


@pytest.mark.parametrize(
    "name",
    [
        "t5",
        "",
        "8 GiB",
        "24 GiB, capability 8.6, 0 TFLOP/s",
        "24 GiB, capability 8.6, 936 GB/s, 900 GB/s",
    ],
)
def test_an_unknown_card_is_refused_with_the_names_of_known_ones(name):
    example = r'Known cards: t4, p100, .*"8 GiB, capability 8\.6".*71 TFLOP/s, 936 GB/s'
    with pytest.raises(BadInput, match=example):
        find_card(name)


def test_rates_may_be_given_in_any_order_and_one_that_is_not_is_said():
    whole = find_card("24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s")
    assert rates(whole) == (71, 71, pytest.approx(71 / 2), 936)
    assert "how fast 24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s is" in whole.assumed[0]
    every = find_card("1790 GB/s, 105 TFLOP/s fp32, 32 GiB, 210 TFLOP/s, capability 12.0")
    assert rates(every) == (210, 210, 105, 1790)
    assert not every.assumed


@pytest.mark.parametrize(
    "device, gib, key",
    [
        ("Tesla T4", 14.74, "t4"), ("NVIDIA A100-SXM4-80GB", 79.15, "a100-80"), ("NVIDIA A10G", 22.1, None),
    ],
)  # fmt: skip
def test_the_gpu_that_is_there_has_its_own_cards_rates_or_says_whose(monkeypatch, device, gib, key):
    properties = types.SimpleNamespace(name=device, total_memory=int(gib * GIB), major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    target = card_of_gpu(0)
    assert target.card.memory_gib == pytest.approx(gib)
    if key:
        assert rates(target) == rates(find_card(key))
        assert not target.assumed
        assert target.card.name == find_card(key).card.name
    else:
        assert target.card.name == device
        assert "Give its own" in target.assumed[0]
