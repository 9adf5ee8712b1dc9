"""What a process may use of its machine, all of it imitated; and the table of cards."""

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from lib.machine import hardware, memory
from lib.machine.facts import CARDS, FACTS

pytestmark = pytest.mark.usefixtures("nothing_of_this_machine")


def test_the_limits_of_a_container_count(monkeypatch, container):
    whole = SimpleNamespace(total=64 * memory.GIB, available=60 * memory.GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert hardware.ram() == hardware.Ram(60 * memory.GIB, 64 * memory.GIB, False)
    assert hardware.cpus() == 8
    values = {
        "job/step/memory.max": "max",
        "job/memory.max": 4 * memory.GIB,
        "job/memory.current": 3 * memory.GIB,
        "job/memory.stat": f"anon 1\ninactive_file {memory.GIB}",  # given up before memory runs out
        "job/cpu.max": "150000 100000",
    }
    container("0::/job/step\n", values)
    assert hardware.ram() == hardware.Ram(2 * memory.GIB, 4 * memory.GIB, True)
    assert hardware.cpus() == 1.5


def test_control_groups_of_version_1_count_too(monkeypatch, container):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    values = {
        "memory/memory.limit_in_bytes": memory.GIB // 8,
        "memory/memory.usage_in_bytes": memory.GIB // 8,
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {memory.GIB // 16}",
        "cpu/cpu.cfs_quota_us": 150000,
        "cpu/cpu.cfs_period_us": 100000,
    }
    container(
        "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n1:name=systemd:/docker/1\n0::/\n", values
    )
    assert hardware.ram() == hardware.Ram(memory.GIB // 16, memory.GIB // 8, True)
    assert hardware.cpus() == 1.5


def test_oom_is_told_from_other_errors():
    assert memory.is_oom(torch.OutOfMemoryError("CUDA out of memory"))
    assert memory.is_oom(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert memory.is_oom(MemoryError())
    wrapped = ValueError("outer")
    wrapped.__cause__ = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
    )
    assert memory.is_oom(wrapped)
    assert not memory.is_oom(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not memory.is_oom(RuntimeError("CUDA error: device-side assert triggered"))


def test_cards_agree_with_their_capabilities():
    assert len(CARDS) == 21
    for card in CARDS.values():
        assert (card.bf16_tflops is not None) == (card.capability >= (8, 0)), card.name
        assert card.fp16_sustained_tflops is None or card.fp16_sustained_tflops < card.fp16_tflops
    t4_mib = FACTS["kaggle_t4_memory_mib"].value
    assert CARDS["t4"].memory_gib == pytest.approx(t4_mib / 1024, abs=0.01)
