"""The state of a run: what a checkpoint holds, how it is put together and put back."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, ranks
from lib.checkpoint import frozen, weights
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.config.batches import micro_batch_of
from lib.errors import TrainingFailed
from lib.machine import inputs, memory, platform
from lib.ranks import sharding
from lib.ranks.sums import about_norms
from lib.report.metrics import EventLog
from lib.task import Task, checked_blocks
from lib.training import frozen as freezing
from lib.training import groups, identity, optimization
from lib.training.draws import seed_all
from lib.training.groups import FirstGradients, Group
from lib.training.optimization import Ema, Stopping
from lib.training.order import INITIALISE, mix
from lib.training.precision import Precision, allow_tf32, choose_precision
from lib.training.recomputation import about_recomputed, recompute


@dataclass
class State:
    """What a checkpoint holds, and nothing that follows from the configuration and the step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    precision: Precision
    micro_batch: int
    sharded: bool = False  # among the ranks, by FSDP2
    step: int = 0
    kept_best: list[dict[str, Any]] = field(default_factory=list)  # {"metric", "step", "value"}, the best one first
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    pending: dict[str, Any] = field(default_factory=dict)  # losses of the row that is not yet written
    rows: int = 0  # of metrics.csv up to this step
    ema: Ema | None = None
    plateau: optimization.Plateau | None = None
    stopping: Stopping | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # frozen weights that are in no checkpoint, with their seals
    once: frozenset[str] = frozenset()  # of these, what is yet to be written into the run's folder
    unsaved: str = ""  # one hash of the buffers that no checkpoint has
    # Of this session alone, in no checkpoint:
    notes: tuple[str, ...] = ()  # what is to be said of number formats and recomputed layers
    evaluation_batch: int = 0  # samples on the device with which an evaluation did fit; 0: as configured
    groups: list[Group] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)  # in the step at hand
    gradients: FirstGradients = field(default_factory=FirstGradients)
    events: EventLog = field(default_factory=EventLog)
    resumed_from: Path | None = None
    # Found once, because a walk over a large model takes milliseconds:
    parameters: list[nn.Parameter] = field(init=False)
    with_buffers: list[nn.Module] = field(init=False)
    trained: dict[str, str] = field(init=False)  # type and shape by name

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.trained = frozen.trained(self.model)
        self.with_buffers = [module for module in self.model.modules() if module._buffers]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Gives the model its averaged weights inside the block, where there is an average."""
        alone = sharding.gathered_alone(self.model) if self.sharded else nullcontext()
        with alone, self.ema.applied() if self.ema else nullcontext():
            yield

    @property
    def has_stopped(self) -> bool:
        """Whether so many validations in a row were no better that the run is completed."""
        return self.stopping is not None and self.stopping.is_over

    def stopped_early(self, max_steps: int) -> dict[str, Any]:
        """Returns what the summary says of a run that was completed before its last step; else nothing."""
        if not (self.stopping and self.has_stopped and self.step < max_steps):
            return {}
        return {"evaluations": self.stopping.waited, "text": self.stopping.sentence(self.step, max_steps)}

    @property
    def best(self) -> dict[str, Any]:
        """{"metric", "step", "value"} of the best validation so far; empty before the first."""
        return self.kept_best[0] if self.kept_best else {}


def first_state(
    task: Task, config: Config, saved: checkpoint.Checkpoint | None, note: Callable[[str], None], most: int = 0
) -> State:
    """Returns the state that a session starts from: of `saved`, of another run's weights, or freshly initialised.

    Only the first rank's `saved` counts; the others need not see its folder. A micro-batch has at most `most` samples,
    unless that is 0. Raises BadInput where `saved` does not fit.
    """
    saved = checkpoint_from_first(frozen.completed(saved))
    task.published = saved.state.get("published", {}) if saved else {}
    state = new_state(task, config)
    state.unsaved = freezing.unsaved(state.model, saved, note)
    for text in state.notes:
        note(text)
    state.micro_batch = min(state.micro_batch, most or state.micro_batch)
    if saved:
        restore_state(state, saved, note)
    else:
        if config.run.initial_weights:
            note(start_from(state, task, config))
        state.left_out, state.once = freezing.seals(state.model, task, config)
    if ended := state.stopped_early(config.training.max_steps):
        note(ended["text"])
    if ranks.world() > 1:
        note(f"Training on {ranks.world()} ranks. {about_norms(state.with_buffers)}")
    return state


def checkpoint_from_first(saved: checkpoint.Checkpoint | None) -> checkpoint.Checkpoint | None:
    """Returns the first rank's checkpoint on every rank: the others need not see its folder."""
    about = ranks.from_first((saved.path, saved.step, saved.state) if saved else None)
    tensors = ranks.tensors_from_first(saved.tensors if saved else None)
    if about is None or tensors is None:
        return None
    path, step, facts = about
    return checkpoint.Checkpoint(path, step, {group: {**named} for group, named in tensors.items()}, facts)


