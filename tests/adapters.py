"""Adapters of the toy's size on a frozen base, which comes from a file or is drawn."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from lib.config.reader import option
from tests import toy


class Lora(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices beside it (arXiv 2106.09685, section 4.1)."""

    def __init__(self, base: nn.Linear, rank: int = 2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@dataclass(frozen=True)
class Settings(toy.Settings):
    base: str = option("", "A file with the weights of the base; empty: they are drawn.")
    wrong: str = option("", "A mistake of model().")


class Adapted(toy.Toy):
    Settings = Settings

    def model(self):
        settings = self.config.workload
        first = nn.Linear(3, 4)
        if settings.base:
            first.load_state_dict(load_file(settings.base))
        net = toy.Net(Lora(first), nn.Tanh(), nn.Linear(4, 1))
        if settings.wrong == "frozen":
            net.blocks[0].requires_grad_(False)
        if settings.wrong == "wrapped twice":
            net.blocks[0].base = Lora(first)
        return net


class Exported(Adapted):
    def export(self, model, folder):
        if Path("broken").exists():
            raise RuntimeError("There is no room for the export.")
        torch.save(model.training, folder / "mode.pt")
        (folder / "weights.txt").write_text(repr(model(torch.ones(1, 3)).tolist()))


class Halves(toy.Toy):
    """Returns a model of which all is trained in bf16, as transformers 5 loads one that was published so."""

    def model(self):
        return super().model().bfloat16()
