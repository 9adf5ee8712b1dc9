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


def test_a_card_is_found_by_its_name_or_by_memory_and_capability_and_else_the_known_ones_are_named():
    t4, own = find_card("t4"), find_card("8 GiB, capability 8.6")
    assert find_card(" T4 ").card == t4.card and find_card("a100").card == find_card("a100-40").card
    assert (own.card.capability, own.card.memory_gib, find_card("8 GiB").card.capability) == ((8, 6), 8, (7, 5))
    assert (find_card(".5 GiB").card.memory_gib, find_card("5. GiB").card.memory_gib) == (0.5, 5)
    assert not any(find_card(name).assumed for name in ("RTX 3090", "rtx 3090", "V100", "RTX A6000", "h100-sxm"))
    assert own.usable_bytes == 8 * GIB - CONTEXT_BYTES and own.limit_bytes == int(0.92 * own.usable_bytes)
    assert find_card("h200").cublas_workspace == 32 * MIB > own.cublas_workspace
    assert t4.flops("bf16") == t4.flops("fp32") < t4.flops("fp16"), "a format without units"
    for name in (
        "t5", "", "8 GB", "5.5.5 GiB", "-3 GiB", "24 GiB, 0 TFLOP/s", "24 GiB, 936 GB/s, 900 GB/s", "24 GiB, fast",
        "71 TFLOP/s, 936 GB/s", "tpu-v5e",
    ):  # fmt: skip
        with pytest.raises(BadInput, match=r'Known cards: t4, p100, .*"8 GiB, capability 8\.6".*71 TFLOP/s, 936 GB/s'):
            find_card(name)


def test_rates_may_be_given_in_any_order_and_those_that_are_not_are_the_nearest_cards_with_a_sentence():
    for own, like in (
        ("16 GiB, capability 7.0", "v100-16"), ("24 GiB, capability 8.6", "rtx3090"),
        ("8 GiB, capability 8.9", "rtx4070"), ("14.7 GiB, capability 7.5", "t4"), ("16 GiB, capability 6.1", "p100"),
        ("32 GiB, capability 12.0", "h100-pcie"),
    ):  # fmt: skip
        target, nearest = find_card(own), find_card(like)
        assert rates(target) == rates(nearest) and not nearest.assumed
        assert f"GB/s of {nearest.card.name} were taken. Give its own" in target.assumed[0] and len(target.assumed) == 1
    whole = find_card("24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s")
    assert rates(whole) == (71, 71, pytest.approx(71 / 2), 936)
    assert "fp32 of 24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s: the ratio" in whole.assumed[0]
    every = find_card("1.79 TB/s, 105 TFLOP/s fp32, 32 GiB, 210 TFLOP/s, capability 12.0")
    assert rates(every) == (210, 210, 105, 1790) and not every.assumed
    half = find_card("11 GiB, 14 TFLOP/s fp32")
    assert rates(half) == (pytest.approx(14 * 53.8 / 13.4), None, 14, 616)
    assert "capability of 11 GiB: 7.5 was taken" in half.assumed[0] and "616 GB/s of RTX 2080 Ti" in half.assumed[1]


@pytest.mark.parametrize(
    "device, gib, key",
    [
        ("Tesla T4", 14.74, "t4"), ("NVIDIA GeForce RTX 3090", 23.69, "rtx3090"), ("NVIDIA A10", 22.1, "a10"),
        ("NVIDIA A100-SXM4-80GB", 79.15, "a100-80"), ("NVIDIA H100 80GB HBM3", 79.33, "h100"),
        ("NVIDIA GeForce RTX 3080", 11.76, None), ("NVIDIA GeForce RTX 3090 Ti", 23.6, None),
        ("NVIDIA A10G", 22.1, None),
    ],
)  # fmt: skip
def test_the_gpu_that_is_there_has_its_own_cards_rates_or_says_whose(monkeypatch, device, gib, key):
    properties = types.SimpleNamespace(name=device, total_memory=int(gib * GIB), major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    target = card_of_gpu(0)
    assert target.card.memory_gib == pytest.approx(gib)
    if key:
        assert rates(target) == rates(find_card(key)) and not target.assumed
        assert target.card.name == find_card(key).card.name
    else:
        assert target.card.name == device and "were taken. Give its own" in target.assumed[0]
