"""Gives `meta` tensors the behaviour of a CUDA device; the model's code runs unchanged and may say "cuda".

What a script asks of torch.cuda is answered as on the card; a second card is refused.
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
TO_HALF, TO_FP32, RESULT_FP32, TO_WIDEST = (
    frozenset(_LISTS[name].split()) for name in ("to_half", "to_fp32", "result_fp32", "to_widest")
)
HALF = (torch.float16, torch.bfloat16)
_NUMBERS = {
    0: "math",
    1: "flash",
    2: "efficient",
}  # torch.nn.attention.SDPBackend; cuDNN's comes last by default
_PYTHON_LAYERS = frozenset(
    ["torch.nn.functional", "torch.functional", "torch._tensor", "torch.autograd"]
)


class InnerCalls(TorchFunctionMode):
    """A mode that sees what Python layers of torch call inside: which kernels run depends on that."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[Callable] = []

    def inside(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a Python layer; one that is called by a helper of its own, which looks for overrides, as it is."""
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
        self._half_weights: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # autocast's cache, which ends with the region
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
        if name == "dropout" and _drops(*args, **kwargs):
            return torch.native_dropout(args[0], _argument(args, kwargs, 1, "p"), True)[
                0
            ]  # fused: a mask of bytes
        half = self._autocast()
        if name in kernels.RECURRENT and args[0].is_meta:
            self.recurrent += 1
            return kernels.run_recurrent(
                args if half is None else self._cast_all(args, {}, half)[0]
            )
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
        if (
            not value.is_floating_point()
            or value.dtype in (to, torch.float64)
            or value.device.type == "cpu"
        ):
            return value
        is_weight = (
            value.is_leaf and value.requires_grad and value.dtype is torch.float32 and to in HALF
        )
        if not (is_weight and torch.is_autocast_cache_enabled()):
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
        smoothing = _argument(args, kwargs, 5, "label_smoothing")  # of cross_entropy_loss
        floats = {t.dtype for t in leaves if isinstance(t, Tensor) and t.is_floating_point()}
        if name in TO_HALF:
            args, kwargs = self._cast_all(args, kwargs, half)
        elif (
            name == "cross_entropy_loss"
            and is_half
            and not (args[1].is_floating_point() or smoothing)
        ):
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
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    ) -> Tensor:
        """Attends by the kernel that the card would choose. query (B, H, L, E), key and value (B, H, S, E)."""
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
    """Replaces every CUDA device in a call by `meta`; a device itself (`torch.device("cuda")`) keeps its name."""
    if func is torch.device:
        return args, kwargs
    if getattr(func, "__name__", "") == "cuda":
        return (args[0], "meta"), {}
    if type(kwargs.get("device")) is int:  # torch's word for a card
        kwargs["device"] = f"cuda:{kwargs['device']}"
    if getattr(func, "__name__", "") == "to" and len(args) > 1 and type(args[1]) is int:
        args = (args[0], f"cuda:{args[1]}", *args[2:])
    return tuple(map(_meta_device, args)), {
        key: _meta_device(value) for key, value in kwargs.items()
    }


def _meta_device(value: Any) -> Any:
    """Returns `meta` for a CUDA device. Raises NotTraceable for a second card."""
    kind, _, index = (
        str(value).partition(":") if isinstance(value, str | torch.device) else ("", "", "")
    )
    if index.isdigit() and kind == "cuda" and int(index):
        what = f"The traced step uses a second card, {value} ({users_line()}), and a prediction follows one"
        raise NotTraceable(f'{what}. Write "cuda", or predict the part on each card alone.')
    if kind == "cuda":
        return torch.device("meta")
    return value


def _argument(args: tuple, kwargs: dict, position: int, name: str) -> Any:
    if len(args) > position:
        return args[position]
    return kwargs.get(name)


@functools.cache
def without_overrides(func: types.FunctionType) -> Callable:
    """Returns a Python function of torch without the check that would pass it to the mode again: its body runs."""
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
    return bool(training if train is None else train) and 0 < p < 1 and x.numel() > 0


def _half_softmax(name: str, x: Tensor, dim: int) -> Tensor:
    """Applies softmax: CUDA converts fp16 inside the kernel, without an fp32 copy of the input; bf16 gets one."""
    is_fp16 = x.dtype is torch.float16
    return private.softmax_to_half[name](x if is_fp16 else x.float(), dim, is_fp16)


def _half_cross_entropy(
    x: Tensor, target: Tensor, weight=None, reduction=1, ignore_index=-100, *_, **__
) -> Tensor:
    return private.nll_loss(
        _half_softmax("log_softmax", x, 1), target, weight, reduction, ignore_index
    )


def _for_cuda(function: Callable) -> Callable:
    """Returns the function with "cuda" where a model calls it with the device of its tensors, which is "meta" here."""

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
    properties = types.SimpleNamespace(
        name=card.name, major=major, minor=minor, total_memory=int(card.memory_gib * 2**30)
    )
    values = {
        "is_available": True, "is_bf16_supported": True, "is_current_stream_capturing": False, "device_count": 1,
        "current_device": 0, "get_device_name": card.name, "get_device_capability": card.capability,
        "get_device_properties": properties, "synchronize": None, "init": None, "set_device": None, "empty_cache": None,
    }  # fmt: skip
    return {name: lambda *_, value=value, **__: value for name, value in values.items()}


@contextlib.contextmanager
def simulated_cuda(target: Target) -> Iterator[CudaSemantics]:
    """Makes a step on `meta` tensors do what it would do on `target`; torch.cuda says that there is this one card."""
    semantics = CudaSemantics(target)
    optimizers = sys.modules[torch.optim.Optimizer.__module__]

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:
        semantics.compiled += 1
        if model is None:
            return lambda function: function
        return model

    patches: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, answer) for name, answer in _answers(target.card).items()),
        (torch, "compile", compile),
        (optimizers, "_get_fused_kernels_supported_devices", lambda: ["cuda", "cpu", "meta"]),
        (torch.autocast, "__init__", _for_cuda(torch.autocast.__init__)),
        (torch, "is_autocast_enabled", _for_cuda(torch.is_autocast_enabled)),
        (torch, "get_autocast_dtype", _for_cuda(torch.get_autocast_dtype)),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.utils.checkpoint, "_infer_device_type", lambda *_: "cuda"),
    ]
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        try:
            with semantics:
                yield semantics
        finally:  # transformers remembers what torch.cuda.is_available was
            module = sys.modules.get("transformers.utils.import_utils")
            for name in (
                "is_torch_cuda_available",
                "is_flash_attn_2_available",
                "is_flash_attn_3_available",
            ):
                getattr(getattr(module, name, None), "cache_clear", lambda: None)()


def attend(
    kernel,
    query,
    key,
    value,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attends by a kernel. query (B, H, L, E), key and value (B, H, S, E)."""
    if kernel == "flash":
        width = query.shape[-1]
        if width % 8:
            query, key, value = (F.pad(t, (0, -width % 8)) for t in (query, key, value))
        return private.attend_flash(query, key, value, dropout, causal, False, scale=scale)[0][
            ..., :width
        ]
    if kernel == "math" and causal:
        mask = torch.ones(
            query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device
        ).tril_()
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


def _plain(query, key, value, bias: Tensor | None, dropout: float, scale: float | None) -> Tensor:
    """Attends as at::_scaled_dot_product_attention_math does, which keeps the scores (B, H, L, S)."""
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
    order = [_NUMBERS.get(int(n), "") for n in private.attention_order()]
    flash = cuda.flash_sdp_enabled()
    efficient = cuda.mem_efficient_sdp_enabled()
    on = {"math": cuda.math_sdp_enabled(), "flash": flash, "efficient": efficient}
    enabled = [kernel for kernel in order if on.get(kernel)]
    width = query.shape[-1]
    newer = capability >= (8, 0)
    aligned = 16 // query.element_size()
    has_half = query.dtype in HALF and newer and query.dim() == 4 and value.shape[-1] == width
    can = {
        "math": True,
        "flash": has_half and mask is None and width <= 256,
        "efficient": (
            query.dim() == 4 and capability >= (5, 0) and (newer or query.dtype is not torch.bfloat16)
            and width % aligned == value.shape[-1] % aligned == 0
        ),
    }  # fmt: skip
    return next((kernel for kernel in enabled if can[kernel]), "math")


class Fp16OnCpu(InnerCalls):
    """Inside `torch.autocast("cpu")`, as CUDA's: products take and give fp16, but add up in fp32."""

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
        leaves = [
            leaf
            for leaf in private.tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor | torch.dtype)
        ]
        halves = [
            leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dtype is torch.float16
        ]
        has_dtype = any(isinstance(leaf, torch.dtype) for leaf in leaves)
        if name in TO_HALF or name == "scaled_dot_product_attention":
            rounded = private.tree_map_only(
                Tensor, lambda t: t.half().float() if t.is_floating_point() else t, (args, kwargs)
            )
            return _cast(func(*rounded[0], **rounded[1]), torch.float32, torch.float16)
        wide = name in TO_FP32 or (
            name in (*RESULT_FP32, *private.softmax_to_half) and not has_dtype
        )
        if halves and (
            wide
            or (name in TO_WIDEST and len({t.dtype for t in leaves if isinstance(t, Tensor)}) > 1)
        ):
            args, kwargs = _cast((args, kwargs), torch.float16, torch.float32)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not halves or "Half" not in str(error) or is_beyond_fp16(error):
                raise
        args, kwargs = _cast(
            (args, kwargs), torch.float16, torch.float32
        )  # a kernel that a CPU lacks
        return _cast(func(*args, **kwargs), torch.float32, torch.float16)


def _cast(values: Any, before: torch.dtype, after: torch.dtype) -> Any:
    return private.tree_map_only(Tensor, lambda t: t.to(after) if t.dtype is before else t, values)
