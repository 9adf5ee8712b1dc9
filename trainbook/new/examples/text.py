"""The class of a sentence, by a small BERT: TSV files, a document each, with a sentence and its label in a line."""

import zlib
from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForSequenceClassification

from trainbook import Supervised, option, padded, records, split


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("facts", "argument", "ruling"), "The labels.")
    words: int = option(4096, "The size of the hashed vocabulary.", minimum=16)
    length: int = option(64, "The words of a sentence that are read.", minimum=4)
    hidden: int = option(64, "The width of the encoder.", minimum=8)


class Text(Supervised):
    Settings, sentinels, metrics, balanced = Settings, ("*.tsv",), ("macro_f1", "accuracy"), True
    unit = "document"

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
        return BertForSequenceClassification(BertConfig(**sizes, num_labels=len(s.classes)))

    def read(self, source):
        files = [source] if source.is_file() else sorted(source.glob("*.tsv"))
        rows = ((path, row) for path in files for row in records(path, columns=("text", "label")))
        return split((path, row["text"], row.get("label")) for path, row in rows)

    def group(self, sample):
        return sample[0]

    def example(self):
        return None, "word " * self.settings.length, self.settings.classes[0]

    def batch(self, samples, training):
        hashed = (
            [zlib.crc32(word.encode()) for word in text.lower().split()] for _, text, _ in samples
        )
        rows = [[1, *(2 + word % (self.settings.words - 2) for word in words)] for words in hashed]
        ids, labels = (
            padded(rows, 0, self.settings.length),
            torch.tensor([label for *_, label in samples]),
        )
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
