"""The contract of a workload: what the trainer needs to know about a model and its data, and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lib.config import Config, NoSettings
from lib.errors import BadInput

Batch = dict[str, Tensor]


class Task:
    """One workload. Subclass it in one file, name it in a configuration as `task: my_task.py:MyTask`, and it trains.

    `Settings` is the dataclass of the configuration's `workload:` section. `sentinels` are glob patterns by which a
    mounted data folder is recognised: of files in it ("*.tif"), or of files below it ("train/*/*.png"). `selection`
    names the validation metric that decides which weights are best, and whether "max" or "min" of it is better; `shown`
    names those that the plot draws. A model whose recomputation can be switched has its layers in an attribute
    `blocks`. `dials` are the dotted keys that set the size of a sample (a sequence, an image), each with the values
    that the memory panel offers beside the configuration's own.
    """

    Settings: ClassVar[type] = NoSettings
    sentinels: ClassVar[tuple[str, ...]] = ()
    selection: ClassVar[tuple[str, str]] = ("loss", "min")
    shown: ClassVar[tuple[str, ...]] = ()
    dials: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    step: int = 0  # the step of `count` and `loss`, or the number of steps before an evaluation; the trainer sets it

    @classmethod
    def homes(cls, folders: list[Path]) -> list[Path]:
        """Returns the data's own folders where a search by `sentinels` stopped at these; by default the same ones."""
        return folders

    def __init__(self, config: Config, source: Path | None = None):
        """Sets `config` and `source`, the folder or file with the data; None means the embedded default."""
        self.config = config
        self.source = source

    def model(self) -> nn.Module:
        """Returns a freshly initialised model on the CPU. Reads no data: the planner calls it where there is none."""
        raise NotImplementedError

    def describe_data(self) -> str:
        """Returns one paragraph on the data: where it comes from and how much of it there is."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Returns a hash of the data. A run is not resumed on data with another hash."""
        raise NotImplementedError

    def datasets(self) -> dict[str, Any]:
        """Returns map-style data sets "train", "validation" and "test"; items are raw samples, read lazily.

        Training samples come once an epoch each, or in proportion to an attribute `weights` of that data set.
        """
        raise NotImplementedError

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns tensors, samples along the first dimension; whatever is random in them is drawn from `generator`."""
        raise NotImplementedError

    def count(self, batch: Batch) -> Mapping[str, float]:
        """Counts the valid targets of each loss term, or sums their weights: its part of the denominators of a step."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """Returns the sum of each loss term over its valid targets, () with gradient, and figures to log by name.

        A figure is a mean over the samples; metrics.csv has the mean over all micro-batches of a row in a column.
        """
        raise NotImplementedError

    def term_weights(self, step: int) -> Mapping[str, float]:
        """Returns the weight of each loss term in a step, 1 for those not named.

        It is a function of the step alone, so that a resumed run has the same ones.
        """
        return {}

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Returns groups of parameters that are trained in a way of their own; those in none are as configured.

            [{"names": "head.*", "lr": 10.0}, {"names": ["embed.*", "blocks.0.*"], "from_step": 500, "lr": 0.1}]

        `names` are one or more globs over the names of parameters, of which the first match counts. `lr` is a factor on
        the scheduled rate. `weight_decay` holds for all of the group. Before `from_step`, and from `until_step` on, the
        group is frozen: weights, moments and weight decay rest. `player` is for `Task.player`. Other keys are
        the optimizer's own: `betas` and `eps`, or `momentum` and `nesterov`. Batch statistics are no parameters.
        """
        return ()

    def learning_rate(self, step: int, total_steps: int) -> float | None:
        """Returns what `optimizer.lr` is multiplied by in a step, in place of the schedule; None: as configured.

        It is a function of its arguments alone, so that a resumed run has the same rates.
        """
        return None

    def player(self, step: int) -> str | None:
        """Returns the one player that is trained in a step, of those in `parameter_groups`; None: all of them are.

        For two networks that play against each other: the groups of other players are frozen in the step, and gradients
        are clipped by the norm of this one. A loss term with the name of another player is left out of the step, so
        `loss` need not compute it: `self.step` is the step. It is a function of the step alone.
        """
        return None

    def adapt(self, given: Mapping[str, Tensor], model: nn.Module) -> tuple[Mapping[str, Tensor], str]:
        """Fits `run.initial_weights` to the shapes of `model` (bands, words); returns them and a sentence on how.

        The default returns them unchanged. A weight whose shape still differs keeps its initial value.
        """
        return given, ""

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape that training can meet, with arbitrary content."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics of `model` (in evaluation mode) over a loader whose `.dataset` is one of `datasets()`."""
        raise NotImplementedError

    def baseline(self) -> dict[str, float]:
        """Returns the keys of `evaluate` on the test set, as the strongest trivial method reaches them."""
        raise NotImplementedError

    def joined_by(self) -> Any:
        """Returns what models must have in common to predict together: by default all of the task's settings."""
        return self.config.workload

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """Predicts new data in `source` with all models together, by name; writes into `out` where it is given."""
        raise BadInput(f"The task {self.config.task} has no predictions to make of new data.")

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Returns metrics of several models together on the test set, and what to print; figures go into `folder`."""
        raise BadInput(f"The task {self.config.task} has no way to let several models vote.")

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes the task's own tables and figures of the finished run into `folder`; returns what to print."""
        return ""
