"""Memory of the machine: readings with a verdict, and what counts as running out."""

import pytest
import torch

from lib.machine import hardware, memory


def test_check_memory_names_ram_and_says_that_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = memory.check_memory()
    assert text.startswith("RAM: ") and "this process" in text and "No GPU" in text


@pytest.mark.parametrize("share, words", [(0.2, "free to start"), (0.7, "small run"), (0.9, "lower data.num_workers")])
def test_the_advice_follows_the_share(monkeypatch, share, words):
    ram = hardware.Ram(int((1 - share) * 100 * memory.GIB), 100 * memory.GIB, False)
    monkeypatch.setattr(hardware, "ram", lambda: ram)
    assert words in memory.check_memory()


def test_oom_is_told_from_other_errors():
    assert memory.is_oom(torch.OutOfMemoryError("CUDA out of memory"))
    assert memory.is_oom(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert memory.is_oom(MemoryError())
    wrapped = ValueError("outer")
    wrapped.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    assert memory.is_oom(wrapped)
    assert not memory.is_oom(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not memory.is_oom(RuntimeError("CUDA error: device-side assert triggered"))


def test_the_verdict_is_about_the_containers_memory(small_container):
    ram = memory.readings()[0]
    assert (ram.used, ram.total) == (3 * memory.GIB, 4 * memory.GIB) and ram.detail.endswith("GiB, a container")
    assert "3.00 of 4.00 GiB used (75%)" in memory.check_memory()


def test_a_gpu_is_read_with_what_this_process_has_of_it(nothing_of_this_machine, card):
    card("Tesla T4", (7, 5), 14, used=7)
    gpu = memory.readings()[1]
    assert (gpu.name, gpu.share, gpu.detail) == ("GPU 0, Tesla T4", 0.5, "allocated 0.00, reserved 0.00 GiB")
