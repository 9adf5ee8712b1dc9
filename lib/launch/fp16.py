"""Finds what fp16 cannot hold in a task: some real batches forward and backward, in fp32 and in fp16."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lib.config import Config, with_changes
from lib.planner.half import Fp16OnCpu
from lib.ranks.sums import add_counts
from lib.report.findings import Finding
from lib.task import Batch, Task
from lib.text import aligned
from lib.training import data
from lib.training.draws import put_back, seed_all
from lib.training.order import DROPOUT, Order, mix
from lib.training.precision import Precision, autocast, keep_in_fp32
from lib.training.state import State, new_state

LARGEST, SMALLEST = 65_504, 2.0**-24  # of fp16: IEEE 754 binary16, the smallest of its subnormal numbers
_SCALES = (65_536.0, 4_096.0, 64.0)  # the first is where torch's GradScaler begins
_SIZE, _BATCHES = 2, 2
_MOST_MODULES = 16  # that are taken out of fp16 one after another before it is given up
_SHARE = 0.5  # of a weight's gradient that may vanish


@dataclass
class Fp16:
    """What was found: largest values by module, what overflows and is to be computed in fp32, the loss scale.

    `scale` is the largest of 65,536, 4,096 and 64 at which all gradients are finite, with `modules` in fp32; 0 where
    none is. `elsewhere` is the value that overflows outside of every module.
    """

    modules: dict[str, float] = field(default_factory=dict)
    activations: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    vanishing: dict[str, float] = field(default_factory=dict)
    scale: float = 0.0
    elsewhere: str = ""

    @property
    def finding(self) -> Finding:
        """Returns the verdict, with the line to write."""
        value = f"{len(self.activations)} modules fit into fp16 at a loss scale of {self.scale:,.0f}"
        if self.elsewhere:
            advice = (
                "Compute what the loss makes of large numbers in fp32 (`with torch.autocast(x.device.type, "
                "enabled=False):` on x.float()), and give it smaller ones: standardised targets, say."
            )
            return Finding("fp16", f"the gradient that reaches {self.elsewhere} is beyond fp16", "bad", advice)
        if self.modules:
            reached = [f"{name} ({size:,.0f})" if size > LARGEST else name for name, size in self.modules.items()]
            value = f"not finite in fp16, which ends at {LARGEST:,}: {', '.join(reached)}"
            names = ", ".join(self.modules)
            return Finding("fp16", value, "bad", f"Write training.fp32_modules: [{names}], which computes it in fp32.")
        if self.vanishing:
            worst = max(self.vanishing, key=lambda name: self.vanishing[name])
            value = f"{self.vanishing[worst]:.0%} of the gradient of {worst} are below fp16's smallest number"
            return Finding("fp16", value, "warning", "Raise the weight of its loss, or train in fp32.")
        return Finding("fp16", value)

    def table(self, most: int = 12) -> str:
        """Returns the modules with the largest values, activations and gradients beside fp16's limit."""
        largest = sorted(self.activations, key=lambda name: -self.activations[name])[:most]
        rows = [
            [name, f"{self.activations[name]:.3g}", f"{self.gradients.get(name, 0):.3g}",
             "fp32" if name in self.modules else ""] for name in largest
        ]  # fmt: skip
        return aligned([["module", "largest output", "largest gradient", ""], *rows], left={0, 3})


def examine(task: Task, config: Config, device: torch.device | None = None) -> Fp16:
    """Trains a few samples of the task's data in fp32 and in fp16, and finds the modules that fp16 does not hold.

    They are taken out of fp16 one after another until all is finite. On a CPU fp16 is computed as CUDA's autocast does.
    """
    changes = {"training.gradient_checkpointing": 0, "training.compile": False, "training.fully_shard": False}
    config = with_changes(config, changes)
    with put_back():
        batches = few_batches(task, config)
        state = new_state(task, config, device, "fp32")
        wide = _watched(state, task, config, batches, 1.0, "fp32")
        found = Fp16()
        for _ in range(_MOST_MODULES):
            for scale in _SCALES:
                half = _watched(state, task, config, batches, scale, "fp16")
                name = half.culprit(wide, found.modules)
                if name is None:
                    found.scale = scale
                    break
                if half.is_forward:
                    break
            if found.scale or not name:
                found.elsewhere = "" if found.scale else half.place
                break
            found.modules[name] = wide.largest(wide.outputs).get(name, 0.0)
            keep_in_fp32(state.model, [name], state.device)
    # of matrices: the gradient of an attention's key.bias, say, is nothing but rounding
    found.activations, found.gradients = wide.largest(wide.outputs), wide.largest(wide.gradients)
    if found.scale:
        lost = ((name, wide.lost(name, found.scale)) for name, grad in wide.weights.items() if grad.dim() > 1)
        found.vanishing = {name: share for name, share in lost if share > _SHARE}
    return found


