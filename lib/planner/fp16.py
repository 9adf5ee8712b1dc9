"""Finds, without a GPU, what one makes of a task's step: values that fp16 does not hold, operators that it refuses."""

import contextlib
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lib import private
from lib.config import Config, with_changes
from lib.planner.cuda import Fp16OnCpu
from lib.ranks.sums import add_counts
from lib.report.findings import Finding
from lib.task import Batch, Task
from lib.training import data
from lib.training.order import DROPOUT, Order, mix, put_back, seed_all
from lib.training.precision import LARGEST_FP16, BeyondFp16, Precision, autocast, keep_in_fp32
from lib.training.state import State, new_state

_SCALES = (65_536.0, 4_096.0, 64.0)  # the first is where torch's GradScaler begins
_SIZE = 2
_BATCHES = 2
_MOST_MODULES = 16  # that are taken out of fp16 one after another before it is given up
# operators that a GPU refuses under deterministic algorithms, with what stands in their place
_REFUSED: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("refused.yaml").read_text("utf-8")
)
_BY_MASK = "x[mask]"
_WAITS = (
    _BY_MASK,
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
)  # for values
_FEW = 3  # waits that cost little: encoder and decoder of transformers look once each whether all of a mask is true


def few_batches(task: Task, config: Config) -> list[Batch]:
    train = data.subset(task.datasets()["train"], config.data.subset_ratio, config.seed)
    order = dataclasses.replace(Order.of(train, config), effective_batch=_SIZE, slots=1)
    options = dataclasses.replace(config.data, num_workers=0)
    return [
        slots[0] for _, slots in data.train_batches(task, train, order, range(_BATCHES), options)
    ]


@dataclass
class Fp16:
    """Largest values by module, and what fp16 does not hold of them."""

    modules: dict[str, float] = field(
        default_factory=dict
    )  # to compute in fp32, because they overflow
    activations: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    scale: float = 0.0  # of the loss: the largest at which all gradients are finite; 0: none
    elsewhere: str = ""  # what overflows outside of every module
    constant: str = ""  # a sentence on a number in the code that fp16 does not hold

    @property
    def finding(self) -> Finding:
        """The verdict, with the line to write."""
        value = (
            f"{len(self.activations)} modules fit into fp16 at a loss scale of {self.scale:,.0f}"
        )
        if self.constant:
            return Finding("fp16", self.constant, "bad")
        if self.elsewhere:
            how = "`with torch.autocast(x.device.type, enabled=False):` on x.float()"
            advice = f"Compute the large numbers in fp32 ({how}), or give the loss smaller ones: standardised targets."
            return Finding(
                "fp16", f"the gradient that reaches {self.elsewhere} is beyond fp16", "bad", advice
            )
        if self.modules:
            reached = [
                f"{name} ({size:,.0f})" if size > LARGEST_FP16 else name
                for name, size in self.modules.items()
            ]
            value = f"not finite in fp16, which ends at {LARGEST_FP16:,}: {', '.join(reached)}"
            names = ", ".join(self.modules)
            return Finding(
                "fp16",
                value,
                "bad",
                f"Write training.fp32_modules: [{names}], which computes it in fp32.",
            )
        return Finding("fp16", value)


def examine_fp16(task: Task, config: Config, device: torch.device | None = None) -> Fp16:
    """Trains some samples in fp32 and fp16; takes modules out of fp16 one by one until all is finite."""
    changes = {"training.gradient_checkpointing": 0, "training.compile": False}
    config = with_changes(config, changes)
    result = Fp16()
    with put_back():
        batches = few_batches(task, config)
        state = new_state(task, config, device, "fp32")
        wide = _watched(state, task, config, batches, 1.0, "fp32")
        result.activations, result.gradients = _by_module(wide.outputs), _by_module(wide.gradients)
        try:
            _take_out(result, state, task, config, batches, wide)
        except BeyondFp16 as error:
            result.constant = str(error)
    return result


def _take_out(
    result: Fp16,
    state: State,
    task: Task,
    config: Config,
    batches: Sequence[Batch],
    wide: "_Watched",
) -> None:
    """Computes one module after another in fp32, until all that fp16 reaches is finite."""
    for _ in range(_MOST_MODULES):
        for scale in _SCALES:
            half = _watched(state, task, config, batches, scale, "fp16")
            name = half.culprit(wide, result.modules)
            if name is None or half.is_forward:
                break
        if name is None:
            result.scale = scale
            return
        if not name:
            result.elsewhere = half.place
            return
        result.modules[name] = result.activations.get(name, 0.0)
        keep_in_fp32(state.model, [name], state.device)


