"""The class of each word, by a small BERT: TSV files, a word and its tag a line, a blank line between texts."""

import zlib
from dataclasses import dataclass

from transformers import BertConfig, BertForTokenClassification

from trainbook import IGNORED, Supervised, option, padded, paragraphs, split


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("O", "person", "place"), "The tags.")
    words: int = option(4096, "The size of the hashed vocabulary.", minimum=16)
    length: int = option(64, "The words of a text that are read.", minimum=4)
    hidden: int = option(64, "The width of the encoder.", minimum=8)


class Tokens(Supervised):
    Settings = Settings
    sentinels = ("*.tsv",)
    kind = "tokens"
    metrics = ("macro_f1", "accuracy")

    def model(self):
        settings = self.settings
        config = BertConfig(
            vocab_size=settings.words,
            hidden_size=settings.hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * settings.hidden,
            max_position_embeddings=settings.length,
            num_labels=len(settings.classes),
        )
        return BertForTokenClassification(config)

    def read(self, source):
        samples = []
        for rows in paragraphs(source, "*.tsv", ("word", "tag")):
            words = [row["word"] for row in rows]
            samples.append((words, [row.get("tag", "") for row in rows]))
        return split(samples)

    def example(self):
        length = self.settings.length
        return ["word"] * length, [self.settings.classes[0]] * length

    def batch(self, samples, training):
        length = self.settings.length
        ids = padded([[self.number(word) for word in words] for words, _ in samples], 0, length)
        labels = [[self.label(tag) for tag in tags] for _, tags in samples]
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": padded(labels, IGNORED, length),
        }

    def number(self, word):
        return 1 + zlib.crc32(word.lower().encode()) % (self.settings.words - 1)

    def label(self, tag):
        return self.settings.classes.index(tag) if tag else IGNORED
