"""Tokens that a base cannot tell from others: it never learned their rows of the embedding, and adapters keep them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_ALIKE = 0.9999  # cosine of two rows
_MANY = 10  # of them: words of one meaning are no such crowd
_AT_ONCE = 20_000  # rows


def crowds(rows: Tensor, numbers: Sequence[int]) -> dict[int, int]:
    """Returns of tokens `numbers` those with ten other rows (V, D) or more in their direction, and how many."""
    wanted = nn.functional.normalize(rows[list(numbers)].float(), dim=1)
    counts = torch.zeros(len(numbers), dtype=torch.long)
    for some in rows.split(_AT_ONCE):
        cosines = nn.functional.normalize(some.float(), dim=1) @ wanted.T
        counts += (cosines > _ALIKE).sum(0).cpu()
    pairs = zip(numbers, (counts - 1).tolist(), strict=True)
    return {number: count for number, count in pairs if count >= _MANY}


def about(rows: Tensor, tokens: dict[int, str]) -> str:
    """Returns a sentence on those of `tokens` that are in a crowd; empty without any."""
    found = crowds(rows, [*tokens]) if tokens else {}
    if not found:
        return ""
    names = ", ".join(tokens[number] for number in found)
    return (
        f"The base cannot tell {names} from {max(found.values()):,} other tokens, whose rows of the embedding are the "
        "same: it never learned them, and adapters do not change these rows. Answers with them will not be learned. "
        "Take a base that knows them, train all weights (workload.method: full), or write in words what they mark."
    )
