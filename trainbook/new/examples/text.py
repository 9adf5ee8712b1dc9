"""The class of a sentence: TSV files, a document each, with a sentence and its label in a line."""

import zlib
from dataclasses import dataclass

import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from trainbook import Supervised, option, padded, records, split
from trainbook.supervised import encoders


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("facts", "argument", "ruling"), "The labels.")
    encoder: str = option("", "A published encoder; empty: a small one from scratch.", path=True)
    words: int = option(4096, "The size of the hashed vocabulary, without an encoder.", minimum=16)
    length: int = option(64, "The words, or pieces, of a sentence that are read.", minimum=4)
    hidden: int = option(64, "The width of the network from scratch.", minimum=8)


class Text(Supervised):
    Settings, sentinels, metrics = Settings, ("*.tsv",), ("macro_f1", "accuracy")
    balanced, unit = True, "document"

    def model(self):
        settings = self.settings
        if settings.encoder:  # a folder, a mounted model or a name on the hub
            head = {"num_labels": len(settings.classes), "ignore_mismatched_sizes": True}
            return self.pretrained(settings.encoder, AutoModelForSequenceClassification, **head)
        width = settings.hidden
        layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": width}
        sizes = {"intermediate_size": 4 * width, "max_position_embeddings": settings.length}
        sizes |= {"vocab_size": settings.words, "num_labels": len(settings.classes)}
        config = BertConfig(**layers, **sizes)
        return AutoModelForSequenceClassification.from_config(config)

    def read(self, source):
        files = [source] if source.is_file() else sorted(source.glob("*.tsv"))
        rows = ((path, row) for path in files for row in records(path, columns=("text", "label")))
        samples = ((path, row["text"], row.get("label")) for path, row in rows)
        if len(files) == 1:  # then each sentence is a document
            samples = ((text, text, label) for _, text, label in samples)
        return split(samples)

    def describe_data(self):
        return f"{encoders.about(self.settings.encoder)}\n{super().describe_data()}"

    def learn(self, samples):
        return {"tokenizer": encoders.kept(self.settings.encoder)} if self.settings.encoder else {}

    def group(self, sample):
        return sample[0]

    def example(self):
        return None, "word " * self.settings.length, self.settings.classes[0]

    def batch(self, samples, training):
        _, texts, labels = zip(*samples, strict=True)
        return {**self.inputs(texts), "texts": texts, "labels": torch.tensor(labels)}

    def inputs(self, texts):
        if self.settings.encoder:
            return encoders.pieces(self.learned()["tokenizer"], texts, self.settings.length)
        rows = [[1, *map(self.number, text.lower().split())] for text in texts]
        ids = padded(rows, 0, self.settings.length)
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def features(self, batch):
        return batch["texts"]

    def encoded(self, batch):  # the encoder as published, beside words in the simple method
        name, length = self.settings.encoder, self.settings.length
        if not name:
            return None
        return encoders.sentences(name, self.learned()["tokenizer"], batch["texts"], length)

    def number(self, word):
        return 2 + zlib.crc32(word.encode()) % (self.settings.words - 2)
