"""Groups of parameters: each with its own rate and weight decay, and trained in some steps only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

from torch import nn

from lib.checkpoint.weights import plain
from lib.errors import BadInput, printable
from lib.task import Task


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


_KEYS = {"lr": Real, "weight_decay": Real, "from_step": Integral, "until_step": Integral}  # the type of each


def groups_of(task: Task, model: nn.Module) -> list[Group]:
    """Returns a task's groups, and last what none of them names; none has frozen parameters. Raises BadInput."""
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
        patterns, values = _parsed(entry, where)
        taken: dict[str, nn.Parameter] = {}
        for pattern in patterns:
            matches = {n: p for n, p in left.items() if any(fnmatchcase(alias, pattern) for alias in names[id(p)])}
            if not matches:
                shown = ", ".join([*list(left)[:6], *["..."] * (len(left) > 6)])
                raise BadInput(
                    f"{where}: {pattern!r} matches no trained parameter that is not in an earlier entry: {shown}."
                )
            taken |= matches
        left = {name: p for name, p in left.items() if name not in taken}
        label = "+".join(pattern.strip("*.") for pattern in patterns) or f"group{number}"
        is_new = label not in {group.label for group in groups}
        groups.append(Group(taken, label if is_new else f"{label}_{number}", **values))
    return [*groups, Group(left)] if left or not groups else groups


def _parsed(entry: Any, where: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the patterns and the values of an entry. Raises BadInput for an entry that is none."""
    names = entry.get("names") if isinstance(entry, Mapping) else None
    patterns = [names] if isinstance(names, str) else list(names or ())
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise BadInput(f'{where}: it has no names. Write {{"names": "head.*", "lr": 10.0}}, say.')
    values = {key: value for key, value in entry.items() if key != "names"}
    for key, value in values.items():
        if value is None and key in ("weight_decay", "until_step"):
            continue
        is_number = isinstance(value, _KEYS.get(key, ())) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) < float("inf"):
            keys = "names, and numbers of 0 or more as lr, weight_decay, from_step and until_step (steps are whole)"
            raise BadInput(f"{where}: {key} is {printable(repr(value), most=60)}. Known are {keys}.")
    return patterns, values


def rates(groups: Sequence[Group], lr: float, step: int) -> dict[str, float]:
    """Returns the columns of metrics.csv: the step's rate and that of each group, 0 where it is not trained."""
    columns = {f"lr_{g.label}": lr * g.lr if g.is_trained(step) else 0.0 for g in groups if g.label}
    return {"lr": lr, **columns}
