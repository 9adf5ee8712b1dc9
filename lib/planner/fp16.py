"""Examines a task's step without a GPU: values beyond fp16, and operators that a GPU refuses."""

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

_SCALES = (65_536.0, 4_096.0, 64.0)  # torch's GradScaler begins with the first
_SIZE = 2
_BATCHES = 2
_MOST_MODULES = 16  # at most so many are computed in fp32
# Operators that a GPU refuses under deterministic algorithms, with their replacements
_LIST = Path(__file__).with_name("refused.yaml").read_text("utf-8")
_REFUSED: dict[str, str] = yaml.safe_load(_LIST)
_BY_MASK = "x[mask]"
# Operators that wait for values
_WAITS = (_BY_MASK, "_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2")
_FEW = 3  # waits that cost little: transformers' encoder and decoder check a mask once each


def few_batches(task: Task, config: Config) -> list[Batch]:
    train = data.subset(task.datasets()["train"], config.data.subset_ratio, config.seed)
    order = dataclasses.replace(Order.of(train, config), effective_batch=_SIZE, slots=1)
    options = dataclasses.replace(config.data, num_workers=0)
    batches = data.train_batches(task, train, order, range(_BATCHES), options)
    return [slots[0] for _, slots in batches]


@dataclass
class Fp16:
    """Largest values by module, and the modules that overflow in fp16."""

    modules: dict[str, float] = field(default_factory=dict)  # to compute in fp32
    activations: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    scale: float = 0.0  # of the loss: the largest at which all gradients are finite; 0: none
    elsewhere: str = ""  # the module whose gradient overflows outside of every module
    constant: str = ""  # a sentence on a number in the code beyond fp16

    @property
    def finding(self) -> Finding:
        """The verdict, with the line to write."""
        if self.constant:
            return Finding("fp16", self.constant, "bad")
        if self.elsewhere:
            value = f"the gradient that reaches {self.elsewhere} is beyond fp16"
            advice = (
                "Compute the large numbers in fp32 (`with torch.autocast(x.device.type,"
                " enabled=False):` on x.float()), or give the loss smaller ones: standardised targets."
            )
            return Finding("fp16", value, "bad", advice)
        if self.modules:
            reached = []
            for name, size in self.modules.items():
                reached.append(f"{name} ({size:,.0f})" if size > LARGEST_FP16 else name)
            value = f"not finite in fp16, which ends at {LARGEST_FP16:,}: {', '.join(reached)}"
            names = ", ".join(self.modules)
            advice = f"Write training.fp32_modules: [{names}], which computes it in fp32."
            return Finding("fp16", value, "bad", advice)
        count = len(self.activations)
        return Finding(
            "fp16", f"{count} modules fit into fp16 at a loss scale of {self.scale:,.0f}"
        )


def examine_fp16(task: Task, config: Config, device: torch.device | None = None) -> Fp16:
    """Trains some samples in fp32 and fp16; takes modules out of fp16 one by one until all is finite."""
    changes = {"training.gradient_checkpointing": 0, "training.compile": False}
    result = Fp16()
    with put_back():
        batches = few_batches(task, config)
        config = with_changes(config, changes)
        state = new_state(task, config, device, "fp32")
        wide = _watched(state, task, config, batches, 1.0, "fp32")
        result.activations = _by_module(wide.outputs)
        result.gradients = _by_module(wide.gradients)
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
    """Computes one module after another in fp32, until all values are finite in fp16."""
    for _ in range(_MOST_MODULES):
        culprit: str | None = ""
        place = ""
        for scale in _SCALES:
            half = _watched(state, task, config, batches, scale, "fp16")
            culprit = half.culprit(wide, result.modules)
            if culprit is None:
                result.scale = scale
                return
            place = half.place
            if half.is_forward:  # a smaller scale of the loss changes nothing
                break
        if not culprit:
            result.elsewhere = place
            return
        result.modules[culprit] = result.activations.get(culprit, 0.0)
        keep_in_fp32(state.model, [culprit], state.device)


_Call = tuple[str, int]  # a module's name and the number of its call


