"""The words in a sound, by a published Whisper: sounds, and tables of their names and texts."""

from dataclasses import dataclass

import numpy as np
from transformers import AutoModelForSpeechSeq2Seq, WhisperFeatureExtractor, WhisperTokenizer

from trainbook import Supervised, option, records, split
from trainbook.supervised import encoders, sounds

RATE = 16_000  # samples a second, for every Whisper


@dataclass(frozen=True)
class Settings:
    source: str = option("file", "The column of the sounds' names.")
    target: str = option("text", "The column of the texts to write.")
    weights: str = option("", "A published Whisper.", path=True)
    language: str = option("ja", "The language that is spoken.")
    length: int = option(64, "The pieces of a text that are written at most.", minimum=4)
    seconds: int = option(30, "The length of a sound: 30 for every published Whisper.", minimum=1)


class Sequence(Supervised):
    Settings, sentinels, kind = Settings, ("*.csv",), "text"
    metrics = ("chrf", "exact")

    def model(self):
        return self.pretrained(self.settings.weights, AutoModelForSpeechSeq2Seq)

    def read(self, source):
        rows, settings = records(source, "*.csv"), self.settings
        return split((source / row[settings.source], row.get(settings.target)) for row in rows)

    def learn(self, samples):
        weights = str(encoders.folder_of(self.settings.weights))
        spoken = WhisperTokenizer.from_pretrained(
            weights, language=self.settings.language, task="transcribe"
        )
        text = spoken.backend_tokenizer.to_str()
        return {"tokenizer": {"text": text, "pad": spoken.eos_token_id}}

    def example(self):
        return np.zeros(RATE * self.settings.seconds, np.float32), "a" * self.settings.length

    def batch(self, samples, training):
        paths, targets = zip(*samples, strict=True)
        kept, length = self.learned()["tokenizer"], self.settings.length
        waves = [sounds.wave(path, RATE) for path in paths]
        bands = WhisperFeatureExtractor(chunk_length=self.settings.seconds)
        inputs = bands(waves, sampling_rate=RATE, return_tensors="pt").input_features
        labels = encoders.labels(kept, targets, length)
        return {"input_features": inputs, "labels": labels[:, 1:]}  # the model starts them

    def outputs(self, model, batch):
        return model(**batch, use_cache=False).logits

    def write(self, model, batch, beams):
        kept, sounds = self.learned()["tokenizer"], batch["input_features"]
        start = encoders.pieces(kept, [""] * len(sounds), self.settings.length)["input_ids"]
        written = model.generate(
            input_features=sounds,
            decoder_input_ids=start[:, :-1].to(sounds.device),
            num_beams=beams,
            max_new_tokens=self.settings.length,
        )
        return encoders.texts(kept, written)
