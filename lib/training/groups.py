"""Groups of parameters: each with its own rate and weight decay, and trained in some steps only."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

from torch import nn

from lib.checkpoint.weights import plain
from lib.errors import BadInput, printable
from lib.report.metrics import EventLog
from lib.task import Task

_MOST_NAMES = 5  # in a sentence


@dataclass(frozen=True)
class Group:
    """Parameters that are trained alike; without a label those that no entry of `Task.parameter_groups` names."""

    parameters: Mapping[str, nn.Parameter]  # by name
    label: str = ""
    lr: float = 1.0  # times the scheduled rate
    weight_decay: float | None = None  # None: as configured, and none for vectors
    from_step: int = 0
    until_step: int | None = None

    def is_trained(self, step: int) -> bool:
        return self.from_step <= step and (self.until_step is None or step < self.until_step)

    def settings(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps beside the names of the parameters."""
        return {name: getattr(self, name) for name in _VALUES}


def groups_of(task: Task, model: nn.Module) -> list[Group]:
    """Returns the groups of a task, and last those parameters that none of them names. Raises BadInput.

    Of a tied parameter any of its names matches. Frozen ones (`requires_grad` False) are in no group.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
    left = {plain(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not left:
        why = f"all of its {len(names):,} tensors have requires_grad False" if names else "it has no parameters"
        raise BadInput(
            f"{type(task).__name__}.model() returns a model in which nothing is trained: {why}. Set requires_grad of "
            "what is to be trained, or give it a layer."
        )
    groups: list[Group] = []
    for number, entry in enumerate(task.parameter_groups(model) or (), 1):
        where = f"{type(task).__name__}.parameter_groups, entry {number}"
        patterns = _patterns(entry, where)
        taken: dict[str, nn.Parameter] = {}
        for pattern in patterns:
            matches = {n: p for n, p in left.items() if any(fnmatchcase(alias, pattern) for alias in names[id(p)])}
            if not matches:
                raise BadInput(_unmatched(where, pattern, names.values()))
            taken |= matches
        left = {name: p for name, p in left.items() if name not in taken}
        values = {key: _plain(value) for key, value in entry.items() if key != "names"}
        groups.append(Group(taken, _label(patterns, number, groups), **values))
    return [*groups, Group(left)] if left or not groups else groups


def _plain(value: Any) -> Any:
    """Returns a number of NumPy as Python's, which JSON takes."""
    if value is None:
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_step(value: Any) -> bool:
    return _is_number(value) and isinstance(value, Integral)


# What each key of an entry takes, in code and in words
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (_is_number, "a number, 0 or more"),
    "weight_decay": (lambda value: value is None or _is_number(value), "a number, 0 or more, or None"),
    "from_step": (_is_step, "a whole number, 0 or more"),
    "until_step": (lambda value: value is None or _is_step(value), "a whole number, 0 or more, or None"),
}


def _patterns(entry: Any, where: str) -> list[str]:
    """Returns the patterns of an entry. Raises BadInput for an entry that is none."""
    if not isinstance(entry, Mapping) or not entry.get("names"):
        raise BadInput(f'{where}: it has no names. Write {{"names": "head.*", "lr": 10.0}}, say.')
    for key, value in entry.items():
        if key != "names" and key not in _VALUES:
            raise BadInput(f"{where}: it has the unknown key {key!r}. Known keys: names, {', '.join(_VALUES)}.")
        if key != "names" and not _VALUES[key][0](value):
            raise BadInput(f"{where}: {key} is {printable(repr(value), most=60)}. Give {_VALUES[key][1]}.")
    names = entry["names"]
    patterns = list(names) if isinstance(names, list | tuple) else [names]
    if wrong := [name for name in patterns if not isinstance(name, str)]:
        raise BadInput(f"{where}: names has {printable(repr(wrong[0]), most=60)}. Give names of parameters, or globs.")
    return patterns


def _unmatched(where: str, pattern: str, names: Iterable[list[str]]) -> str:
    """Says why a pattern names no parameter that could be in its group."""
    every = [name for several in names for name in several]
    if any(fnmatchcase(name, pattern) for name in every):
        return (
            f"{where}: what {pattern!r} matches is in an earlier entry already, or frozen by model() (requires_grad "
            "False). The first match counts: put this entry first, or take it out."
        )
    shown = ", ".join([*every[:6], *(["..."] if len(every) > 6 else [])])
    return f"{where}: {pattern!r} matches no parameter. The model has {shown}."


def _label(patterns: Sequence[str], number: int, groups: Sequence[Group]) -> str:
    """Returns what metrics.csv calls the rate of a group: its patterns without wildcards at their ends."""
    label = "+".join(pattern.strip("*.") for pattern in patterns) or f"group{number}"
    return label if label not in {group.label for group in groups} else f"{label}_{number}"


def frozen_in(groups: Sequence[Group], step: int) -> list[nn.Parameter]:
    """Returns the parameters that are not trained in a step."""
    return [p for group in groups if not group.is_trained(step) for p in group.parameters.values()]


def rates(groups: Sequence[Group], lr: float, step: int) -> dict[str, float]:
    """Returns the columns of metrics.csv: the step's rate and that of each group, 0 where it is not trained."""
    columns = {f"lr_{g.label}": lr * g.lr if g.is_trained(step) else 0.0 for g in groups if g.label}
    return {"lr": lr, **columns}


def facts(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Returns what a checkpoint keeps of a task's own groups."""
    return [{**group.settings(), "parameters": list(group.parameters)} for group in groups if group.label]


def note_changes(saved: Sequence[Mapping[str, Any]], groups: Sequence[Group], note: Callable[[str], None]) -> None:
    """Notes the parameters whose group had other settings when the checkpoint was written."""
    before = {name: {key: group.get(key) for key in _VALUES} for group in saved for name in group["parameters"]}
    default = Group({}).settings()
    for group in groups:
        now = group.settings()
        changed = [name for name in group.parameters if before.get(name, default) != now]
        if changed:
            first = before.get(changed[0], default)
            what = ", ".join(f"{key} {first[key]} -> {now[key]}" for key in now if first[key] != now[key])
            shown = ", ".join([*changed[:3], *(["..."] if len(changed) > 3 else [])])
            note(f"The run resumes, but not bit for bit, because the group of {shown} has changed: {what}.")


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
