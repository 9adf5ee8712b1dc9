"""A configuration with its data: planned for the card, its lengths in steps."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lib import checkpoint, ranks, untrusted
from lib.config import Config, environment, profiles, resolve_lengths, with_changes
from lib.errors import BadInput, NotTraceable, TrainingFailed
from lib.machine import disk, memory, platform
from lib.machine.inputs import run_folders, saved_facts
from lib.machine.memory import GIB
from lib.report.metrics import METRICS
from lib.report.progress import Progress, choose_progress, working
from lib.task import Task, load_task, with_slots
from lib.task.contract import checked_datasets
from lib.task.files import file_of, label, named_files, own_files
from lib.training import data, identity, learned
from lib.training.evaluation import known_baseline
from lib.training.order import Order
from lib.training.precision import AUTO, about_precision, choose_precision
from trainbook.outputs import figure
from trainbook.outputs.summary import Reason, Summary

if TYPE_CHECKING:
    from lib.planner.search import Option, Plan

CODE = "code"  # in a run's folder: the files of a task of one's own


@dataclasses.dataclass(frozen=True)
class Run:
    """A configuration with its data: lengths in steps, and the folder that everything goes to."""

    config: Config
    task: Task
    folder: Path
    # Folders that may hold an earlier state, in the order in which the first rank tries them
    places: list[Path]
    # Lines to print: changes by profile and plan, and how epochs became steps
    lengths: list[str]
    plan: "Plan | None" = None  # for this machine's GPU, if there is one
    base_name: str = ""  # the name as configured, where `run.on_change: new` gave it a number

    @property
    def output_dir(self) -> Path:
        return self.folder.parent

    @property
    def has_checkpoint(self) -> bool:
        return any(checkpoint.steps(place / "checkpoints") for place in self.places)

    @property
    def identity(self) -> dict[str, Any]:
        return identity.facts(self.config, self.task)

    def summary(self, reason: Reason, step: int, session: int, **facts: Any) -> Summary:
        name = self.config.run.name
        steps = self.config.training.max_steps
        return Summary(name, self.config.task, reason, step, steps, session, **facts)

    @property
    def predicted(self) -> "Option | None":
        """The prediction for the run as it is configured, where there is a plan."""
        if not self.plan:
            return None
        setting = self.config.training.gradient_checkpointing
        if setting == "all":
            layers = self.plan.layers
        else:
            layers = min(setting, self.plan.layers)
        return self.plan.option_of(self.config.training.micro_batch, layers)


@ranks.together()
def prepare(config: Config) -> Run:
    """Applies profile and plan, checks the data, resolves lengths; writes nothing. Raises BadInput."""
    run = _prepared(config)
    # a rank trains the run that its launcher chose, and a named earlier output holds one run
    if config.run.on_change == "stop" or config.run.resume_from or is_watched():
        return run
    name, differs = ranks.from_first(find_earlier(run) if ranks.is_first() else ("", ""))
    if name == config.run.name:
        return run
    run = _prepared(with_changes(config, {"run.name": name}))
    line = f"{config.run.name} is a run of another configuration ({differs}). This one is the run {name}."
    return dataclasses.replace(run, lengths=[line, *run.lengths], base_name=config.run.name)


def has_queue(path: Path, config: Config) -> bool:
    """Returns whether a configuration has a queue of runs; a run's own config.yaml names that run alone."""
    queue = config.queue
    is_of_a_run = path.name == "config.yaml" and path.absolute().parent.name == config.run.name
    if is_of_a_run:
        return False
    return any([queue.folds, queue.seeds, queue.grid, queue.before, queue.start_from])


def made_names(config: Config) -> list[str]:
    """Lists the run of a name and its edits NAME-2, NAME-3 ... that are here or mounted, in order."""
    first = config.run.name
    names: set[str] = set()
    for folder in {folder.parent for folder in run_folders(config)}:
        summary = Summary.read(folder)
        if summary:  # a mount that is a run itself
            names.add(summary.run)
        if folder.is_dir():
            names |= {path.name for path in folder.iterdir() if path.is_dir()}
    edit = re.compile(rf"{re.escape(first)}-([1-9]\d*)")
    numbers = [int(match[1]) for match in map(edit.fullmatch, names) if match]
    return [first, *(f"{first}-{number}" for number in sorted(numbers) if number > 1)]


