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
    Settings = Settings
    sentinels = ("*.tsv",)
    metrics = ("macro_f1", "accuracy")
    balanced = True
    unit = "document"

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
        return BertForSequenceClassification(config)

    def read(self, source):
        files = [source] if source.is_file() else sorted(source.glob("*.tsv"))
        rows = ((path, row) for path in files for row in records(path, columns=("text", "label")))
        return split((path, row["text"], row.get("label")) for path, row in rows)

    def group(self, sample):
        return sample[0]

    def example(self):
        return None, "word " * self.settings.length, self.settings.classes[0]

    def batch(self, samples, training):
        rows = [[1, *map(self.number, text.lower().split())] for _, text, _ in samples]
        ids = padded(rows, 0, self.settings.length)
        labels = torch.tensor([label for *_, label in samples])
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    def number(self, word):
        return 2 + zlib.crc32(word.encode()) % (self.settings.words - 2)