def new_state(
    task: Task, config: Config, device: torch.device | None = None, precision: Precision | None = None
) -> State:
    """Returns model, optimizer and scaler at step 0, initialised from the configuration's seed.

    Device and precision are those of this machine, unless the planner gives others.
    """
    device = device or memory.device()
    precision = precision or choose_precision(config.training.precision, device)
    torch.manual_seed(mix(INITIALISE, config.seed))
    seed_all(mix(INITIALISE, config.seed), torch.device("cpu"))  # what model() draws from NumPy and random, too
    allow_tf32(precision, device)
    model = task.model().train()  # all of it: a base that was loaded in evaluation mode may lie in a fresh wrapper
    if ranks.world() > 1 and not any(value.is_meta for value in model.parameters()):
        # The same weights on all ranks, also where a task draws them in a way that the seed does not reach.
        mine = {"model": weights.of(model)}
        weights.put_back(model, (ranks.tensors_from_first(mine) or mine)["model"])
    blocks = checked_blocks(task, model)
    about_types = freezing.set_types(model, config, precision)
    sharded = config.training.fully_shard and ranks.world() > 1
    if sharded:
        sharding.shard(model, device, blocks)
    model.to(device)
    asked = config.training.gradient_checkpointing
    notes = about_types, about_recomputed(asked, recompute(model, asked, blocks))
    if config.training.compile and device.type != "meta":
        model.compile()
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16" and device.type != "meta")
    own = groups.groups_of(task, model)
    optimizer = optimization.build(own, config)
    state = State(model, optimizer, scaler, device, precision, micro_batch_of(config.training), sharded, groups=own)
    state.notes = tuple(filter(None, notes))
    if config.scheduler.name == "plateau":
        state.plateau = optimization.Plateau(config, task.selection[1])
    if config.training.stop_after_evaluations:
        state.stopping = Stopping(config.training.stop_after_evaluations, *task.selection)
    if config.training.ema_decay:
        state.ema = Ema(model, config.training.ema_decay)
    return state


def start_from(state: State, task: Task, config: Config) -> str:
    """Starts a new run from the weights of another one; returns a sentence on how many tensors match.

    Only the first rank reads them. Raises BadInput.
    """
    name, read = config.run.initial_weights, None
    with ranks.together():
        if ranks.is_first():
            read = frozen.source(inputs.find_input(name, platform.detect()))
    found = checkpoint_from_first(read)
    assert found
    named = frozen.with_own(state.model, found)
    taken = task.published.get(name, {})  # by `Task.pretrained`
    task.published = {**task.published, name: {**taken, "weights_sha256": frozen.seal_of_all(named)}}
    adapted, how = {weights.plain(name): value for name, value in named.items()}, ""
    if hasattr(task, "adapt"):
        adapted, how = task.adapt(adapted, state.model)
    sentence = f"{weights.transfer(state.model, adapted, config.run.initial_weights_share)} {how}".strip()
    if state.ema:
        state.ema = Ema(state.model, config.training.ema_decay)
    return sentence


def prepare_saving(state: State, config: Config, saver: Saver) -> None:
    """Allocates the saver's copies while training runs, as soon as the optimizer has its tensors."""
    if config.checkpoint.keep_last and ranks.is_first() and not state.sharded:
        saver.prepare(state_tensors(state, config))


