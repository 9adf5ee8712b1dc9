"""The state of a run: what a checkpoint holds, how it is put together and put back."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, private, ranks
from lib.checkpoint import weights
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.errors import TrainingFailed
from lib.machine import inputs, memory, platform
from lib.report.metrics import EventLog
from lib.task import Task
from lib.task.contract import checked_blocks
from lib.training import identity, optimization
from lib.training.optimization import Ema, Group, Stopping
from lib.training.order import INITIALISE, mix, seed_all
from lib.training.precision import Precision, allow_tf32, choose_precision, keep_in_fp32, set_types
from lib.training.recomputation import recompute


@dataclass
class State:
    """What a checkpoint holds, and nothing that follows from the configuration and the step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    precision: Precision
    micro_batch: int
    stopping: Stopping
    step: int = 0
    kept_best: list[dict[str, Any]] = field(
        default_factory=list
    )  # {"metric", "step", "value"}, the best one first
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    pending: dict[str, Any] = field(
        default_factory=dict
    )  # losses of the row that is not yet written
    rows: int = 0  # of metrics.csv up to this step
    validation_due: bool = False  # of this step: a signal stopped it
    ema: Ema | None = None
    plateau: optimization.Plateau | None = None
    left_out: dict[str, str] = field(
        default_factory=dict
    )  # published frozen weights, in no checkpoint, with seals
    unsaved: str = ""  # one hash of the buffers that no checkpoint has
    # Of this session alone, in no checkpoint:
    evaluation_batch: int = (
        0  # samples on the device with which an evaluation did fit; 0: as configured
    )
    groups: list[Group] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)  # in the step at hand
    events: EventLog = field(default_factory=EventLog)
    marred: set[int] = field(default_factory=set)  # training samples with NaN that were named
    # Computed once, because a walk over a large model takes milliseconds:
    parameters: list[nn.Parameter] = field(init=False)
    with_buffers: list[nn.Module] = field(init=False)
    trained: dict[str, str] = field(init=False)  # type and shape by name

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.trained = weights.trained(self.model)
        self.with_buffers = [
            module for module in self.model.modules() if [*module.buffers(recurse=False)]
        ]

    def averaged(self) -> AbstractContextManager[None]:
        """Gives the model its averaged weights inside the block, where there is an average."""
        if self.ema:
            return self.ema.applied()
        return nullcontext()

    @property
    def best(self) -> dict[str, Any]:
        if self.kept_best:
            return self.kept_best[0]
        return {}  # before the first validation


def first_state(
    task: Task,
    config: Config,
    saved: checkpoint.Checkpoint | None,
    note: Callable[[str], None],
    most: int = 0,
) -> State:
    """Returns the state that a session starts from: of the first rank's `saved`, of another run's weights, or fresh."""
    saved = checkpoint_from_first(saved)
    task.published = saved.state.get("published", {}) if saved else {}
    state = new_state(task, config)
    state.micro_batch = min(state.micro_batch, most or state.micro_batch)
    if saved:
        restore_state(state, saved, note)
    else:
        if config.run.initial_weights:
            note(start_from(state, task, config))
        _seal_frozen(state, task, config)
    state.unsaved, names = weights.unsaved(state.model)
    if saved and saved.state.get("unsaved", state.unsaved) != state.unsaved:
        what = f"its buffers with persistent=False ({', '.join(names)}) are not those of the checkpoint"
        advice = "If model() reads them from a file, put the file of before in its place."
        note(f"The run resumes, but not bit for bit: {what}. {advice}")
    if ended := state.stopping.early(state.step, config.training.max_steps):
        note(ended["text"])
    if ranks.world() > 1:
        note(f"Training on {ranks.world()} ranks.")
    return state


def checkpoint_from_first(saved: checkpoint.Checkpoint | None) -> checkpoint.Checkpoint | None:
    """Returns the first rank's checkpoint on every rank: the others need not see its folder."""
    about = ranks.from_first((saved.path, saved.step, saved.state) if saved else None)
    tensors = ranks.tensors_from_first(saved.tensors if saved else None)
    if about is None or tensors is None:
        return None
    return checkpoint.Checkpoint(
        *about[:2], {group: {**named} for group, named in tensors.items()}, about[2]
    )