def few_batches(task: Task, config: Config) -> list[Batch]:
    """Returns the first samples of a run in small batches."""
    train = data.subset(task.datasets()["train"], config.data.subset_ratio, config.seed)
    order = dataclasses.replace(Order.of(train, config), effective_batch=_SIZE, slots=1)
    options = dataclasses.replace(config.data, num_workers=0)
    return [slots[0] for _, slots in data.train_batches(task, train, order, range(_BATCHES), options)]


class _Watched:
    """Largest values of each call of each module, and of their gradients, in the order of being computed."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, int], float] = {}
        self.gradients: dict[tuple[str, int], float] = {}
        self.weights: dict[str, Tensor] = {}
        self.taken: dict[int, str] = {}  # by the id of a tensor: the innermost module that takes it
        self.users: dict[tuple[str, int], int] = {}
        self.alive: list[Tensor] = []  # so that no id comes twice
        self.is_forward = False
        self.place = ""  # the module whose output or gradient is not finite first

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        calls: dict[str, Iterator[int]] = {}

        def before(name: str, module: nn.Module, *values: Any) -> None:
            self.taken |= {id(value): name for value in tree_leaves(values) if isinstance(value, Tensor)}

        def after(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
            for tensor in tensors:
                key = (name, next(calls.setdefault(name, itertools.count())))
                self.outputs[key], self.users[key] = _largest(tensor), id(tensor)
                self.alive.append(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._reached, key))

        handles = []
        for name, module in itertools.islice(model.named_modules(), 1, None):
            handles.append(module.register_forward_pre_hook(partial(before, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(after, name)))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                note = partial(self._added, name, itertools.count())
                handles.append(parameter.register_post_accumulate_grad_hook(note))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _added(self, name: str, numbers: Iterator[int], parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._reached((name, ~next(numbers)), parameter.grad)  # calls below 0 are those of weights

    def _reached(self, key: tuple[str, int], gradient: Tensor) -> None:
        self.gradients.setdefault(key, _largest(gradient))

    def culprit(self, wide: "_Watched", modules: Mapping[str, float]) -> str | None:
        """Returns the innermost module that is not finite first, though it is in `wide`; "" for none; None: all are."""
        for key, value in self.outputs.items():
            if not math.isfinite(value) and math.isfinite(wide.outputs.get(key, math.nan)):
                self.is_forward, self.place = True, key[0]
                return _outside(key[0], modules)
        for key, value in self.gradients.items():
            if not math.isfinite(value) and math.isfinite(wide.gradients.get(key, math.nan)):
                name, call = key
                self.place = name
                user = name.rpartition(".")[0] if call < 0 else self.taken.get(self.users[key], "")
                return _outside(user or name.rpartition(".")[0], modules)
        return None

    def largest(self, values: Mapping[tuple[str, int], float]) -> dict[str, float]:
        names = dict.fromkeys(name for name, call in values if call >= 0)
        return {name: max(v for (n, call), v in values.items() if n == name and call >= 0) for name in names}

    def lost(self, name: str, scale: float) -> float:
        """Returns the share of a weight's gradient that is below fp16's smallest number at a loss scale."""
        sizes = self.weights[name].abs()
        return float(((sizes > 0) & (sizes * scale < SMALLEST)).sum() / max(1, int((sizes > 0).sum())))


def _outside(name: str, modules: Mapping[str, float]) -> str:
    """Returns a module, or the first one around it that is not among `modules` yet."""
    while name in modules:
        name = name.rpartition(".")[0]
    return name


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max().float()) if tensor.numel() else 0.0


def _watched(
    state: State, task: Task, config: Config, batches: Sequence[Batch], scale: float, precision: Precision
) -> _Watched:
    """Computes gradients of the batches as a step of each stage does, and returns what its modules reached."""
    watched, is_simulated = _Watched(), precision == "fp16" and state.device.type == "cpu"
    samples = config.training.effective_batch / sum(map(data.size_of, batches))  # a step divides by all of its targets
    state.model.zero_grad(set_to_none=True)
    with watched.watching(state.model), Fp16OnCpu() if is_simulated else contextlib.nullcontext():
        for task.step in sorted({0, *(group.from_step for group in state.groups)}):  # the first of each stage
            counts, weight = add_counts(map(task.count, batches)), task.term_weights(task.step)
            for batch in data.on_device(iter(batches), state.device):
                seed_all(mix(DROPOUT, config.seed), state.device)
                with autocast(precision, state.device):
                    sums, _ = task.loss(state.model, batch)
                terms = [weight.get(t, 1.0) * sums[t].float() / counts[t] / samples for t in sums if counts[t]]
                (scale * torch.stack(terms).sum()).backward()
    task.step = 0
    for key, value in watched.gradients.items():
        watched.gradients[key] = value / scale
    watched.weights = {n: p.grad.detach().float() for n, p in state.model.named_parameters() if p.grad is not None}
    return watched