def save_state(state: State, task: Task, config: Config, saver: Saver) -> None:
    """Saves everything in the background, then deletes what retention no longer keeps.

    Raises TrainingFailed where the weights are no longer finite.
    """
    if not config.checkpoint.keep_last:
        return
    finite = all(map(_is_finite, state.parameters))
    if ranks.anywhere(not finite):
        raise TrainingFailed(
            f"The weights are no longer finite at step {state.step}, so they are not saved, and the checkpoint before "
            "is kept. Lower optimizer.lr, or train in fp32, and run again from that checkpoint."
        )
    state.events.flush()
    _keep_frozen(state, saver)
    facts = {
        **({"groups": group_facts} if (group_facts := groups.facts(state.groups)) else {}),
        **({"stopping": state.stopping.facts()} if state.stopping else {}),
        **({"unsaved": state.unsaved} if state.unsaved else {}),
        "identity": identity.facts(config, task),
        "kept_best": state.kept_best,
        "skipped_steps": state.skipped_steps,
        "skipped_in_a_row": state.skipped_in_a_row,
        "pending": state.pending,
        "rows": state.rows,
        "plateau": state.plateau.facts() if state.plateau else None,
        "scaler": state.scaler.state_dict(),
        "micro_batch": state.micro_batch,
        "learned": task.saved_values,
        "trained": state.trained,
        "frozen": state.left_out,
        "published": task.published,
    }
    keep = partial(saver.retention.after_checkpoint, state.step, [best["step"] for best in state.kept_best])
    tensors = state_tensors(state, config)  # all ranks take part where it is sharded
    if ranks.is_first():
        saver.save("checkpoints", state.step, tensors, facts, keep)


def set_rates(state: State, config: Config, step: int) -> Callable[[], dict[str, float]]:
    """Gives the optimizer the rates of a step; returns what makes the columns of metrics.csv on them."""
    lr = optimization.learning_rate(config, step, state.plateau)
    optimization.set_learning_rate(state.optimizer, lr)
    return partial(groups.rates, state.groups, lr, step)


def _keep_frozen(state: State, saver: Saver) -> None:
    """Writes what is kept once of the frozen weights; what cannot be written goes into every checkpoint."""
    if state.once and not freezing.keep_once(state.model, state.once, saver):
        state.left_out = {name: seal for name, seal in state.left_out.items() if name not in state.once}
    state.once = frozenset()


def _saved_weights(state: State) -> dict[str, Tensor]:
    return {name: value for name, value in weights.of(state.model).items() if name not in state.left_out}


def _is_finite(parameter: Tensor) -> bool:
    """Says whether all numbers are finite; on the CPU where the device has no memory for the answers."""
    value = sharding.local(parameter.detach())
    try:
        return bool(torch.isfinite(value).all())
    except Exception as error:
        if not memory.is_oom(error):
            raise
    memory.clear_memory()
    return bool(torch.isfinite(value.cpu()).all())


def observe(state: State, task: Task, config: Config, scores: Mapping[str, float]) -> None:
    """Hands a validation's selection metric to what may stop the run and to the plateau scheduler, where there are."""
    if state.stopping:
        state.stopping.observe(scores[task.selection[0]], state.step)
        if ended := state.stopped_early(config.training.max_steps):
            state.events.record(state.step, "stopped_early", config.training.max_steps, state.step, ended["text"])
    if state.plateau is None:
        return
    before = state.plateau.lr
    if state.plateau.observe(scores[task.selection[0]]):
        state.events.record(
            state.step, "plateau", before, state.plateau.lr,
            f"Step {state.step:,}: {task.selection[0]} has not improved for {state.plateau.patience + 1} "
            f"validations; the learning rate goes from {before:.3g} to {state.plateau.lr:.3g}.",
        )  # fmt: skip


