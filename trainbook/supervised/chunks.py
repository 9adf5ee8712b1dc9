"""Cross-entropy over a large vocabulary in chunks of positions. A `head`, module or weight (V, D), makes the logits."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lib import private
from trainbook.supervised.samples import IGNORED

_POSITIONS = 256  # at once: of 152,000 words their logits take 156 MB in fp32, and three times that backwards


def logits(hidden: Tensor, head: Any) -> Tensor:
    """(..., D) -> (..., V) in fp32."""
    if callable(head):
        return head(hidden).float()
    return F.linear(hidden, head).float()


def width(hidden: Tensor, head: Any) -> int:
    """Returns V. `hidden` is (B, L, D). Not under no_grad: autocast keeps the weights that it casts, without graph."""
    return logits(hidden[:1, :1], head).shape[-1]


def loss(hidden: Tensor, head: Any, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """(B, L, D), (B, L) -> () the sum of cross-entropy over labels that are not IGNORED; `weights` are of classes.

    The head is applied only to these positions, and again in the backward pass. A plan counts all positions.
    """
    rows = hidden.flatten(0, 1)
    targets = labels.flatten()
    if not hidden.is_meta:
        # once: each x[mask] waits for the GPU
        places = (targets != IGNORED).nonzero().squeeze(1)
        rows = rows[places]
        targets = targets[places]

    def part(rows: Tensor, targets: Tensor) -> Tensor:
        scores = logits(rows, head)
        return F.cross_entropy(scores, targets, weights, ignore_index=IGNORED, reduction="sum")

    chunks = zip(rows.split(_POSITIONS), targets.split(_POSITIONS), strict=True)
    # Also if only the head is trained. A mode that simulates fp16 is inactive in the backward pass.
    again = torch.is_grad_enabled() and (hidden.is_meta or not private.current_function_mode())
    if again:
        sums = [checkpoint(part, *chunk, use_reentrant=False) for chunk in chunks]
    else:
        sums = [part(*chunk) for chunk in chunks]
    return torch.stack(sums).sum()


def guesses(hidden: Tensor, head: Any, labels: Tensor) -> Tensor:
    """(B, L, D), (B, L) -> (B, L) the likeliest classes; positions labelled IGNORED are skipped."""
    known = labels != IGNORED
    classes = labels.clone()
    rows = hidden[known].split(_POSITIONS)
    classes[known] = torch.cat([logits(some, head).argmax(-1) for some in rows])
    return classes
