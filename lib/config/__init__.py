"""The configuration of a run: every key with type, default and one sentence.

A file may begin with `base: other.yaml`, a file beside it: every key that it does not give is as in
that one.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from lib.config.files import read_text
from lib.config.reader import (
    BAD,
    Reader,
    child,
    flat,
    from_folder,
    length_pairs,
    option,
    other_unit,
    sentences,
)
from lib.errors import BadInput, printable

_REMOVED = Path(__file__).with_name("removed.yaml")
REMOVED: dict[str, str] = yaml.safe_load(_REMOVED.read_text("utf-8"))
_NAME_BYTES = 200  # a file system takes 255, and runs of a queue, and files beside the folder, have longer names


@dataclass(frozen=True)
class NoSettings:
    """The `workload:` section of a task without settings."""


def _no_folder(name: str) -> str:
    """Returns how to mend a name that cannot become a folder; "" for any other."""
    is_odd = re.search(r"^[.\s]|[/\\]|\s$", name) is not None or printable(name) != name
    if is_odd or len(name.encode()) > _NAME_BYTES:
        return (
            "give one without slashes, invisible characters, dot or space at an end, "
            f"of {_NAME_BYTES} bytes at most"
        )
    return ""


@dataclass(frozen=True)
class Run:
    """The run's name and its start."""

    name: str = option("", "Name of the run and its folder; empty: that of the file.")
    initial_weights: str = option(
        "", "Start from a .safetensors file, a run's folder or a published model.", path=True
    )
    initial_weights_share: float = option(
        0.9, "Least share of its tensors that must match.", minimum=0, maximum=1
    )
    resume_from: str = option(
        "", "Folder or mounted input with an earlier output; empty: searched.", path=True
    )
    finishes: str = option(
        "", "The run that this one ends: it starts at that run's step, and wsd lowers the rate."
    )
    accept_changes: bool = option(
        False, "Whether a run may resume with changed settings or task code."
    )
    on_change: Literal["stop", "new"] = option(
        "stop", "After an edit: stop with what differs, or begin a new NAME-2."
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if advice := _no_folder(values["name"]):
            yield "name", f"run.name becomes a folder: {advice}."


@dataclass(frozen=True)
class Data:
    """The data, and how it is loaded."""

    dir: str | Literal["embedded"] | tuple[str, ...] = option(
        "",
        "A path, a mounted input (slug or owner/slug), a list of these, or embedded; empty: found.",
        path=True,
    )
    num_workers: int = option(
        2, "Loader processes of each rank; 0: the training process.", minimum=0, limit=1024
    )
    subset_ratio: float = option(1.0, "Share of the training samples.", above=0, maximum=1)
    buckets: int = option(
        0, "Batches in a pool of samples sorted by length; 0: not sorted.", minimum=0, limit=10**6
    )
    evaluation_batch: int = option(
        0, "Samples of an evaluation at once; 0: the micro-batch.", minimum=0, limit=10**6
    )

    @property
    def dirs(self) -> tuple[str, ...]:
        """The names in `dir`; () if it is empty."""
        if isinstance(self.dir, tuple):
            return self.dir
        return tuple(filter(None, [self.dir]))

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        names = values["dir"]
        if not isinstance(names, tuple):
            return
        is_repeated = len({*names}) < len(names)
        if is_repeated or {"embedded", ""} & {*names}:
            yield "dir", "A list in data.dir names folders, each once; embedded stands alone."


@dataclass(frozen=True, kw_only=True)
class Training:
    """Lengths, batches and precision."""

    max_steps: int = option(0, "Optimizer steps of the whole run; 0: given in epochs.", minimum=0)
    epochs: float = option(0.0, "Length in passes over the training samples.", minimum=0, limit=1e6)
    hours: float = option(
        0.0, "Length in hours of this machine, of which a few steps show the speed.", minimum=0
    )
    smoke_steps: int = option(10, "Steps of the smoke test before the full run.", minimum=1)
    effective_batch: int = option(
        MISSING, "Samples in an optimizer step, over all cards.", minimum=1, limit=10**6
    )
    micro_batch: int = option(0, "Samples on a card at once; 0: planned.", minimum=0)
    micro_batch_slots: int = option(
        0, "Equal parts of a batch for the cards; 0: one each.", minimum=0, limit=4096
    )
    precision: Literal["auto", "fp32", "fp16", "bf16"] = option(
        "auto", "Number format of the forward pass."
    )
    frozen_precision: Literal["", "fp16", "bf16"] = option(
        "", "Format of frozen matrices; empty: as model() has them."
    )
    fp32_modules: tuple[str, ...] = option(
        (), "Globs of modules that compute in fp32; [auto]: what fp16 cannot hold."
    )
    gradient_checkpointing: int | Literal["all"] = option(
        0, "Layers that are recomputed to save memory.", minimum=0
    )
    ema_decay: float = option(
        0.0, "Decay of averaged weights, which are then tested; 0: none.", minimum=0, below=1
    )
    clip_norm: float = option(1.0, "The largest norm of the gradient; 0: not clipped.", minimum=0)
    deterministic: bool = option(
        False, "Whether a GPU returns the same bits every time, more slowly."
    )
    compile: bool = option(False, "Whether torch.compile makes kernels, in minutes.")
    log_every_steps: int = option(
        10, "Steps between rows of metrics.csv; 0: the last step only.", minimum=0
    )
    evaluate_every_steps: int = option(
        0, "Steps between validations; 0: at the end only.", minimum=0
    )
    evaluate_every_epochs: float = option(0.0, "Epochs between validations.", minimum=0)
    start_from_baseline: bool = option(
        False, "Whether a network adds to a simple method's answers, where it gains."
    )
    stop_after_evaluations: int = option(
        0, "Validations without a better value that end a run; 0: never.", minimum=0
    )

    @property
    def seconds(self) -> float:
        """The time for steps: nine tenths of `hours`, as validations, saves and the test take the rest."""
        return 0.9 * 3600 * self.hours

    @property
    def slots(self) -> int:
        """The parts that a step is dealt in; one until `with_slots` has counted the cards."""
        return self.micro_batch_slots or 1

    @property
    def slot(self) -> int:
        """The samples of a slot, which one card takes in one or several micro-batches."""
        return self.effective_batch // self.slots

    @property
    def sizes(self) -> dict[str, Any]:
        """What a smaller micro-batch holds for after memory ran out."""
        return {
            "micro_batch": self.micro_batch,
            "gradient_checkpointing": self.gradient_checkpointing,
        }

    @property
    def largest_micro_batch(self) -> int:
        return min(self.micro_batch or self.slot, self.slot)

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        is_counted = bool(values["max_steps"] or values["epochs"])
        if not is_counted and not values["hours"]:
            yield (
                "",
                "The run has no length. Give training.max_steps, training.epochs or training.hours.",
            )
        if is_counted and values["hours"]:
            yield (
                "hours",
                "training.hours stands in place of training.max_steps and training.epochs. "
                "Give one of them.",
            )
        batch = values["effective_batch"]
        slots = values["micro_batch_slots"]
        if slots and batch % slots:
            nearest = max(1, batch // slots) * slots
            yield (
                "effective_batch",
                f"training.effective_batch {batch} cannot be dealt into {slots} equal parts "
                f"(training.micro_batch_slots). Write {nearest}, or another number of slots.",
            )


@dataclass(frozen=True)
class Device:
    """The processors: by default every GPU with a process for each, or one process on the CPU."""

    processes: int = option(
        0, "Processes that train together; 0: one for each GPU, or one.", minimum=0, limit=4096
    )


@dataclass(frozen=True)
class Memory:
    """Settings that depend on memory and go together."""

    profile: Literal["", "auto", "optimized", "ultra_low", "prototype", "max_quality"] = option(
        "", "Sets several keys at once and prints each; empty: none."
    )


@dataclass(frozen=True)
class Optimizer:
    """How gradients become updates."""

    name: Literal["adamw", "sgd", "muon"] = option(
        "adamw", "The optimizer; muon updates matrices in the repeated layers, and adamw the rest."
    )
    lr: float = option(3e-4, "Highest learning rate, after the warm-up.", above=0)
    weight_decay: float = option(
        0.01, "Decoupled weight decay; for sgd part of the gradient.", minimum=0
    )
    betas: tuple[float, float] = option(
        (0.9, 0.999), "Decay of the two moments of adamw.", minimum=0, below=1
    )
    eps: float = option(1e-8, "Added to the denominator of adamw's update.", above=0)
    momentum: float = option(0.9, "Momentum of sgd; 0: none.", minimum=0, below=1)
    nesterov: bool = option(False, "Whether sgd looks ahead along its momentum.")


@dataclass(frozen=True)
class Scheduler:
    """The learning rate over time."""

    name: Literal["cosine", "linear", "constant", "plateau", "wsd"] = option(
        "cosine", "Schedule; plateau: by validation; wsd: constant, and a last part that falls."
    )
    decay_steps: int = option(
        0,
        "The last steps, in which wsd lowers the rate; 0: none, or a fifth of a run's end.",
        minimum=0,
    )
    warmup_steps: int = option(0, "Steps in which the rate rises.", minimum=0)
    warmup_epochs: float = option(0.0, "Epochs in which the learning rate rises.", minimum=0)
    min_lr_ratio: float = option(
        0.0, "The last rate of cosine, linear and wsd, by the highest.", minimum=0, maximum=1
    )
    factor: float = option(0.5, "What a plateau multiplies the learning rate by.", above=0, below=1)
    patience: int = option(
        5, "Evaluations without a better value before a plateau lowers it.", minimum=0
    )
    min_lr: float = option(0.0, "The least learning rate of a plateau.", minimum=0)


@dataclass(frozen=True)
class Checkpoint:
    """When the run is saved, and how much is kept."""

    every_steps: int = option(
        0, "Steps between checkpoints; 0: by time and at the end only.", minimum=0
    )
    every_epochs: float = option(0.0, "Epochs between checkpoints.", minimum=0)
    every_minutes: float = option(
        5.0, "Minutes between checkpoints; 0: by steps and at the end only.", minimum=0
    )
    lightweight: bool = option(False, "Omits the optimizer; a resumed run then differs in bits.")
    frozen: Literal["hash", "save"] = option(
        "hash", "Frozen published weights: verified by hash, or saved in each."
    )
    keep_last: int = option(2, "Newest checkpoints that are kept; 0: none is written.", minimum=0)
    keep_best: int = option(1, "Best weights that are kept; 0: none are written.", minimum=0)
    keep_bytes: int = option(
        0, "Bytes that a run's checkpoints may take; 0: the platform's limit.", minimum=0
    )


@dataclass(frozen=True)
class Session:
    """The time limit of a session."""

    minutes: float = option(0.0, "The length of a session; 0: the platform's limit.", minimum=0)
    margin_seconds: float = option(
        120.0, "Time kept free at the session's end, beside saving.", minimum=0
    )


@dataclass(frozen=True)
class Tracking:
    """Where else the rows of metrics.csv go; offline into the run's folder, unless `online` is set."""

    tensorboard: bool = option(False, "Whether event files for TensorBoard are written.")
    wandb: bool = option(False, "Whether Weights & Biases gets the run.")
    online: bool = option(False, "Whether wandb sends it, with a key from Secrets or environment.")
    project: str = option("trainbook", "The project of wandb.")


@dataclass(frozen=True)
class Queue:
    """Several runs one after another, over as many sessions as they take; see trainbook/launch/queue.py."""

    before: tuple[str, ...] = option((), "Configurations beside this one that run first.")
    before_overrides: dict[str, str] = option(dict, "Keys of such a run if none was completed.")
    start_from: str = option("", "The run of `before` that the others start from.")
    seeds: tuple[int, ...] = option((), "Runs that differ in the seed.", minimum=0)
    grid: dict[str, tuple[str, ...]] = option(
        dict, "Dotted keys and the values that runs differ in."
    )
    mean_at_least: float = option(0.0, "Goal for the mean of the runs' best validations; 0: none.")
    best_at_least: float = option(0.0, "Goal for the best of them; 0: none.")

    @property
    def runs(self) -> int:
        """The number of combinations of seeds and grid."""
        sizes = [len(self.seeds), *map(len, self.grid.values())]
        return math.prod(max(1, size) for size in sizes)


@dataclass(frozen=True)
class Folds:
    """Cross-validation: a run for each fold; `folds: 5` is short for `folds: {number: 5}`."""

    main: ClassVar[str] = "number"
    number: int = option(
        0, "Folds, each held out by one run; 0: no cross-validation.", minimum=0, limit=1000
    )
    fold: int = option(-1, "The fold of this run, counted from 0; -1: a run for each.", minimum=-1)
    nested: bool = option(
        False, "Whether an inner part of the training samples chooses the step, and not the fold."
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        number = values["number"]
        if number == 1:
            yield "number", "One fold leaves nothing to train on. Give folds: 5, or 0 for none."
        elif values["fold"] >= max(1, number):
            yield (
                "fold",
                f"folds.fold is {values['fold']}, and there are {number} folds, counted from 0.",
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration; `workload` holds the task's settings, an instance of its `Settings`."""

    task: str = option(MISSING, "A workload's name, or file.py:Class beside this configuration.")
    seed: int = option(0, "Everything random follows from it.", minimum=0)
    output_dir: str = option("", "Folder for runs, from the working folder; empty: the platform's.")
    run: Run = Run()
    data: Data = Data()
    training: Training
    device: Device = Device()
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer()
    scheduler: Scheduler = Scheduler()
    checkpoint: Checkpoint = Checkpoint()
    session: Session = Session()
    tracking: Tracking = Tracking()
    folds: Folds = Folds()
    queue: Queue = dataclasses.field(default_factory=Queue)
    workload: Any = option(NoSettings(), "The task's own settings.")
    # Not a key: the dotted keys that were given as overrides, which no memory profile changes.
    overridden: frozenset[str] = dataclasses.field(
        default=frozenset(), compare=False, metadata={"key": False}
    )

    @staticmethod
    def mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        runs = max(1, values["folds"].number) * values["queue"].runs
        if runs > 1000:  # all are listed at every start
            yield (
                "queue",
                f"The queue has {runs:,} runs; at most 1,000 can be. Shorten queue.grid or folds.",
            )
        training = values["training"]
        is_plateau = values["scheduler"].name == "plateau"
        if values["run"].finishes and values["scheduler"].name != "wsd":
            yield (
                "run",
                f"run.finishes is for scheduler.name wsd, and the schedule here is "
                f"{values['scheduler'].name}, which ends at training.max_steps by itself.",
            )
        is_single = not training.evaluate_every_steps and not training.evaluate_every_epochs
        if is_single and (is_plateau or training.stop_after_evaluations):
            key = "scheduler.name plateau" if is_plateau else "training.stop_after_evaluations"
            yield (
                key.partition(".")[0],
                f"{key} counts evaluations, and this run has only one, at the end. "
                "Give training.evaluate_every_epochs.",
            )


def read_config(
    path: str | Path,
    overrides: Mapping[str, object] | None = None,
    workload: Callable[[str], type] = lambda task: NoSettings,
) -> Config:
    """Reads and checks a configuration.

    `workload` returns the dataclass of the `workload:` section for a task's name.

    `overrides` maps dotted keys to values, or to texts from a command line; each replaces the whole
    value of its key. Raises BadInput with all mistakes, one a line, as `file.yaml:12:5: sentence`.
    """
    path = Path(path)
    overrides = as_overrides(overrides)
    reader = Reader(REMOVED, {"folds": Folds.main})
    advice = (
        "Give at least task, training.effective_batch and training.max_steps or training.epochs."
    )
    root = reader.root(read_text(path), str(path), advice)
    reader.merge_base(root, path)
    for key, value in overrides.items():
        reader.override(root, str(key), value)
    reader.move(root, "queue", "folds", "folds")
    task = child(root, "task")
    settings: Any = Any  # an unknown task is reported once, and its settings are not checked
    if isinstance(task, yaml.ScalarNode) and task.value:
        file, colon, name = task.value.rpartition(":")
        task.value = f"{from_folder(file, task.start_mark)}:{name}" if colon else name
        try:
            settings = workload(task.value)
        except BadInput as error:
            reader.report(task, str(error))
    reader.types["workload"] = settings
    reader.known = [*sentences(Config)]
    if settings is not Any:
        reader.known += sentences(settings, "workload.")
    config = reader.section(Config, root, "")
    if config is not BAD and not config.run.name and (advice := _no_folder(path.stem)):
        reader.report(
            root,
            f"The run has the name of this file, and it becomes a folder: {advice}, or give run.name.",
        )
    reader.finish()
    run = dataclasses.replace(config.run, name=config.run.name or path.stem)
    return dataclasses.replace(config, run=run, overridden=frozenset(overrides))


def split_overrides(
    pairs: Sequence[str], usage: str = "--set takes key=value, for example training.max_steps=200"
) -> dict[str, object]:
    """Returns the dotted keys and texts of `key=value` from a command line.

    Raises BadInput, with `usage`.
    """
    overrides: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"{usage}; found {pair!r}.")
        overrides[key] = text
    return overrides


def as_overrides(overrides: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Returns the OVERRIDES of a notebook, also as the text that `papermill -p` makes.

    Raises BadInput.
    """
    with contextlib.suppress(yaml.YAMLError):
        values = yaml.safe_load(overrides) if isinstance(overrides, str) else overrides
        if isinstance(values, Mapping) or values is None:
            return dict(values or {})
    shown = printable(repr(overrides), most=60)
    raise BadInput(
        f'OVERRIDES is {shown}, no dict. Write {{"training.max_steps": 200}}, or {{}} for none.'
    )


def to_yaml(config: Config) -> str:
    """Returns the configuration as YAML that `read_config` reads back to an equal one."""
    values = dataclasses.asdict(config)
    del values["overridden"]
    return yaml.safe_dump(values, sort_keys=False, width=120)


def with_changes(config: Config, changes: Mapping[str, Any]) -> Config:
    """Returns the configuration with other values at dotted keys.

    Raises BadInput where they contradict each other.
    """

    for key, value in changes.items():
        config = _changed(config, key, value)
    mistakes = []
    for part in (config, *vars(config).values()):
        if hasattr(part, "mistakes"):
            mistakes += [sentence for _, sentence in part.mistakes(vars(part))]
    if mistakes:
        raise BadInput("\n".join(mistakes))
    return config


def differences(before: Config, after: Config) -> dict[str, tuple[object, object]]:
    """Returns the keys whose values differ, with both values."""
    old = flat(before)
    return {key: (old[key], value) for key, value in flat(after).items() if old[key] != value}


def _changed(section: Any, key: str, value: Any) -> Any:
    """Returns a section with another value at a key; one form of a length ends the other."""
    name, _, inner = key.partition(".")
    if inner:
        return dataclasses.replace(
            section, **{name: _changed(getattr(section, name), inner, value)}
        )
    values = {name: value}
    other = other_unit(name) or ""
    if value and hasattr(section, other):
        values[other] = 0
    return dataclasses.replace(section, **values)


def resolve_lengths(config: Config, samples: int) -> tuple[Config, list[str]]:
    """Returns a configuration with every length in steps, and a line for each.

    Raises BadInput without samples.
    """
    if samples < 1:
        raise BadInput("There are no training samples. Look at data.dir and at data.subset_ratio.")
    batch = config.training.effective_batch
    sizes = f"(samples {samples:,}, effective batch {batch:,})"
    lines = list[str]()

    def in_steps(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {name: in_steps(item, f"{path}.{name}") for name, item in value.items()}
        if not dataclasses.is_dataclass(value):
            return value
        prefix = f"{path}." if path else ""
        changes = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            changes[field.name] = in_steps(inner, prefix + field.name)
        for epochs, steps in length_pairs(type(value)):  # type: ignore[arg-type]
            length = getattr(value, epochs)
            if not length:
                continue
            # A fraction of the decimal digits: in binary 1.1 epochs of 10 samples would be a little
            # more than 11
            exact = Fraction(repr(length)) * samples / batch
            changes[epochs] = 0.0
            changes[steps] = max(1, math.ceil(exact))
            count = f"{prefix}{steps} {changes[steps]:,}"
            lines.append(f"{prefix}{epochs} {length:g} -> {count} {sizes}")
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]

    return in_steps(config, ""), lines
