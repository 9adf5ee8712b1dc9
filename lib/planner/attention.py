"""Attention by the kernel that a card would choose, of those that are switched on."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lib.planner.limits import NotTraceable, users_line

HALF = (torch.float16, torch.bfloat16)
_NUMBERS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}  # torch.nn.attention.SDPBackend


def attend(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Attends by a kernel. query (B, H, L, E), key and value (B, H, S, E)."""
    if kernel == "flash":
        return _flash(query, key, value, dropout, causal, scale)
    if kernel == "math" and causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril_()
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, -math.inf)
    if kernel in ("efficient", "cudnn"):
        return _fused(kernel, query, key, value, mask, dropout, causal, scale)
    return _plain_attention(query, key, value, mask, dropout, scale)


def enabled_kernels() -> Sequence[str]:
    """Returns the kernels that are switched on, in torch's order: `sdpa_kernel` and torch.backends.cuda set both."""
    on = {
        "math": torch._C._get_math_sdp_enabled(),
        "flash": torch._C._get_flash_sdp_enabled(),
        "efficient": torch._C._get_mem_efficient_sdp_enabled(),
        "cudnn": torch._C._get_cudnn_sdp_enabled(),
    }
    order = [_NUMBERS.get(int(number)) for number in torch._C._get_sdp_priority_order()]
    return [kernel for kernel in order if kernel and on[kernel]]


def attention_kernel(capability: tuple[int, int], query: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Returns the first kernel that is switched on and can attend: "flash", "efficient", "math" or "cudnn".

    query and value (B, H, L, E). The conditions are those of sdp_utils.cpp. Raises NotTraceable if none can.
    """
    for kernel in enabled_kernels():
        if _can(kernel, capability, query, value, mask):
            return kernel
    raise NotTraceable(
        f"No attention kernel that is switched on ({', '.join(enabled_kernels()) or 'none'}) takes heads of "
        f"{query.shape[-1]} in {query.dtype} on a card of capability {capability[0]}.{capability[1]} ({users_line()}). "
        "Let sdpa_kernel name MATH too."
    )


def _can(kernel: str, capability: tuple[int, int], query: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    if kernel == "math":
        return True
    if query.dim() != 4:
        return False
    width, is_half = query.shape[-1], query.dtype in HALF
    newer = capability >= (8, 0)
    if kernel == "flash":
        return is_half and newer and mask is None and width <= 256 and value.shape[-1] == width
    if kernel == "cudnn":
        return is_half and newer and width % 8 == 0 and width <= 128 and value.shape[-1] == width
    if query.dtype is torch.bfloat16 and not newer:
        return False
    aligned = 16 // query.element_size()
    return capability >= (5, 0) and width % aligned == 0 and value.shape[-1] % aligned == 0


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    width = query.shape[-1]
    if width % 8:
        query, key, value = (torch.nn.functional.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return flash(query, key, value, dropout, causal, False, scale=scale)[0][..., :width]


def _fused(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, causal: bool,
    scale: float | None,
) -> Tensor:  # fmt: skip
    if bias is not None:
        columns = bias.shape[-1]
        if kernel == "efficient" and columns % 16:  # rows are padded to an aligned length
            bias = torch.nn.functional.pad(bias, (0, 16 - columns % 16))[..., :columns]
        bias = bias.expand(*query.shape[:3], key.shape[2])
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    common = query, key, value, bias, keeps, dropout, causal
    if kernel == "efficient":
        return torch.ops.aten._scaled_dot_product_efficient_attention(*common, scale=scale)[0]
    return torch.ops.aten._scaled_dot_product_cudnn_attention(*common, False, scale=scale)[0]


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, scale: float | None
) -> Tensor:
    """Attends as at::_scaled_dot_product_attention_math does, which keeps the scores (B, H, L, S)."""
    root = math.sqrt(scale if scale else query.shape[-1] ** -0.5)
    scores = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if bias is not None:
        scores = scores + bias
    scores = torch.ops.aten._safe_softmax(scores, -1)
    if dropout > 0:
        scores = torch.native_dropout(scores, dropout, True)[0]
    return torch.matmul(scores, value)
