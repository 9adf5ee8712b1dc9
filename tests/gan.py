"""Two networks of two layers of width 4 that play against each other, on the samples of the toy."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lib.config.reader import option
from tests import toy


@dataclass(frozen=True)
class Settings(toy.Settings):
    turns: int = option(1, "Steps of the discriminator before each one of the generator.", minimum=1)
    both: bool = option(False, "Whether the loss computes both terms in every step.")


class Players(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
        self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Gan(toy.Toy):
    Settings = Settings

    def model(self):
        return Players()

    def parameter_groups(self, model):
        return [
            {"names": "generator.*", "player": "generator", "betas": (0.5, 0.9)},
            {"names": "discriminator.*", "player": "discriminator", "lr": 4.0},
        ]

    def player(self, step):
        turns = self.config.workload.turns
        return "generator" if step % (turns + 1) == turns else "discriminator"

    def collate(self, samples, generator):
        batch = super().collate(samples, generator)
        return {"x": batch["x"], "z": torch.randn(len(samples), 2, generator=generator)}

    def count(self, batch):
        return {"generator": len(batch["x"]), "discriminator": len(batch["x"])}

    def loss(self, model, batch):
        player = None if self.config.workload.both else self.player(self.step)
        made, sums = model.generator(batch["z"]), {}
        if player != "discriminator":
            sums["generator"] = F.softplus(-model.discriminator(made)).sum()
        if player != "generator":
            real, fake = model.discriminator(batch["x"]), model.discriminator(made.detach())
            sums["discriminator"] = (F.softplus(-real) + F.softplus(fake)).sum()
        return sums, {}

    def evaluate(self, model, loader):
        made, real = zip(*((model.generator(batch["z"]), batch["x"]) for batch in loader), strict=True)
        return {"loss": float((torch.cat(made).mean(0) - torch.cat(real).mean(0)).square().sum())}

    def baseline(self):
        return {"loss": 1.0}
