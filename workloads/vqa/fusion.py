"""Picture and question in one sequence, in which every patch has met the question."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fusion(nn.Module):
    """Adds to each patch its product with the question, and puts the words behind the patches.

    The sum alone leaves yes/no questions at what is common: whether a colour and a shape meet is a product.
    """

    def __init__(self, width: int):
        super().__init__()
        self.of_patch, self.of_question, self.out = (nn.Linear(width, width) for _ in range(3))
        self.kind = nn.Parameter(torch.randn(2, width) * 0.02)  # what tells patches and words apart

    def forward(self, patches: Tensor, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P, d), (B, L, d), (B, L) -> the sequence (B, P + L, d) and its mask."""
        weight = mask[..., None].to(words.dtype)
        question = (words * weight).sum(1) / weight.sum(1).clamp(min=1)
        patches = patches + self.kind[0]
        patches = patches + self.out(F.gelu(self.of_patch(patches)) * self.of_question(question)[:, None])
        seen = torch.ones(patches.shape[:2], dtype=mask.dtype, device=mask.device)
        return torch.cat([patches, words + self.kind[1]], 1), torch.cat([seen, mask], 1)
