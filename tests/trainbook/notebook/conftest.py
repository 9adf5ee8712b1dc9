"""A planner that answers at once."""

import pytest

from lib import planner
from lib.machine.memory import GIB
from lib.planner.search import Option, Plan
from lib.planner.trace import Prediction


def made_up(config, target, count):
    """A plan whose peak grows with the sequence and whose micro-batch is half of a slot."""
    slots = config.training.micro_batch_slots
    slot = config.training.effective_batch // slots
    sizes = {
        "weights": GIB,
        "optimizer": 2 * GIB,
        "activations": int(config.workload.chain.roots / 24 * GIB),
    }
    peak = sum(sizes.values())
    prediction = Prediction(
        target.card.name, target.usable_bytes, target.limit_bytes, peak, peak, peak <= target.limit_bytes, sizes,
        {}, 10**8, (0.1, 0.2), (0.01, 0.02), 100, 1e12, {}, ("what a <test> leaves out.",),
    )  # fmt: skip
    best = Option(max(1, slot // 2), 2, 0, prediction, (0.5, 2.0))
    return Plan(
        config.run.name, target.card.name, count or 2, target.set_aside, target.usable_bytes, target.limit_bytes,
        config.training.effective_batch, slots, config.training.max_steps, "fp16", 10**8, 12, (best,), best,
    )  # fmt: skip


@pytest.fixture
def planned(monkeypatch):
    """Stands in for the planner's child process; the list of what was asked, which takes no time."""
    asked = []

    def plan(config, card, count=0, cancelled=None):
        asked.append((config, card, count))
        return made_up(config, card, count)

    monkeypatch.setattr(planner, "plan", plan)
    return asked