def new_state(
    task: Task,
    config: Config,
    device: torch.device | None = None,
    precision: Precision | None = None,
) -> State:
    """Returns model, optimizer and scaler at step 0, drawn from the seed, by default for this machine."""
    training = config.training
    device = device or memory.device()
    precision = precision or choose_precision(training.precision, device)
    torch.manual_seed(mix(INITIALISE, config.seed))
    seed_all(
        mix(INITIALISE, config.seed), torch.device("cpu")
    )  # what model() draws from NumPy and random, too
    allow_tf32(precision, device)
    model = (
        task.model().train()
    )  # all of it: a base that was loaded in evaluation mode may lie in a fresh wrapper
    if ranks.world() > 1 and not any(value.is_meta for value in model.parameters()):
        # The same weights on all ranks, also where a task draws them in a way that the seed does not reach.
        mine = {"model": weights.of(model)}
        weights.put_back(model, (ranks.tensors_from_first(mine) or mine)["model"])
    blocks = checked_blocks(task, model)
    set_types(model, config, precision)
    keep_in_fp32(model, training.fp32_modules, device)
    model.to(device)
    recompute(model, training.gradient_checkpointing, blocks)
    if training.compile and device.type != "meta":
        model.compile()
    scaler = torch.amp.GradScaler(
        device.type, enabled=precision == "fp16" and device.type != "meta"
    )
    parts = optimization.groups_of(task, model)
    optimizer = optimization.build(parts, config)
    stopping = Stopping(training.stop_after_evaluations, *task.selection)
    state = State(
        model,
        optimizer,
        scaler,
        device,
        precision,
        training.largest_micro_batch,
        stopping,
        groups=parts,
    )
    if config.scheduler.name == "plateau":
        state.plateau = optimization.Plateau(config, task.selection[1])
    if training.ema_decay:
        state.ema = Ema(model, training.ema_decay)
    return state


def start_from(state: State, task: Task, config: Config) -> str:
    """Starts a new run from another one's weights, read by the first rank; returns how many match. Raises BadInput."""
    name = config.run.initial_weights
    source = None
    with ranks.together():
        if ranks.is_first():
            source = weights.read(inputs.find_input(name, platform.detect()))
    source = checkpoint_from_first(source)
    assert source
    named = weights.with_own(state.model, source)
    taken = task.published.get(name, {})  # by `Task.pretrained`
    task.published = {
        **task.published,
        name: {**taken, "weights_sha256": weights.seal_of_all(named)},
    }
    adapted = {weights.plain(name): value for name, value in named.items()}
    how = ""
    if hasattr(task, "adapt"):
        adapted, how = task.adapt(adapted, state.model)
    matched = weights.transfer(state.model, adapted, config.run.initial_weights_share)
    if state.ema:
        state.ema = Ema(state.model, config.training.ema_decay)
    return f"{matched} {how}".strip()


def _seal_frozen(state: State, task: Task, config: Config) -> None:
    """Notes the hashes of frozen weights that are in a published file. All ranks must call this."""
    options = config.checkpoint
    parameters = weights.frozen(state.model)
    if options.frozen == "save" or not parameters or not (options.keep_last or options.keep_best):
        return
    if ranks.is_first():
        from lib.machine import published

        seals = {name: weights.seal(value) for name, value in parameters.items()}
        kinds = {text.partition(" ")[0] for text in seals.values()}  # of number
        sources = [
            published.located(n, download=False)
            for n, taken in task.published.items()
            if "config" in taken
        ]
        tensors = [
            value for place in sources if place for value in published.read(place[1]).values()
        ]
        in_files = {weights.seal(value, kind) for value in tensors for kind in kinds}
        packed = {
            n for n, value in parameters.items() if sources and hasattr(value, "is_packed")
        }  # made of these
        state.left_out = {
            name: text for name, text in seals.items() if text in in_files or name in packed
        }
    state.left_out = ranks.from_first(state.left_out)


