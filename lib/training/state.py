"""The state of a run: how it is built, saved in checkpoints and restored."""

import math
from collections.abc import Callable, Iterable, Mapping
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
from lib.training.optimization import Ema, Group, Plateau
from lib.training.order import INITIALISE, mix, seed_all
from lib.training.precision import (
    Precision,
    allow_tf32,
    choose_precision,
    keep_in_fp32,
    set_types,
    widen_on_cpu,
)
from lib.training.recomputation import recompute
from lib.training.stopping import Stopping

# Fields of State that a checkpoint holds unchanged
_SAVED = (
    "kept_best",
    "skipped_steps",
    "skipped_in_a_row",
    "pending",
    "rows",
    "micro_batch",
    "trained",
    "unsaved",
)


@dataclass
class State:
    """The content of a checkpoint, without anything that follows from the configuration and the step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    precision: Precision
    micro_batch: int
    stopping: Stopping
    step: int = 0
    # {"metric", "step", "value"}, the best one first
    kept_best: list[dict[str, Any]] = field(default_factory=list)
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    pending: dict[str, Any] = field(default_factory=dict)  # sums of the next row of metrics.csv
    rows: int = 0  # in metrics.csv up to this step
    validation_due: bool = False  # a signal stopped the one of this step
    ema: Ema | None = None
    plateau: Plateau | None = None
    # hashes of published frozen weights, which checkpoints omit
    left_out: dict[str, str] = field(default_factory=dict)
    unsaved: str = ""  # one hash of the buffers that no checkpoint has
    learned: Mapping[str, Any] = field(default_factory=dict)  # see `learned.as_saved`
    # facts of the published weights under these, by name: see `Task.pretrained`
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Only in this session, in no checkpoint:
    about_types: str = ""  # a sentence on weights in another type than their file's
    evaluation_batch: int = 0  # samples with which an evaluation did fit; 0: as configured
    groups: list[Group] = field(default_factory=list)
    events: EventLog = field(default_factory=EventLog)
    nan_samples: set[int] = field(default_factory=set)  # training samples that were named
    # Computed once, because a walk over a large model takes milliseconds:
    parameters: list[nn.Parameter] = field(init=False)
    with_buffers: list[nn.Module] = field(init=False)
    trained: dict[str, str] = field(init=False)  # type and shape by name

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.trained = weights.trained(self.model)
        modules = self.model.modules()
        self.with_buffers = [module for module in modules if [*module.buffers(recurse=False)]]

    def averaged(self) -> AbstractContextManager[None]:
        """Gives the model its averaged weights inside the block, if `training.ema_decay` is set."""
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
    """Returns the state that a session starts from: the first rank's `saved`, another run's weights, or a fresh one."""
    saved = checkpoint_from_first(saved)
    task.published = saved.state.get("published", {}) if saved else {}
    state = new_state(task, config)
    state.micro_batch = min(state.micro_batch, most or state.micro_batch)
    if saved:
        restore_state(state, saved, note)
    else:
        if config.run.initial_weights:
            note(start_from(state, task, config))
        seal_frozen(state, config)
    state.unsaved, names = weights.unsaved(state.model)
    if saved and saved.state.get("unsaved", state.unsaved) != state.unsaved:
        note(
            f"The run resumes, but not bit for bit: its buffers with persistent=False ({', '.join(names)}) are not "
            "those of the checkpoint. If model() reads them from a file, put the file of before in its place."
        )
    if ended := state.stopping.early(state.step, config.training.max_steps):
        note(ended["text"])
    if state.about_types:
        note(state.about_types)
    if ranks.world() > 1:
        note(f"Training on {ranks.world()} ranks.")
    return state


def checkpoint_from_first(saved: checkpoint.Checkpoint | None) -> checkpoint.Checkpoint | None:
    """Returns the first rank's checkpoint on every rank: the others need not see its folder."""
    about = ranks.from_first((saved.path, saved.step, saved.state) if saved else None)
    tensors = ranks.tensors_from_first(saved.tensors if saved else None)
    if about is None or tensors is None:
        return None
    path, step, facts = about
    groups = {group: {**named} for group, named in tensors.items()}
    return checkpoint.Checkpoint(path, step, groups, facts)


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
    seed = mix(INITIALISE, config.seed)
    torch.manual_seed(seed)
    seed_all(seed, torch.device("cpu"))  # model() may draw from NumPy and random
    allow_tf32(precision, device)
    model = task.model().train()  # a base loaded in evaluation mode may lie in a fresh wrapper
    if ranks.world() > 1 and not any(value.is_meta for value in model.parameters()):
        # The same weights on all ranks, also if a task draws them in a way that the seed does not reach.
        mine = {"model": weights.of(model)}
        firsts = ranks.tensors_from_first(mine) or mine
        weights.put_back(model, firsts["model"])
    blocks = checked_blocks(task, model)
    set_types(model, config, precision)
    about_types = widen_on_cpu(model, precision, device)
    keep_in_fp32(model, training.fp32_modules, device)
    model.to(device)
    recompute(model, training.gradient_checkpointing, blocks)
    if training.compile and device.type != "meta":
        model.compile()
    is_scaled = precision == "fp16" and device.type != "meta"
    groups = optimization.groups_of(task, model)
    hidden: set[nn.Parameter] = set()
    if config.optimizer.name == "muon":
        hidden = optimization.hidden_matrices(model, blocks)
    state = State(
        model,
        optimization.build(groups, config, hidden),
        torch.amp.GradScaler(device.type, enabled=is_scaled),
        device,
        precision,
        training.largest_micro_batch,
        Stopping(training, *task.selection),
        groups=groups,
        published=task.published,  # model() has added to them
        about_types=about_types,
    )
    if config.scheduler.name == "plateau":
        state.plateau = Plateau(config, task.selection[1])
    if training.ema_decay:
        state.ema = Ema(model, training.ema_decay)
    return state


