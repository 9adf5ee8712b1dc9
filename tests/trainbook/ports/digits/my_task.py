"""The digits in a picture, one after another: pictures, and a table of their names and digits."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import AutoModelForSeq2SeqLM, T5Config

from trainbook import Supervised, labelled_pictures, option
from trainbook.supervised import encoders, pictures, text


@dataclass(frozen=True)
class Settings:
    target: str = option("digits", "The table's column of the texts to write.")
    length: int = option(64, "The pieces of a text that are written at most.", minimum=4)
    hidden: int = option(96, "The width of the network from scratch.", minimum=8)
    height: int = option(32, "The height that pictures are scaled to.", minimum=16)
    width: int = option(256, "Their width.", minimum=16)


class Reader(nn.Module):
    """Reads columns of a picture as if they were pieces of a text."""

    def __init__(self, writer, width):
        super().__init__()
        layers = []
        for a, b, pool in ((1, 32, 2), (32, 64, 2), (64, width, (2, 1))):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
            layers.append(nn.MaxPool2d(pool))
        self.columns = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(2))
        self.writer = writer

    def forward(self, pixels):  # (B, 1, H, W) -> (B, W / 4, width)
        return self.columns(pixels).transpose(1, 2)


class Sequence(Supervised):
    Settings, sentinels, kind = Settings, ("*.csv",), "text"
    metrics = ("exact", "chrf")

    def model(self):
        width = self.settings.hidden
        heads = {"num_heads": 4, "d_kv": width // 4, "feed_forward_proj": "gated-gelu"}
        sizes = {"d_model": width, "d_ff": 4 * width, "num_layers": 2, **heads}
        config = T5Config(vocab_size=encoders.LETTERS, decoder_start_token_id=0, **sizes)
        return Reader(AutoModelForSeq2SeqLM.from_config(config), width)

    def read(self, source):
        return labelled_pictures(source, target=self.settings.target)

    def learn(self, samples):
        return {"tokenizer": encoders.letters()}

    def example(self):
        return Image.new("L", (64, 32)), "0" * self.settings.length

    def batch(self, samples, training):
        images, targets = zip(*samples, strict=True)
        kept, length = self.learned()["tokenizer"], self.settings.length
        pixels = torch.from_numpy(np.stack([self.pixels(image) for image in images]))
        return {"pixels": pixels, "labels": encoders.labels(kept, targets, length)}

    def pixels(self, image):
        size = self.settings.width, self.settings.height
        grey = pictures.opened(image).convert("L").resize(size)
        return np.asarray(grey, np.float32)[None] / 255

    def outputs(self, model, batch):
        columns = model(batch["pixels"])
        return model.writer(inputs_embeds=columns, labels=batch["labels"], use_cache=False).logits

    def write(self, model, batch, beams):
        columns = model(batch["pixels"])
        mask = torch.ones(columns.shape[:2], dtype=torch.long, device=columns.device)
        inputs = {"inputs_embeds": columns, "attention_mask": mask}
        written = text.generate(model.writer, beams, self.settings.length, **inputs)
        return encoders.texts(self.learned()["tokenizer"], written)