def find_earlier(run: Run) -> tuple[str, str]:
    """Returns the name of the earlier run of this configuration, or the first free name.

    The second value names what differs from the first run that is another one's.
    """
    first = run.config.run.name
    now = run.identity
    differs = ""
    taken = set()
    for name in made_names(run.config):
        earlier = _saved(with_changes(run.config, {"run.name": name}))
        if earlier is None:
            continue
        taken.add(name)
        accepted = accepted_changes(run.config.run.accept_changes, earlier.folder)
        different, is_other = identity.compare(earlier.facts, now, earlier.is_done, accepted)
        if not is_other:
            return name, differs
        differs = differs or identity.in_a_line(different)
    if first not in taken:
        return first, differs
    number = 2
    while f"{first}-{number}" in taken:
        number += 1
    return f"{first}-{number}", differs


@dataclasses.dataclass(frozen=True)
class _Saved:
    """An earlier run: its folder, its identity, and whether it is done."""

    folder: Path
    facts: dict[str, Any]
    is_done: bool


def _saved(config: Config) -> _Saved | None:
    """Returns the first run of this name whose folder tells its identity."""
    for place in run_folders(config):
        summary = Summary.read(place)
        is_done = summary is not None and summary.is_done(config.training)
        facts = summary.identity if summary and is_done else {}
        facts = facts or saved_facts("identity", place)
        if facts:
            return _Saved(place, facts, is_done)
    return None


def accepted_changes(is_accepted: bool, folder: Path) -> str | None:
    """Returns the prefix of the keys that may differ; after an error in the task's code, that code was corrected."""
    if is_accepted:
        return ""
    summary = Summary.read(folder)
    if summary and (summary.missing or summary.reason == "failed"):
        return "code of the task"
    return None


def _prepared(config: Config) -> Run:
    ranks.start()
    places = run_folders(config) if ranks.is_first() else []
    config, changes = as_run(config, places)
    count = processes(config)  # slots that the processes do not divide are refused here
    # A precision that the device lacks is refused before the data takes its time
    precision = choose_precision(config.training.precision, memory.device())
    config, plan, planned = apply_plan(config, max(count, ranks.world()))
    task = load_task(config)
    values = ranks.from_first(_learned_before(places))
    _check_shared(values)
    try:
        if values:
            task.take_learned(values)
        task, config, lengths = resolved(config, task)
    except BadInput:  # of other settings or data, which are named where runs are compared
        if not values:
            raise
        task, config, lengths = resolved(config)
    config, kept = _in_fp32(config, task, precision, places)
    about = about_precision(precision, memory.device())
    lines = [*changes, *about, *planned, *lengths, *kept]
    folder = platform.output_dir(config.output_dir) / config.run.name
    return Run(config, task, folder, places, lines, plan)


def _learned_before(places: Sequence[Path]) -> dict[str, Any]:
    """Returns what the task learned when the run began that resumes now."""
    for place in places:
        values = learned.restored(saved_facts("learned", place), place)
        if values:
            return values
    return {}


def _check_shared(values: Mapping[str, Any]) -> None:
    """Raises BadInput if a machine of this run does not see a learned file."""
    for path in values.values():
        if isinstance(path, Path) and not path.is_file():
            raise BadInput(
                f"{path} is not seen by all machines of this run. Give an output_dir that they share."
            )


