"""Settings of an imagined task, with a field of every supported type, and configurations of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lib.config import Config, read_config, to_yaml
from lib.config.reader import option
from lib.errors import BadInput


@dataclass(frozen=True)
class Encoder:
    layers: int = option(2, "Layers of the encoder.", minimum=1)
    kind: Literal["plain", "deep"] = "plain"


@dataclass(frozen=True)
class Settings:
    """The settings of an imagined task, with a field of every type that is supported."""

    width: int = option(4, "Width of the model.", minimum=1, maximum=64)
    heads: int | None = None
    title: str = ""
    note: str | None = None
    size: int | str = 0
    choice: int | Literal["all"] = 0
    only: Literal["one"] = "one"
    depths: tuple[int, ...] = (1, 2)
    pair: tuple[str, float] = ("a", 0.5)
    weights: dict[str, float] = field(default_factory=lambda: {"mlm": 1.0}, metadata={"minimum": 0})
    encoder: Encoder = field(default=Encoder(layers=3))
    extra: Encoder | None = None
    ramp_steps: int = 7
    ramp_epochs: float = 0.0

    def __post_init__(self) -> None:
        if self.heads and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}.")


def workload(task: str) -> type:
    if task != "toy":
        raise BadInput(f"There is no task {task!r}. Known tasks: toy.")
    return Settings


def load(tmp_path: Path, text: str, **overrides: object) -> Config:
    path = tmp_path / "toy_small.yaml"
    path.write_text(text, "utf-8")
    return read_config(path, {key.replace("__", "."): v for key, v in overrides.items()}, workload)


GOOD = "task: toy\ntraining: {max_steps: 10, effective_batch: 8}\n"


def reload(tmp_path: Path, config: Config) -> Config:
    path = tmp_path / "dumped.yaml"
    path.write_text(to_yaml(config), "utf-8")
    return read_config(path, workload=workload)
