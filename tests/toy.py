"""A task of two layers of width 4 whose samples have different numbers of valid targets."""

from dataclasses import dataclass

import torch
from torch import nn

from lib.config.reader import option
from lib.task import Task

IGNORED = -1.0


@dataclass(frozen=True)
class Settings:
    samples: int = option(37, "Training samples.", minimum=1)
    dropout: float = option(0.0, "Share of activations dropped.", minimum=0, below=1)
    noise: float = option(
        0.1, "Augmentation, drawn from the generator that `collate` is handed.", minimum=0
    )
    batch_norm: bool = option(False, "Whether the model has batch statistics.")
    poison_from: int = option(-1, "First sample whose input is not finite; -1: none.", minimum=-1)


class Net(nn.Module):
    """Layers one after another, in the attribute that recomputation wraps."""

    def __init__(self, *layers):
        super().__init__()
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Toy(Task):
    Settings = Settings
    selection = ("loss", "min")
    shown = ("loss",)

    def model(self):
        settings = self.config.workload
        middle = nn.BatchNorm1d(4) if settings.batch_norm else nn.Tanh()
        return Net(nn.Linear(3, 4), middle, nn.Dropout(settings.dropout), nn.Linear(4, 1))

    def describe_data(self):
        return "Numbers."

    def fingerprint(self):
        return f"toy-{self.config.workload.samples}"

    def datasets(self):
        return {
            "train": range(self.config.workload.samples),
            "validation": range(5),
            "test": range(5, 12),
        }

    def collate(self, samples, generator):
        ids = torch.tensor(samples, dtype=torch.float32)
        x = torch.stack([(ids * k).sin() for k in (1.0, 2.0, 3.0)], 1)
        x = x + self.config.workload.noise * torch.randn(x.shape, generator=generator)
        if self.config.workload.poison_from >= 0:
            x[ids >= self.config.workload.poison_from] = float("nan")
        y = x.sum(1, keepdim=True).nan_to_num().repeat(1, 3)
        y[torch.arange(3)[None] >= (ids.long() % 4)[:, None]] = (
            IGNORED * 1e9
        )  # 0 to 3 valid targets a sample
        return {"x": x, "y": y, "id": ids}

    def count(self, batch):
        return {"squared": int((batch["y"] > -1e8).sum())}

    def loss(self, model, batch):
        valid = batch["y"] > -1e8
        error = (model(batch["x"]) - batch["y"]) ** 2
        return {"squared": torch.where(valid, error, 0.0).sum()}, {}

    def example_batch(self, size, device):
        return {
            k: v.to(device) for k, v in self.collate(list(range(size)), torch.Generator()).items()
        }

    def evaluate(self, model, loader):
        total = 0.0
        count = 0
        for batch in loader:
            sums, _ = self.loss(model, batch)
            total = total + float(sums["squared"])
            count = count + self.count(batch)["squared"]
        return {"loss": total / count, "rmse": (total / count) ** 0.5}

    def baseline(self):
        return {"rmse": 1.0}