def processes(config: Config) -> int:
    """Returns how many processes train a configuration; 1 where this one does. Raises BadInput."""
    slots = config.training.micro_batch_slots
    configured = config.device.processes
    cards = torch.cuda.device_count()
    is_rank = ranks.under_torchrun() or ranks.world() > 1
    if is_rank:
        count = ranks.world()
    else:
        count = configured or cards or 1
        ranks.check_count(count)
    if slots % count == 0:
        return 1 if is_rank else count
    next_multiple = -(-slots // count) * count
    problem = (
        f"training.micro_batch_slots is {slots}, which cannot be dealt to {count} processes in equal numbers. "
        f"Set it to {next_multiple} in a new run; a run keeps its slots."
    )
    if is_rank or configured:
        raise BadInput(problem)
    fitting = max(number for number in range(1, count) if slots % number == 0)
    print(f"{problem} Until then {fitting} of {count} GPUs are used.")
    return fitting


def is_watched() -> bool:
    """Returns whether `train` started this rank, so that the launching process shows its output."""
    return environment.RANK_FOLDER in os.environ


def as_run(config: Config, places: Sequence[Path] = ()) -> tuple[Config, list[str]]:
    """Applies the profile, and without configured slots those of a run in `places`, else one a card."""
    config, changes = profiles.apply(config, memory.device().type != "cpu")
    if not config.training.micro_batch_slots:
        slots = saved_facts("identity", *places).get("training.micro_batch_slots", 0)
        changed = {}
        if type(slots) is int and slots > 0 and config.training.effective_batch % slots == 0:
            changed = {"training.micro_batch_slots": slots}
        config = with_changes(config, ranks.from_first(changed))
        cards = config.device.processes or torch.cuda.device_count()
        world = ranks.world()
        config = with_slots(config, world if world > 1 else cards)
    return config, changes


def resolved(config: Config, task: Task | None = None) -> tuple[Task, Config, list[str]]:
    """Checks the data; returns the task, the configuration in steps, a line for each length. Raises BadInput."""
    task = task or load_task(config)
    with working("Reading the data"):
        whole = checked_datasets(task)["train"]
        train_set = data.subset(whole, config.data.subset_ratio, config.seed)
    config, lengths = resolve_lengths(config, Order.of(train_set, config).samples)
    task.config = config  # lengths of its own, the ramp of a loss say, are in steps now
    return task, config, lengths


def _in_fp32(
    config: Config, task: Task, precision: str, places: Sequence[Path]
) -> tuple[Config, list[str]]:
    """Replaces `auto` in training.fp32_modules by what the run began with, else by what fp16 does not hold."""
    if AUTO not in config.training.fp32_modules:
        return config, []
    facts = ranks.from_first(saved_facts("identity", *places))
    modules = facts.get("training.fp32_modules", [])
    if not facts or not untrusted.fits(modules, list[str]):
        modules = []
        if precision == "fp16":
            from lib.planner import fp16

            with working("Looking for what fp16 does not hold"):
                cpu = torch.device("cpu")  # the ranks need the GPU's memory
                modules = ranks.from_first([*fp16.examine_fp16(task, config, cpu).modules])
    config = with_changes(config, {"training.fp32_modules": tuple(modules)})
    task.config = config
    if not modules:
        return config, []
    return config, [f"In fp32 (training.fp32_modules): {', '.join(modules)}."]


def apply_plan(config: Config, count: int) -> tuple[Config, "Plan | None", list[str]]:
    """Plans for `count` of this machine's GPUs; returns configuration, plan, lines. Raises BadInput."""
    if not torch.cuda.is_available() or is_watched():  # a rank's launcher has planned
        return config, None, []
    from lib.planner import process  # only a run with a GPU needs the planner
    from lib.planner.card import card_of_gpu

    try:
        plan = process.plan(config, card_of_gpu(0), count)
    except (NotTraceable, TrainingFailed) as error:
        if isinstance(error, TrainingFailed) and not platform.in_notebook():
            raise
        reason = str(error).splitlines()[-1]
        line = f"{reason} Nothing is planned: slots are halved if memory runs out."
        return config, None, [line]
    if config.training.micro_batch:
        return config, plan, []
    peak = plan.chosen.prediction.peak_bytes / GIB
    usable = plan.usable_bytes / GIB
    planned = [
        f"Planned: {key} = {value} (predicted peak {peak:.2f} of {usable:.2f} GiB)."
        for key, value in plan.overrides.items()
    ]
    return with_changes(config, plan.overrides), plan, planned


def progress(run: Run) -> Progress:
    """Returns the form in which this process shows a run, with the baseline if it is known already."""
    earlier = Summary.read(run.folder)
    baseline = known_baseline(run.task) or (earlier.baseline if earlier else {})
    table = run.folder / METRICS
    metrics = [name for name in run.task.shown if name != "loss"]
    return choose_progress(partial(figure.curves, table, run.config.run.name, baseline, metrics))


def keep_code(run: Path, config: Config) -> Config:
    """Copies the files of a task and of its settings into its run; returns the configuration with their paths."""
    if (file := file_of(config.task)) is None:
        return config
    own = own_files(file)
    folder = run / CODE
    contents = {folder / path.relative_to(own.folder): path.read_bytes() for path in own.files}
    for old in (path for path in folder.rglob("*") if path.is_file() and path not in contents):
        old.unlink()
    places = {}
    for key, original in named_files(config).items():
        place = Path("named") / key / original.name
        places[key] = place.as_posix()
        contents[run / place] = original.read_bytes()
    for path, content in contents.items():
        if not (path.is_file() and path.read_bytes() == content):
            disk.make_folders(path.parent)
            with disk.whole(path) as aside:
                aside.write_bytes(content)
    return with_changes(config, {**places, "task": f"{CODE}/{label(config.task)}"})