def start_from(state: State, task: Task, config: Config) -> str:
    """Starts a run from other weights, which the first rank reads; returns how many match. Raises BadInput."""
    name = config.run.initial_weights
    source = None
    with ranks.together():
        if ranks.is_first():
            source = weights.read(inputs.find_input(name, platform.detect()))
    source = checkpoint_from_first(source)
    assert source
    named = weights.with_own(state.model, source)
    facts = {**state.published.get(name, {}), "weights_sha256": weights.seal_of_all(named)}
    state.published = {**state.published, name: facts}
    adapted = {weights.plain(name): value for name, value in named.items()}
    how = ""
    if hasattr(task, "adapt"):
        adapted, how = task.adapt(adapted, state.model)
    matched = weights.transfer(state.model, adapted, config.run.initial_weights_share)
    if state.ema:
        state.ema = Ema(state.model, config.training.ema_decay)
    return f"{matched} {how}".strip()


def seal_frozen(state: State, config: Config) -> None:
    """Notes the hashes of frozen weights that are in a published file. All ranks must call this."""
    options = config.checkpoint
    parameters = weights.frozen(state.model)
    if options.frozen == "save" or not parameters or not (options.keep_last or options.keep_best):
        return
    if ranks.is_first():
        from lib.machine import published

        seals = {name: weights.seal(value) for name, value in parameters.items()}
        dtypes = {seal.partition(" ")[0] for seal in seals.values()}
        names = weights.published_names(state.published)
        places = [published.located(name, download=False) for name in names]
        omitted: set[str] = set()
        for place in filter(None, places):
            for value in published.read(place[1]).values():
                omitted.update(weights.seal(value, dtype) for dtype in dtypes)
        for name, value in parameters.items():
            if names and hasattr(value, "is_packed"):  # made from these files
                omitted.add(seals[name])
        state.left_out = {name: seal for name, seal in seals.items() if seal in omitted}
    state.left_out = ranks.from_first(state.left_out)


