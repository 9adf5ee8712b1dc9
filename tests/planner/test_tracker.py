"""The tracker against PyTorch's own profiler on real CPU steps, and the allocator against its documented rules."""

import types

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lib.planner.card import find_card
from lib.planner.tracker import Tracker
from tests.planner.models import Encoder, LanguageModel


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1000, 2000), nn.Tanh(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 10))


CASES = {
    "perceptron": (Perceptron, lambda: torch.ones(512, 1000)),
    "encoder": (lambda: Encoder(2, 256), lambda: torch.ones(8, 128, 256)),
    "language model": (LanguageModel, lambda: torch.arange(4 * 128).view(4, 128)),
}


def _steps(model, optimizer, batch):
    for _ in range(2):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()


def _profiled_peak(model, optimizer, batch):
    """The highest sum of the profiler's allocations; tensors from before it are added by the caller."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _steps(model, optimizer, batch)
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        peak = max(peak, held)
    return peak


class Exact:
    """An allocator that gives each request as many bytes as it asks for, as the CPU's does."""

    allocated = peak = reserved = 0

    def allocate(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return types.SimpleNamespace(size=size, address=0)

    def release(self, block):
        self.allocated -= block.size


@pytest.mark.parametrize("name", CASES)
def test_the_tracked_peak_is_the_profilers(name):
    make, batch = CASES[name]
    torch.manual_seed(0)
    model = make()
    own = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    profiled = own + _profiled_peak(model, torch.optim.AdamW(model.parameters(), foreach=False), batch)

    model = make()
    tracker = Tracker(find_card("t4"), device="cpu")
    tracker.allocator = Exact()
    tracker.adopt(model)
    with tracker:
        _steps(model, torch.optim.AdamW(model.parameters(), foreach=False), batch)
    assert tracker.allocator.peak == pytest.approx(profiled, rel=1e-3)
