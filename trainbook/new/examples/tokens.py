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
    Settings, sentinels, kind, metrics = Settings, ("*.tsv",), "tokens", ("macro_f1", "accuracy")

    def model(self):
        s, sizes = (
            self.settings,
            {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": self.settings.words},
        )
        sizes |= {
            "hidden_size": s.hidden,
            "intermediate_size": 4 * s.hidden,
            "max_position_embeddings": s.length,
        }
        return BertForTokenClassification(BertConfig(**sizes, num_labels=len(s.classes)))

    def read(self, source):
        texts = paragraphs(source, "*.tsv", ("word", "tag"))
        return split(
            ([row["word"] for row in rows], [row.get("tag", "") for row in rows]) for rows in texts
        )

    def example(self):
        return ["word"] * self.settings.length, [self.settings.classes[0]] * self.settings.length

    def batch(self, samples, training):
        s, number = self.settings, {tag: n for n, tag in enumerate(self.settings.classes)}
        rows = [
            [1 + zlib.crc32(word.lower().encode()) % (s.words - 1) for word in words]
            for words, _ in samples
        ]
        tags = [[number[tag] if tag else IGNORED for tag in tags] for _, tags in samples]
        ids = padded(rows, 0, s.length)
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": padded(tags, IGNORED, s.length),
        }
