"""Finds what a GPU refuses or does not reproduce in a task's step, without a GPU: by the operators of a real step."""

import contextlib
from collections import Counter
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lib.config import Config, with_changes
from lib.launch.fp16 import few_batches
from lib.planner.kernels import LAUNCH_SECONDS
from lib.ranks.sums import add_counts
from lib.report.findings import Finding
from lib.task import Task
from lib.training import data
from lib.training.draws import put_back
from lib.training.precision import autocast
from lib.training.state import new_state

# Operators that raise under deterministic algorithms on CUDA, by the list of torch.use_deterministic_algorithms's
# documentation (2.13), in aten's names; what stands in their place
_REFUSED = {
    "nll_loss2d_forward": "cross-entropy over more than two dimensions: flatten to (targets, classes) and (targets)",
    "avg_pool3d_backward": "average pooling in 3D", "_adaptive_avg_pool2d_backward": "adaptive pooling: take a mean",
    "_adaptive_avg_pool3d_backward": "adaptive pooling: take a mean",
    "adaptive_max_pool2d_backward": "adaptive pooling",
    "fractional_max_pool2d_backward": "fractional pooling", "fractional_max_pool3d_backward": "fractional pooling",
    "max_unpool2d": "unpooling", "max_unpool3d": "unpooling", "_ctc_loss_backward": "the CTC loss",
    "upsample_linear1d_backward": "interpolation: take mode nearest",
    "upsample_bilinear2d_backward": "interpolation: take mode nearest",
    "upsample_bicubic2d_backward": "interpolation: take mode nearest",
    "upsample_trilinear3d_backward": "interpolation: take mode nearest",
    "reflection_pad1d_backward": "reflected padding", "reflection_pad2d_backward": "reflected padding",
    "reflection_pad3d_backward": "reflected padding", "put_": "put_", "histc": "histc: count by bincount",
    "median": "median with indices: take a quantile", "grid_sampler_2d_backward": "grid_sample",
    "grid_sampler_3d_backward": "grid_sample", "cumsum": "cumsum of floats",
}  # fmt: skip
_BY_MASK = "x[mask]"
_WAITS = (_BY_MASK, "_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2")  # for values
_FEW = 3  # waits that cost little: encoder and decoder of transformers look once each whether all of a mask is true


class _OneHot(TorchFunctionMode):
    """Computes one-hot numbers as a GPU does, where a CPU looks whether the classes are in range."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.one_hot or len(args) < 2:
            return func(*args, **(kwargs or {}))
        return args[0].new_zeros(*args[0].shape, args[1]).scatter_(-1, args[0].unsqueeze(-1), 1)


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "index" and any(index is not None and index.dtype is torch.bool for index in args[1]):
            name = _BY_MASK
        if not func.is_view and (name != "cumsum" or args[0].is_floating_point()):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def of_step(task: Task, config: Config) -> Counter[str]:
    """Returns how often each operator of PyTorch with a kernel is called in loss and gradient of some samples.

    On a GPU there is one wait more in a step, for the gradient's norm.
    """
    config = with_changes(config, {"training.compile": False, "training.fully_shard": False})
    with put_back():
        state, batches = new_state(task, config, precision="fp32"), few_batches(task, config)
        task.step = max(group.from_step for group in state.groups)  # most is trained then
        counts, operators = add_counts(map(task.count, batches)), _Operators()
        # an implementation in one kernel hides what a GPU would call
        with torch.backends.mkldnn.flags(enabled=False), contextlib.ExitStack() as stack:
            stack.enter_context(autocast(state.precision, state.device))
            batch = next(iter(data.on_device(iter(batches[:1]), state.device)))
            stack.enter_context(_OneHot())
            stack.enter_context(operators)
            sums, _ = task.loss(state.model, batch)
            torch.stack([value.float() for term, value in sums.items() if counts[term]]).sum().backward()
    task.step = 0
    return operators.counts


def examine(task: Task, config: Config) -> Finding:
    """Names the operators that a GPU refuses where `training.deterministic` is true, and the waits, where many."""
    counts = of_step(task, config)
    refused = {name: counts[name] for name in _REFUSED if counts[name]}
    waits = {name: counts[name] for name in _WAITS if counts[name]}
    if refused and config.training.deterministic:
        what = "; ".join(f"{name} ({_REFUSED[name]})" for name in refused)
        advice = "Take what stands in brackets, or training.deterministic: false, which is not the same bit for bit."
        return Finding("GPU operators", f"a GPU refuses with training.deterministic: {what}", "bad", advice)
    least, most = (1e3 * seconds * counts.total() for seconds in LAUNCH_SECONDS)
    text = f"{counts.total():,} kernels in the loss and gradient of a batch, which a CPU launches in {least:.0f} to "
    text += f"{most:.0f} ms: a faster GPU waits (training.compile makes fewer, a larger micro-batch gives each more)"
    if refused:
        return Finding("GPU operators", f"{text}; not the same bits in each run on a GPU: {', '.join(refused)}")
    if sum(waits.values()) > _FEW:
        many = ", ".join(f"{name} {number} times" for name, number in waits.items())
        advice = "The loss waits for the GPU: no .item(), float(), .nonzero(), x[mask] and `if tensor` in it."
        return Finding("GPU operators", f"{text}; {many}", "warning", advice)
    return Finding("GPU operators", text)
