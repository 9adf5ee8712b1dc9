"""A word's class, by its letters and neighbours: TSV files, a word and its tag a line, a blank line behind a text."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModel

from trainbook import IGNORED, Supervised, option, padded, paragraphs, split
from trainbook.supervised import encoders
from trainbook.supervised.tagging import Tagger, parts_of_word


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("O", "person", "place"), "The tags.")
    encoder: str = option("", "A published encoder; empty: a small network.", path=True)
    ids: int = option(12288, "The rows that words and their parts are hashed to.", minimum=16)
    length: int = option(64, "The words of a text that are read.", minimum=4)
    width: int = option(64, "The numbers that stand for a word.", minimum=4)
    hidden_share: float = option(0.1, "Words of which training shows the parts alone.", below=1)


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
        settings = self.settings
        if settings.encoder:  # a folder, a mounted model or a name on the hub
            encoder = self.pretrained(settings.encoder, AutoModel)
            return Tagger(encoder, len(settings.classes))
        return Network(settings.ids, settings.width, len(settings.classes))

    def read(self, source):
        texts = paragraphs(source, "*.tsv", ("word", "tag"))
        pairs = ([(row["word"], row.get("tag", "")) for row in rows] for rows in texts)
        return split(tuple(map(list, zip(*text, strict=True))) for text in pairs)

    def describe_data(self):
        return f"{encoders.about(self.settings.encoder, 'words')}\n{super().describe_data()}"

    def learn(self, samples):
        return {"tokenizer": encoders.kept(self.settings.encoder)} if self.settings.encoder else {}

    def example(self):  # words of several pieces
        words = ["word-by-word"] * self.settings.length
        return words, [self.settings.classes[0]] * self.settings.length

    def batch(self, samples, training):
        length = self.settings.length
        words = [list(words[:length]) for words, _ in samples]
        labels = [[self.label(tag) for tag in tags] for _, tags in samples]
        inputs = self.inputs(words, training)
        return {**inputs, "words": words, "labels": padded(labels, IGNORED, length)}

    def inputs(self, words, training):
        settings = self.settings
        if settings.encoder:
            kept = self.learned()["tokenizer"]
            return encoders.pieces_of_words(kept, words, 2 * settings.length)
        numbered = [[parts_of_word(word, settings.ids) for word in row] for row in words]
        ids = padded(numbered, [0] * 8, settings.length)
        ids[..., :2] *= torch.rand(*ids.shape[:2], 1) >= settings.hidden_share * training
        return {"ids": ids}

    def encoded(self, batch):  # the encoder as published, beside neighbours in the simple method
        name, pieces = self.settings.encoder, 2 * self.settings.length
        if not name:
            return None
        return encoders.words(name, self.learned()["tokenizer"], batch["words"], pieces)

    def label(self, tag):
        return self.settings.classes.index(tag) if tag else IGNORED

    def features(self, batch):
        return batch["words"]  # the simple method reads them itself