class _Watched:
    """Largest values of each call of each module, and of their gradients, in the order of being computed."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, int], float] = {}
        self.gradients: dict[tuple[str, int], float] = {}  # calls below 0 are those of weights
        self.taken: dict[int, str] = {}  # by the id of a tensor: the innermost module that takes it
        self.users: dict[tuple[str, int], int] = {}
        self.alive: list[Tensor] = []  # so that no id comes twice
        self.is_forward = False
        self.place = ""  # the module whose output or gradient is not finite first

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        calls: dict[str, Iterator[int]] = {}

        def before(name: str, module: nn.Module, *values: Any) -> None:
            self.taken |= {
                id(value): name
                for value in private.tree_leaves(values)
                if isinstance(value, Tensor)
            }

        def after(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = [
                t
                for t in private.tree_leaves(output)
                if isinstance(t, Tensor) and t.is_floating_point() and t.numel()
            ]
            for tensor in tensors:
                key = (name, next(calls.setdefault(name, itertools.count())))
                self.outputs[key], self.users[key] = _largest(tensor), id(tensor)
                self.alive.append(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(reached, key))

        def reached(key: tuple[str, int], gradient: Tensor) -> None:
            self.gradients.setdefault(key, _largest(gradient))

        def added(name: str, numbers: Iterator[int], parameter: nn.Parameter) -> None:
            reached((name, ~next(numbers)), parameter.grad)  # type: ignore[arg-type]

        handles = []
        for name, module in itertools.islice(model.named_modules(), 1, None):
            handles.append(
                module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
            )
            handles.append(module.register_forward_hook(partial(after, name)))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = partial(added, name, itertools.count())
                handles.append(parameter.register_post_accumulate_grad_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def culprit(self, wide: "_Watched", modules: Mapping[str, float]) -> str | None:
        """Returns the innermost module, not among `modules`, that is first not finite; "": none; None: all are."""
        for values, others in ((self.outputs, wide.outputs), (self.gradients, wide.gradients)):
            for (name, call), value in values.items():
                if not math.isfinite(value) and math.isfinite(others.get((name, call), math.nan)):
                    self.is_forward = values is self.outputs
                    self.place = name
                    if (
                        not self.is_forward
                    ):  # the module that uses the output; of a weight, the one that has it
                        if call >= 0:
                            user = self.taken.get(self.users[name, call], "")
                        else:
                            user = ""
                        name = user or name.rpartition(".")[0]
                    while name in modules:
                        name = name.rpartition(".")[0]
                    return name
        return None


def _largest(tensor: Tensor) -> float:
    if tensor.numel():
        return float(tensor.detach().abs().max().float())
    return 0.0


def _by_module(values: Mapping[tuple[str, int], float]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for (name, call), value in values.items():
        if call >= 0:
            largest[name] = max(largest.get(name, value), value)
    return largest


def _watched(
    state: State,
    task: Task,
    config: Config,
    batches: Sequence[Batch],
    scale: float,
    precision: Precision,
) -> _Watched:
    """Computes gradients of the batches as a step of each stage does, and returns what its modules reached."""
    watched = _Watched()
    is_simulated = precision == "fp16" and state.device.type == "cpu"
    samples = config.training.effective_batch / sum(
        map(data.size_of, batches)
    )  # a step divides by all of its targets
    state.model.zero_grad(set_to_none=True)
    with watched.watching(state.model), Fp16OnCpu() if is_simulated else contextlib.nullcontext():
        for task.step in sorted(
            {0, *(group.from_step for group in state.groups)}
        ):  # the first of each stage
            counts = add_counts(map(task.count, batches))
            weight = task.term_weights(task.step)
            for batch in (data.to_device(batch, state.device) for batch in batches):
                seed_all(mix(DROPOUT, config.seed), state.device)
                with autocast(precision, state.device):
                    sums, _ = task.loss(state.model, batch)
                terms = [
                    weight.get(t, 1.0) * sums[t].float() / counts[t] / samples
                    for t in sums
                    if counts[t]
                ]
                (scale * torch.stack(terms).sum()).backward()
    task.step = 0
    for key, value in watched.gradients.items():
        watched.gradients[key] = value / scale
    return watched


class _OneHot(TorchFunctionMode):
    """Computes one-hot numbers as a GPU does, where a CPU looks whether the classes are in range."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.one_hot or len(args) < 2:
            return func(*args, **(kwargs or {}))
        return args[0].new_zeros(*args[0].shape, args[1]).scatter_(-1, args[0].unsqueeze(-1), 1)


class _Operators(private.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "index" and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        ):
            name = _BY_MASK
        if name != "cumsum" or args[0].is_floating_point():
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def operators_of_step(task: Task, config: Config) -> Counter[str]:
    """Counts the operators in loss and gradient of some samples."""
    config = with_changes(config, {"training.compile": False})
    with put_back():
        state = new_state(task, config, precision="fp32")
        batches = few_batches(task, config)
        task.step = max(group.from_step for group in state.groups)  # most is trained then
        counts = add_counts(map(task.count, batches))
        operators = _Operators()
        batch = data.to_device(batches[0], state.device)
        with torch.no_grad():
            task.loss(
                state.model, batch
            )  # a first one may look at what all others know, such as a number of classes
        with _OneHot(), operators:
            sums, _ = task.loss(state.model, batch)
            torch.stack(
                [value.float() for term, value in sums.items() if counts[term]]
            ).sum().backward()
    task.step = 0
    return operators.counts


def examine_operators(task: Task, config: Config) -> Finding:
    """Names the operators that a GPU refuses where `training.deterministic` is true, and the waits, where many."""
    counts = operators_of_step(task, config)
    refused = "; ".join(f"{name} ({instead})" for name, instead in _REFUSED.items() if counts[name])
    if refused and config.training.deterministic:
        advice = "Take what stands in brackets, or training.deterministic: false, which is not the same bit for bit."
        return Finding(
            "GPU operators", f"a GPU refuses with training.deterministic: {refused}", "bad", advice
        )
    value = (
        f"not the same bits in each run on a GPU: {refused}"
        if refused
        else "a GPU refuses no operator of the step"
    )
    waits = {name: counts[name] for name in _WAITS if counts[name]}
    if sum(waits.values()) > _FEW:
        value += "".join(f"; {name} {number} times" for name, number in waits.items())
        advice = "The loss waits for the GPU: no .item(), float(), .nonzero(), x[mask] and `if tensor` in it."
        return Finding("GPU operators", value, "warning", advice)
    return Finding("GPU operators", value)
