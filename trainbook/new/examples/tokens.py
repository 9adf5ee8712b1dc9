"""A word's class, by its letters and neighbours: TSV files, a word and its tag a line, a blank line behind a text."""

import functools
import re
import zlib
from dataclasses import dataclass

import torch
from torch import nn

from trainbook import IGNORED, Supervised, option, padded, paragraphs, split


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("O", "person", "place"), "The tags.")
    ids: int = option(12288, "The rows that words and their parts are hashed to.", minimum=16)
    length: int = option(64, "The words of a text that are read.", minimum=4)
    width: int = option(64, "The numbers that stand for a word.", minimum=4)
    hidden_share: float = option(0.1, "Words of which training shows the parts alone.", below=1)


@functools.lru_cache(maxsize=2**17)
def parts(word: str, ids: int) -> list[int]:
    """Returns numbers for a word, its last 1 to 4 letters, its first 3, and its shape: Xxx-d for Ada-1."""
    letters = re.sub(r"[^\W\d_]", lambda letter: "X" if letter[0].isupper() else "x", word)
    shape = re.sub(r"(.)\1{2,}", r"\1\1", re.sub(r"\d", "d", letters))
    low = word.lower()
    texts = word, low, low[-4:], low[-3:], low[-2:], low[-1:], low[:3], shape
    return [1 + zlib.crc32(f"{n} {text}".encode()) % (ids - 1) for n, text in enumerate(texts)]


class Network(nn.Module):
    def __init__(self, ids, width, classes):
        super().__init__()
        self.table = nn.Embedding(ids, width, padding_idx=0)
        nn.init.normal_(self.table.weight, std=0.3)  # a step at the usual rate counts beside it
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        # each sees a word and its two neighbours
        self.windows = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=1) for _ in range(2))
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):  # (B, L, parts) -> (B, L, classes)
        is_word = (ids[..., -1:] != 0).float()
        x = self.dropout(self.norms[0](self.table(ids).sum(2))) * is_word
        for window, norm in zip(self.windows, self.norms[1:], strict=True):
            gated = nn.functional.glu(window(x.mT), 1).mT
            x = (x + self.dropout(norm(gated))) * is_word
        return self.head(x)


class Tokens(Supervised):
    Settings, sentinels, kind = Settings, ("*.tsv",), "tokens"
    metrics = ("macro_f1", "accuracy")

    def model(self):
        return Network(self.settings.ids, self.settings.width, len(self.settings.classes))

    def read(self, source):
        texts = paragraphs(source, "*.tsv", ("word", "tag"))
        pairs = ([(row["word"], row.get("tag", "")) for row in rows] for rows in texts)
        return split(tuple(map(list, zip(*text, strict=True))) for text in pairs)

    def example(self):
        return ["word"] * self.settings.length, [self.settings.classes[0]] * self.settings.length

    def batch(self, samples, training):
        settings = self.settings
        words = [list(words[: settings.length]) for words, _ in samples]
        numbered = [[parts(word, settings.ids) for word in row] for row in words]
        ids = padded(numbered, [0] * 8, settings.length)
        ids[..., :2] *= torch.rand(*ids.shape[:2], 1) >= settings.hidden_share * training
        labels = [[self.label(tag) for tag in tags] for _, tags in samples]
        return {"ids": ids, "words": words, "labels": padded(labels, IGNORED, settings.length)}

    def label(self, tag):
        return self.settings.classes.index(tag) if tag else IGNORED

    def features(self, batch):
        return batch["words"]  # the simple method reads them itself
