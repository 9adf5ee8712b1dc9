"""Follows every tensor of a step into a simulated allocator, with a GPU's workspaces and temporaries."""

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

# Limits of a forward pass, a backward pass, or the optimizer. A pass of Qwen2.5-7B runs 4,500 operators
# in 4 to 10 s. A pass that waits for a core is refused by wall time only after more operators than any
# model runs.
LIMIT_SECONDS = 40.0
MANY_OPERATORS = 15_000
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_HELPERS = ("contextlib.py", "functools.py", "_ops.py")
KNOWN_LIMIT = 2**22  # elements of an integer tensor whose values are followed


def users_line() -> str:
    """Returns the innermost line of the stack outside torch and the planner: "FILE, line N"."""
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
    """Follows the storages on `device`; logs allocations with category and module, and counts time.

    Integer tensors of the batch keep their values (up to 4 M elements): a loss picks as many masked
    positions as the batch has. Shapes that depend on unknown values are bounded from above (`bounded`
    counts such operators).
    """

    def __init__(self, target: Target, capacity: int | None = None, device: str = "meta"):
        super().__init__()
        self.target = target
        self.device = device
        self.log = Log()
        self.allocator = Allocator(capacity)
        self.bounded: Counter[str] = Counter()
        self.taken: Counter[tuple[str, str]] = Counter()  # unknown values: (line, assumed value)
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
        self._origins: dict[int, str] = {}  # modules of forward operators, by number of the node
        self._handles: set[bool] = set()

    def adopt(self, model: nn.Module) -> None:
        """Allocates parameters and buffers, labels modules, and marks gradients when they are made."""
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
            module = path.rpartition(".")[0] or path
            self._follow(tensor, "weights", module)
            if isinstance(tensor, nn.Parameter):
                self._adopt_parameter(tensor, module)
        for path, child in model.named_modules():
            if path:
                self._follow_calls(child, path)

    def _adopt_parameter(self, parameter: nn.Parameter, module: str) -> None:
        self._parameters[id(parameter)] = module
        self.parameters += parameter.numel()
        if parameter.dtype is torch.uint8:  # nf4: two in a byte
            self.parameters += parameter.numel()
        if not parameter.requires_grad:
            return
        self.trained += parameter.numel()

        def mark(trained: Tensor) -> None:
            if trained.grad is not None:
                self._mark(trained.grad, "gradients", module)

        parameter.register_post_accumulate_grad_hook(mark)

    def _follow_calls(self, module: nn.Module, path: str) -> None:
        """Keeps the paths of running modules in `_modules`."""

        def begin(*_: Any) -> None:
            self._modules.append(path)

        def end(*_: Any) -> None:
            self._modules.pop()

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end, always_call=True)

    def adopt_state(self, states: Mapping[Any, Any]) -> None:
        """Labels an optimizer's state with the modules of its parameters."""
        for parameter, state in states.items():
            module = self._parameters.get(id(parameter), "")
            values = state.values() if isinstance(state, Mapping) else [state]
            for tensor in tensors_of(values):
                self._follow(tensor, "optimizer", module)
                self._mark(tensor, "optimizer", module)

    def at(self, moment: str) -> None:
        """Records the bytes allocated now under the name of this moment, instead of an earlier one."""
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
            self._peak = self.allocator.allocated
            self.log.peak = len(self.log.events)
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
        # Shapes on `meta` are computed by Python functions of torch, ten a call
        with private.without_overrides():
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
        sizes = self._workspaces(name, args)
        temporaries = [self.take(size, "workspace", module) for size in sizes]
        out = self._results.of(func, args, kwargs)
        self.cost += kernels.cost(func, args, kwargs, out, self.target)
        is_image = on_meta and name == "convolution" and args[0].dim() == 4
        if is_image and torch.channels_last in map(private.memory_format, args[:2]):
            # as cuDNN's, unknown to `meta`
            out = out.contiguous(memory_format=torch.channels_last)
        self._note_values(func, name, tensors, args, kwargs, out)
        self._follow_results(out, module)
        if on_meta and (most := kernels.workspace(name, args, out, torch.backends.cudnn.benchmark)):
            self.log.events.append(("workspace", most))
        for entry in temporaries:
            self.drop(entry)
        return out

    def _check_time(self) -> None:
        """Raises NotTraceable, with the line, for a pass that seems to have no end."""
        self._operators += 1
        wall, cpu = self._begin
        is_late = self._operators > MANY_OPERATORS and time.monotonic() - wall > LIMIT_SECONDS
        if not is_late and time.thread_time() - cpu <= LIMIT_SECONDS:
            return
        raise NotTraceable(
            f"The traced step took {LIMIT_SECONDS:g} s for {self._operators:,} operators and goes on"
            f" ({users_line()}). A prediction takes each value as False or 1, so a loop that waits for"
            " one has no end: give it a fixed number of turns in the step that is predicted."
        )

    def _follow_results(self, out: Any, module: str) -> None:
        """Follows results, as activations in forward and recomputation; others are marked later."""
        category = "activations" if torch.is_grad_enabled() else "temporaries"
        for tensor in tensors_of((out,)):
            self._follow(tensor, category, module)

    def _origin(self) -> str:
        """Returns the module of an operator; in backward, the module of the forward operator."""
        in_backward = private.backward_pass() != -1
        forward = torch.is_grad_enabled()
        if in_backward and not forward:
            node = private.running_node()
            if node is not None:
                return self._origins.get(private.number_of(node)(), "")
            return ""
        module = "(recomputed)" if in_backward else ""
        if self._modules:
            module = self._modules[-1]
        if forward:  # the node of this operator is the newest
            self._origins.setdefault(private.newest_node() - 1, module)
        return module

    def _workspaces(self, name: str, args: tuple) -> list[int]:
        """Returns the bytes of the kernels' temporaries; takes a cuBLAS handle's own, which it keeps."""
        if not args or not isinstance(args[0], Tensor):
            return []
        if self.device != "meta" or not args[0].is_meta:
            return []
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            in_backward = private.backward_pass() != -1  # that thread has a handle of its own
            if in_backward not in self._handles:
                self._handles.add(in_backward)
                self.take(self.target.cublas_workspace, "workspace")
            return []
        return kernels.temporaries(name, args, self.target)

    def _value(self, tensor: Tensor) -> Any:
        """Returns `.item()`, False or 1 if unknown: models ask for masks that matter and wrong inputs."""
        if (values := _known(tensor)) is not None:
            return values.item()
        taken: float = 1
        if tensor.dtype is torch.bool:
            taken = False
        elif tensor.dtype.is_floating_point:
            taken = 1.0
        if self.in_users_code:
            self.taken[users_line(), str(taken)] += 1
        return taken

    def _bounded(self, name: str, func: Any, args: tuple, kwargs: dict) -> Any:
        """Runs an operator whose shape depends on values; if unknown, with everything selected."""
        if all(_known(leaf) is not None for leaf in tensors_of(args)):
            true = func(*private.tree_map_only(Tensor, _known, args), **kwargs)
            out = private.tree_map_only(Tensor, _with_values, true)
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
            positions = _indices(index.dim(), self._selected(index))
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
        """Computes the values of `out` if its inputs are known and it is small."""
        if not isinstance(out, Tensor) or not out.is_meta or out.numel() > KNOWN_LIMIT:
            return
        if out.dtype.is_floating_point or out.dtype.is_complex:
            return
        if not tensors and name not in _FACTORIES:
            return
        if any(_known(tensor) is None for tensor in tensors):
            return
        on_cpu = kwargs
        if kwargs.get("device") is not None:
            on_cpu = {**kwargs, "device": torch.device("cpu")}
        with contextlib.suppress(RuntimeError, NotImplementedError):  # else they stay unknown
            values = func(*private.tree_map_only(Tensor, _known, args), **on_cpu)
            out._known_values = values  # type: ignore[attr-defined]


def _known(tensor: Tensor) -> Tensor | None:
    if tensor.device.type == "cpu":
        return tensor
    return getattr(tensor, "_known_values", None)


def _with_values(values: Tensor) -> Tensor:
    """Returns a tensor on `meta` whose values are known."""
    tensor = torch.empty_like(values, device="meta")
    tensor._known_values = values  # type: ignore[attr-defined]
    return tensor


_FACTORIES = {"arange", "zeros", "ones", "full", "scalar_tensor", "randint", "randperm"}


def _indices(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.long, device="meta")


def _all_nonzero(tensor: Tensor) -> Tensor:
    return _indices(tensor.numel(), tensor.dim())


def _all_unique(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns values, inverse indices and counts."""
    size = tensor.numel()
    values = torch.empty(size, dtype=tensor.dtype, device="meta")
    return values, _indices(size), _indices(size)


# Operators whose result's shape depends on values, with the largest result that they can have.
_DEPENDING: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": _all_nonzero,
    "masked_select": lambda t: t,  # see Tracker._bounded
    "_unique2": _all_unique,
    "unique_consecutive": _all_unique,
}