class _Watched:
    """Largest values and gradients of each call of each module, in the order of computation."""

    def __init__(self) -> None:
        self.outputs: dict[_Call, float] = {}
        self.gradients: dict[_Call, float] = {}  # of weights if the number of the call is below 0
        self.taken: dict[int, str] = {}  # by the id of a tensor: the innermost module that takes it
        self.users: dict[_Call, int] = {}
        self.alive: list[Tensor] = []  # so that no id comes twice
        self.is_forward = False
        self.place = ""  # the module whose output or gradient is not finite first

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        calls: Counter[str] = Counter()

        def before(name: str, module: nn.Module, *values: Any) -> None:
            for value in private.tree_leaves(values):
                if isinstance(value, Tensor):
                    self.taken[id(value)] = name

        def after(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in private.tree_leaves(output):
                is_float = isinstance(tensor, Tensor) and tensor.is_floating_point()
                if not is_float or not tensor.numel():
                    continue
                key = (name, calls[name])
                calls[name] += 1
                self.outputs[key] = _largest(tensor)
                self.users[key] = id(tensor)
                self.alive.append(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(reached, key))

        def reached(key: _Call, gradient: Tensor) -> None:
            self.gradients.setdefault(key, _largest(gradient))

        def added(name: str, numbers: Iterator[int], parameter: nn.Parameter) -> None:
            reached((name, ~next(numbers)), parameter.grad)  # type: ignore[arg-type]

        handles = []
        for name, module in itertools.islice(model.named_modules(), 1, None):
            hook: Any = partial(before, name)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
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
        """Returns the innermost module outside `modules` that overflows first.

        None: all values are finite. "": the overflow is in no such module.
        """
        if key := _first_overflow(self.outputs, wide.outputs):
            self.is_forward = True
            self.place = key[0]
            name = self.place
        elif key := _first_overflow(self.gradients, wide.gradients):
            self.is_forward = False
            self.place = key[0]
            name = self._user(key)
        else:
            return None
        while name in modules:
            name = name.rpartition(".")[0]
        return name

    def _user(self, key: _Call) -> str:
        """Returns the module that uses an output, or the module that has a weight."""
        name, call = key
        user = ""
        if call >= 0:
            user = self.taken.get(self.users[key], "")
        return user or name.rpartition(".")[0]


def _first_overflow(values: Mapping[_Call, float], in_fp32: Mapping[_Call, float]) -> _Call | None:
    """Returns the first call whose value is not finite, but is in fp32."""
    for key, value in values.items():
        if not math.isfinite(value) and math.isfinite(in_fp32.get(key, math.nan)):
            return key
    return None


def _largest(tensor: Tensor) -> float:
    if tensor.numel():
        return float(tensor.detach().abs().max().float())
    return 0.0


def _by_module(values: Mapping[_Call, float]) -> dict[str, float]:
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
    """Computes gradients as a first step of each stage does, and watches the modules."""
    watched = _Watched()
    semantics: Any = contextlib.nullcontext()
    if precision == "fp16" and state.device.type == "cpu":
        semantics = Fp16OnCpu()
    # A step divides by all of its targets
    samples = config.training.effective_batch / sum(map(data.size_of, batches))
    state.model.zero_grad(set_to_none=True)
    begins = sorted({0, *(group.from_step for group in state.groups)})
    with watched.watching(state.model), semantics:
        for task.step in begins:
            counts = add_counts(map(task.count, batches))
            weights = task.term_weights(task.step)
            for batch in batches:
                batch = data.to_device(batch, state.device)
                seed_all(mix(DROPOUT, config.seed), state.device)
                with autocast(precision, state.device):
                    sums, _ = task.loss(state.model, batch)
                terms = []
                for term, value in sums.items():
                    if counts[term]:
                        weighted = weights.get(term, 1.0) * value.float()
                        terms.append(weighted / counts[term] / samples)
                (scale * torch.stack(terms).sum()).backward()
    task.step = 0
    for key, gradient in watched.gradients.items():
        watched.gradients[key] = gradient / scale
    return watched


class _OneHot(TorchFunctionMode):
    """Computes one-hot numbers as a GPU does, without a CPU's check of the classes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.one_hot or len(args) < 2:
            return func(*args, **(kwargs or {}))
        classes = args[0]
        zeros = classes.new_zeros(*classes.shape, args[1])
        return zeros.scatter_(-1, classes.unsqueeze(-1), 1)


class _Operators(private.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name == "index" else []
        if any(index is not None and index.dtype is torch.bool for index in indices):
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
        with torch.no_grad():  # the first may compute values that later ones reuse
            task.loss(state.model, batch)
        with _OneHot(), operators:
            sums, _ = task.loss(state.model, batch)
            terms = [value.float() for term, value in sums.items() if counts[term]]
            torch.stack(terms).sum().backward()
    task.step = 0
    return operators.counts


def examine_operators(task: Task, config: Config) -> Finding:
    """Lists the operators that `training.deterministic` refuses on a GPU, and waits if there are many."""
    counts = operators_of_step(task, config)
    operators = [f"{name} ({instead})" for name, instead in _REFUSED.items() if counts[name]]
    refused = "; ".join(operators)
    if refused and config.training.deterministic:
        value = f"a GPU refuses with training.deterministic: {refused}"
        advice = "Take what stands in brackets, or training.deterministic: false, which is not the same bit for bit."
        return Finding("GPU operators", value, "bad", advice)
    value = "a GPU refuses no operator of the step"
    if refused:
        value = f"not the same bits in each run on a GPU: {refused}"
    waits = {name: counts[name] for name in _WAITS if counts[name]}
    if sum(waits.values()) > _FEW:
        for name, count in waits.items():
            value += f"; {name} {count} times"
        advice = "The loss waits for the GPU: no .item(), float(), .nonzero(), x[mask] and `if tensor` in it."
        return Finding("GPU operators", value, "warning", advice)
    return Finding("GPU operators", value)
