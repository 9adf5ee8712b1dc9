"""Cards by name, by their memory, and what a plan may use of them."""

import types

import pytest
import torch
from torch import nn

from lib.errors import BadInput
from lib.machine.facts import CARDS
from lib.machine.memory import GIB
from lib.planner import predict
from lib.planner.allocator import MIB
from lib.planner.card import CONTEXT_BYTES, card_of_gpu, check_room, find_card
from lib.training.precision import precision_on_card


def test_a_card_is_found_by_its_name_or_by_memory_and_capability():
    assert find_card(" T4 ").card == find_card("t4").card and find_card("a100").card == find_card("a100-40").card
    own = find_card("8 GiB, capability 8.6")
    assert (own.card.capability, own.card.memory_gib, find_card("8 GiB").card.capability) == ((8, 6), 8, (7, 5))
    assert (find_card(".5 GiB").card.memory_gib, find_card("5. GiB").card.memory_gib) == (0.5, 5)
    for name in ("RTX 3090", "rtx 3090", "V100", "RTX A6000", "h100-sxm"):
        assert not find_card(name).assumed, "as people write it"


@pytest.mark.parametrize(
    "name",
    [
        "t5", "", "GiB", "8 GB", "..5 GiB", "5.5.5 GiB", ". GiB", "-3 GiB", "24 GiB, 0 TFLOP/s",
        "24 GiB, 936 GB/s, 900 GB/s", "24 GiB, fast", "71 TFLOP/s, 936 GB/s", "8 GiB, -1 GB/s",
    ],
)  # fmt: skip
def test_an_unknown_card_names_the_known_ones_and_the_form_of_ones_own(name):
    with pytest.raises(BadInput, match=r'Known cards: t4, p100, .*"8 GiB, capability 8\.6".*71 TFLOP/s, 936 GB/s'):
        find_card(name)


@pytest.mark.parametrize("name", ["tpu", "TPU v3-8", "v5e-8", "tpu-v5e"])
def test_a_tpu_is_no_card(name):
    with pytest.raises(BadInput, match=f"'{name}' is a TPU"):
        find_card(name)


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


def rates(target):
    card = target.card
    return card.fp16_tflops, card.bf16_tflops, card.fp32_tflops, card.bandwidth_gb_s


@pytest.mark.parametrize(
    "own, like",
    [
        ("16 GiB, capability 7.0", "v100-16"), ("32 GiB, capability 7.0", "v100-32"),
        ("24 GiB, capability 8.6", "rtx3090"), ("10 GiB, capability 8.6", "rtx3080"),
        ("8 GiB, capability 8.6", "rtx3050"), ("8 GiB, capability 8.9", "rtx4070"),
        ("14.7 GiB, capability 7.5", "t4"), ("32 GiB, capability 12.0", "h100-pcie"),
        ("16 GiB, capability 6.1", "p100"),
    ],
)  # fmt: skip
def test_rates_that_are_not_given_are_the_nearest_cards_and_that_is_said(own, like):
    target, known = find_card(own), find_card(like)
    assert rates(target) == rates(known)
    (sentence,) = target.assumed
    assert f"GB/s of {known.card.name} were taken. Give its own" in sentence
    assert not known.assumed
    said = predict(lambda: nn.Linear(4, 4), lambda net: net(torch.ones(1, 4, device="cuda")).sum(), own).unseen
    assert sentence in said, "a prediction prints it"


def test_rates_may_be_given_in_any_order_and_the_rest_is_said():
    whole = find_card("24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s")
    assert rates(whole) == (71, 71, pytest.approx(71 / 2), 936)
    assert whole.assumed == (
        "the TFLOP/s of fp32 of 24 GiB, capability 8.6, 71 TFLOP/s, 936 GB/s: the ratio to the others was taken from "
        "RTX 3090.",
    )
    all_given = find_card("1.79 TB/s, 105 TFLOP/s fp32, 32 GiB, 210 TFLOP/s, capability 12.0")
    assert rates(all_given) == (210, 210, 105, 1790) and not all_given.assumed
    half = find_card("11 GiB, 14 TFLOP/s fp32")
    assert rates(half) == (pytest.approx(14 * 53.8 / 13.4), None, 14, 616)
    assert any("capability of 11 GiB: 7.5 was taken" in s for s in half.assumed)
    assert any("616 GB/s of RTX 2080 Ti" in s and "TFLOP/s in" not in s for s in half.assumed)


@pytest.mark.parametrize(
    "device, gib, key",
    [
        ("Tesla T4", 14.74, "t4"), ("NVIDIA GeForce RTX 3090", 23.69, "rtx3090"), ("NVIDIA A10", 22.1, "a10"),
        ("NVIDIA A100-SXM4-80GB", 79.15, "a100-80"), ("NVIDIA H100 80GB HBM3", 79.33, "h100"),
        ("NVIDIA H100 PCIe", 79.2, "h100-pcie"), ("Tesla V100-SXM2-32GB", 31.75, "v100-32"), ("NVIDIA L4", 21.95, "l4"),
        ("NVIDIA GeForce RTX 3080", 11.76, None), ("NVIDIA GeForce RTX 3090 Ti", 23.6, None),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 3.8, None), ("NVIDIA A10G", 22.1, None),
    ],
)  # fmt: skip
def test_the_gpu_that_is_there_has_its_own_cards_rates_or_says_whose(monkeypatch, device, gib, key):
    properties = types.SimpleNamespace(name=device, total_memory=int(gib * GIB), major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    target = card_of_gpu(0)
    assert target.card.memory_gib == pytest.approx(gib)
    if key:
        assert rates(target) == rates(find_card(key)) and not target.assumed
        assert target.card.name == CARDS[key].name
    else:
        assert target.card.name == device and "were taken. Give its own" in target.assumed[0]
