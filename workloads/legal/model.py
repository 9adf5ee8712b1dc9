"""The network: the mean of an encoder's vectors of a sentence, its place in the document, and a head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch
from workloads.legal.settings import CATEGORIES, Head


class Network(nn.Module):
    """Scores of roles of sentences; `weight` is their share beside the counts, `power` how sure the product is."""

    weight: Tensor
    power: Tensor

    def __init__(self, encoder: nn.Module, positions: int, classes: int, head: Head):
        """`positions` are the features of a place."""
        super().__init__()
        self.encoder = encoder
        hidden = encoder.config.hidden_size
        self.sees_position, self.sees_category = head.position, head.category
        more = positions * head.position + CATEGORIES * head.category
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(head.dropout)
        self.inner = nn.Linear(hidden + more, head.width)
        self.output = nn.Linear(head.width, classes)
        with torch.no_grad():
            self.output.weight.mul_(0.1)  # it begins near the same probability for all roles
        # chosen on the validation documents; until then what was best for a small published encoder
        self.register_buffer("weight", torch.tensor(0.5))
        self.register_buffer("power", torch.tensor(1.0))

    def forward(self, batch: Batch) -> Tensor:
        """Returns (sentences, classes)."""
        vectors = self.encoder(input_ids=batch["tokens"], attention_mask=batch["mask"]).last_hidden_state
        mask = batch["mask"][..., None].float()
        parts = [self.dropout(self.norm((vectors.float() * mask).sum(1) / mask.sum(1)))]
        if self.sees_position:
            parts.append(batch["positions"])
        if self.sees_category:  # 0: not known, which is no column
            parts.append(F.one_hot(batch["category"], CATEGORIES + 1)[:, 1:].float())
        return self.output(self.dropout(F.gelu(self.inner(torch.cat(parts, -1)))))