def prepare_saving(state: State, config: Config, saver: Saver) -> None:
    """Allocates the saver's copies while training runs, as soon as the optimizer has its tensors."""
    if config.checkpoint.keep_last and ranks.is_first():
        tensors = state_tensors(state, config.checkpoint.lightweight)
        saver.prepare("checkpoints", tensors)
        saver.prepare("best", {"model": tensors["model"]} if config.checkpoint.keep_best else {})


def save_state(state: State, task: Task, config: Config, saver: Saver) -> None:
    """Saves everything in the background. Raises TrainingFailed if the weights are not finite."""
    if not config.checkpoint.keep_last:
        return
    if ranks.anywhere(not _is_finite(state.parameters)):
        raise TrainingFailed(
            f"The weights are no longer finite at step {state.step}, so the checkpoint before is kept. "
            "Lower optimizer.lr, or train in fp32, and run again from that."
        )
    state.events.flush()
    facts = _facts(state, task, config)
    best = [each["step"] for each in state.kept_best]
    if ranks.is_first():
        tensors = state_tensors(state, config.checkpoint.lightweight)
        then = partial(saver.retention.after_checkpoint, state.step, best)
        saver.save("checkpoints", state.step, tensors, facts, then)


def _is_finite(parameters: Iterable[nn.Parameter]) -> bool:
    """Returns whether all trained parameters are finite."""
    trained = [p.detach() for p in parameters if p.requires_grad and p.numel()]
    largest = private.norms_of(trained, math.inf)
    return not largest or bool(torch.stack(largest).isfinite().all())


def _facts(state: State, task: Task, config: Config) -> dict[str, Any]:
    """Returns the JSON part of a checkpoint, without its step."""
    facts: dict[str, Any] = {name: getattr(state, name) for name in _SAVED}
    facts["identity"] = identity.facts(config, task)
    facts["scaler"] = state.scaler.state_dict()
    facts["plateau"] = state.plateau.facts() if state.plateau else None
    if state.stopping.is_on:
        facts["stopping"] = state.stopping.facts()
    if state.validation_due:
        facts["validation_due"] = True
    return facts | _origin(state)


def _origin(state: State) -> dict[str, Any]:
    """Returns the learned values and the published weights that belong to the weights of a checkpoint."""
    return {"learned": state.learned, "frozen": state.left_out, "published": state.published}


def _saved_weights(state: State) -> dict[str, Tensor]:
    named = weights.of(state.model)
    return {name: value for name, value in named.items() if name not in state.left_out}


def observe(state: State, task: Task, config: Config, scores: Mapping[str, float]) -> None:
    """Hands a validation's selection metric to the stopping rule and to the plateau scheduler."""
    metric, _ = task.selection
    step = state.step
    total = config.training.max_steps
    state.stopping.observe(scores[metric], step)
    if ended := state.stopping.early(step, total):
        state.events.record(step, "stopped_early", total, step, ended["text"])
    if not state.plateau:
        return
    before = state.plateau.lr
    if state.plateau.observe(scores[metric]):
        lr = state.plateau.lr
        text = (
            f"Step {step:,}: {metric} has not improved for {config.scheduler.patience + 1} validations; "
            f"the learning rate goes from {before:.3g} to {lr:.3g}."
        )
        state.events.record(step, "plateau", before, lr, text)


def save_best(
    state: State, config: Config, saver: Saver, task: Task, scores: Mapping[str, float]
) -> None:
    """Saves weights with one of the best metrics. Those that they push out go after the next checkpoint."""
    name, direction = task.selection
    value = scores[name]
    if not math.isfinite(value):
        return
    new = {"metric": name, "step": state.step, "value": value}  # in the order of state.json
    others = [best for best in state.kept_best if best["metric"] == name]
    sign = -1 if direction == "max" else 1
    ranked = sorted([*others, new], key=lambda best: sign * best["value"])
    ranked = ranked[: config.checkpoint.keep_best]
    if new not in ranked:
        return
    state.kept_best = ranked
    if not ranks.is_first():
        return
    then = None
    if not config.checkpoint.keep_last:  # no checkpoint will follow
        then = partial(saver.retention.keep_best, [best["step"] for best in ranked])
    facts = {"best": new, **_origin(state)}
    with state.averaged():
        saver.save("best", state.step, {"model": _saved_weights(state)}, facts, then)