def save_best(state: State, config: Config, saver: Saver, task: Task, scores: Mapping[str, float]) -> None:
    """Saves the weights alone when the task's selection metric is among the `checkpoint.keep_best` best so far.

    What they push out is deleted after the next checkpoint: until then a resumed run may still count on it.
    """
    name, direction = task.selection
    if not math.isfinite(scores[name]):
        return
    new = {"metric": name, "step": state.step, "value": scores[name]}  # in the order in which state.json has them
    others = [best for best in state.kept_best if best["metric"] == name]
    sign = -1 if direction == "max" else 1
    ranked = sorted([*others, new], key=lambda best: sign * best["value"])[: config.checkpoint.keep_best]
    if new in ranked:
        state.kept_best = ranked
        _keep_frozen(state, saver)
        keep = partial(saver.retention.keep_best, [best["step"] for best in ranked])
        then = None if config.checkpoint.keep_last else keep
        with state.averaged():
            groups = {"model": sharding.on_first(_saved_weights(state))}
            if ranks.is_first():
                facts = {
                    "best": new,
                    "frozen": state.left_out,
                    "published": task.published,
                    "learned": task.saved_values,
                }
                saver.save("best", state.step, groups, facts, then)


def restore_state(
    state: State, saved: checkpoint.Checkpoint, note: Callable[[str], None] = lambda sentence: None
) -> None:
    """Restores model, optimizer, scaler and counters from `saved`. Raises BadInput where they do not fit."""
    state.resumed_from = saved.path
    frozen.put_back(state.model, saved)
    state.left_out = saved.state.get("frozen", {})
    if state.ema:
        state.ema.load(saved.tensors.get("ema", saved.tensors["model"]))
    groups.note_changes(saved.state.get("groups", []), state.groups, note)
    _restore_optimizer(state, saved.tensors.get("optimizer", {}), note)  # none in a lightweight checkpoint
    if state.scaler.is_enabled() and saved.state["scaler"]:
        state.scaler.load_state_dict(saved.state["scaler"])
    state.step, state.kept_best, state.pending = saved.step, saved.state["kept_best"], saved.state["pending"]
    state.skipped_steps, state.skipped_in_a_row = saved.state["skipped_steps"], saved.state["skipped_in_a_row"]
    state.rows = saved.state.get("rows", 0)  # none in a checkpoint of an earlier version
    state.micro_batch = min(state.micro_batch, saved.state["micro_batch"])
    if state.plateau and saved.state.get("plateau"):  # a run that began with another schedule has none
        state.plateau.load(saved.state["plateau"])
    if state.stopping:
        best = state.best or {"value": None, "step": 0}
        counted = {"best": best["value"], "best_step": best["step"], "waited": 0}  # of a run that began without it
        state.stopping.load(saved.state.get("stopping", counted))


def _restore_optimizer(state: State, tensors: Mapping[str, Tensor], note: Callable[[str], None]) -> None:
    """Puts back what the optimizer keeps of each parameter; what another optimizer kept is of no use to this one."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        # Counters of steps stay on the CPU. Copied, because what was loaded is mapped from a file, whose space would
        # not be free while it is used.
        by_name.setdefault(name, {})[kind] = value.to("cpu" if kind == "step" else state.device, copy=True)
    wanted = {
        parameter: {*optimization.state_names(group)}
        for group in state.optimizer.param_groups
        for parameter in group["params"]
    }
    unused = 0
    for name, parameter in state.model.named_parameters():
        if name not in by_name:
            continue
        if by_name[name].keys() != wanted.get(parameter, by_name[name].keys()):
            unused += 1
            continue
        state.optimizer.state[parameter] = {
            kind: value if kind == "step" else sharding.sharded_like(parameter, value)
            for kind, value in by_name[name].items()
        }
    if unused:
        note(f"The checkpoint is of another optimizer, which begins anew for {unused} of {len(wanted)} parameters.")


def state_tensors(state: State, config: Config) -> dict[str, dict[str, Tensor]]:
    """Returns the tensors of a checkpoint by group: "model", "optimizer" unless it is lightweight, "ema" if any.

    The optimizer's go by parameter name ("exp_avg/blocks.0.qkv.weight"), whatever groups they are in. Sharded ones
    are gathered: whole on the first rank's CPU, none on the others.
    """
    groups = {"model": _saved_weights(state)}
    if not config.checkpoint.lightweight:
        groups["optimizer"] = {
            f"{kind}/{name}": value
            for name, parameter in state.model.named_parameters()
            for kind, value in state.optimizer.state.get(parameter, {}).items()
        }
    if state.ema:
        groups["ema"] = state.ema.average
    return {group: sharding.on_first(named) for group, named in groups.items()} if state.sharded else groups
