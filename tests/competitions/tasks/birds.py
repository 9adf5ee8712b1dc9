"""The bird of a sound: `my_task.py` with spectrograms as pictures."""

import wave

import numpy as np
import torch
from my_task import Images

from trainbook import records, split


def sound(path):
    if isinstance(path, torch.Tensor):  # of the example
        return path
    with wave.open(str(path)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return torch.tensor(values / 32768, dtype=torch.float)


class Birds(Images):
    sentinels = ("train.csv",)

    def read(self, source):
        rows = records(source / "train.csv")
        sounds = source / "train_audio"
        return split((sounds / row["filename"], row["label"]) for row in rows)

    def read_new(self, source):
        return [(path, None) for path in sorted(source.glob("*.wav"))]

    def example(self):
        return torch.zeros(8000), self.settings.classes[0]

    def batch(self, samples, training):
        sounds = torch.stack([sound(value) for value, _ in samples])
        window = torch.hann_window(256)
        spectra = torch.stft(sounds, 256, 128, window=window, return_complex=True).abs()
        labels = torch.tensor([label for _, label in samples])
        pictures = spectra.log1p().unsqueeze(1)
        return {"pixel_values": pictures.expand(-1, 3, -1, -1), "labels": labels}
