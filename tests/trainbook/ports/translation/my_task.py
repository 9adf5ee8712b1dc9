"""A text made of a text, as a translator does: JSON lines with a source and its target."""

from dataclasses import dataclass

from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, T5Config

from trainbook import Supervised, option, records
from trainbook.supervised import encoders, text


@dataclass(frozen=True)
class Settings:
    source: str = option("de", "The column of the texts that are given.")
    target: str = option("en", "The column of the texts to write.")
    weights: str = option(
        "", "A published T5, BART or Marian; empty: a small T5 of letters from scratch.", path=True
    )
    length: int = option(64, "The pieces of a text that are read or written at most.", minimum=4)
    hidden: int = option(96, "The width of the network from scratch.", minimum=8)
    layers: int = option(3, "The layers of its reader, and of its writer.", minimum=1)


class Sequence(Supervised):
    Settings, sentinels, kind = Settings, ("*.jsonl",), "text"
    metrics = ("chrf", "exact")

    def model(self):
        settings = self.settings
        if settings.weights:  # a folder, a mounted model or a name on the hub
            return self.pretrained(settings.weights, AutoModelForSeq2SeqLM)
        width = settings.hidden
        heads = {"num_heads": 8, "d_kv": width // 8, "feed_forward_proj": "gated-gelu"}
        sizes = {"d_model": width, "d_ff": 4 * width, "num_layers": settings.layers, **heads}
        config = T5Config(vocab_size=encoders.LETTERS, decoder_start_token_id=0, **sizes)
        return AutoModelForSeq2SeqLM.from_config(config)

    def read(self, source):
        files = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
        return {part: self.read_new(source / file) for part, file in files.items()}

    def read_new(self, source):
        settings = self.settings
        rows = records(source, "*.jsonl")
        return [(row[settings.source], row.get(settings.target)) for row in rows]

    def learn(self, samples):
        weights = self.settings.weights
        return {"tokenizer": encoders.kept(weights) if weights else encoders.letters()}

    def describe_data(self):
        texts = [side for pair in self.parts["train"].samples for side in pair]
        kept = self.learned()["tokenizer"]
        return f"{super().describe_data()}{encoders.about_cut(kept, texts, self.settings.length)}"

    def example(self):
        return "a" * self.settings.length, "a" * self.settings.length

    def batch(self, samples, training):
        sources, targets = zip(*samples, strict=True)
        kept, length = self.learned()["tokenizer"], self.settings.length
        inputs = encoders.pieces(kept, sources, length)
        return {**inputs, "labels": encoders.labels(kept, targets, length)}

    def outputs(self, model, batch):
        return model(**batch, use_cache=False).logits

    def summed_loss(self, outputs, labels):
        outputs, labels = self.matched(outputs, labels)
        scores = outputs.flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), label_smoothing=0.1, reduction="sum")

    def write(self, model, batch, beams):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        written = text.generate(model, beams, self.settings.length, **inputs)
        return encoders.texts(self.learned()["tokenizer"], written)

    def baselines(self):
        return text.copied_and_nearest(self.parts)