def restore_state(
    state: State, saved: checkpoint.Checkpoint, note: Callable[[str], None] = lambda sentence: None
) -> None:
    """Restores model, optimizer, scaler and counters from `saved`. Raises BadInput if they do not fit."""
    facts = saved.state
    weights.restore(state.model, saved)
    state.left_out = facts.get("frozen", {})
    if state.ema:
        state.ema.load(saved.tensors.get("ema", saved.tensors["model"]))
    # a lightweight checkpoint has no optimizer
    _restore_optimizer(state, saved.tensors.get("optimizer", {}), note)
    if state.scaler.is_enabled() and facts["scaler"]:
        state.scaler.load_state_dict(facts["scaler"])
    state.step = saved.step
    state.rows = facts.get("rows", 0)  # missing in checkpoints of an earlier version
    state.validation_due = facts.get("validation_due", False)
    for name in ("kept_best", "pending", "skipped_steps", "skipped_in_a_row"):
        setattr(state, name, facts[name])
    state.micro_batch = min(state.micro_batch, facts["micro_batch"])
    if state.plateau and facts.get("plateau"):  # a run that began with another schedule has none
        state.plateau.load(facts["plateau"])
    best = state.best or {"value": None, "step": 0}
    # a run that began without a stop counts from its best validation
    counted = {"best": best["value"], "best_step": best["step"], "waited": 0}
    state.stopping.load(facts.get("stopping", counted))


def _restore_optimizer(
    state: State, tensors: Mapping[str, Tensor], note: Callable[[str], None]
) -> None:
    """Restores the optimizer's states of each parameter. States of another optimizer are ignored, with a note."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        by_name.setdefault(name, {})[kind] = value
    names = {parameter: name for name, parameter in state.model.named_parameters()}
    unused = 0
    for group in state.optimizer.param_groups:
        for parameter in group["params"]:
            values = by_name.get(names[parameter], {})
            if values.keys() != {*optimization.state_names(group)}:
                unused += bool(values)
                continue
            moved = {}
            for kind, value in values.items():
                device = state.device
                if kind == "step":
                    device = optimization.step_device(group, parameter)
                # copied, because loaded tensors are mapped from a file, whose space would stay in use
                moved[kind] = value.to(device, copy=True)
            state.optimizer.state[parameter] = moved
    if unused:
        note(
            f"The checkpoint is of another optimizer, which begins anew for {unused} of {len(by_name)} parameters."
        )


def state_tensors(state: State, lightweight: bool) -> dict[str, dict[str, Tensor]]:
    """Returns a checkpoint's tensors by group; the optimizer's as "exp_avg/NAME"."""
    tensors = {"model": _saved_weights(state)}
    if not lightweight:
        moments: dict[str, Tensor] = {}
        for name, parameter in state.model.named_parameters():
            kept = state.optimizer.state.get(parameter, {})
            moments |= {f"{kind}/{name}": value for kind, value in kept.items()}
        tensors["optimizer"] = moments
    if state.ema:
        tensors["ema"] = state.ema.average
    return tensors


def saved_bytes(task: Task, config: Config) -> tuple[int, int]:
    """Returns the bytes of a checkpoint and of best weights, without omitted frozen ones, from a model on `meta`."""
    make = partial(new_state, task, config, torch.device("meta"), "fp32")
    try:
        with torch.device("meta"):
            state = make()
    except Exception:  # a model that reads its own numbers while it is built needs real ones
        state = make()
    if config.checkpoint.frozen != "save" and weights.published_names(state.published):
        state.left_out = dict.fromkeys(weights.frozen(state.model), "")
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimization.make_moments(state.optimizer)
    tensors = state_tensors(state, config.checkpoint.lightweight)
    sizes = {}
    for group, named in tensors.items():
        sizes[group] = sum(value.nbytes for value in named.values())
    return sum(sizes.values()), sizes["model"]
