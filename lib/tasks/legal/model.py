"""The network: an encoder's vectors of a sentence's own tokens, its place in the document, and a head."""

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch
from lib.tasks.legal.settings import CATEGORIES, Head


class Network(nn.Module):
    """Scores of roles of sentences.

    The buffer `weight` says how much they count beside those of the counts, `power` how sure the product is.
    """

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
        self.segments = "token_type_ids" in inspect.signature(encoder.forward).parameters
        self.segments = self.segments and getattr(encoder.config, "type_vocab_size", 0) > 1

    def forward(self, batch: Batch) -> Tensor:
        """Returns (sentences, classes)."""
        more = {"token_type_ids": batch["segments"]} if self.segments else {}
        vectors = self.encoder(input_ids=batch["tokens"], attention_mask=batch["mask"], **more).last_hidden_state
        own = (batch["mask"] * (1 - batch["segments"]))[..., None].float()
        mean = (vectors.float() * own).sum(1) / own.sum(1)
        parts = [self.dropout(self.norm(mean))]
        if self.sees_position:
            parts.append(batch["positions"])
        if self.sees_category:  # 0: not known, which is no column
            parts.append(F.one_hot(batch["category"], CATEGORIES + 1)[:, 1:].float())
        return self.output(self.dropout(F.gelu(self.inner(torch.cat(parts, -1)))))
