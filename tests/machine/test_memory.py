"""Memory of the machine: readings with a verdict, and what counts as running out."""

import torch

from lib.machine import memory


def test_oom_is_told_from_other_errors():
    assert memory.is_oom(torch.OutOfMemoryError("CUDA out of memory"))
    assert memory.is_oom(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert memory.is_oom(MemoryError())
    wrapped = ValueError("outer")
    wrapped.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    assert memory.is_oom(wrapped)
    assert not memory.is_oom(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not memory.is_oom(RuntimeError("CUDA error: device-side assert triggered"))
