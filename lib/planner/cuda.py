"""Gives `meta` tensors the behaviour of a CUDA device; the model's code runs unchanged and may say "cuda".

Functions of torch.cuda return what they return on the card; a second card is refused.
"""

import contextlib
import functools
import math
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import yaml
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lib import private
from lib.errors import NotTraceable
from lib.machine.facts import Card
from lib.planner import kernels
from lib.planner.card import Target
from lib.planner.tracker import users_line
from lib.training.precision import is_beyond_fp16

_LISTS = yaml.safe_load(Path(__file__).with_name("autocast.yaml").read_text("utf-8"))
TO_HALF = frozenset(_LISTS["to_half"].split())
TO_FP32 = frozenset(_LISTS["to_fp32"].split())
RESULT_FP32 = frozenset(_LISTS["result_fp32"].split())
TO_WIDEST = frozenset(_LISTS["to_widest"].split())
HALF = (torch.float16, torch.bfloat16)
# By their numbers in torch.nn.attention.SDPBackend; cuDNN's comes last by default
_ATTENTION_KERNELS = {0: "math", 1: "flash", 2: "efficient"}
_PYTHON_LAYERS = {"torch.nn.functional", "torch.functional", "torch._tensor", "torch.autograd"}


class InnerCalls(TorchFunctionMode):
    """A mode that sees the calls inside torch's Python layers, which decide the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[Callable] = []

    def inside(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a Python layer under this mode, but one that is running already without it."""
        if func in self._running:
            return func(*args, **kwargs)
        self._running.append(func)
        try:
            with self:
                return without_overrides(func)(*args, **kwargs)
        finally:
            self._running.pop()


def is_python_layer(func: Any) -> bool:
    return (
        isinstance(func, types.FunctionType) and func.__globals__.get("__name__") in _PYTHON_LAYERS
    )


