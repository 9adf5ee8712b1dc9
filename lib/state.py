"""The state of a run: what a checkpoint holds, how it is put together and put back."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, data, identity, memory, optimization, platform, weights
from lib.config import Config
from lib.ema import Ema
from lib.errors import TrainingFailed
from lib.events import EventLog
from lib.memory import Precision
from lib.saver import Saver
from lib.task import Task


@dataclass
class State:
    """What a checkpoint holds, and nothing that follows from the configuration and the step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    precision: Precision
    micro_batch: int
    step: int = 0
    kept_best: list[dict[str, Any]] = field(default_factory=list)  # {"step", "metric", "value"}, the best one first
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    pending: dict[str, float] = field(default_factory=dict)  # losses of the row that is not yet written
    ema: Ema | None = None
    # Of this session alone, in no checkpoint:
    evaluation_batch: int = 0  # samples on the device at once that an evaluation was seen to bear; 0: the micro-batch
    events: EventLog = field(default_factory=EventLog)
    resumed_from: Path | None = None
    # Found once, because a walk over a large model takes milliseconds:
    parameters: list[nn.Parameter] = field(init=False)
    with_buffers: list[nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.with_buffers = [module for module in self.model.modules() if module._buffers]

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has its averaged weights, where there is an average."""
        return self.ema.applied() if self.ema else nullcontext()

    @property
    def best(self) -> dict[str, Any]:
        """{"step", "metric", "value"} of the best validation so far; empty before the first."""
        return self.kept_best[0] if self.kept_best else {}


def new(task: Task, config: Config, device: torch.device | None = None, precision: Precision | None = None) -> State:
    """Model, optimizer and scaler at step 0, drawn from the configuration's seed.

    Device and precision are those of this machine, or what the planner puts in their place.
    """
    device = device or memory.device()
    precision = precision or memory.precision(config.training.precision, device)
    torch.manual_seed(data.mix(data.INITIALISE, config.seed))
    model = task.model().to(device)
    memory.recompute(model, config.training.gradient_checkpointing)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16" and device.type != "meta")
    slot = config.training.effective_batch // config.training.micro_batch_slots
    micro_batch = min(config.training.micro_batch or slot, slot)
    state = State(model, optimization.build(model, config), scaler, device, precision, micro_batch)
    if config.training.ema_decay:
        state.ema = Ema(model, config.training.ema_decay)
    return state


def start_from(state: State, config: Config) -> str:
    """Starts a new run from the weights of another one; says how many tensors matched. Raises BadInput."""
    given = weights.read(platform.find_input(config.run.initial_weights, platform.detect()))
    said = weights.transfer(state.model, given, config.run.initial_weights_share)
    if state.ema:
        state.ema = Ema(state.model, config.training.ema_decay)
    return said


def prepare_saving(state: State, config: Config, saver: Saver) -> None:
    """Once the optimizer has its tensors, memory for their copies can be had while training goes on."""
    if config.checkpoint.keep_last:
        saver.prepare(tensors(state, config))


def save(state: State, task: Task, config: Config, saver: Saver) -> None:
    """Saves everything in the background, then removes what retention no longer keeps."""
    if not config.checkpoint.keep_last:
        return
    if not all(bool(torch.isfinite(parameter).all()) for parameter in state.parameters):
        raise TrainingFailed(
            f"The weights are no longer finite at step {state.step}, so they are not saved and the checkpoint before "
            "stays. Lower optimizer.lr, or train in fp32, and run again from that checkpoint."
        )
    facts = {
        "identity": identity.facts(config, task),
        "kept_best": state.kept_best,
        "skipped_steps": state.skipped_steps,
        "skipped_in_a_row": state.skipped_in_a_row,
        "pending": state.pending,
        "scaler": state.scaler.state_dict(),
        "micro_batch": state.micro_batch,
    }
    keep = partial(saver.retention.after_checkpoint, state.step, [best["step"] for best in state.kept_best])
    saver.save("checkpoints", state.step, tensors(state, config), facts, keep)


def save_best(state: State, config: Config, saver: Saver, task: Task, scores: Mapping[str, float]) -> None:
    """Saves the weights alone when the task's selection metric is among the `checkpoint.keep_best` best so far.

    What they push out is deleted after the next checkpoint: until then a resumed run may still count on it.
    """
    name, direction = task.selection
    if not math.isfinite(scores[name]):
        return
    new = {"step": state.step, "metric": name, "value": scores[name]}
    others = [best for best in state.kept_best if best["metric"] == name]
    sign = -1 if direction == "max" else 1
    ranked = sorted([*others, new], key=lambda best: sign * best["value"])[: config.checkpoint.keep_best]
    if new in ranked:
        state.kept_best = ranked
        keep = partial(saver.retention.keep_best, [best["step"] for best in ranked])
        then = None if config.checkpoint.keep_last else keep
        with state.averaged():
            saver.save("best", state.step, {"model": weights.of(state.model)}, {"best": new}, then)


def restore(state: State, saved: checkpoint.Checkpoint) -> None:
    """Puts model, optimizer, scaler and counters back to where `saved` was. Raises BadInput where they do not fit."""
    weights.put_back(state.model, saved.tensors["model"])
    if state.ema:
        state.ema.load(saved.tensors.get("ema", saved.tensors["model"]))
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.tensors.get("optimizer", {}).items():  # none in a lightweight checkpoint
        kind, _, name = key.partition("/")
        # AdamW keeps its step counter on the CPU. Copied, because what was loaded is mapped from a file, whose space
        # would not be free while it is used.
        by_name.setdefault(name, {})[kind] = value.to("cpu" if kind == "step" else state.device, copy=True)
    for name, parameter in state.model.named_parameters():
        if name in by_name:
            state.optimizer.state[parameter] = by_name[name]
    if state.scaler.is_enabled() and saved.state["scaler"]:
        state.scaler.load_state_dict(saved.state["scaler"])
    state.step, state.kept_best, state.pending = saved.step, saved.state["kept_best"], saved.state["pending"]
    state.skipped_steps, state.skipped_in_a_row = saved.state["skipped_steps"], saved.state["skipped_in_a_row"]
    state.micro_batch = min(state.micro_batch, saved.state["micro_batch"])


def tensors(state: State, config: Config) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint by group: "model", "optimizer" unless it is lightweight, "ema" if there is one."""
    groups = {"model": weights.of(state.model)}
    if not config.checkpoint.lightweight:
        groups["optimizer"] = _moments(state)
    if state.ema:
        groups["ema"] = state.ema.average
    return groups


def _moments(state: State) -> dict[str, Tensor]:
    """The optimizer's tensors by parameter name ("exp_avg/blocks.0.qkv.weight"), free of the order of groups."""
    return {
        f"{kind}/{name}": value
        for name, parameter in state.model.named_parameters()
        for kind, value in state.optimizer.state.get(parameter, {}).items()
    }
