"""Attention by the kernel that a card would choose, of those that are switched on."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.errors import NotTraceable
from lib.planner.limits import users_line

HALF = (torch.float16, torch.bfloat16)
_NUMBERS = {0: "math", 1: "flash", 2: "efficient"}  # torch.nn.attention.SDPBackend; cuDNN's comes last by default


def attend(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool,
    scale: float | None,
) -> Tensor:  # fmt: skip
    """Attends by a kernel. query (B, H, L, E), key and value (B, H, S, E)."""
    if kernel == "flash":
        width = query.shape[-1]
        if width % 8:
            query, key, value = (F.pad(t, (0, -width % 8)) for t in (query, key, value))
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout, causal, False, scale=scale)[0][..., :width]
    if kernel == "math" and causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril_()
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
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, keeps, dropout, causal, scale=scale)[0]


def _plain(
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


def attention_kernel(capability: tuple[int, int], query: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Returns the first kernel that can attend: "flash", "efficient" or "math".

    `sdpa_kernel` and torch.backends.cuda switch kernels on and order them. query and value (B, H, L, E). The conditions
    are those of sdp_utils.cpp. Raises NotTraceable if none can.
    """
    on = {
        "math": torch._C._get_math_sdp_enabled(),
        "flash": torch._C._get_flash_sdp_enabled(),
        "efficient": torch._C._get_mem_efficient_sdp_enabled(),
    }
    order = [_NUMBERS.get(int(number), "") for number in torch._C._get_sdp_priority_order()]
    enabled = [kernel for kernel in order if on.get(kernel)]
    width, newer, aligned = query.shape[-1], capability >= (8, 0), 16 // query.element_size()
    has_half = query.dtype in HALF and newer and query.dim() == 4 and value.shape[-1] == width
    can = {
        "math": True,
        "flash": has_half and mask is None and width <= 256,
        "efficient": (
            query.dim() == 4 and capability >= (5, 0) and (newer or query.dtype is not torch.bfloat16)
            and width % aligned == value.shape[-1] % aligned == 0
        ),
    }  # fmt: skip
    if kernel := next((kernel for kernel in enabled if can[kernel]), None):
        return kernel
    raise NotTraceable(
        f"No attention kernel that is switched on ({', '.join(enabled) or 'none'}) takes heads of {width} in "
        f"{query.dtype} on a card of capability {capability[0]}.{capability[1]} ({users_line()}). "
        "Let sdpa_kernel name MATH too."
    )
