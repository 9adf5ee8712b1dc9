"""Tags of words: what a word's letters say, and a published encoder that tags."""

import functools
import re
import zlib
from typing import Any

from torch import Tensor, nn

from trainbook.supervised import encoders


@functools.lru_cache(maxsize=2**17)
def parts_of_word(word: str, ids: int) -> list[int]:
    """Returns numbers below `ids` for a word, its last 1 to 4 letters, its first 3, and its shape: Xxx-d for Ada-1."""
    letters = re.sub(r"[^\W\d_]", lambda letter: "X" if letter[0].isupper() else "x", word)
    shape = re.sub(r"(.)\1{2,}", r"\1\1", re.sub(r"\d", "d", letters))
    low = word.lower()
    texts = word, low, low[-4:], low[-3:], low[-2:], low[-1:], low[:3], shape
    return [1 + zlib.crc32(f"{n} {text}".encode()) % (ids - 1) for n, text in enumerate(texts)]


class Tagger(nn.Module):
    """A published encoder; a word's class follows from its first piece."""

    def __init__(self, encoder: Any, classes: int):
        super().__init__()
        self.encoder = encoders.without_pooler(encoder)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, first: Tensor) -> Tensor:
        """(B, P), (B, P), (B, L) -> (B, L, classes) scores; `first` is the place of each word's first piece."""
        hidden = self.encoder(input_ids, attention_mask).last_hidden_state
        places = first.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        return self.head(self.dropout(hidden.gather(1, places)))
