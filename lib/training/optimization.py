"""Parameter groups, the optimizer, and the learning rate: a function of the step, or of the validations."""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from lib import private
from lib.checkpoint.weights import plain
from lib.config import Config, with_changes
from lib.config import Optimizer as OptimizerOptions
from lib.errors import BadInput, printable
from lib.task import Task
from lib.untrusted import fits

_FUSED_ON = ("cuda", "meta")  # meta: in a plan for CUDA
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
MUON_MOMENTUM = 0.95  # with Nesterov's look ahead, as in Jordan et al., 2024


@dataclass(frozen=True)
class Group:
    """Parameters that are trained alike. The label is "" for the rest that `Task.parameter_groups` does not name."""

    parameters: Mapping[str, nn.Parameter]  # by name
    label: str = ""
    lr: float = 1.0  # times the scheduled rate
    weight_decay: float | None = None  # None: as configured, and none for vectors
    from_step: int = 0
    until_step: int | None = None

    def is_trained(self, step: int) -> bool:
        return self.from_step <= step and (self.until_step is None or step < self.until_step)


# Keys of an entry of `Task.parameter_groups` and their types; bool is no number here
_KEYS = {"lr": Real, "weight_decay": Real, "from_step": Integral, "until_step": Integral}


def groups_of(task: Task, model: nn.Module) -> list[Group]:
    """Returns a task's groups, and last the rest, without frozen parameters. Raises BadInput."""
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(plain(name))
    left = {plain(name): p for name, p in model.named_parameters() if p.requires_grad}
    if not left:
        raise BadInput(
            f"{type(task).__name__}.model() returns a model in which nothing is trained: all of its {len(aliases):,} "
            "tensors have requires_grad False."
        )
    groups: list[Group] = []
    for number, entry in enumerate(task.parameter_groups(model) or (), 1):
        where = f"{type(task).__name__}.parameter_groups, entry {number}"
        patterns, values = _parsed(entry, where)
        parameters: dict[str, nn.Parameter] = {}
        for pattern in patterns:
            names = [n for n, p in left.items() if _matches(aliases[id(p)], pattern)]
            if not names:
                raise BadInput(
                    f"{where}: {pattern!r} matches no trained parameter that is not in an earlier entry: "
                    f"{_shown(list(left))}."
                )
            parameters |= {name: left[name] for name in names}
        left = {name: p for name, p in left.items() if name not in parameters}
        label = "+".join(pattern.strip("*.") for pattern in patterns) or f"group{number}"
        if label in {group.label for group in groups}:
            label = f"{label}_{number}"
        groups.append(Group(parameters, label, **values))
    if left:
        groups.append(Group(left))
    return groups


