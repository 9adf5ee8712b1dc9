"""The contract of a workload: what the trainer needs to know about a model and its data, and nothing else."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lib.config import Config, NoSettings
from lib.errors import BadInput
from lib.task import published

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
    # What was published of others, by name, that the run started from; kept in its checkpoints, set when it resumes.
    published: Mapping[str, Mapping[str, Any]] = {}

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

    def pretrained(self, name: str, cls: Any, **options: Any) -> nn.Module:
        """Returns a model of transformers with published weights, for `model()` to begin with.

        `name` is a folder, a mounted model or data set, or a name on the Hugging Face hub; `cls` is a class such as
        AutoModelForSequenceClassification, and `options` are those of its `from_pretrained`; the type is fp32 unless
        they say `dtype`. What was taken is kept with the run. When it resumes, and in a plan, the model is built from
        the configuration of then, and its weights come from the checkpoint. Raises BadInput.
        """
        return published.pretrained(self, name, cls, options)

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

    def export(self, model: nn.Module, folder: Path) -> None:
        """Writes the tested model into an empty folder in a form of its own, which the archive has as `export/`.

        Such a form is `model.save_pretrained(folder)` of transformers and peft. By default there is none.
        """

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes the task's own tables and figures of the finished run into `folder`; returns what to print."""
        return ""
