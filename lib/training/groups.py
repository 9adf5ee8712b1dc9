"""Groups of parameters: each with its own rate and weight decay, and trained in some steps only."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any, get_args

from torch import nn

from lib.checkpoint.weights import plain
from lib.config import Optimizer
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
    player: str = ""
    optimizer: str | None = None  # its kind; None: as configured
    clip_norm: float | None = None  # of its own gradients; None: by the norm of all that is clipped as configured
    options: Mapping[str, Any] = field(default_factory=dict)  # of torch's optimizer

    def is_trained(self, step: int, player: str | None) -> bool:
        """Says whether the group is trained in a step, in which this player is trained (None: all of them are)."""
        is_due = self.from_step <= step and (self.until_step is None or step < self.until_step)
        return is_due and self.has_turn(player)

    def has_turn(self, player: str | None) -> bool:
        """Says whether the group is not one of another player."""
        return player is None or self.player in ("", player)

    def settings(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of it beside the names of its parameters, as JSON gives it back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _UNSAVED}
        values |= {name: getattr(self, name) for name in _LATER if getattr(self, name) is not None}
        return values | {name: list(v) if isinstance(v, tuple) else v for name, v in self.options.items()}


_LATER = ("optimizer", "clip_norm")  # what checkpoints of an earlier version do not have
_UNSAVED = ("parameters", "label", "options", *_LATER)


def groups_of(task: Task, model: nn.Module, optimizer: str) -> list[Group]:
    """Returns the groups of a task, and last those parameters that none of them names. Raises BadInput.

    Of a tied parameter any of its names matches. Frozen ones (`requires_grad` False) are in no group.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
    left = {plain(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not left:
        said = f"all of its {len(names):,} tensors have requires_grad False" if names else "it has no parameters"
        raise BadInput(
            f"{type(task).__name__}.model() returns a model in which nothing is trained: {said}. Set requires_grad of "
            "what is to be trained, or give it a layer."
        )
    groups: list[Group] = []
    for number, entry in enumerate(task.parameter_groups(model) or (), 1):
        where = f"{type(task).__name__}.parameter_groups, entry {number}"
        patterns = _checked(entry, where, optimizer)
        taken: dict[str, nn.Parameter] = {}
        for pattern in patterns:
            matched = {name: p for name, p in left.items() if any(fnmatchcase(one, pattern) for one in names[id(p)])}
            if not matched:
                raise BadInput(_unmatched(where, pattern, names.values()))
            taken |= matched
        left = {name: p for name, p in left.items() if name not in taken}
        values = {key: _plain(value) for key, value in entry.items() if key != "names"}
        options = {key: values.pop(key) for key in _OPTIONS if key in values}
        groups.append(Group(taken, _label(patterns, number, groups), **values, options=options))
    return [*groups, Group(left)] if left or not groups else groups


def _plain(value: Any) -> Any:
    """Returns numbers of NumPy as Python's, which JSON takes."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, str | bool | None):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_step(value: Any) -> bool:
    return _is_number(value) and isinstance(value, Integral)


def _is_share(value: Any) -> bool:
    return _is_number(value) and value < 1


KINDS: tuple[str, ...] = get_args(Optimizer.__annotations__["name"])

# What each key of an entry takes, in code and in words
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (_is_number, "a number, 0 or more"),
    "weight_decay": (lambda value: value is None or _is_number(value), "a number, 0 or more, or None"),
    "from_step": (_is_step, "a whole number, 0 or more"),
    "until_step": (lambda value: value is None or _is_step(value), "a whole number, 0 or more, or None"),
    "player": (lambda value: isinstance(value, str), "a name"),
    "optimizer": (lambda value: value is None or value in KINDS, f"one of {', '.join(KINDS)}"),
    "clip_norm": (lambda value: value is None or _is_number(value), "a number, 0 or more, or None"),
    "betas": (
        lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_share, value)),
        "two numbers from 0 to below 1",
    ),
    "eps": (_is_number, "a number, 0 or more"),
    "momentum": (_is_share, "a number from 0 to below 1"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
}
_OPTIONS = {"betas": "adamw", "eps": "adamw", "momentum": "sgd", "nesterov": "sgd"}  # with a group's own value


def _checked(entry: Any, where: str, optimizer: str) -> list[str]:
    """Returns the patterns of an entry. Raises BadInput where the entry is none."""
    if not isinstance(entry, Mapping) or not entry.get("names"):
        raise BadInput(f'{where}: it has no names. Write {{"names": "head.*", "lr": 10.0}}, say.')
    for key, value in entry.items():
        if key != "names" and key not in _VALUES:
            raise BadInput(f"{where}: it has the unknown key {key!r}. Known keys: names, {', '.join(_VALUES)}.")
        if key != "names" and not _VALUES[key][0](value):
            raise BadInput(f"{where}: {key} is {printable(repr(value), most=60)}. Give {_VALUES[key][1]}.")
    own = entry.get("optimizer")
    kind, whose = own or optimizer, "its optimizer" if own else "optimizer.name"
    for key in entry.keys() & _OPTIONS.keys():
        if _OPTIONS[key] != kind:
            said = f"{key} is an option of {_OPTIONS[key]}, and {whose} is {kind}"
            raise BadInput(f'{where}: {said}. Take it out, or write "optimizer": "{_OPTIONS[key]}" beside it.')
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


# --- which of them are trained in a step ------------------------------------------------------------------------------


def player_of(task: Task, groups: Sequence[Group], step: int) -> str | None:
    """Returns the player of a step. Raises BadInput for one that no group has."""
    player = task.player(step)
    known = sorted({group.player for group in groups} - {""})
    if player is not None and player not in known:
        raise BadInput(
            f"{type(task).__name__}.player returned {player!r} in step {step}, and no entry of parameter_groups has "
            f"that player. They have: {', '.join(known) or 'none'}."
        )
    return player


def check_own_term(task: Task, player: str | None, counts: Iterable[str], weights: Mapping[str, float]) -> None:
    """Raises BadInput where a player would be trained on the loss terms of all, its opponent's among them.

    None of the terms has its name, and no weight of 0 leaves one out.
    """
    if player is None or player in (terms := [*counts]) or not terms or not all(weights.values()):
        return
    name = type(task).__name__
    raise BadInput(
        f"{name}.player has the player {player!r}, and no loss term of {name} has that name ({', '.join(terms)}), so "
        f"it would be trained on the terms of the others too. Call its term {player!r} in {name}.count and "
        f"{name}.loss, or let {name}.term_weights(step) give 0 to each term that is not for the player of the step."
    )


def out_of_turn(groups: Sequence[Group], player: str | None) -> list[nn.Parameter]:
    """Returns the parameters of the players that have no turn in a step of this one."""
    return [p for group in groups if not group.has_turn(player) for p in group.parameters.values()]


def frozen_in(groups: Sequence[Group], step: int, player: str | None) -> list[nn.Parameter]:
    """Returns the parameters that are not trained in a step."""
    return [p for group in groups if not group.is_trained(step, player) for p in group.parameters.values()]


def clipped(
    groups: Sequence[Group], parameters: Sequence[nn.Parameter], clip_norm: float
) -> list[tuple[Sequence[nn.Parameter], float]]:
    """Returns the parameters whose gradients are clipped by their norm together, with the most that it may be."""
    own = [(list(group.parameters.values()), group.clip_norm) for group in groups if group.clip_norm is not None]
    if not own:
        return [(parameters, clip_norm)]
    taken = {id(parameter) for some, _ in own for parameter in some}
    parts = [([p for p in parameters if id(p) not in taken], clip_norm), *own]
    return [(some, most) for some, most in parts if any(p.grad is not None for p in some)]


def rates(
    groups: Sequence[Group], lr: float, step: int, player: str | None, own: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Returns the columns of metrics.csv: the step's rate and that of each group, 0 where it is not trained.

    `own` has the rates of groups for which another schedule holds, by label, before their own factor.
    """
    rate = {group.label: lr for group in groups} | dict(own or {})
    columns = {f"lr_{g.label}": rate[g.label] * g.lr if g.is_trained(step, player) else 0.0 for g in groups if g.label}
    return {"lr": lr, **columns}


# --- in a checkpoint --------------------------------------------------------------------------------------------------


def facts(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Returns what a checkpoint keeps of a task's own groups."""
    return [{**group.settings(), "parameters": list(group.parameters)} for group in groups if group.label]


def note_changes(saved: Sequence[Mapping[str, Any]], groups: Sequence[Group], note: Callable[[str], None]) -> None:
    """Notes the parameters whose group had other settings when the checkpoint was written."""
    before = {name: {k: v for k, v in one.items() if k != "parameters"} for one in saved for name in one["parameters"]}
    default = Group({}).settings()
    for group in groups:
        now = group.settings()
        changed = [name for name in group.parameters if before.get(name, default) != now]
        if changed:
            first = before.get(changed[0], default)
            keys = [key for key in {**first, **now} if first.get(key) != now.get(key)]
            what = ", ".join(f"{key} {first.get(key)} -> {now.get(key)}" for key in keys)
            shown = ", ".join([*changed[:3], *(["..."] if len(changed) > 3 else [])])
            note(f"The run resumes, but not bit for bit, because the group of {shown} has changed: {what}.")
