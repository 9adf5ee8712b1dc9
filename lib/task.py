"""The contract of a workload: what the trainer needs to know about a model and its data, and nothing else."""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from lib.config import Config, NoSettings, read_config
from lib.config.files import size_of
from lib.errors import BadInput, printable
from lib.machine import inputs, platform

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
        shown = printable(repr(name), most=100)
        raise BadInput(
            f"There is no task {shown}. Known tasks: {', '.join(known)}. Your own is named as file.py:Class."
        )
    return _only_task(importlib.import_module(f"lib.tasks.{name}"), name)


_MOST_SOURCE_BYTES = 10 * 2**20  # of a task file
_beside: list[str] = []  # the folders of task files, at the end of sys.path
_loaded: dict[Path, tuple[tuple[int, int], types.ModuleType]] = {}  # by path: time and size, and the module


def _from_file(file: str, class_name: str) -> type[Task]:
    try:
        path = Path(file).resolve()
        size = size_of(path)
    except (OSError, RuntimeError, ValueError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({_reason(error)})"
        advice = "Give the path from the folder that you start in."
        raise BadInput(f"The task file {printable(file, most=200)} {why}. {advice}") from None
    if size > _MOST_SOURCE_BYTES:
        raise BadInput(f"The task file {printable(file)} has {size:,} bytes, which is no source of a task.")
    found = getattr(_module(path), class_name, None)
    if not (inspect.isclass(found) and issubclass(found, Task)):
        name = f"{printable(file)} has no class {printable(class_name)}"
        raise BadInput(f"{name} that derives from lib.task.Task. Define it there.")
    return found


def _reason(error: Exception) -> str:
    return printable(getattr(error, "strerror", None) or error, most=200)


def _module(path: Path) -> types.ModuleType:
    """Imports a task file, once until it changes. Raises BadInput with the line where it fails.

    It is known to `sys.modules`, where dataclasses and pickle look for it. Files beside it can be imported, behind all
    other modules, so that none of them stands for one of Python's or of this program's.
    """
    state = path.stat()
    version = (state.st_mtime_ns, state.st_size)
    if path in _loaded and _loaded[path][0] == version:
        return _loaded[path][1]
    name = f"trainbook_task_{path.stem}_{hashlib.sha256(str(path).encode('utf-8', 'replace')).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"The task file {printable(path)} is no Python file. Give its name an ending of .py.")
    module = importlib.util.module_from_spec(spec)
    _prefer(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadInput(_why_not_imported(path, error)) from error
    _loaded[path] = version, module
    return module


def _prefer(folder: Path) -> None:
    """Lets files of a folder be imported, before those beside other task files, of which namesakes are forgotten."""
    others = [entry for entry in _beside if entry != str(folder)]
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        if str(Path(origin).parent) in others and (folder / f"{name}.py").is_file():
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry not in _beside]
    _beside[:] = [*([] if str(folder) in sys.path else [str(folder)]), *others]
    sys.path += _beside
    importlib.invalidate_caches()


def _why_not_imported(path: Path, error: BaseException) -> str:
    """Returns the sentence about a task file that raises: the line of it, or of a file that it imports."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    inner = [frame for frame in frames if Path(frame.filename).parent == path.parent] or frames[-1:]
    where = f"{inner[-1].filename}:{inner[-1].lineno}" if inner else str(path)
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    what = printable(f"{type(error).__name__}: {error}", most=300)
    return f"{printable(where)}: The task file cannot be imported ({what}). Mend it there."


def _only_task(module: Any, name: str) -> type[Task]:
    found = [c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Task) and c is not Task]
    if len(found) != 1:
        raise BadInput(f"lib/tasks/{name} must hold exactly one Task class in its namespace; it holds {len(found)}.")
    return found[0]


def load_config(path: str | Path, overrides: Mapping[str, object] | None = None, runs_files: bool = True) -> Config:
    """Reads a configuration whose `workload:` section is checked against the settings of the task that it names.

    Without `runs_files`, for one that may be anybody's, a task that is a Python file is refused and not imported.
    """
    return read_config(path, overrides, workload=lambda name: _settings(_find_task(name, runs_files)))


def _find_task(name: str, runs_files: bool) -> type[Task]:
    if not runs_files and ":" in name:
        raise BadInput(
            f"The task is a Python file, {printable(name, most=200)}, which this configuration cannot make run: it may "
            "be anybody's. Where the task is your own, give it: --task file.py:Class."
        )
    return find_task(name)


def _settings(cls: type[Task]) -> type:
    """Returns the dataclass of a task's settings. Raises BadInput where it is none that a configuration can fill."""
    why = "it is no dataclass" if not dataclasses.is_dataclass(cls.Settings) else ""
    try:
        get_type_hints(cls.Settings)
    except (NameError, TypeError) as error:  # a name that only a type checker imports
        why = f"its types cannot be read: {error}"
    if why:
        raise BadInput(f"{cls.__name__}.Settings cannot be filled ({why}). See lib/tasks/graphmer/settings.py.")
    return cls.Settings


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
        taken, others = printable(found[0]), ", ".join(map(printable, found[1:6]))
        choice = f"{taken} is taken, not {others}. data.dir names another."
        print(f"{printable(where)}: data lies in {len(found)} folders; {choice}")
    return found[0] if found else None


# --- what a task returns ----------------------------------------------------------------------------------------------

SPLITS = ("train", "validation", "test")


def checked_datasets(task: Task) -> dict[str, Any]:
    """Returns `datasets()` of a task. Raises BadInput where it is not three map-style data sets with samples."""
    name, sets = f"{type(task).__name__}.datasets()", task.datasets()
    if not isinstance(sets, Mapping) or any(split not in sets for split in SPLITS):
        has = ", ".join(map(repr, sets)) if isinstance(sets, Mapping) else f"a {type(sets).__name__}"
        raise BadInput(
            f'{name} returns {has or "nothing"}. It must return {{"train": ..., "validation": ..., "test": ...}}.'
        )
    for split in SPLITS:
        kind = f"{name} returns a {type(sets[split]).__name__} as {split!r}"
        if isinstance(sets[split], IterableDataset) or not hasattr(sets[split], "__getitem__"):
            raise BadInput(
                f"{kind}, whose samples come one after another. Return one with __getitem__ and __len__: a run is "
                "resumed at any sample."
            )
        try:
            count = len(sets[split])
        except TypeError:
            raise BadInput(f"{kind}, which has no __len__. Define it: the number of its samples.") from None
        if not count:
            raise BadInput(f"{kind} without samples. Look at data.dir, and at how the splits are made.")
    return dict(sets)


def checked_scores(task: Task, scores: Any) -> dict[str, float]:
    """Returns what `evaluate` of a task has returned. Raises BadInput unless it has the metric of `selection`."""
    name, numbers = type(task).__name__, checked_numbers(task, "evaluate", scores)
    metric, direction = task.selection
    if metric not in scores or direction not in ("max", "min"):
        raise BadInput(
            f"{name}.selection is {task.selection!r}. Name a metric that {name}.evaluate returns "
            f'({", ".join(map(str, scores))}), and whether "max" or "min" of it is better.'
        )
    return numbers


def checked_numbers(task: Task, method: str, values: Any) -> dict[str, float]:
    """Returns what a method of a task has returned as metrics. Raises BadInput unless they are numbers by name."""
    name = f"{type(task).__name__}.{method}"
    if not isinstance(values, Mapping) or not (values or method == "baseline"):  # which may have none
        raise BadInput(f"{name} returned {printable(repr(values), most=60)} instead of metrics by name.")
    for metric, value in values.items():
        numbers = value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)  # of torch or NumPy
        if not isinstance(value, int | float) and numbers != 1:
            raise BadInput(f"{name} returned {metric!r} as a {type(value).__name__}. Return a number.")
    return {metric: value if isinstance(value, int | float) else float(value) for metric, value in values.items()}


def check_terms(task: Task, counts: Mapping[str, float], weights: Iterable[str], summed: Iterable[str]) -> None:
    """Raises BadInput where `term_weights` and `count` name other terms than `loss`, which has `summed` those there."""
    name = type(task).__name__
    if unknown := sorted(set(weights) - counts.keys()):
        raise BadInput(
            f"{name}.term_weights weighs {unknown[0]!r}, which is no loss term. {name}.count has: "
            f"{', '.join(map(repr, counts))}."
        )
    if missing := sorted({term for term, count in counts.items() if count} - set(summed)):
        raise BadInput(
            f"{name}.count has {counts[missing[0]]} targets of the term {missing[0]!r}, and {name}.loss returned no "
            "such term. Both must name the same terms."
        )


def check_loss_terms(task: Task, counts: Mapping[str, float], sums: Iterable[str]) -> None:
    """Raises BadInput where `loss` returned a term that `count` does not have."""
    name = type(task).__name__
    if unknown := sorted(set(sums) - counts.keys()):
        raise BadInput(
            f"{name}.loss returned the loss term {unknown[0]!r}, and {name}.count has no such term. It has: "
            f"{', '.join(map(repr, counts)) or 'none'}. Both must name the same terms."
        )