def _matches(aliases: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(alias, pattern) for alias in aliases)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _parsed(entry: Any, where: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the patterns and the values of an entry. Raises BadInput for a malformed one."""
    names = entry.get("names") if isinstance(entry, Mapping) else None
    patterns = [names] if isinstance(names, str) else list(names or ())
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise BadInput(f'{where}: it has no names. Write {{"names": "head.*", "lr": 10.0}}, say.')
    values = {key: value for key, value in entry.items() if key != "names"}
    for key, value in values.items():
        if value is None and key in ("weight_decay", "until_step"):
            continue
        is_number = isinstance(value, _KEYS.get(key, ())) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) < math.inf:
            raise BadInput(
                f"{where}: {key} is {printable(repr(value), most=60)}. Known are names, and numbers of 0 or more as "
                "lr, weight_decay, from_step and until_step (steps are whole)."
            )
    return patterns, values


def rates(groups: Sequence[Group], lr: float, step: int) -> dict[str, float]:
    """Returns the columns of metrics.csv: the step's rate, and each group's, which is 0 while it is frozen."""
    columns = {"lr": lr}
    for group in groups:
        if group.label:
            columns[f"lr_{group.label}"] = lr * group.lr if group.is_trained(step) else 0.0
    return columns


def hidden_matrices(model: nn.Module, blocks: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Returns the matrices that Muon updates: trained weights of two dimensions in the blocks, without embeddings.

    Norms and biases have one dimension, kernels of convolutions three or more. Heads and everything else outside of
    the blocks are not hidden. Raises BadInput for a model without hidden matrices.
    """
    embeddings = {module.weight for module in model.modules() if isinstance(module, _EMBEDDINGS)}
    named = itertools.chain.from_iterable(block.named_parameters() for block in blocks)
    weights = {p for name, p in named if name.endswith("weight") and p.dim() == 2}
    hidden = {p for p in weights - embeddings if p.requires_grad}
    if not hidden:
        raise BadInput(
            "optimizer.name is muon, which updates matrices in the repeated layers of a model, and this one has none. "
            "Let blocks(model) of the task return its layers, or choose adamw."
        )
    return hidden


def build(
    groups: Iterable[Group], config: Config, hidden: Collection[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Builds the optimizer; muon updates the `hidden` matrices, and AdamW the rest.

    Vectors such as biases and norms are not decayed, as in GPT-2, unless their group is.
    """
    options = config.optimizer
    matrices: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in groups:
        split = defaultdict[tuple[bool, float], list[nn.Parameter]](list)
        for parameter in group.parameters.values():
            decay = group.weight_decay
            if decay is None:
                decay = options.weight_decay if parameter.dim() >= 2 else 0.0
            split[parameter in hidden, decay].append(parameter)
        for (is_hidden, decay), parameters in split.items():
            part = {"params": parameters, "weight_decay": decay, "scale": group.lr}
            (matrices if is_hidden else others).append(part)
    if options.name == "sgd":
        return torch.optim.SGD(
            others, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov
        )
    if matrices:
        return Muon(matrices, others, options)
    return _adamw(others, options)


def _adamw(parts: Sequence[dict[str, Any]], options: OptimizerOptions) -> torch.optim.AdamW:
    devices = {p.device.type for part in parts for p in part["params"]}
    is_fused = devices.issubset(_FUSED_ON)
    return torch.optim.AdamW(
        parts, lr=options.lr, betas=options.betas, eps=options.eps, fused=is_fused or None
    )


class Muon(torch.optim.Optimizer):
    """torch's Muon (Jordan et al., 2024) for hidden matrices and its AdamW for all else, as one optimizer.

    Muon replaces the momentum of a matrix by its nearest orthogonal matrix: five steps of a Newton-Schulz iteration in
    bf16. Scaled to the root mean square of AdamW's updates (Liu et al., 2025), one learning rate serves both.
    """

    def __init__(
        self,
        hidden: Sequence[dict[str, Any]],
        others: Sequence[dict[str, Any]],
        options: OptimizerOptions,
    ):
        muon = torch.optim.Muon(
            hidden, lr=options.lr, momentum=MUON_MOMENTUM, adjust_lr_fn="match_rms_adamw"
        )
        parts: list[torch.optim.Optimizer] = [muon]
        if others:
            parts.append(_adamw(others, options))
        super().__init__([group for part in parts for group in part.param_groups], {})
        # Both work on the groups and states of this one.
        number = len(hidden)
        muon.param_groups = self.param_groups[:number]
        if others:
            parts[1].param_groups = self.param_groups[number:]
        for part in parts:
            part.state = self.state
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def state_names(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the states that an optimizer of `build` keeps for the parameters of one of its groups."""
    if "betas" in group:  # AdamW
        return ("step", "exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if group["momentum"] else ()


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Makes the states of the optimizer's next step, bit for bit, so that memory runs out before that step."""
    if len(optimizer.state) == sum([len(group["params"]) for group in optimizer.param_groups]):
        return
    for group in optimizer.param_groups:
        # SGD's momentum begins with the gradient itself: -0.0 plus a number has the bits of the number
        first = -0.0 if "dampening" in group else 0.0
        for parameter in group["params"]:
            if parameter.grad is None or parameter in optimizer.state:
                continue
            states = {}
            for name in state_names(group):
                if name == "step":
                    states[name] = torch.tensor(0.0, device=step_device(group, parameter))
                else:
                    states[name] = torch.full_like(
                        parameter, first, memory_format=torch.preserve_format
                    )
            optimizer.state[parameter] = states


def step_device(group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """Returns the device of an optimizer's step counter: the parameter's if fused, or the CPU, to wait for nothing."""
    if group.get("fused"):
        return parameter.device
    return torch.device("cpu")


class Plateau:
    """Lowers a rate by torch's ReduceLROnPlateau. It has a history, so every checkpoint has its `facts`."""

    def __init__(self, config: Config, direction: str):
        options = config.scheduler
        unused = nn.Parameter(torch.empty(0))
        self._rate = torch.optim.SGD([unused], lr=config.optimizer.lr)
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._rate,
            mode=direction,  # type: ignore[arg-type]
            factor=options.factor,
            patience=options.patience,
            min_lr=options.min_lr,
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
        """Returns the rate, the best value (None before the first) and the evaluations since then for a checkpoint."""
        best = self._scheduler.best
        waited = self._scheduler.num_bad_epochs
        return {"lr": self.lr, "best": best if math.isfinite(best) else None, "waited": waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self._rate.param_groups[0]["lr"] = facts["lr"]
        if facts["best"] is not None:
            self._scheduler.best = facts["best"]
        self._scheduler.num_bad_epochs = facts["waited"]


def learning_rate(config: Config, step: int, plateau: Plateau | None = None) -> float:
    """Returns the rate of a step: a linear warm-up, then the schedule `scheduler.name`."""
    options = config.scheduler
    highest = plateau.lr if plateau else config.optimizer.lr
    if step < options.warmup_steps:
        return highest * ((step + 1) / options.warmup_steps)
    if options.name == "wsd":
        return highest * _left_of_decay(config, step)
    if options.name not in ("cosine", "linear"):
        return highest
    steps = max(1, config.training.max_steps - options.warmup_steps)
    done = min((step - options.warmup_steps) / steps, 1.0)
    left = 1 - done
    if options.name == "cosine":
        left = (1 + math.cos(math.pi * done)) / 2
    return highest * (options.min_lr_ratio + (1 - options.min_lr_ratio) * left)


def _left_of_decay(config: Config, step: int) -> float:
    """Returns what is left of wsd's highest rate: one minus a square root (Haegele et al., 2024, section 3)."""
    options = config.scheduler
    begin = config.training.max_steps - options.decay_steps
    if step < begin:
        return 1.0
    done = min((step - begin) / max(1, options.decay_steps), 1.0)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 - math.sqrt(done))


# Keys that decide the rate of a step, with their types
_OF_RATES = {
    "optimizer.lr": float,
    "training.max_steps": int,
    "scheduler.name": str,
    "scheduler.warmup_steps": int,
    "scheduler.min_lr_ratio": float,
    "scheduler.decay_steps": int,
}


def seam(saved: Mapping[str, Any], config: Config, step: int) -> str:
    """Returns a sentence with the rates before and after `step`, if a run resumes there with another schedule.

    `saved` has the settings of before by dotted key; a plateau has a history, and no seam.
    """
    saved = {"scheduler.decay_steps": 0, **saved}  # before the key there was no decay
    if not step or not all(fits(saved.get(key), kind) for key, kind in _OF_RATES.items()):
        return ""
    if "plateau" in (saved["scheduler.name"], config.scheduler.name):
        return ""
    try:
        former = with_changes(config, {key: saved[key] for key in _OF_RATES})
    except BadInput:  # from an earlier version, or damaged
        return ""
    before = learning_rate(former, step - 1)
    expected = learning_rate(former, step)
    after = learning_rate(config, step)
    if math.isclose(after, expected, rel_tol=1e-6, abs_tol=1e-15):
        return ""
    then = f"{former.scheduler.name} over {former.training.max_steps:,} steps"
    now = f"{config.scheduler.name} over {config.training.max_steps:,}"
    return (
        f"The learning rate goes from {before:.3g} (step {step:,}, {then}) to {after:.3g} (step {step + 1:,}, {now}). "
        "With scheduler.name wsd, constant or plateau no length changes it; trainbook train --finish ends a wsd."
    )


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
        decay = min(self.decay, (1 + step) / (10 + step))  # forgets the first steps of a short run
        averages = list(self.average.values())
        private.move_towards(averages, list(self._parameters.values()), 1 - decay)

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
            except BaseException:  # from a signal's handler, which may run between two of them
                self._put(weights)
                raise

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.data = values[name]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self.average.items():
            value.copy_(tensors[name])
