"""Parameter groups, the optimizer, and the learning rate: a function of the step, or of the validations."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from lib import private
from lib.checkpoint.weights import plain
from lib.config import Config, with_changes
from lib.errors import BadInput, printable
from lib.task import Task
from lib.untrusted import fits

_FUSED_ON = ("cuda", "meta")  # meta: in a plan for CUDA


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


_KEYS = {
    "lr": Real,
    "weight_decay": Real,
    "from_step": Integral,
    "until_step": Integral,
}  # the type of each


def groups_of(task: Task, model: nn.Module) -> list[Group]:
    """Returns a task's groups, and last what none of them names; none has frozen parameters. Raises BadInput."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
    left = {plain(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not left:
        what = f"{type(task).__name__}.model() returns a model in which nothing is trained"
        raise BadInput(f"{what}: all of its {len(names):,} tensors have requires_grad False.")
    groups: list[Group] = []
    for number, entry in enumerate(task.parameter_groups(model) or (), 1):
        where = f"{type(task).__name__}.parameter_groups, entry {number}"
        patterns, values = _parsed(entry, where)
        taken: dict[str, nn.Parameter] = {}
        for pattern in patterns:
            matches = {
                n: p
                for n, p in left.items()
                if any(fnmatchcase(alias, pattern) for alias in names[id(p)])
            }
            if not matches:
                shown = ", ".join([*list(left)[:6], *["..."] * (len(left) > 6)])
                what = f"{pattern!r} matches no trained parameter that is not in an earlier entry"
                raise BadInput(f"{where}: {what}: {shown}.")
            taken |= matches
        left = {name: p for name, p in left.items() if name not in taken}
        label = "+".join(pattern.strip("*.") for pattern in patterns) or f"group{number}"
        is_new = label not in {group.label for group in groups}
        groups.append(Group(taken, label if is_new else f"{label}_{number}", **values))
    if left:
        return [*groups, Group(left)]
    return groups


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
            raise BadInput(
                f"{where}: {key} is {printable(repr(value), most=60)}. Known are {keys}."
            )
    return patterns, values


def rates(groups: Sequence[Group], lr: float, step: int) -> dict[str, float]:
    """Returns the columns of metrics.csv: the step's rate and that of each group, 0 where it is not trained."""
    columns = {f"lr_{g.label}": lr * g.lr if g.is_trained(step) else 0.0 for g in groups if g.label}
    return {"lr": lr, **columns}


def build(groups: Iterable[Group], config: Config) -> torch.optim.Optimizer:
    """Builds the optimizer. Vectors such as biases and norms are not decayed, as in GPT-2, unless their group is."""
    options = config.optimizer
    parts = list[dict[str, Any]]()
    for group in groups:
        parameters = list(group.parameters.values())
        decay = group.weight_decay
        split = [(parameters, decay)]
        if decay is None:
            matrices = [p for p in parameters if p.dim() >= 2]
            split = [
                (matrices, options.weight_decay),
                ([p for p in parameters if p.dim() < 2], 0.0),
            ]
        parts += [
            {"params": params, "weight_decay": decay, "scale": group.lr}
            for params, decay in split
            if params
        ]
    if options.name == "sgd":
        return torch.optim.SGD(
            parts, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov
        )
    every = [parameter for part in parts for parameter in part["params"]]
    is_fused = all(p.device.type in _FUSED_ON for p in every)
    return torch.optim.AdamW(
        parts, lr=options.lr, betas=options.betas, eps=options.eps, fused=is_fused or None
    )


def state_names(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the states that an optimizer of `build` keeps for the parameters of one of its groups."""
    if isinstance(optimizer, torch.optim.SGD):
        return ("momentum_buffer",) if group["momentum"] else ()
    return ("step", "exp_avg", "exp_avg_sq")


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Makes the states that the optimizer's next step would make, with their bits: memory runs out before that step."""
    if len(optimizer.state) == sum([len(group["params"]) for group in optimizer.param_groups]):
        return
    for group in optimizer.param_groups:
        # torch's momentum begins with the gradient itself, and -0.0 plus that has its bits
        first = -0.0 if isinstance(optimizer, torch.optim.SGD) else 0.0
        names = state_names(optimizer, group)
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in optimizer.state:
                like = partial(
                    torch.full_like, parameter, first, memory_format=torch.preserve_format
                )
                step = torch.tensor(0.0, device=step_device(group, parameter))
                optimizer.state[parameter] = {
                    name: step if name == "step" else like() for name in names
                }


def step_device(group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """Returns where an optimizer counts a parameter's steps: in its one kernel, or where the value costs no wait."""
    if group.get("fused"):
        return parameter.device
    return torch.device("cpu")


class Plateau:
    """torch's ReduceLROnPlateau over a rate of its own. It has a history, so `facts` is in every checkpoint."""

    def __init__(self, config: Config, direction: str):
        options = config.scheduler
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        self._rate = torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=config.optimizer.lr)
        self._scheduler = plateau(
            self._rate, direction, options.factor, options.patience, min_lr=options.min_lr
        )

    @property
    def lr(self) -> float:
        return self._rate.param_groups[0]["lr"]

    def observe(self, value: float) -> bool:
        """Takes an evaluation's value (NaN is not better than anything); returns whether the rate was lowered."""
        before = self.lr
        self._scheduler.step(value)
        return self.lr < before

    def facts(self) -> dict[str, float | int | None]:
        """Returns what a checkpoint keeps: the rate, the best value (None before the first), evaluations since then."""
        best = self._scheduler.best
        waited = self._scheduler.num_bad_epochs
        return {"lr": self.lr, "best": best if math.isfinite(best) else None, "waited": waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self._rate.param_groups[0]["lr"] = facts["lr"]
        if facts["best"] is not None:
            self._scheduler.best = facts["best"]
        self._scheduler.num_bad_epochs = facts["waited"]


@dataclass
class Stopping:
    """Counts validations since the best one. Like a plateau it has a history, so `facts` is in every checkpoint."""

    after: int  # training.stop_after_evaluations; 0: never
    metric: str
    direction: str  # "max" or "min": what counts as better
    best: float | None = None
    best_step: int = 0
    waited: int = 0

    @property
    def is_over(self) -> bool:
        return 0 < self.after <= self.waited

    def observe(self, value: float, step: int) -> None:
        """Takes a validation's value; one that is not finite is not better than anything."""
        sign = -1 if self.direction == "max" else 1
        self.waited += 1
        if math.isfinite(value) and (self.best is None or sign * value < sign * self.best):
            self.best = value
            self.best_step = step
            self.waited = 0

    def facts(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def early(self, step: int, total: int) -> dict[str, Any]:
        """Returns what the summary says of a run that was completed before its last step; else nothing."""
        if not self.is_over or step >= total:
            return {}
        if self.best is not None:
            than = f"{self.best:.6g} of step {self.best_step:,}"
        else:
            than = "no number"
        why = f"in {self.waited} validations in a row {self.metric} was not better than {than}"
        text = f"It stopped early, at step {step:,} of {total:,}: {why} (training.stop_after_evaluations)."
        return {"evaluations": self.waited, "text": text}


def learning_rate(config: Config, step: int, plateau: Plateau | None = None) -> float:
    """Returns a step's rate by the configuration: linear warm-up, then what `scheduler.name` says."""
    options = config.scheduler
    factor = 1.0
    if step < options.warmup_steps:
        factor = (step + 1) / options.warmup_steps
    elif options.name in ("cosine", "linear"):
        done = min(
            (step - options.warmup_steps)
            / max(1, config.training.max_steps - options.warmup_steps),
            1.0,
        )
        if options.name == "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
        else:
            left = 1 - done
        factor = options.min_lr_ratio + (1 - options.min_lr_ratio) * left
    return (plateau.lr if plateau else config.optimizer.lr) * factor


_OF_RATES = {
    "optimizer.lr": float, "training.max_steps": int, "scheduler.name": str, "scheduler.warmup_steps": int,
    "scheduler.min_lr_ratio": float,
}  # fmt: skip


def seam(saved: Mapping[str, Any], config: Config, step: int) -> str:
    """Returns a sentence with the rates before and after `step`, if a run resumes there with another schedule.

    `saved` has the settings of before by dotted key; a plateau has a history, and no seam.
    """
    is_known = all(fits(saved.get(key), kind) for key, kind in _OF_RATES.items())
    if not step or not is_known or "plateau" in (saved["scheduler.name"], config.scheduler.name):
        return ""
    try:
        former = with_changes(config, {key: saved[key] for key in _OF_RATES})
    except BadInput:  # of an earlier version, or damaged
        return ""
    before, expected = (learning_rate(former, number) for number in (step - 1, step))
    after = learning_rate(config, step)
    if math.isclose(after, expected, rel_tol=1e-6, abs_tol=1e-15):
        return ""
    then = f"{saved['scheduler.name']} over {saved['training.max_steps']:,} steps"
    now = f"{config.scheduler.name} over {config.training.max_steps:,}"
    what = f"The learning rate goes from {before:.3g} (step {step:,}, {then}) to {after:.3g} (step {step + 1:,}, {now})"
    return f"{what}. With scheduler.name constant or plateau no length changes it."


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value * group["scale"]


class Ema:
    """Averages trained parameters after each step; validation, test and best weights use the average."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.average = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after the step with this number (from 0)."""
        decay = min(
            self.decay, (1 + step) / (10 + step)
        )  # a short run is no average over its first steps
        private.move_towards(
            list(self.average.values()), list(self._parameters.values()), 1 - decay
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model the averaged weights in the block: parameters point at the average, and nothing is copied."""
        weights = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            self._put(self.average)
            yield
        finally:
            try:
                self._put(weights)
            except BaseException:  # of a signal's handler, which may run between two of them
                self._put(weights)
                raise

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.data = values[name]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self.average.items():
            value.copy_(tensors[name])