def prepare_saving(state: State, config: Config, saver: Saver) -> None:
    """Allocates the saver's copies while training runs, as soon as the optimizer has its tensors."""
    if config.checkpoint.keep_last and ranks.is_first():
        tensors = state_tensors(state, config.checkpoint.lightweight)
        saver.prepare("checkpoints", tensors)
        saver.prepare("best", {"model": tensors["model"]} if config.checkpoint.keep_best else {})


def save_state(state: State, task: Task, config: Config, saver: Saver) -> None:
    """Saves everything in the background. Raises TrainingFailed where the weights are no longer finite."""
    if not config.checkpoint.keep_last:
        return
    largest = private.norms_of(
        [p.detach() for p in state.parameters if p.requires_grad and p.numel()], math.inf
    )
    if ranks.anywhere(bool(largest) and not bool(torch.stack(largest).isfinite().all())):
        advice = "the checkpoint before is kept. Lower optimizer.lr, or train in fp32, and run again from that."
        raise TrainingFailed(f"The weights are no longer finite at step {state.step}, so {advice}")
    state.events.flush()
    names = (
        "kept_best",
        "skipped_steps",
        "skipped_in_a_row",
        "pending",
        "rows",
        "micro_batch",
        "trained",
        "unsaved",
    )
    facts = {
        **({"stopping": state.stopping.facts()} if state.stopping.after else {}),
        **({"validation_due": True} if state.validation_due else {}),
        **{name: getattr(state, name) for name in names},
        "identity": identity.facts(config, task), "scaler": state.scaler.state_dict(),
        "plateau": state.plateau.facts() if state.plateau else None,
        "learned": task.saved_values, "frozen": state.left_out, "published": task.published,
    }  # fmt: skip
    keep = partial(
        saver.retention.after_checkpoint, state.step, [best["step"] for best in state.kept_best]
    )
    if ranks.is_first():
        saver.save(
            "checkpoints",
            state.step,
            state_tensors(state, config.checkpoint.lightweight),
            facts,
            keep,
        )


def _saved_weights(state: State) -> dict[str, Tensor]:
    return {
        name: value for name, value in weights.of(state.model).items() if name not in state.left_out
    }


def observe(state: State, task: Task, config: Config, scores: Mapping[str, float]) -> None:
    """Hands a validation's selection metric to what may stop the run and to the plateau scheduler."""
    metric = task.selection[0]
    state.stopping.observe(scores[metric], state.step)
    if ended := state.stopping.early(state.step, config.training.max_steps):
        state.events.record(
            state.step, "stopped_early", config.training.max_steps, state.step, ended["text"]
        )
    if state.plateau:
        before = state.plateau.lr
        if state.plateau.observe(scores[metric]):
            lr = state.plateau.lr
            waited = config.scheduler.patience + 1
            text = f"{metric} has not improved for {waited} validations; the learning rate goes from {before:.3g}"
            state.events.record(
                state.step, "plateau", before, lr, f"Step {state.step:,}: {text} to {lr:.3g}."
            )


def save_best(
    state: State, config: Config, saver: Saver, task: Task, scores: Mapping[str, float]
) -> None:
    """Saves weights with one of the best metrics. What they push out is deleted after the next checkpoint."""
    name, direction = task.selection
    if not math.isfinite(scores[name]):
        return
    new = {
        "metric": name,
        "step": state.step,
        "value": scores[name],
    }  # in the order in which state.json has them
    others = [best for best in state.kept_best if best["metric"] == name]
    sign = -1 if direction == "max" else 1
    ranked = sorted([*others, new], key=lambda best: sign * best["value"])[
        : config.checkpoint.keep_best
    ]
    if new in ranked:
        state.kept_best = ranked
        keep = partial(saver.retention.keep_best, [best["step"] for best in ranked])
        then = None if config.checkpoint.keep_last else keep
        if ranks.is_first():
            facts = {
                "frozen": state.left_out,
                "published": task.published,
                "learned": task.saved_values,
            }
            with state.averaged():
                saver.save(
                    "best",
                    state.step,
                    {"model": _saved_weights(state)},
                    {"best": new, **facts},
                    then,
                )


