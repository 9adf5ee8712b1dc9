"""Which trained tensors get no gradient, asked once of each group: in the first step in which it is trained."""

from collections.abc import Sequence

from lib.report.metrics import EventLog
from lib.training.groups import Group

_MOST_NAMES = 5  # in a sentence


class FirstGradients:
    """Names the tensors of each group that the first step in which it is trained gives no gradient.

    A resumed run does not report a group that was trained before.
    """

    def __init__(self) -> None:
        self.labels: set[str] = set()  # of the groups that were looked at
        self.is_done = False

    def observe(self, groups: Sequence[Group], step: int, events: EventLog) -> None:
        """Looks at the gradients of a step, and records the tensors without one."""
        due = [group for group in groups if group.label not in self.labels and group.is_trained(step)]
        self.labels |= {group.label for group in due}
        self.is_done = len(self.labels) == len(groups)
        named = {name: p for group in due if group.from_step == step for name, p in group.parameters.items()}
        without = [name for name, parameter in named.items() if parameter.grad is None]
        if without:
            _record(events, step, len(named), without)


def _record(events: EventLog, step: int, trained: int, without: Sequence[str]) -> None:
    more = ", ..." if len(without) > _MOST_NAMES else ""
    when = f"In their first steps, up to step {step}," if step else "In the first step"
    events.record(
        step, "no_gradient", trained, trained - len(without),
        f"{when} {len(without)} of {trained} trained tensors got no gradient "
        f"({', '.join(without[:_MOST_NAMES])}{more}): no loss depends on them, so they stay as they are. That is "
        "right where a later loss term uses them. Otherwise use them in the forward pass, or freeze them.",
    )  # fmt: skip
