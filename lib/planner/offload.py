"""Saved tensors in the machine's memory (torch.autograd.graph.save_on_cpu), in a trace where nothing is copied."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from lib.planner.allocator import MIB

PCIE_BYTES_A_SECOND = 15.75e9  # PCIe 3.0 x16 in one direction, the slot of a T4, P100 or V100: no copy is faster


class Offloaded:
    """Counts the bytes of saved tensors in the machine's memory: `held` now, and the `most` at once.

    save_on_cpu copies every tensor that is saved, weights too and a tensor once for each operator that saves it, and
    copies it back for the backward pass. Pinned memory comes in powers of two (c10/core/CachingHostAllocator).
    """

    def __init__(self) -> None:
        self.held = self.most = 0

    def hooks(self, context: saved_tensors_hooks, pin_memory: bool = False, device_type: str = "cuda") -> None:
        """Stands for `save_on_cpu.__init__`."""
        saved_tensors_hooks.__init__(context, lambda tensor: self._away(tensor, pin_memory), _back)

    def _away(self, tensor: Tensor, pinned: bool) -> tuple[Tensor, Any]:
        if not tensor.is_meta:
            return tensor, None
        with _disable_current_modes():  # a copy that is not on the card
            copy = torch.empty_like(tensor)
        size = copy.nbytes
        size = 1 << (size - 1).bit_length() if pinned and size else size
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(copy, self._freed, size)
        return copy, getattr(tensor, "_known_values", None)

    def _freed(self, size: int) -> None:
        self.held -= size

    def sentences(self) -> list[str]:
        """Returns what save_on_cpu takes beside the card: memory of the machine, and time."""
        if not self.most:
            return []
        return [
            f"the time in which save_on_cpu copies {self.most / MIB:,.0f} MiB of a pass to the machine's memory, which "
            f"has to hold them, and back: at least {2 * self.most / PCIE_BYTES_A_SECOND:.2g} s over PCIe 3.0 x16."
        ]


def _back(packed: tuple[Tensor, Any]) -> Tensor:
    copy, values = packed
    if not copy.is_meta:
        return copy
    tensor = torch.empty_like(copy)
    if values is not None:
        tensor._known_values = values
    return tensor


@contextlib.contextmanager
def offloading(offloaded: Offloaded) -> Iterator[None]:
    """Lets save_on_cpu inside the block take tensors off the simulated card."""

    def hooks(context: saved_tensors_hooks, *args: Any, **kwargs: Any) -> None:
        offloaded.hooks(context, *args, **kwargs)

    with mock.patch.object(save_on_cpu, "__init__", hooks):
        yield