def restore_state(
    state: State, saved: checkpoint.Checkpoint, note: Callable[[str], None] = lambda sentence: None
) -> None:
    """Restores model, optimizer, scaler and counters from `saved`. Raises BadInput where they do not fit."""
    facts = saved.state
    weights.restore(state.model, saved)
    state.left_out = facts.get("frozen", {})
    if state.ema:
        state.ema.load(saved.tensors.get("ema", saved.tensors["model"]))
    _restore_optimizer(
        state, saved.tensors.get("optimizer", {}), note
    )  # none in a lightweight checkpoint
    if state.scaler.is_enabled() and facts["scaler"]:
        state.scaler.load_state_dict(facts["scaler"])
    state.step, state.rows = (
        saved.step,
        facts.get("rows", 0),
    )  # none in a checkpoint of an earlier version
    state.validation_due = facts.get("validation_due", False)
    for name in ("kept_best", "pending", "skipped_steps", "skipped_in_a_row"):
        setattr(state, name, facts[name])
    state.micro_batch = min(state.micro_batch, facts["micro_batch"])
    if state.plateau and facts.get("plateau"):  # a run that began with another schedule has none
        state.plateau.load(facts["plateau"])
    best = state.best or {"value": None, "step": 0}
    counted = {
        "best": best["value"],
        "best_step": best["step"],
        "waited": 0,
    }  # of a run that began without a stop
    for name in counted:
        setattr(state.stopping, name, facts.get("stopping", counted)[name])


def _restore_optimizer(
    state: State, tensors: Mapping[str, Tensor], note: Callable[[str], None]
) -> None:
    """Puts back what the optimizer keeps of each parameter; what another optimizer kept is of no use to this one."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        by_name.setdefault(name, {})[kind] = value
    names = {parameter: name for name, parameter in state.model.named_parameters()}
    unused = 0
    for parameter, group in {
        p: each for each in state.optimizer.param_groups for p in each["params"]
    }.items():
        values = by_name.get(names[parameter], {})
        own = {"step": optimization.step_device(group, parameter)}
        if is_same := values.keys() == {*optimization.state_names(state.optimizer, group)}:
            # Copied, because what was loaded is mapped from a file, whose space would not be free while it is used.
            moved = {
                kind: value.to(own.get(kind, state.device), copy=True)
                for kind, value in values.items()
            }
            state.optimizer.state[parameter] = moved
        unused += bool(values) and not is_same
    if unused:
        note(
            f"The checkpoint is of another optimizer, which begins anew for {unused} of {len(by_name)} parameters."
        )


def state_tensors(state: State, lightweight: bool) -> dict[str, dict[str, Tensor]]:
    """Returns a checkpoint's tensors by group; the optimizer's as "exp_avg/NAME"."""
    tensors = {"model": _saved_weights(state)}
    if not lightweight:
        tensors["optimizer"] = {
            f"{kind}/{name}": value
            for name, parameter in state.model.named_parameters()
            for kind, value in state.optimizer.state.get(parameter, {}).items()
        }
    if state.ema:
        tensors["ema"] = state.ema.average
    return tensors


def saved_bytes(task: Task, config: Config) -> tuple[int, int]:
    """Returns the bytes of a checkpoint and of best weights, on `meta`, without frozen ones that are left out."""
    make = partial(new_state, task, config, torch.device("meta"), "fp32")
    try:
        with torch.device("meta"):
            state = make()
    except Exception:  # a model that reads its own numbers while it is built needs real ones
        state = make()
    if config.checkpoint.frozen != "save" and any(
        "config" in taken for taken in task.published.values()
    ):
        state.left_out = dict.fromkeys(weights.frozen(state.model), "")
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimization.make_moments(state.optimizer)
    tensors = state_tensors(state, config.checkpoint.lightweight)
    sizes = {
        group: sum(value.nbytes for value in named.values()) for group, named in tensors.items()
    }
    return sum(sizes.values()), sizes["model"]
