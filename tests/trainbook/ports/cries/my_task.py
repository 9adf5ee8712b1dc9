"""The class of a sound: WAV or FLAC files in a folder for each class, or in a table with their names."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from trainbook import Supervised, option
from trainbook.supervised import sounds


@dataclass(frozen=True)
class Settings:
    classes: tuple[str, ...] = option(("background", "crying"), "The names of the classes.")
    table: str = option("", "The table that lists the sounds; empty: the one that has their names.")
    target: str = option("", "Its column of the class; empty: the one beside the names.")
    rate: int = option(22050, "The samples a second that sounds are resampled to.", minimum=1000)
    seconds: float = option(2.0, "The length that sounds are cut or filled to.", minimum=0.1)
    bands: int = option(128, "The bands of the mel scale.", minimum=8)
    backbone: str = option(
        "", "A classifier of waves, such as wav2vec 2.0; empty: a small network.", path=True
    )
    bad_input_limit: int = option(0, "Bad sounds that are left out.", minimum=0)


class Audio(Supervised):
    Settings, sentinels, metrics = Settings, sounds.IN_FOLDERS, ("macro_f1", "accuracy")
    balanced = True

    def model(self):
        if self.settings.backbone:  # a folder, a mounted model or a name on the hub
            from transformers import AutoModelForAudioClassification

            head = {"id2label": dict(enumerate(self.names)), "ignore_mismatched_sizes": True}
            return self.pretrained(self.settings.backbone, AutoModelForAudioClassification, **head)
        width = [1, 32, 64, 128]
        blocks = [nn.Unflatten(1, (1, -1)), nn.BatchNorm2d(1)]
        for a, b in pairwise(width):
            blocks += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
            blocks.append(nn.Dropout(0.25))
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width[-1], len(self.names))
        return nn.Sequential(*blocks, *head)

    def read(self, source):
        settings = self.settings
        return sounds.labelled(source, settings.classes, settings.table, settings.target)

    def example(self):
        return np.zeros(1, np.float32), "a class"  # a batch fills it to the length

    def batch(self, samples, training):
        settings, (files, labels) = self.settings, zip(*samples, strict=True)
        waves = sounds.cut(files, settings.rate, settings.seconds, training)
        if training:  # loudness and noise as other microphones have them
            waves = waves * torch.empty(len(waves), 1).uniform_(0.7, 1.3)
            waves = waves + 0.005 * torch.randn(waves.shape)
        if settings.backbone:
            return {"input_values": waves, "labels": torch.tensor(labels)}
        mel = sounds.log_mel(waves, settings.rate, settings.bands)
        mel = sounds.spec_augment(mel) if training else mel
        return {"mel": mel, "labels": torch.tensor(labels)}

    def features(self, batch):  # of the simple method
        if self.settings.backbone:
            waves = batch["input_values"]
            return sounds.outline(sounds.log_mel(waves, self.settings.rate, self.settings.bands))
        return sounds.outline(batch["mel"])
