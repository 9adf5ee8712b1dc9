"""The contract of a workload: what the trainer needs to know about a model and its data, and nothing else."""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lib.config import Config, NoSettings
from lib.errors import BadInput, printable
from lib.task import published
from lib.task.blocks import find_blocks
from lib.task.fingerprint import fingerprint
from lib.task.terms import TermMeans

Batch = dict[str, Tensor]
_IGNORED = -100  # the label of what has no target, as in torch and transformers


def to_write(task: "Task", method: str, what: str) -> BadInput:
    """Returns the error of a method that nothing can stand for."""
    name = type(task).__name__
    return BadInput(f"{name} has no {method}. Write it in the class {name}: it returns {what}.")


class Task:
    """One workload. Subclass it in one file, name it in a configuration as `task: my_task.py:MyTask`, and it trains.

    `Settings` is the dataclass of the configuration's `workload:` section. `sentinels` are glob patterns by which a
    mounted data folder is recognised: of files in it ("*.tif"), or of files below it ("train/*/*.png"). `selection`
    names the validation metric that decides which weights are best, and whether "max" or "min" of it is better; `shown`
    names those that the plot draws. `dials` are the dotted keys that set the size of a sample (a sequence, an image),
    each with the values that the memory panel offers beside the configuration's own. `together` is the number of
    neighbouring samples that a loss compares with each other (negatives within the batch): no slot or micro-batch parts
    them, neither of training nor of an evaluation, whose last batch has the remainder. `several` says that `data.dir`
    may list several folders, which are then `sources`.
    """

    Settings: ClassVar[type] = NoSettings
    sentinels: ClassVar[tuple[str, ...]] = ()
    selection: ClassVar[tuple[str, str]] = ("loss", "min")
    shown: ClassVar[tuple[str, ...]] = ()
    dials: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    together: ClassVar[int] = 1
    several: ClassVar[bool] = False
    sources: tuple[Path, ...] = ()
    step: int = 0  # the step of `count` and `loss`, or the number of steps before an evaluation; the trainer sets it
    # What was published of others, by name, that the run started from; kept in its checkpoints, set when it resumes.
    published: Mapping[str, Mapping[str, Any]] = {}
    members: Sequence[str] = ()  # names of the runs whose models vote or predict together, in their order
    # The folder with what `keep` wrote, where a run is resumed, then `take_kept` is called with it, or predicts
    kept_from: Path | None = None

    @classmethod
    def homes(cls, folders: list[Path]) -> list[Path]:
        """Returns the data's own folders where a search by `sentinels` stopped at these; by default the same ones."""
        return folders

    def __init__(self, config: Config, source: Path | Sequence[Path] | None = None):
        """Sets `config` and `source`, the folder or file with the data; None means the embedded default.

        A list, which only a task with `several` is given, becomes `sources`, and `source` is the first of them.
        """
        self.config = config
        given = [source] if isinstance(source, str | Path) else source or []
        self.sources = tuple(given)  # type: ignore[arg-type]
        self.source = self.sources[0] if self.sources else None

    @property
    def given(self) -> Path | tuple[Path, ...] | None:
        """The data as the constructor takes it, for another task on the same data."""
        return self.sources if len(self.sources) > 1 else self.source

    def model(self) -> nn.Module:
        """Returns a freshly initialised model on the CPU. Reads no data: the planner calls it where there is none."""
        raise to_write(self, "model()", "a freshly initialised torch.nn.Module, without reading data")

    def pretrained(self, name: str, cls: Any, **options: Any) -> nn.Module:
        """Returns a model of transformers with published weights, for `model()` to begin with.

        `name` is a folder, a mounted model or data set, or a name on the Hugging Face hub; `cls` is a class such as
        AutoModelForSequenceClassification, and `options` are those of its `from_pretrained`; the type is fp32 unless
        they say `dtype`. What was taken is kept with the run. When it resumes, and in a plan, the model is built from
        the configuration of then, and its weights come from the checkpoint. Raises BadInput.
        """
        return published.pretrained(self, name, cls, options)

    def describe_data(self) -> str:
        """Returns one paragraph on the data: where it comes from and how much of it there is; by default no more."""
        sizes = ", ".join(f"{len(samples):,} {name}" for name, samples in self.datasets().items())
        where = ", ".join(map(printable, self.sources)) or (printable(self.source) if self.source else "")
        return f"Data: {where or 'embedded in the task'}. Samples: {sizes}."

    def fingerprint(self) -> str:
        """Returns a hash of the data. A run is not resumed on data with another hash.

        By default it is that of the names and bytes of all files in `source`, or in all `sources` in their order.
        """
        if self.source is None:
            raise to_write(self, "fingerprint()", "a hash of its data, which does not come from data.dir")
        return self._files_hash

    @functools.cached_property  # every save asks for it
    def _files_hash(self) -> str:
        if len(self.sources) < 2:
            return fingerprint(Path(self.source))  # type: ignore[arg-type]
        return hashlib.sha256("\n".join(map(fingerprint, self.sources)).encode()).hexdigest()

    def datasets(self) -> dict[str, Any]:
        """Returns map-style data sets "train", "validation" and "test"; items are raw samples, read lazily.

        Training samples come once an epoch each, or in proportion to an attribute `weights` of that data set, or as its
        method `order(seed, epoch)` says. That returns the indices of an epoch, as many in every one, and is a function
        of its arguments alone; an index may come several times or not at all. `data.buckets` needs its `lengths`. Of
        what `data.subset_ratio` leaves, its method `subset(share, seed)` decides where it has one.
        """
        raise to_write(self, "datasets()", '{"train": ..., "validation": ..., "test": ...}, sequences of raw samples')

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns tensors, samples along the first dimension; random ones are drawn from `generator`.

        The generators of torch, NumPy and Python may be drawn from too, here, by a data set, in the loss and in an
        evaluation: they are seeded for each batch. A generator of one's own has a history, with which no run can be
        resumed.
        By default samples that are dicts of tensors, arrays or numbers of one shape are stacked.
        """
        what = "a dict of tensors, samples along the first dimension"
        if not all(isinstance(sample, Mapping) for sample in samples):
            raise to_write(self, "collate(samples, generator)", what)
        try:
            batch = {name: _stacked([sample[name] for sample in samples]) for name in samples[0]}
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise BadInput(f"{to_write(self, 'collate(samples, generator)', what)} ({error})") from error
        return batch

    def count(self, batch: Batch) -> Mapping[str, float]:
        """Counts the valid targets of each loss term, or sums their weights: its part of the denominators of a step.

        By default there is one term, "loss", whose targets are the whole numbers in "labels" that are not -100, or the
        samples where there are none.
        """
        labels = batch.get("labels")
        if isinstance(labels, Tensor) and not labels.is_floating_point():
            return {"loss": int((labels != _IGNORED).sum())}
        return {"loss": len(next(iter(batch.values())))}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """Returns the sum of each loss term over its valid targets, () with gradient, and figures to log by name.

        A figure is a mean over the samples; metrics.csv has the mean over all micro-batches of a row in a column.
        """
        raise to_write(self, "loss(model, batch)", '{"loss": the sum over all targets}, and {} or figures to log')

    def term_weights(self, step: int) -> Mapping[str, float]:
        """Returns the weight of each loss term in a step, 1 for those not named.

        It is a function of the step alone, so that a resumed run has the same ones.
        """
        return {}

    def stage_name(self, step: int) -> str:
        """Returns the name of the part of the run that a step is in, which log, progress line and plot show; "": none.

        It is a function of the step alone.
        """
        return ""

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Returns the layers of `model` that can be recomputed and that FSDP2 divides, in the forward pass's order.

        By default its attribute `blocks`, else its repeated layers, found in models of transformers, timm, peft and
        others. Each must be called as a module; how, and what it returns, does not matter.
        """
        return find_blocks(model)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Returns groups of parameters that are trained in a way of their own; those in none are as configured.

            [{"names": "head.*", "lr": 10.0}, {"names": ["embed.*", "blocks.0.*"], "from_step": 500, "lr": 0.1}]

        `names` are one or more globs over the names of parameters, of which the first match counts. `lr` is a factor on
        the scheduled rate. `weight_decay` holds for all of the group. Before `from_step`, and from `until_step` on, the
        group is frozen: weights, moments and weight decay rest. `player` is for `Task.player`. `optimizer` is its own
        one: "adamw", "sgd" or "adafactor". With a `clip_norm` its gradients are clipped by their own norm. Other keys
        are options of its optimizer: `betas` and `eps`, or `momentum` and `nesterov`. Batch statistics are no
        parameters.
        """
        return ()

    def learning_rate(self, step: int, total_steps: int) -> float | Mapping[str, float | None] | None:
        """Returns what `optimizer.lr` is multiplied by in a step, in place of the schedule; None: as configured.

        It may be several by name: of a player, or of a group as metrics.csv has it ("head" in "lr_head"). Others are
        as configured, and `lr` of a group comes on top.
        It is a function of its arguments alone, so that a resumed run has the same rates, and is asked for all steps
        before the first one.
        """
        return None

    def player(self, step: int) -> str | None:
        """Returns the one player that is trained in a step, of those in `parameter_groups`; None: all of them are.

        For two networks that play against each other: the groups of other players are frozen in the step, and gradients
        are clipped by the norm of this one; in fp16 it has a loss scale of its own. A loss term with the name of
        another player is left out of the step, so `loss` need not compute it: `self.step` is the step. So each player
        has a term of its name, or `term_weights` gives 0 to what is for others. It is a function of the step alone, and
        is asked for all steps before the first.
        """
        return None

    def adapt(self, given: Mapping[str, Tensor], model: nn.Module) -> tuple[Mapping[str, Tensor], str]:
        """Fits `run.initial_weights` to the shapes of `model` (bands, words); returns them and a sentence on how.

        The default returns them unchanged. A weight whose shape still differs keeps its initial value.
        """
        return given, ""

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns a batch of the largest shape that training can meet, with arbitrary content."""
        what = "a batch of `size` samples of the largest shape that can occur, made without data"
        raise to_write(self, "example_batch(size, device)", what)

    def evaluation_pass(self, model: nn.Module, batch: Batch) -> None:
        """Computes what `evaluate` holds on the device at once for a batch, for the memory plan; by default the loss.

        One that writes text, whose shapes depend on what it wrote, computes a last step of all lengths.
        """
        self.loss(model, batch)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns metrics of `model` (in evaluation mode) over a loader whose `.dataset` is one of `datasets()`.

        By default these are the mean of each loss term, and as "loss" their sum. Where players take turns, `loss` is
        asked in a step of each of them.
        """
        terms = TermMeans(self)
        for batch in loader:
            terms.add(model, batch)
        return terms.means()

    def baseline(self) -> dict[str, float]:
        """Returns the keys of `evaluate` on the test set, as the strongest trivial method reaches them, or some.

        By default there are none: what is trivial depends on the workload.
        """
        return {}

    def learned(self) -> Mapping[str, Any]:
        """Returns what was learned from data and decodes the answers: label names, statistics, a tokenizer as text.

        They are values that JSON has, and are kept with the weights: in each checkpoint, the best ones and the archive.
        """
        return {}

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Takes what `learned` returned, this time or, where a run is resumed or predicts, then.

        It is called before `datasets` and `model`. In an archive the values may be anybody's. The default does nothing.
        """

    def keep(self, folder: Path) -> None:
        """Writes what was made of the data into an empty folder of the run, for `take_kept` when it resumes.

        It is for data that may be another in the next session without anybody's doing: what is installed there, what
        lies at an address. By default there is none, and a run resumes on the data with its fingerprint alone.
        """

    def take_kept(self, folder: Path) -> str:
        """Takes what `keep` wrote when this run began; returns what to print, where the data is another by now.

        It is called before `datasets` and `fingerprint`, once the files are known to be whole. What is of other
        settings or of an earlier version need not be taken: then the data is read as for a new run.
        """
        return ""

    def joined_by(self) -> Any:
        """Returns what models must have in common to predict together: by default all of the task's settings."""
        return self.config.workload

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """Predicts new data in `source` with all models together, by name; writes into `out` where it is given.

        `self.kept_from` is the folder with what `keep` wrote in the run of the first model, None where it is not there.
        """
        what = "its answers by name, and writes them into the folder `out`"
        raise to_write(self, "predict(models, source, out)", what)

    def vote(self, models: list[nn.Module], folder: Path) -> tuple[dict[str, float], str]:
        """Returns metrics of several models together on the test set, and what to print; figures go into `folder`."""
        raise to_write(self, "vote(models, folder)", "metrics of all models together on the test set, and a text")

    def export(self, model: nn.Module, folder: Path) -> None:
        """Writes the tested model into an empty folder in a form of its own, which the archive has as `export/`.

        Such a form is `model.save_pretrained(folder)` of transformers and peft. By default there is none.
        """

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes the task's own tables and figures of the finished run into `folder`; returns what to print."""
        return ""


def _stacked(values: list[Any]) -> Tensor:
    """Returns tensors, arrays or numbers of one shape as a tensor with one dimension more."""
    return torch.stack([torch.as_tensor(value) for value in values])
