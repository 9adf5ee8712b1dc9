"""A configuration with its data: planned for the card, its lengths in steps. Nothing is written."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lib import checkpoint, ranks, untrusted
from lib.config import Config, profiles, resolve_lengths, with_changes
from lib.errors import BadInput
from lib.machine import memory, platform
from lib.machine.inputs import run_folders, saved_facts
from lib.report.progress import working
from lib.task import Task, load_task, with_slots
from lib.task.contract import checked_datasets
from lib.training import data, identity, learned
from lib.training.order import Order
from lib.training.precision import AUTO, about_precision, choose_precision

if TYPE_CHECKING:
    from lib.planner.search import Option, Plan


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

    def processes(self) -> int:
        """Returns how many processes train it; 1 where this one does. Raises BadInput."""
        config = self.config
        return ranks.processes(config.training.micro_batch_slots, config.device.processes)

    @property
    def identity(self) -> dict[str, Any]:
        return identity.facts(self.config, self.task)

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
    """Applies profile and plan, checks the data, resolves lengths. All ranks call it. Raises BadInput."""
    ranks.start()
    places = []
    if ranks.is_first():
        places = run_folders(config.run.name, config.output_dir, config.run.resume_from)
    begun = saved_facts("identity", *places)
    facts = begun
    if ranks.is_first() and config.run.finishes:
        places += run_folders(config.run.finishes, config.output_dir)
        facts = begun or saved_facts("identity", *places)
    reached = max((checkpoint.newest_step(place / "checkpoints") for place in places), default=0)
    saved, begun, reached = ranks.from_first((facts, begun, reached))
    config, changes = as_run(config, saved)
    # slots that the processes do not divide are refused here
    count = ranks.processes(config.training.micro_batch_slots, config.device.processes)
    # A precision that the device lacks is refused before the data takes its time
    precision = choose_precision(config.training.precision, memory.device())
    about = about_precision(precision, memory.device())
    plan, planned = None, list[str]()
    if torch.cuda.is_available() and not ranks.is_watched():  # a rank's launcher has planned
        from lib.planner import process  # only a run with a GPU needs the planner

        config, plan, planned = process.planned_here(config, max(count, ranks.world()))
    task = load_task(config)
    values = learned.before(places)
    try:
        if values:
            task.take_learned(values)
        task, config, lengths = in_steps(config, task)
    except BadInput:  # of other settings or data, which are named where runs are compared
        if not values:
            raise
        task, config, lengths = in_steps(config)
    config, end = finishing(config, begun, reached)
    task.config = config
    kept = []
    if AUTO in config.training.fp32_modules:
        modules = _fp32_modules(config, task, precision, saved)
        config = with_changes(config, {"training.fp32_modules": tuple(modules)})
        task.config = config
        if modules:
            kept = [f"In fp32 (training.fp32_modules): {', '.join(modules)}."]
    lines = [*changes, *about, *planned, *lengths, *end, *kept]
    folder = platform.output_dir(config.output_dir) / config.run.name
    return Run(config, task, folder, places, lines, plan)


def as_run(config: Config, saved: dict[str, Any]) -> tuple[Config, list[str]]:
    """Applies the profile, and without configured slots those of the `saved` identity, else one a card."""
    config, changes = profiles.apply(config, memory.device().type != "cpu")
    if config.training.micro_batch_slots:
        return config, changes
    slots = saved.get("training.micro_batch_slots", 0)
    if type(slots) is int and slots > 0 and config.training.effective_batch % slots == 0:
        return with_changes(config, {"training.micro_batch_slots": slots}), changes
    cards = config.device.processes or torch.cuda.device_count()
    world = ranks.world()
    return with_slots(config, world if world > 1 else cards), changes


def finishing(config: Config, begun: dict[str, Any], reached: int) -> tuple[Config, list[str]]:
    """Gives a run that ends another one its length and its decay; returns a line about them. Raises BadInput.

    By default the decay is a fifth of all steps, as in Haegele et al. (2024), figure 6. `begun` is the identity of the
    run itself: once it has a checkpoint, both stay as they are. `reached` is the newest step of the other.
    """
    name = config.run.finishes
    if not name:
        return config, []
    length = begun.get("training.max_steps")
    decay = begun.get("scheduler.decay_steps")
    if not isinstance(length, int) or not isinstance(decay, int):
        decay = config.scheduler.decay_steps or max(1, reached // 4)
        if not reached:
            raise BadInput(
                f"run.finishes is {name}, which has no checkpoint here. Train that run first, or mount its output."
            )
        length = reached + decay
    line = (
        f"This run ends {name} at step {length:,}: from step {length - decay:,} on the learning rate falls. "
        f"{name} itself stays as it is, and can go on."
    )
    changes = {"training.max_steps": length, "scheduler.decay_steps": decay}
    return with_changes(config, changes), [line]


def in_steps(config: Config, task: Task | None = None) -> tuple[Task, Config, list[str]]:
    """Checks the data; returns the task, the configuration in steps, a line for each length. Raises BadInput."""
    task = task or load_task(config)
    with working("Reading the data"):
        whole = checked_datasets(task)["train"]
        train_set = data.subset(whole, config.data.subset_ratio, config.seed)
    config, lengths = resolve_lengths(config, Order.of(train_set, config).samples)
    task.config = config  # lengths of its own, the ramp of a loss say, are in steps now
    return task, config, lengths


def _fp32_modules(
    config: Config, task: Task, precision: str, saved: dict[str, Any]
) -> Sequence[str]:
    """Returns the modules of the `saved` identity, else those that fp16 does not hold."""
    modules = saved.get("training.fp32_modules", [])
    if saved and untrusted.fits(modules, list[str]):
        return modules
    if precision != "fp16":
        return []
    from lib.planner import fp16

    with working("Looking for what fp16 does not hold"):
        cpu = torch.device("cpu")  # the ranks need the GPU's memory
        return ranks.from_first([*fp16.examine_fp16(task, config, cpu).modules])
