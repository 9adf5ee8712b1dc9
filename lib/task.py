"""The contract of a workload: what the trainer needs to know about a model and its data, and nothing else."""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lib.config import Config, NoSettings, read_config
from lib.errors import BadInput
from lib.machine import inputs, platform

Batch = dict[str, Tensor]


class Task:
    """One workload. Subclass it in one file, name it in a configuration as `task: my_task.py:MyTask`, and it trains.

    `Settings` is the dataclass of the configuration's `workload:` section. `sentinels` are glob patterns by which a
    mounted data folder is recognised. `selection` names the validation metric that decides which weights are best,
    and whether "max" or "min" of it is better; `shown` names those that the plot draws. A model whose recomputation
    can be switched has its layers in an attribute `blocks`. `dials` are the dotted keys that set the size of a sample
    (a sequence, an image), each with the values that the memory panel offers beside the configuration's own.
    """

    Settings: ClassVar[type] = NoSettings
    sentinels: ClassVar[tuple[str, ...]] = ()
    selection: ClassVar[tuple[str, str]] = ("loss", "min")
    shown: ClassVar[tuple[str, ...]] = ()
    dials: ClassVar[Mapping[str, tuple[int, ...]]] = {}

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

    def count(self, batch: Batch) -> Mapping[str, int]:
        """Counts the valid targets of each loss term, for the denominators of the whole effective batch."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """Returns the sum of each loss term over its valid targets, () with gradient, and a mapping that is unused."""
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

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes the task's own tables and figures of the finished run into `folder`; returns what to print."""
        return ""


def find_task(name: str) -> type[Task]:
    """Returns the class behind a configuration's `task:`: a name under `lib/tasks`, or `file.py:Class`.

    Raises BadInput where there is no such task.
    """
    if ":" in name:
        return _from_file(*name.rsplit(":", 1))
    known = sorted(p.stem for p in (Path(__file__).parent / "tasks").iterdir() if not p.name.startswith("_"))
    if name not in known:
        raise BadInput(
            f"There is no task {name!r}. Known tasks: {', '.join(known)}. Your own is named as file.py:Class."
        )
    return _only_task(importlib.import_module(f"lib.tasks.{name}"), name)


def _from_file(file: str, class_name: str) -> type[Task]:
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"The task file {file} does not exist. Give the path from the folder that you start in.")
    spec = importlib.util.spec_from_file_location(f"trainbook_task_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, class_name, None)
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise BadInput(f"{file} has no class {class_name} that derives from lib.task.Task. Define it there.")
    return found


def _only_task(module: Any, name: str) -> type[Task]:
    found = [c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Task) and c is not Task]
    if len(found) != 1:
        raise BadInput(f"lib/tasks/{name} must hold exactly one Task class in its namespace; it holds {len(found)}.")
    return found[0]


def load_config(path: str | Path, overrides: Mapping[str, object] | None = None) -> Config:
    """Reads a configuration whose `workload:` section is checked against the settings of the task that it names."""
    return read_config(path, overrides, workload=lambda name: find_task(name).Settings)


def load_task(config: Config) -> Task:
    """Returns the task of a configuration with its data located.

    An empty `data.dir` means a mounted input that holds one of the task's sentinels, or the task's embedded default
    where there is none; `describe_data` says which.
    """
    cls = find_task(config.task)
    return cls(config, locate_data(config.data.dir, cls.sentinels, cls.homes))


def locate_data(
    data_dir: str, sentinels: tuple[str, ...], homes: Callable[[list[Path]], list[Path]] = Task.homes
) -> Path | None:
    """Returns the folder of `data.dir`, else the first mounted one with a sentinel, else None (the embedded data).

    "embedded" means the embedded default, whatever is mounted. In a mounted input it is the folder with the sentinel:
    Kaggle unpacks an archive to a folder of its own.
    """
    if data_dir == "embedded":
        return None
    here = platform.detect()
    if data_dir:
        folder = inputs.find_input(data_dir, here)
        is_mounted = here.input_dir is not None and here.input_dir in folder.parents
        found = inputs.search([folder], sentinels) if is_mounted and folder.is_dir() else []
        return _first(homes(found), data_dir) or folder
    return _first(homes(inputs.search(inputs.mounted(here), sentinels)) if sentinels else [], "the mounted inputs")


def _first(found: list[Path], where: str) -> Path | None:
    if len(found) > 1:
        others = ", ".join(map(str, found[1:6]))
        print(f"{where}: data lies in {len(found)} folders; {found[0]} is taken, not {others}. data.dir names another.")
    return found[0] if found else None