class CudaSemantics(InnerCalls):
    """Makes PyTorch calls on `meta` tensors behave as on `target`; counts attention kernels and recurrent layers."""

    def __init__(self, target: Target):
        super().__init__()
        self.target = target
        self.attention: Counter[str] = Counter()
        self.recurrent = self.compiled = 0
        # Autocast's cache by id, emptied when its region ends: the weight and its copy
        self._half_weights: dict[int, tuple[Tensor, Tensor]] = {}
        self._was_autocast = False

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        args, kwargs = _on_meta(func, args, dict(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(*args, **kwargs)
        if is_python_layer(func):
            return self.inside(func, args, kwargs)
        if name == "dropout" and _drops(*args, **kwargs):  # fused: a mask of bytes
            return torch.native_dropout(args[0], _argument(args, kwargs, 1, "p"), True)[0]
        half = self._autocast()
        if name in kernels.RECURRENT and args[0].is_meta:
            self.recurrent += 1
            if half is not None:
                args, _ = self._cast_all(args, {}, half)
            return kernels.run_recurrent(args)
        if half is None:
            return func(*args, **kwargs)
        return self._autocast_call(func, name, args, kwargs, half)

    def _autocast(self) -> torch.dtype | None:
        enabled = torch.is_autocast_enabled("cuda")
        if self._was_autocast and not enabled:
            self._half_weights.clear()
        self._was_autocast = enabled
        return torch.get_autocast_dtype("cuda") if enabled else None

    def _cast(self, value: Tensor, to: torch.dtype) -> Tensor:
        """Casts as `cached_cast` does: a weight that is cast down is kept until the autocast region ends."""
        if not value.is_floating_point() or value.dtype in (to, torch.float64):
            return value
        if value.device.type == "cpu":
            return value
        is_weight = value.is_leaf and value.requires_grad and value.dtype is torch.float32
        is_cached = is_weight and to in HALF and torch.is_autocast_cache_enabled()
        if not is_cached:
            return value.to(to)
        if id(value) not in self._half_weights:
            self._half_weights[id(value)] = (value, value.to(to))
        return self._half_weights[id(value)][1]

    def _cast_all(self, args: tuple, kwargs: dict, to: torch.dtype) -> tuple[tuple, dict]:
        return private.tree_map_only(Tensor, lambda t: self._cast(t, to), (args, kwargs))

    def _autocast_call(
        self, func: Any, name: str, args: tuple, kwargs: dict, half: torch.dtype
    ) -> Any:
        leaves = private.tree_leaves((args, kwargs))
        is_half = getattr(args[0] if args else None, "dtype", None) in HALF
        has_dtype = any(isinstance(value, torch.dtype) for value in leaves)
        smoothing = _argument(args, kwargs, 5, "label_smoothing")
        is_cross_entropy = is_half and name == "cross_entropy_loss"
        floats = {t.dtype for t in leaves if isinstance(t, Tensor) and t.is_floating_point()}
        if name in TO_HALF:
            args, kwargs = self._cast_all(args, kwargs, half)
        elif is_cross_entropy and not (args[1].is_floating_point() or smoothing):
            return _half_cross_entropy(*args, **kwargs)
        elif name in TO_FP32:
            args, kwargs = self._cast_all(args, kwargs, torch.float32)
        elif name in private.softmax_to_half and is_half and not has_dtype:
            return _half_softmax(name, args[0], _argument(args, kwargs, 1, "dim"))
        elif name in RESULT_FP32 and is_half and not has_dtype:
            kwargs["dtype"] = torch.float32
        elif name in TO_WIDEST and len(floats) > 1:
            args, kwargs = self._cast_all(args, kwargs, torch.float32)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attends by the card's kernel. query (B, H, L, E), key and value (B, H, S, E)."""
        half = self._autocast()
        if half is not None:
            query, key, value = (self._cast(t, half) for t in (query, key, value))
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = self._cast(attn_mask, half)
        if enable_gqa and query.shape[1] != key.shape[1]:
            repeats = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
        kernel = attention_kernel(self.target.card.capability, query, value, attn_mask)
        self.attention[kernel] += 1
        return attend(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale)


def _on_meta(func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Replaces CUDA devices in a call by `meta`; `torch.device("cuda")` itself keeps its name."""
    if func is torch.device:
        return args, kwargs
    name = getattr(func, "__name__", "")
    if name == "cuda":
        return (args[0], "meta"), {}
    device = kwargs.get("device")
    if type(device) is int:  # the number of a card
        kwargs["device"] = f"cuda:{device}"
    if name == "to" and len(args) > 1 and type(args[1]) is int:
        args = (args[0], f"cuda:{args[1]}", *args[2:])
    args = tuple(map(_meta_device, args))
    return args, {key: _meta_device(value) for key, value in kwargs.items()}


def _meta_device(value: Any) -> Any:
    """Returns `meta` for a CUDA device. Raises NotTraceable for a second card."""
    if not isinstance(value, str | torch.device):
        return value
    kind, _, index = str(value).partition(":")
    if kind != "cuda":
        return value
    if index.isdigit() and int(index):
        raise NotTraceable(
            f"The traced step uses a second card, {value} ({users_line()}), and a prediction follows"
            ' one. Write "cuda", or predict the part on each card alone.'
        )
    return torch.device("meta")


def _argument(args: tuple, kwargs: dict, position: int, name: str) -> Any:
    if len(args) > position:
        return args[position]
    return kwargs.get(name)


@functools.cache
def without_overrides(func: types.FunctionType) -> Callable:
    """Returns a Python function of torch without its check for modes, so that its body runs."""
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**func.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    body = types.FunctionType(
        func.__code__, names, func.__name__, func.__defaults__, func.__closure__
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _drops(
    x: Any, p: float = 0.5, training: bool = True, train: bool | None = None, **_: Any
) -> bool:
    if train is not None:
        training = train
    return bool(training) and 0 < p < 1 and x.numel() > 0


def _half_softmax(name: str, x: Tensor, dim: int) -> Tensor:
    """Applies softmax with an fp32 result. CUDA converts fp16 in the kernel; bf16 gets an fp32 copy."""
    is_fp16 = x.dtype is torch.float16
    return private.softmax_to_half[name](x if is_fp16 else x.float(), dim, is_fp16)


def _half_cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    *_: Any,
    **__: Any,
) -> Tensor:
    log_probabilities = _half_softmax("log_softmax", x, 1)
    nll_loss: Any = private.nll_loss  # whose stub wants a word as reduction
    return nll_loss(log_probabilities, target, weight, reduction, ignore_index)


def _for_cuda(function: Callable) -> Callable:
    """Wraps a function so that the device "meta", which a model's tensors have here, means "cuda"."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cuda" if isinstance(a, str) and a == "meta" else a for a in args)
        if kwargs.get("device_type") == "meta":
            kwargs["device_type"] = "cuda"
        return function(*args, **kwargs)

    return wrapped


def _answers(card: Card) -> dict[str, Any]:
    """Returns the functions of torch.cuda as they are on `card`."""
    major, minor = card.capability
    memory = int(card.memory_gib * 2**30)
    values: dict[str, Any] = {"is_available": True, "device_count": 1, "current_device": 0}
    values |= {"is_bf16_supported": True, "is_current_stream_capturing": False}
    values |= dict.fromkeys(("synchronize", "init", "set_device", "empty_cache"))
    values["get_device_name"] = card.name
    values["get_device_capability"] = card.capability
    values["get_device_properties"] = types.SimpleNamespace(
        name=card.name, major=major, minor=minor, total_memory=memory
    )
    return {name: lambda *_, value=value, **__: value for name, value in values.items()}


@contextlib.contextmanager
def simulated_cuda(target: Target) -> Iterator[CudaSemantics]:
    """Makes a step on `meta` tensors run as on `target`; torch.cuda reports this one card."""
    semantics = CudaSemantics(target)
    optimizers = sys.modules[torch.optim.Optimizer.__module__]

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:
        semantics.compiled += 1
        if model is None:
            return lambda function: function
        return model

    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for name, answer in _answers(target.card).items():
            patch(torch.cuda, name, answer)
        patch(torch, "compile", compile)
        devices = ["cuda", "cpu", "meta"]
        patch(optimizers, "_get_fused_kernels_supported_devices", lambda: devices)
        patch(torch.autocast, "__init__", _for_cuda(torch.autocast.__init__))
        patch(torch, "is_autocast_enabled", _for_cuda(torch.is_autocast_enabled))
        patch(torch, "get_autocast_dtype", _for_cuda(torch.get_autocast_dtype))
        patch(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch(torch.utils.checkpoint, "_infer_device_type", lambda *_: "cuda")
        try:
            with semantics:
                yield semantics
        finally:
            _clear_caches()


def _clear_caches() -> None:
    """Makes transformers ask again whether there is a card."""
    module = sys.modules.get("transformers.utils.import_utils")
    for name in (
        "is_torch_cuda_available",
        "is_flash_attn_2_available",
        "is_flash_attn_3_available",
    ):
        function: Any = getattr(module, name, None)
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def attend(
    kernel: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attends by a kernel. query (B, H, L, E), key and value (B, H, S, E)."""
    if kernel == "flash":
        width = query.shape[-1]
        if width % 8:
            padding = (0, -width % 8)
            query, key, value = (F.pad(t, padding) for t in (query, key, value))
        out = private.attend_flash(query, key, value, dropout, causal, False, scale=scale)[0]
        return out[..., :width]
    if kernel == "math" and causal:
        shape = (query.shape[-2], key.shape[-2])
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril_()
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, -math.inf)
    if kernel == "math":
        return _plain(query, key, value, mask, dropout, scale)
    if mask is not None:
        columns = mask.shape[-1]
        if columns % 16:  # rows are padded to an aligned length
            mask = F.pad(mask, (0, -columns % 16))[..., :columns]
        mask = mask.expand(*query.shape[:3], key.shape[2])
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return private.attend_efficient(query, key, value, mask, keeps, dropout, causal, scale=scale)[0]


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """Attends as at::_scaled_dot_product_attention_math, which keeps the scores (B, H, L, S)."""
    root = math.sqrt(scale if scale else query.shape[-1] ** -0.5)
    scores = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if bias is not None:
        scores = scores + bias
    scores = private.safe_softmax(scores, -1)
    if dropout > 0:
        scores = torch.native_dropout(scores, dropout, True)[0]
    return torch.matmul(scores, value)


def attention_kernel(
    capability: tuple[int, int], query: Tensor, value: Tensor, mask: Tensor | None
) -> str:
    """Returns the first kernel that can attend (sdp_utils.cpp). query, value (B, H, L, E)."""
    cuda = torch.backends.cuda
    for number in private.attention_order():
        kernel = _ATTENTION_KERNELS.get(int(number), "")
        if kernel == "math" and cuda.math_sdp_enabled():
            return kernel
        is_flash = kernel == "flash" and cuda.flash_sdp_enabled()
        if is_flash and _flash_attends(capability, query, value, mask):
            return kernel
        is_efficient = kernel == "efficient" and cuda.mem_efficient_sdp_enabled()
        if is_efficient and _efficient_attends(capability, query, value):
            return kernel
    return "math"


def _flash_attends(
    capability: tuple[int, int], query: Tensor, value: Tensor, mask: Tensor | None
) -> bool:
    if capability < (8, 0) or query.dtype not in HALF:
        return False
    if query.dim() != 4 or mask is not None:
        return False
    return query.shape[-1] == value.shape[-1] <= 256


def _efficient_attends(capability: tuple[int, int], query: Tensor, value: Tensor) -> bool:
    if capability < (5, 0) or query.dim() != 4:
        return False
    if query.dtype is torch.bfloat16 and capability < (8, 0):
        return False
    aligned = 16 // query.element_size()
    return query.shape[-1] % aligned == value.shape[-1] % aligned == 0


class Fp16OnCpu(InnerCalls):
    """Makes `torch.autocast("cpu")` behave as CUDA's: fp16 products that add up in fp32."""

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if is_python_layer(func):
            return self.inside(func, args, kwargs)
        with torch.autocast("cpu", enabled=False):
            return self._call(func, name, args, kwargs)

    def _call(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        if name in TO_HALF or name == "scaled_dot_product_attention":
            args, kwargs = private.tree_map_only(Tensor, _rounded_to_fp16, (args, kwargs))
            return _cast(func(*args, **kwargs), torch.float32, torch.float16)
        leaves = private.tree_leaves((args, kwargs))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)}
        has_half = torch.float16 in dtypes
        has_dtype = any(isinstance(leaf, torch.dtype) for leaf in leaves)
        in_fp32 = name in TO_FP32
        if name in RESULT_FP32 or name in private.softmax_to_half:
            in_fp32 |= not has_dtype
        if name in TO_WIDEST:
            in_fp32 |= len(dtypes) > 1
        if has_half and in_fp32:
            args, kwargs = _cast((args, kwargs), torch.float16, torch.float32)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not has_half or "Half" not in str(error) or is_beyond_fp16(error):
                raise
        # a kernel that a CPU lacks
        args, kwargs = _cast((args, kwargs), torch.float16, torch.float32)
        return _cast(func(*args, **kwargs), torch.float32, torch.float16)


def _rounded_to_fp16(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.half().float()
    return tensor


def _cast(values: Any, before: torch.dtype, after: torch.dtype) -> Any:
    def cast(tensor: Tensor) -> Tensor:
        if tensor.dtype is before:
            return tensor.to(after)
        return tensor

    return private.tree_map_only(Tensor, cast, values)
