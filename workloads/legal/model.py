"""The network: an encoder's vectors of a sentence's own tokens, its place in the document, and a head.

The head may read the sentences of a window of the document together.
"""

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch
from workloads.legal.settings import CATEGORIES, Head


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
        self.document = Together(head) if head.document != "none" else None
        self.output = nn.Linear(head.width, classes)
        with torch.no_grad():
            self.output.weight.mul_(0.1)  # it begins near the same probability for all roles
        # chosen on the validation documents; until then what was best for a small published encoder
        self.register_buffer("weight", torch.tensor(0.5))
        self.register_buffer("power", torch.tensor(1.0))
        self.segments = "token_type_ids" in inspect.signature(encoder.forward).parameters
        self.segments = self.segments and getattr(encoder.config, "type_vocab_size", 0) > 1

    def forward(self, batch: Batch) -> Tensor:
        """Returns (sentences, classes), those of windows one window after another."""
        tokens, mask, segments, positions = (
            batch[name].flatten(0, -2) for name in ("tokens", "mask", "segments", "positions")
        )
        more = {"token_type_ids": segments} if self.segments else {}
        vectors = self.encoder(input_ids=tokens, attention_mask=mask, **more).last_hidden_state
        own = (mask * (1 - segments))[..., None].float()
        mean = (vectors.float() * own).sum(1) / own.sum(1)
        parts = [self.dropout(self.norm(mean))]
        if self.sees_position:
            parts.append(positions)
        if self.sees_category:  # 0: not known, which is no column
            parts.append(F.one_hot(batch["category"].flatten(), CATEGORIES + 1)[:, 1:].float())
        found = F.gelu(self.inner(torch.cat(parts, -1)))
        if self.document is not None:
            is_sentence = batch["mask"].sum(-1) > 1  # behind a short document are inputs of one token
            found = self.document(found.unflatten(0, is_sentence.shape), is_sentence).flatten(0, 1)
        return self.output(self.dropout(found))


class Together(nn.Module):
    """Vectors of sentences that follow each other, read together and added to what they were."""

    def __init__(self, head: Head):
        super().__init__()
        width = head.width
        self.is_recurrent = head.document == "gru"
        if self.is_recurrent:
            self.reads = nn.GRU(width, width, batch_first=True, bidirectional=True)
            self.joins = nn.Linear(2 * width, width)
        else:
            heads = next(count for count in (4, 2, 1) if width % count == 0)
            self.places = nn.Parameter(0.02 * torch.randn(head.window, width))
            self.reads = nn.TransformerEncoderLayer(
                width, heads, 4 * width, head.dropout, "gelu", batch_first=True, norm_first=True
            )

    def forward(self, vectors: Tensor, is_sentence: Tensor) -> Tensor:
        """(B, W, width), (B, W) -> (B, W, width); where there is no sentence, nothing is read."""
        if self.is_recurrent:
            return vectors + self.joins(self.reads(vectors * is_sentence[..., None])[0])
        return self.reads(vectors + self.places, src_key_padding_mask=~is_sentence)
