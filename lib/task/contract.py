"""The contract of a workload: how the trainer gets its model, data and metrics."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from lib.config import Config, NoSettings
from lib.errors import BadInput, printable
from lib.task.blocks import find_blocks
from lib.task.unpacked import Content, contents

Batch = dict[str, Tensor]
SPLITS = ("train", "validation", "test")
_CHUNK = 2**20  # bytes that are read at once
_BUCKETS = 512
_DIGITS = 6  # of a sketch: 3 KB in each checkpoint
_IGNORED = -100  # label of positions without a target, as in torch and transformers


def to_write(task: object, method: str, what: str) -> BadInput:
    name = type(task).__name__
    return BadInput(f"{name} has no {method}. Write it in the class {name}: it returns {what}.")


class Task:
    """One workload.

    Subclass it in one file, name it in a configuration as `task: my_task.py:MyTask`, and it trains.

    `Settings` is the dataclass of the configuration's `workload:` section. `sentinels` are glob
    patterns of files by which a mounted data folder is recognised. `selection` names the validation
    metric that decides which weights are best, and whether "max" or "min" of it is better; `shown`
    names those of the plot. `dials` are the keys that set the size of a sample, each with the
    values that the memory panel offers. With `several` `data.dir` may list folders.
    `fold_key` is the key that numbers the fold; empty: the task deals no folds.

    A task may have four methods more:
    - `adapt(weights, model)` returns `run.initial_weights` in the shapes of `model` (bands, words), and a sentence on
      how. A weight whose shape still differs keeps its initial value.
    - `export(model, folder)` writes the tested model into an empty folder, which the archive has as `export/`.
    - `stage_name(step)` returns the name of the stage that a step is in: a function of the step alone.
    - `vote(models, folder)` returns metrics of several models together on the test set, and what to print.
    """

    Settings: ClassVar[type] = NoSettings
    sentinels: ClassVar[tuple[str, ...]] = ()
    selection: ClassVar[tuple[str, str]] = ("loss", "min")
    shown: ClassVar[tuple[str, ...]] = ()
    dials: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    several: ClassVar[bool] = False
    fold_key: ClassVar[str] = ""
    repeats_validation: Any = False  # whether the samples of the test are those of the validation
    step: int = 0  # the step of `count` and `loss`, or the number of steps before an evaluation; the trainer sets it
    # The published weights that the run started from, by name; kept in its checkpoints, set when it
    # resumes
    published: Mapping[str, Mapping[str, Any]] = {}
    # Names of the runs whose models vote or predict together, in their order
    members: Sequence[str] = ()

    def __init__(self, config: Config, source: Path | Sequence[Path] | None = None):
        """Sets `config`, `sources` (folders or files; () for embedded data) and `source`, the first."""
        self.config = config
        if isinstance(source, str | Path):
            source = [Path(source)]
        self.sources: tuple[Path, ...] = tuple(source or ())
        self.source = self.sources[0] if self.sources else None

    # --- model and data -----------------------------------------------------------------------------------------------

    def model(self) -> nn.Module:
        """Returns a freshly initialised model on the CPU. Reads no data: the planner has no data."""
        raise to_write(
            self, "model()", "a freshly initialised torch.nn.Module, without reading data"
        )

    def pretrained(self, name: str, cls: Any, **options: Any) -> nn.Module:
        """Returns a model of transformers with published weights, by default fp32.

        `name` is a folder, a mounted model or data set, or a name on the Hugging Face hub;
        `options` go to `cls.from_pretrained`. The run keeps its configuration: when it resumes, and
        in a plan, the model is built from that, and its weights come from the checkpoint. A plan
        needs only config.json. Raises BadInput.
        """
        from lib.machine import published

        return published.pretrained(self, name, cls, options)

    @property
    def is_planned(self) -> bool:
        """Whether `model()` is called only for shapes: its tensors are on `meta`, without values."""
        return torch.empty(0).is_meta

    def describe_data(self) -> str:
        """Returns one paragraph on the data."""
        sets = self.datasets()
        sizes = [f"{len(samples):,} {name}" for name, samples in sets.items()]
        sources = ", ".join(map(printable, self.sources)) or "embedded in the task"
        return f"Data: {sources}. Samples: {', '.join(sizes)}."

    def fingerprint(self) -> str:
        """Returns a hash of the data, by default of all files in `sources`.

        A run resumes only on the same.
        """
        if self.source is None:
            raise to_write(
                self, "fingerprint()", "a hash of its data, which does not come from data.dir"
            )
        return self._files_hash

    @functools.cached_property  # every save asks for it
    def _files_hash(self) -> str:
        hashes = [whole for whole, _ in self._hashes]
        if len(hashes) == 1:
            return hashes[0]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    @functools.cached_property
    def _hashes(self) -> list[tuple[str, dict[Path, str]]]:
        return [file_hashes(source) for source in self.sources]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the hashes of files, which no loader worker needs."""
        return {name: value for name, value in vars(self).items() if name != "_hashes"}

    def datasets(self) -> dict[str, Any]:
        """Returns map-style data sets "train", "validation" and "test"; items are raw samples, read lazily.

        Training samples come once an epoch, or in proportion to an attribute `weights`, or in the order of its pure
        method `order(seed, epoch)`, which returns as many indices for every epoch. `data.buckets` needs the attribute
        `lengths`. A method `subset(share, seed)` chooses what `data.subset_ratio` leaves.
        """
        raise to_write(
            self,
            "datasets()",
            '{"train": ..., "validation": ..., "test": ...}, sequences of raw samples',
        )

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns tensors, samples along the first dimension; by default dicts of one shape are stacked.

        Draw from `generator`, or from the generators of torch, NumPy and Python, here, in a data set, in the loss and
        in an evaluation: they are seeded for each batch, and no run can resume with one of your own.
        """
        try:
            keys = samples[0].keys()
            columns = {key: [torch.as_tensor(sample[key]) for sample in samples] for key in keys}
            return {key: torch.stack(tensors) for key, tensors in columns.items()}
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
            what = f"a dict of tensors, samples along the first dimension ({error})"
            raise to_write(self, "collate(samples, generator)", what) from error

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape that training can meet, with arbitrary content."""
        raise to_write(
            self,
            "example_batch(size, device)",
            "a batch of `size` samples of the largest possible shape",
        )

    @property
    def replaceable(self) -> Mapping[str, Any]:
        """Hashes by which a run recognises samples whose files alone were replaced; none if it cannot."""
        return {}

    def learned(self) -> Mapping[str, Any]:
        """Returns values learned from data that decode answers: label names, statistics, a tokenizer.

        They are values that JSON has, kept with the weights, or Paths of files, which the run copies into its folder.
        """
        return {}

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Loads untrusted `learned()` values, before `datasets`, `model` and a resumed `fingerprint`."""

    # --- training -----------------------------------------------------------------------------------------------------

    def count(self, batch: Batch) -> Mapping[str, float]:
        """Counts or weighs the targets of each loss term.

        By default "loss" has labels other than -100, or samples.
        """
        labels = batch.get("labels")
        if isinstance(labels, Tensor) and not labels.is_floating_point():
            return {"loss": int((labels != _IGNORED).sum())}
        return {"loss": len(next(iter(batch.values())))}

    def loss(
        self, model: nn.Module, batch: Batch
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """Returns the sum of each loss term over its targets, () with gradient, and means to log."""
        raise to_write(
            self,
            "loss(model, batch)",
            '{"loss": the sum over all targets}, and {} or figures to log',
        )

    def term_weights(self, step: int) -> Mapping[str, float]:
        """Returns the weight of each loss term, 1 if not named: a pure function of the step."""
        return {}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Returns the layers to recompute: called as modules. By default they are found."""
        return find_blocks(model)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Returns groups of parameters with other rates, or trained only in some steps.

            [{"names": "head.*", "lr": 10.0}, {"names": ["embed.*", "blocks.0.*"], "from_step": 500, "lr": 0.1}]

        The first match of `names`, globs, counts. `lr` is a factor on the scheduled rate. Before
        `from_step`, and from `until_step` on, the group is frozen: weights, moments and weight
        decay rest.
        """
        return ()

    # --- evaluation and prediction ------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics over a loader of one of `datasets()`, by default mean losses."""
        totals = defaultdict[str, float](float)
        targets = defaultdict[str, float](float)
        for batch in loader:
            for term, number in self.count(batch).items():
                targets[term] += number
            for term, total in self.loss(model, batch)[0].items():
                totals[term] += float(total)
        means = {}
        for term, number in targets.items():
            if number and term in totals:
                means[term] = totals[term] / number
        if any(targets.values()) and not means:
            raise BadInput(
                f"{type(self).__name__}.loss returns no term in evaluation mode, which the best "
                "weights need. Return the terms there too, or write evaluate(model, loader)."
            )
        return {**means, "loss": sum(means.values())}

    def after_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Is called after each validation with the number of steps and its metrics, on every rank, to look or to log.

        A resumed run calls it again for the steps that it repeats. Its time counts as the validation's, not training's.
        Draw no random numbers and change no weights here: the run would not resume with the same bits.
        """

    def baseline(self) -> dict[str, float]:
        """Returns the strongest baseline's metrics on the test set, by the keys of `evaluate`."""
        return {}

    def predict(
        self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None
    ) -> dict[str, Any]:
        """Predicts new data in `source` with all models together; writes into the folder `out`, if any."""
        raise to_write(
            self, "predict(models, source, out)", "its answers by name, and writes them into `out`"
        )

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes tables and figures of the finished run into `folder`; returns a text to print."""
        return ""


def checked_datasets(task: Task) -> dict[str, Any]:
    """Returns `datasets()` of a task.

    Raises BadInput unless it is three map-style data sets with samples.
    """
    name = f"{type(task).__name__}.datasets()"
    sets = task.datasets()
    if not isinstance(sets, Mapping) or {*SPLITS} - sets.keys():
        if isinstance(sets, Mapping):
            splits = [*sets]
        else:
            splits = f"a {type(sets).__name__}"
        raise BadInput(
            f'{name} returns {splits}. It must return {{"train": ..., "validation": ..., "test": ...}}.'
        )
    for split in SPLITS:
        samples = sets[split]
        has_methods = hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
        if isinstance(samples, IterableDataset) or not has_methods:
            raise BadInput(
                f"{name} returns a {type(samples).__name__} as {split!r}. "
                "Return one with __getitem__ and __len__: a run is resumed at any sample."
            )
        if not len(samples):
            sizes = ", ".join(f"{part} {len(sets[part]):,}" for part in SPLITS)
            raise BadInput(
                f"{name}: {split} has no samples ({sizes}). Look at data.dir, and at how they are split."
            )
    return dict(sets)


def checked_blocks(task: Task, model: nn.Module) -> list[nn.Module]:
    """Returns `blocks` of a task, each once. Raises BadInput for one outside the model."""
    blocks = list(dict.fromkeys(task.blocks(model)))
    for block in set(blocks) - {*model.modules()}:
        raise BadInput(
            f"{type(task).__name__}.blocks returned a {type(block).__name__} that is no module of "
            "the model. Return modules that the model calls, such as list(model.layers)."
        )
    return blocks


def checked_scores(task: Task, scores: Any) -> dict[str, float]:
    """Returns what `evaluate` of a task has returned.

    Raises BadInput unless it has the metric of `selection`.
    """
    name = type(task).__name__
    numbers = checked_numbers(task, "evaluate", scores)
    metric, direction = task.selection
    if metric not in scores or direction not in ("max", "min"):
        metrics = ", ".join(map(str, scores))
        raise BadInput(
            f"{name}.selection is {task.selection!r}. Name a metric that {name}.evaluate returns "
            f'({metrics}), and whether "max" or "min" is better.'
        )
    return numbers


def checked_numbers(task: Task, method: str, values: Any) -> dict[str, float]:
    name = f"{type(task).__name__}.{method}"
    is_optional = method == "baseline"
    if not isinstance(values, Mapping) or not (values or is_optional):
        shown = printable(repr(values), most=60)
        raise BadInput(f"{name} returned {shown} instead of metrics by name.")
    try:
        return {metric: _number(value) for metric, value in values.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} returned a metric that is no number ({error}).") from None


def _number(value: Any) -> float:
    if isinstance(value, int | float):
        return value
    return float(value)


def check_terms(
    task: Task, counts: Mapping[str, float], weights: Iterable[str], summed: Iterable[str]
) -> None:
    """Raises BadInput if `term_weights` or `count` name terms that `loss`, which `summed`, lacks."""
    check_loss_terms(task, counts, weights, "term_weights weighs")
    has_targets = {term for term, count in counts.items() if count}
    missing = sorted(has_targets - set(summed))
    if missing:
        name = type(task).__name__
        raise BadInput(
            f"{name}.count has {counts[missing[0]]} targets of the term {missing[0]!r}, and "
            f"{name}.loss returned no such term. Both must name the same terms."
        )


def check_loss_terms(
    task: Task, counts: Mapping, terms: Iterable[str], does: str = "loss returned"
) -> None:
    """Raises BadInput for a term that `count` does not have; `does` names the method and its verb."""
    unknown = sorted(set(terms) - counts.keys())
    if unknown:
        name = type(task).__name__
        known = ", ".join(map(repr, counts)) or "none"
        raise BadInput(
            f"{name}.{does} {unknown[0]!r}, which is no loss term. {name}.count has: {known}. "
            "Both must name the same terms."
        )


def fingerprint(source: Path) -> str:
    """Returns a hash of the names and bytes of all files in a folder and below it, or of one file.

    An archive that Kaggle unpacks counts as the files in it.
    """
    return file_hashes(source)[0]


def file_hashes(source: Path) -> tuple[str, dict[Path, str]]:
    """Returns `fingerprint` of a source, and a hash of each file by its path as if unpacked."""
    files: list[Content] = []
    if source.is_dir():
        for path in source.rglob("*"):
            if path.is_file():
                files += contents(path, path.relative_to(source).as_posix())
    else:
        opener = functools.partial(source.open, "rb")
        files.append(Content("", source.stat().st_size, opener))
    digest = hashlib.sha256()
    hashes = {}
    for content in sorted(files, key=lambda content: content.name):
        file_digest = hashlib.sha256()
        digest.update(f"{content.name}\n{content.size}\n".encode("utf-8", "surrogateescape"))
        with content.open() as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
                file_digest.update(piece)
        hashes[source / content.name] = file_digest.hexdigest()
    return digest.hexdigest(), hashes


def sketch(digests: Mapping[str, str]) -> str:
    """Returns a short text by which two states of many files are compared: see `differing`."""
    buckets = [hashlib.sha256() for _ in range(_BUCKETS)]
    for name in sorted(digests):
        line = f"{name} {digests[name]}\n".encode("utf-8", "surrogateescape")
        place = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:4]
        buckets[int.from_bytes(place) % _BUCKETS].update(line)
    return "".join(bucket.hexdigest()[:_DIGITS] for bucket in buckets)


def differing(one: str, other: str) -> int:
    """Returns how many files two sketches differ in, at least: two may fall into one bucket."""
    pairs = zip_longest(_digests(one), _digests(other))
    return sum(before != after for before, after in pairs)


def _digests(sketch: str) -> list[str]:
    return [sketch[place : place + _DIGITS] for place in range(0, len(sketch), _DIGITS)]
