"""Which trained tensors get no gradient, asked once of each group: in the first step in which it is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from lib.report.metrics import EventLog
from lib.task import Task
from lib.training.groups import Group

_MOST_NAMES = 5  # in a sentence


@dataclass
class _Reached:
    """Tensors of a group that had no gradient yet, and the players in whose first turns it was looked at."""

    without: Mapping[str, nn.Parameter]
    players: set[str] = field(default_factory=set)
    is_done: bool = False


@dataclass
class FirstGradients:
    """Names the tensors of each group that the first step in which it is trained gives no gradient.

    A group of no player is looked at in the first turn of each: it may serve one of them alone. A resumed run says
    nothing of a group that was trained before.
    """

    groups: dict[str, _Reached] = field(default_factory=dict)  # by label
    is_done: bool = False

    def observe(self, groups: Sequence[Group], task: Task, step: int, player: str | None, events: EventLog) -> None:
        """Looks at the gradients of a step, and records what is without; a later loss term may reach it yet."""
        players = {group.player for group in groups} - {""}
        trained: list[str] = []
        without: list[str] = []
        for group in groups:
            if not group.is_trained(step, player):
                continue
            if group.label not in self.groups:
                self.groups[group.label] = _Reached(group.parameters, is_done=_was_trained(group, task, step))
            reached = self.groups[group.label]
            if reached.is_done or player in reached.players:
                continue
            reached.without = {name: p for name, p in reached.without.items() if p.grad is None}
            reached.players |= {player} if player else players
            reached.is_done = bool(group.player) or reached.players >= players
            if reached.is_done:
                trained += group.parameters
                without += reached.without
        self.is_done = len(self.groups) == len(groups) and all(reached.is_done for reached in self.groups.values())
        if without:
            _record(events, step, trained, without)


def _was_trained(group: Group, task: Task, step: int) -> bool:
    return any(group.is_trained(earlier, task.player(earlier)) for earlier in range(group.from_step, step))


def _record(events: EventLog, step: int, trained: list[str], without: list[str]) -> None:
    more = ", ..." if len(without) > _MOST_NAMES else ""
    when = f"In their first steps, up to step {step}," if step else "In the first step"
    events.record(
        step, "no_gradient", len(trained), len(trained) - len(without),
        f"{when} {len(without)} of {len(trained)} trained tensors got no gradient "
        f"({', '.join(without[:_MOST_NAMES])}{more}): no loss depends on them, so they stay as they are. That is "
        "right where a later loss term uses them. Otherwise use them in the forward pass, or freeze them.",
    )  # fmt: skip
