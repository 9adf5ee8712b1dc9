"""Follows every tensor of a step into a simulated allocator, with workspaces and temporaries that a GPU adds."""

import contextlib
import functools
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib import private
from lib.errors import NotTraceable
from lib.planner import kernels
from lib.planner.allocator import Allocator
from lib.planner.card import Target
from lib.planner.kernels import tensors_of
from lib.planner.log import Log, Storage
from lib.planner.results import Results

# Of a forward pass, a backward pass, or the optimizer. A pass of Qwen2.5-7B runs 4,500 operators in 4 to 10 s; a pass
# that waits for a core is refused by the clock on the wall only after more operators than any model runs.
LIMIT_SECONDS = 40.0
MANY_OPERATORS = 15_000
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_HELPERS = ("contextlib.py", "functools.py", "_ops.py")
KNOWN_LIMIT = 2**22  # elements of an integer tensor whose values are followed


def users_line() -> str:
    """Returns the innermost line on the stack that is neither torch's nor the planner's: "FILE, line N"."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame:
        return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    return "a line of torch"


@functools.cache
def is_users(file: str) -> bool:
    return not (file.startswith((_TORCH, _HERE, "<")) or file.endswith(_HELPERS))


class Tracker(private.TorchDispatchMode):
    """Follows the storages on `device`, and counts peak, categories, modules and time; `log` has all of it.

    Integer tensors of the batch keep their values (up to 4 M elements): a loss picks as many masked positions as the
    batch has. Shapes that depend on unknown values are bounded from above (`bounded` counts such operators).
    """

    def __init__(self, target: Target, capacity: int | None = None, device: str = "meta"):
        super().__init__()
        self.target = target
        self.device = device
        self.log = Log()
        self.allocator = Allocator(capacity)
        self.bounded: Counter[str] = Counter()
        self.taken: Counter[tuple[str, str]] = Counter()  # unknown values: (line, what was taken)
        self._operators = 0  # since the last moment
        self._begin = time.monotonic(), time.thread_time()
        self.in_users_code = False  # whether the model or its loss is running
        self.parameters = self.trained = 0
        self.cost = np.zeros(5)  # see kernels.cost
        self.moments: dict[str, tuple[int, np.ndarray]] = {}
        self._results = Results()
        self._live: dict[int, Storage] = {}
        self._peak = -1
        self._modules: list[str] = []
        self._parameters: dict[int, str] = {}  # modules, by id
        self._origins: dict[
            int, str
        ] = {}  # modules of forward operators, by their places in the graph
        self._handles: set[bool] = set()

    def adopt(self, model: nn.Module) -> None:
        """Allocates parameters and buffers, labels modules, and marks gradients when they are made."""
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
            module = path.rpartition(".")[0] or path
            self._follow(tensor, "weights", module)
            if isinstance(tensor, nn.Parameter):
                self._parameters[id(tensor)] = module
                self.parameters += tensor.numel() * (
                    2 if tensor.dtype is torch.uint8 else 1
                )  # nf4: two in a byte
                if tensor.requires_grad:
                    self.trained += tensor.numel()
                    mark = functools.partial(self._mark, category="gradients", module=module)
                    tensor.register_post_accumulate_grad_hook(lambda p, mark=mark: mark(p.grad))
        for path, child in model.named_modules():
            if path:
                child.register_forward_pre_hook(lambda *_, path=path: self._modules.append(path))
                child.register_forward_hook(
                    lambda *_: self._modules.pop() and None, always_call=True
                )

    def adopt_state(self, states: Mapping[Any, Any]) -> None:
        """Labels what an optimizer keeps for each parameter."""
        for parameter, state in states.items():
            module = self._parameters.get(id(parameter), "")
            for tensor in tensors_of(state.values() if isinstance(state, Mapping) else [state]):
                self._follow(tensor, "optimizer", module)
                self._mark(tensor, "optimizer", module)

    def at(self, moment: str) -> None:
        """Records the bytes allocated now under the name of this moment; a later one of the name replaces it."""
        self.moments[moment] = (self.allocator.allocated, self.cost.copy())
        self.log.marks[moment] = len(self.log.events)
        self._operators = 0
        self._begin = time.monotonic(), time.thread_time()

    def _follow(self, tensor: Tensor, category: str, module: str) -> None:
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        if (key := private.address(storage)) not in self._live:
            entry = self.take(storage.nbytes(), category, module)
            entry.alive = weakref.ref(storage, lambda _: self.drop(self._live.pop(key)))
            self._live[key] = entry

    def take(self, size: int, category: str, module: str = "") -> Storage:
        block = self.allocator.allocate(int(size))
        entry = Storage(block.size if block else 0, category, module, block)
        self.log.events.append(("alloc", entry))
        if self.allocator.allocated > self._peak:
            self._peak, self.log.peak = self.allocator.allocated, len(self.log.events)
        return entry

    def drop(self, entry: Storage) -> None:
        self.allocator.release(entry.block)
        self.log.events.append(("free", entry))

    def _mark(self, tensor: Tensor, category: str, module: str) -> None:
        if entry := self._live.get(private.address(tensor.untyped_storage())):
            entry.category = category
            entry.module = module or entry.module

    @contextlib.contextmanager
    def users_code(self) -> Iterator[None]:
        """Notes each Python value that is read from a tensor inside."""
        self.in_users_code = True
        try:
            yield
        finally:
            self.in_users_code = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with (
            private.without_overrides()
        ):  # shapes on `meta` are computed by Python functions of torch, ten a call
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        self._check_time()
        on_meta = self.device == "meta"
        name = private.schema(func).name.removeprefix("aten::")
        tensors = tensors_of((args, *kwargs.values()))
        if on_meta and any(t.is_meta for t in tensors):
            if name == "_local_scalar_dense":
                return self._value(args[0])
            if name in _DEPENDING:
                return self._bounded(name, func, args, kwargs)
            if name in ("index", "index_put", "_index_put_impl_", "index_put_"):
                args = (args[0], self._without_masks(args[1]), *args[2:])
                tensors = tensors_of((args, *kwargs.values()))
        if on_meta and name.startswith("_fused_") and name.endswith("_"):
            self.cost += kernels.cost(func, args, kwargs, None, self.target)
            return None  # an optimizer in one kernel, without temporaries
        module = self._origin()
        temporaries = [
            self.take(size, "workspace", module) for size in self._workspaces(name, args)
        ]
        out = self._results.of(func, args, kwargs)
        self.cost += kernels.cost(func, args, kwargs, out, self.target)
        is_image = on_meta and name == "convolution" and args[0].dim() == 4
        if is_image and torch.channels_last in map(
            private.memory_format, args[:2]
        ):  # as cuDNN's, unknown to `meta`
            out = out.contiguous(memory_format=torch.channels_last)
        self._note_values(func, name, tensors, args, kwargs, out)
        self._follow_results(out, module)
        if on_meta and (most := kernels.workspace(name, args, out, torch.backends.cudnn.benchmark)):
            self.log.events.append(("workspace", most))
        for entry in temporaries:
            self.drop(entry)
        return out

    def _check_time(self) -> None:
        """Raises NotTraceable, with the line, for a stretch of the step that seems to have no end."""
        self._operators += 1
        wall, cpu = self._begin
        is_late = self._operators > MANY_OPERATORS and time.monotonic() - wall > LIMIT_SECONDS
        if not is_late and time.thread_time() - cpu <= LIMIT_SECONDS:
            return
        what = f"The traced step took {LIMIT_SECONDS:g} s for {self._operators:,} operators and goes on"
        why = "A prediction takes each value as False or 1, so a loop that waits for one has no end"
        advice = "give it a fixed number of turns in the step that is predicted"
        raise NotTraceable(f"{what} ({users_line()}). {why}: {advice}.")

    def _follow_results(self, out: Any, module: str) -> None:
        """Follows results: those of forward and recomputation are activations; the others are marked afterwards."""
        category = "activations" if torch.is_grad_enabled() else "temporaries"
        for tensor in tensors_of((out,)):
            self._follow(tensor, category, module)

    def _origin(self) -> str:
        """Returns the module that an operator runs for: in backward, that of the forward operator."""
        in_backward = private.backward_pass() != -1
        forward = torch.is_grad_enabled()
        if in_backward and not forward:
            node = private.running_node()
            if node is not None:
                return self._origins.get(private.number_of(node)(), "")
            return ""
        module = self._modules[-1] if self._modules else "(recomputed)" if in_backward else ""
        if forward:  # the node of this operator is the newest
            self._origins.setdefault(private.newest_node() - 1, module)
        return module

    def _workspaces(self, name: str, args: tuple) -> list[int]:
        """Returns the bytes that the operator's kernels take beside their results; a cuBLAS handle keeps its own."""
        if not (
            args and isinstance(args[0], Tensor) and args[0].device.type == self.device == "meta"
        ):
            return []
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            in_backward = private.backward_pass() != -1  # that thread has a handle of its own
            if in_backward not in self._handles:
                self._handles.add(in_backward)
                self.take(self.target.cublas_workspace, "workspace")
            return []
        return kernels.temporaries(name, args, self.target)

    def _value(self, tensor: Tensor) -> Any:
        """Returns what `.item()` gives, if unknown False or 1: models ask whether masks matter and inputs are wrong."""
        if (values := _known(tensor)) is not None:
            return values.item()
        taken = (
            False if tensor.dtype is torch.bool else 1.0 if tensor.dtype.is_floating_point else 1
        )
        if self.in_users_code:
            self.taken[users_line(), str(taken)] += 1
        return taken

    def _bounded(self, name: str, func: Any, args: tuple, kwargs: dict) -> Any:
        """Runs an operator whose shape depends on values: with known ones, else with everything selected."""
        if all(_known(leaf) is not None for leaf in tensors_of(args)):
            true = func(*private.tree_map_only(Tensor, _known, args), **kwargs)
            out = private.tree_map_only(Tensor, lambda t: torch.empty_like(t, device="meta"), true)
            for tensor, value in zip(
                private.tree_leaves(out), private.tree_leaves(true), strict=True
            ):
                if isinstance(tensor, Tensor):
                    tensor._known_values = value
        elif name == "masked_select":
            out = torch.empty(self._selected(args[1]), dtype=args[0].dtype, device="meta")
        else:
            self.bounded[f"{name}() (all {args[0].numel():,} elements)"] += 1
            out = _DEPENDING[name](args[0])
        self._follow_results(out, self._origin())
        return out

    def _selected(self, mask: Tensor) -> int:
        if (values := _known(mask)) is not None:
            return int(values.count_nonzero())
        self.bounded[f"a mask as index (all {mask.numel():,} elements)"] += 1
        return mask.numel()

    def _without_masks(self, indices: list[Tensor | None]) -> list[Tensor | None]:
        """Replaces masks by index tensors, one for each dimension, as the CUDA kernels do."""
        plain: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                plain.append(index)
                continue
            positions = torch.empty(
                index.dim(), self._selected(index), dtype=torch.long, device="meta"
            )
            self._follow_results(positions, self._origin())
            columns = positions.unbind()
            if (values := _known(index)) is not None:
                for column, numbers in zip(columns, values.nonzero().unbind(1), strict=True):
                    column._known_values = numbers  # type: ignore[attr-defined]
            plain += columns
        return plain

    def _note_values(
        self, func: Any, name: str, tensors: list[Tensor], args: tuple, kwargs: dict, out: Any
    ) -> None:
        """Computes the values of `out` where they follow from known ones and are few enough."""
        small = isinstance(out, Tensor) and out.device.type == "meta" and out.numel() <= KNOWN_LIMIT
        if not small or out.dtype.is_floating_point or out.dtype.is_complex:
            return
        if any(_known(tensor) is None for tensor in tensors) or (
            not tensors and name not in _FACTORIES
        ):
            return
        if kwargs.get("device") is not None:
            on_cpu = {**kwargs, "device": torch.device("cpu")}
        else:
            on_cpu = kwargs
        with contextlib.suppress(
            RuntimeError, NotImplementedError
        ):  # then the values are simply not known
            out._known_values = func(*private.tree_map_only(Tensor, _known, args), **on_cpu)


def _known(tensor: Tensor) -> Tensor | None:
    if tensor.device.type == "cpu":
        return tensor
    return getattr(tensor, "_known_values", None)


_FACTORIES = {"arange", "zeros", "ones", "full", "scalar_tensor", "randint", "randperm"}


def _indices(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.long, device="meta")


# Operators whose result's shape depends on values, with the largest result that they can have.
_DEPENDING: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda t: _indices(t.numel(), t.dim()),
    "masked_select": lambda t: t,  # see Tracker._bounded
    **dict.fromkeys(
        ("_unique2", "unique_consecutive"),
        lambda t: (
            torch.empty(t.numel(), dtype=t.dtype, device="meta"),
            _indices(t.numel()),
            _indices(t.numel()),
        ),
    ),
}
