"""Alzheimer's disease or none: recordings of EEG (T, channels), in a folder for each class."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainbook import Supervised, option, split


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("AD", "control"), "The names of the classes.")
    rate: int = option(128, "The samples a second.", minimum=1)
    seconds: float = option(2.0, "The length of a window.", minimum=0.1)
    channels: int = option(19, "The channels of a recording.", minimum=1)
    width: int = option(16, "The channels of the first layer.", minimum=1)


class Fusion(nn.Module):
    def __init__(self, settings, powers, classes):
        super().__init__()
        width = settings.width
        self.waves = nn.Sequential(
            nn.Conv2d(1, width, (1, settings.rate // 2 + 1), padding="same"),
            nn.BatchNorm2d(width),
            nn.Conv2d(width, 2 * width, (settings.channels, 1), groups=width),
            nn.BatchNorm2d(2 * width),
            *(nn.ELU(), nn.AvgPool2d((1, 4)), nn.Dropout(0.25)),
            *(nn.Conv2d(2 * width, 32, (1, 17), padding="same"), nn.BatchNorm2d(32), nn.ELU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.powers = nn.Sequential(nn.BatchNorm1d(powers), nn.Linear(powers, 64), nn.ELU())
        self.head = nn.Linear(96, classes)

    def forward(self, waves, powers):
        return self.head(torch.cat([self.waves(waves[:, None]), self.powers(powers)], 1))


class Eeg(Supervised):
    Settings, sentinels, unit = Settings, ("*/*.npy",), "subject"
    metrics = ("accuracy", "macro_f1")
    bands = (0.5, 4, 8, 13, 30, 45)  # Hz: delta, theta, alpha, beta and gamma lie between

    def model(self):
        powers = self.settings.channels * (len(self.bands) - 1)
        return Fusion(self.settings, powers, len(self.names))

    def read(self, source):
        samples = []
        for path in sorted(source.rglob("*.npy")):
            end = len(np.load(path, mmap_mode="r")) - self.length()
            starts = range(0, end + 1, self.length())
            samples += [(path, start, path.parent.name) for start in starts]
        return split(samples)

    def group(self, sample):
        return sample[0].stem

    def example(self):
        return np.zeros((self.length(), self.settings.channels), np.float32), 0, "AD"

    def length(self):
        return round(self.settings.rate * self.settings.seconds)

    def window(self, source, start):
        recording = np.load(source, mmap_mode="r") if isinstance(source, Path) else source
        wave = np.array(recording[start : start + self.length()], np.float32)
        return (wave - wave.mean(0)) / (wave.std(0) + 1e-6)

    def batch(self, samples, training):
        windows = np.stack([self.window(source, start) for source, start, _ in samples])
        waves = torch.from_numpy(windows).transpose(1, 2)
        labels = torch.tensor([label for *_, label in samples])
        return {"waves": waves, "powers": self.powers(waves), "labels": labels}

    def powers(self, waves):
        """(B, channels, T) -> (B, channels * bands) logarithms of the power in each band."""
        power = torch.fft.rfft(waves).abs().square()
        hertz = torch.fft.rfftfreq(waves.shape[2], 1 / self.settings.rate)
        bands = [power[..., (hertz >= a) & (hertz < b)].mean(-1) for a, b in pairwise(self.bands)]
        return torch.cat(bands, 1).clamp(min=1e-6).log()

    def features(self, batch):  # of the simple method
        return batch["powers"]
