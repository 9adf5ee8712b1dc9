"""A text made of a text, as a translator does: TSV files with a source and its target in each line."""

from dataclasses import dataclass

from transformers import AutoModelForSeq2SeqLM, T5Config

from trainbook import Supervised, option, records, split
from trainbook.supervised import encoders, text


@dataclass(frozen=True)
class Settings:
    source: str = option("source", "The column of the texts that are given.")
    target: str = option("target", "The column of the texts to write.")
    weights: str = option(
        "", "A published T5, BART or Marian; empty: a small T5 of letters from scratch.", path=True
    )
    length: int = option(64, "The pieces of a text that are read or written at most.", minimum=4)
    hidden: int = option(96, "The width of the network from scratch.", minimum=8)


class Sequence(Supervised):
    Settings, sentinels, kind = Settings, ("*.tsv",), "text"
    metrics = ("exact", "chrf")

    def model(self):
        settings = self.settings
        if settings.weights:  # a folder, a mounted model or a name on the hub
            return self.pretrained(settings.weights, AutoModelForSeq2SeqLM)
        width = settings.hidden
        heads = {"num_heads": 4, "d_kv": width // 4, "feed_forward_proj": "gated-gelu"}
        sizes = {"d_model": width, "d_ff": 4 * width, "num_layers": 2, **heads}
        config = T5Config(vocab_size=encoders.LETTERS, decoder_start_token_id=0, **sizes)
        return AutoModelForSeq2SeqLM.from_config(config)

    def read(self, source):
        rows, settings = records(source, "*.tsv"), self.settings
        return split((row[settings.source], row.get(settings.target)) for row in rows)

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

    def write(self, model, batch, beams):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        written = text.generate(model, beams, self.settings.length, **inputs)
        return encoders.texts(self.learned()["tokenizer"], written)

    def baselines(self):
        return text.copied_and_nearest(self.parts)
