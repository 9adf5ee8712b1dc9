"""Follows every tensor of a training step into a simulated caching allocator.

Nothing is computed on `meta` tensors, so a step of any size takes a second or two on a laptop. The tracker adds what a
GPU allocates beside the results of operators: workspaces of cuBLAS and cuDNN, temporaries of the attention kernels.
"""

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lib.planner import kernels
from lib.planner.allocator import Allocator, Block
from lib.planner.card import Target
from lib.planner.limits import Watch
from lib.planner.shapes import Shapes, tensors_of

KNOWN_LIMIT = 2**22  # elements of an integer tensor whose values are followed


@dataclass(eq=False, slots=True)
class Storage:
    """One allocation; its category and top-level submodule may become known later."""

    size: int
    category: str
    module: str
    block: Block | None
    alive: weakref.ref | None = None


class Tracker(TorchDispatchMode):
    """Follows the storages on `device`, and counts peak, categories, submodules and time.

    Integer tensors that come from the batch keep their values (up to 4 M elements), so that a loss that picks masked
    positions picks as many as the batch has. A shape that depends on unknown values is bounded from above, and
    `bounded` counts the operators with such a shape; `watch` has what unknown values were taken as.
    """

    def __init__(self, target: Target, capacity: int | None = None, device: str = "meta"):
        super().__init__()
        self.target, self.device = target, device
        self.allocator = Allocator(capacity)
        self.bounded: Counter[str] = Counter()
        self.watch = Watch()
        self.in_users_code = False  # whether the model or its loss is running
        self.parameters = 0
        self.cost = np.zeros(5)  # see kernels.cost
        self.moments: dict[str, tuple[int, np.ndarray]] = {}
        self._live: dict[int, Storage] = {}
        self._log: list[tuple[Storage, bool]] = []
        self._peak, self._peak_at = -1, 0
        self._modules: list[str] = []
        self._handles: set[bool] = set()
        self._shapes = Shapes(self._cost_of)

    # --- what is followed -----------------------------------------------------------------------------------------

    def adopt(self, model: nn.Module) -> None:
        """Allocates parameters and buffers, labels submodules, and marks gradients when they are made."""
        for name, parameter in model.named_parameters():
            top = name.split(".")[0]
            self._follow(parameter, "weights", top)
            self.parameters += parameter.numel()
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p, top=top: self._mark(p.grad, "gradients", top))
        for name, buffer in model.named_buffers():
            self._follow(buffer, "weights", name.split(".")[0])
        for name, child in _top_level(model):
            child.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
            child.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def adopt_state(self, tensors: Iterable[Any]) -> None:
        """Marks tensors as the optimizer's, and allocates those not seen before."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._follow(tensor, "optimizer", "")
                self._mark(tensor, "optimizer", "")

    def at(self, moment: str) -> None:
        """Records the bytes allocated now under the name of this moment; a later one of the name replaces it."""
        self.moments[moment] = (self.allocator.allocated, self.cost.copy())
        self.watch.begin()

    def pass_by(self, size: int) -> None:
        """Allocates and frees memory for something that this machine does not do."""
        self._drop(self._take(size, "temporaries"))

    def at_peak(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the bytes by category and by top-level submodule at the peak, largest first."""
        log = self._log[: self._peak_at]
        dropped = {storage for storage, allocated in log if not allocated}
        categories, modules = Counter(), Counter()
        for storage in (storage for storage, _ in log if storage not in dropped):
            categories[storage.category] += storage.size
            modules[storage.module or storage.category] += storage.size
        return dict(categories.most_common()), dict(modules.most_common())

    def _follow(self, tensor: Tensor, category: str, module: str) -> None:
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        if (key := storage._cdata) not in self._live:
            entry = self._take(storage.nbytes(), category, module)
            entry.alive = weakref.ref(storage, lambda _: self._drop(self._live.pop(key)))
            self._live[key] = entry

    def _take(self, size: int, category: str, module: str = "") -> Storage:
        block = self.allocator.allocate(int(size))
        entry = Storage(block.size if block else 0, category, module, block)
        self._log.append((entry, True))
        if self.allocator.allocated > self._peak:
            self._peak, self._peak_at = self.allocator.allocated, len(self._log)
        return entry

    def _drop(self, entry: Storage) -> None:
        self.allocator.release(entry.block)
        self._log.append((entry, False))

    def _mark(self, tensor: Tensor, category: str, module: str) -> None:
        if entry := self._live.get(tensor.untyped_storage()._cdata):
            entry.category, entry.module = category, module or entry.module

    def _leave(self) -> None:
        self._modules.pop()

    @contextlib.contextmanager
    def users_code(self) -> Iterator[None]:
        """Notes each Python value that is read from a tensor inside: the prediction depends on it."""
        self.in_users_code = True
        try:
            yield
        finally:
            self.in_users_code = False

    # --- one operator ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch._C.DisableTorchFunction():  # shapes on `meta` are computed by Python functions of torch, ten a call
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        self.watch.operator()
        name = func._schema.name.removeprefix("aten::")
        tensors = tensors_of((args, *kwargs.values()))
        if self.device == "meta" and any(t.is_meta for t in tensors):
            if name == "_local_scalar_dense":
                return self._value(args[0])
            if name in _DEPENDING:
                return self._bounded(name, func, args, kwargs)
            if name in ("index", "index_put", "_index_put_impl_", "index_put_"):
                args = (args[0], self._without_masks(args[1]), *args[2:])
                tensors = tensors_of((args, *kwargs.values()))
        if name.startswith("_fused_") and name.endswith("_") and self.device == "meta":
            self.cost += self._cost_of(func, args, kwargs, None)  # an optimizer in one kernel, without temporaries
            return None
        temporaries = [self._take(size, "workspace") for size in self._workspaces(name, args)]
        if self.device == "meta" and tensors and all(t.is_meta for t in tensors):
            out, cost = self._shapes.run(func, args, kwargs, tensors)
        else:
            out = func(*args, **kwargs)
            cost = self._cost_of(func, args, kwargs, out)
        self._note_values(func, name, tensors, args, kwargs, out)
        self._follow_results(out)
        for entry in temporaries:
            self._drop(entry)
        self.cost += cost
        return out

    def _follow_results(self, out: Any) -> None:
        """Follows an operator's results: those of forward, also under recomputation, are activations.

        In backward and in the optimizer gradients are off; tensors that stay are marked afterwards.
        """
        forward = torch.is_grad_enabled()
        module = "(recomputed)" if forward and torch._C._current_graph_task_id() != -1 else ""
        for tensor in tensors_of((out,)):
            category = "activations" if forward else "temporaries"
            self._follow(tensor, category, self._modules[-1] if self._modules else module)

    def _cost_of(self, func: Any, args: tuple, kwargs: dict, out: Any) -> np.ndarray:
        return kernels.cost(func, args, kwargs, out, self.target)

    def _workspaces(self, name: str, args: tuple) -> list[int]:
        """Returns the bytes that the operator's kernels take beside their results; a cuBLAS handle keeps its own."""
        if not (args and isinstance(args[0], Tensor) and args[0].device.type == self.device == "meta"):
            return []
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            in_backward = torch._C._current_graph_task_id() != -1  # that thread has a handle of its own
            if in_backward not in self._handles:
                self._handles.add(in_backward)
                self._take(self.target.cublas_workspace, "workspace")
            return []
        return kernels.temporaries(name, args, self.target)

    # --- values -----------------------------------------------------------------------------------------------------

    def _value(self, tensor: Tensor) -> Any:
        """Returns what `.item()` gives: the true value where it is known, else False or 1.

        False, because models ask whether a mask may be left out, and whether their input is wrong.
        """
        known = _known(tensor)
        if known is not None:
            return known.item()
        taken = False if tensor.dtype is torch.bool else 1.0 if tensor.dtype.is_floating_point else 1
        if self.in_users_code:
            self.watch.read(taken)
        return taken

    def _bounded(self, name: str, func: Any, args: tuple, kwargs: dict) -> Any:
        """Runs an operator whose shape depends on values: with the true ones, else with everything selected."""
        if all(_known(leaf) is not None for leaf in tensors_of(args)):
            true = func(*tree_map_only(Tensor, _known, args), **kwargs)
            out = tree_map_only(Tensor, lambda t: torch.empty_like(t, device="meta"), true)
            for tensor, value in zip(tree_leaves(out), tree_leaves(true), strict=True):
                if isinstance(tensor, Tensor):
                    tensor._known_values = value
        elif name == "masked_select":
            out = torch.empty(self._selected(args[1]), dtype=args[0].dtype, device="meta")
        else:
            self.bounded[f"{name}() (all {args[0].numel():,} elements)"] += 1
            out = _DEPENDING[name](args[0])
        self._follow_results(out)
        return out

    def _selected(self, mask: Tensor) -> int:
        known = _known(mask)
        if known is not None:
            return int(known.count_nonzero())
        self.bounded[f"a mask as index (all {mask.numel():,} elements)"] += 1
        return mask.numel()

    def _without_masks(self, indices: list[Tensor | None]) -> list[Tensor | None]:
        """Replaces masks by index tensors, one for each dimension, as the CUDA kernels do."""
        plain: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                plain.append(index)
                continue
            positions = torch.empty(index.dim(), self._selected(index), dtype=torch.long, device="meta")
            self._follow_results(positions)
            plain += positions.unbind()
            if (known := _known(index)) is not None:
                for position, values in zip(plain[-index.dim() :], known.nonzero().unbind(1), strict=True):
                    position._known_values = values
        return plain

    def _note_values(self, func: Any, name: str, tensors: list[Tensor], args: tuple, kwargs: dict, out: Any) -> None:
        """Computes the values of `out` where they follow from known ones and are few enough."""
        small = isinstance(out, Tensor) and out.device.type == "meta" and out.numel() <= KNOWN_LIMIT
        if not small or out.dtype.is_floating_point or out.dtype.is_complex:
            return
        if any(_known(tensor) is None for tensor in tensors) or (not tensors and name not in _FACTORIES):
            return
        on_cpu = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
        with contextlib.suppress(RuntimeError, NotImplementedError):  # then the values are simply not known
            out._known_values = func(*tree_map_only(Tensor, _known, args), **on_cpu)


def _known(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.device.type == "cpu" else getattr(tensor, "_known_values", None)


_FACTORIES = {"arange", "zeros", "ones", "full", "scalar_tensor", "randint", "randperm"}


def _unique(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    positions = torch.empty(tensor.numel(), dtype=torch.long, device="meta")
    return torch.empty(tensor.numel(), dtype=tensor.dtype, device="meta"), positions, torch.empty_like(positions)


# Operators whose result's shape depends on values, with the largest result that they can have.
_DEPENDING: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda t: torch.empty(t.numel(), t.dim(), dtype=torch.long, device="meta"),
    "masked_select": lambda t: t,  # see Tracker._bounded
    "_unique2": _unique,
    "unique_consecutive": _unique,
}


def _top_level(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the top-level submodules that are called; the members of a list, which is not called, have its name."""
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from ((name, member) for member in child.children())
        else:
            yield name, child
