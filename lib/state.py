"""The state of a run: what a checkpoint holds, how it is put together and put back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib import checkpoint, data, memory, optimization
from lib.config import Config
from lib.errors import BadInput
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

    @property
    def best(self) -> dict[str, Any]:
        """{"step", "metric", "value"} of the best validation so far; empty before the first."""
        return self.kept_best[0] if self.kept_best else {}


def new(task: Task, config: Config) -> State:
    """Model, optimizer and scaler at step 0, drawn from the configuration's seed."""
    device = memory.device()
    precision = memory.precision(config.training.precision, device)
    torch.manual_seed(data.mix(data.INITIALISE, config.seed))
    model = task.model().to(device)
    memory.recompute(model, config.training.gradient_checkpointing)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    slot = config.training.effective_batch // config.training.micro_batch_slots
    micro_batch = min(config.training.micro_batch or slot, slot)
    return State(model, optimization.build(model, config), scaler, device, precision, micro_batch)


def prepare_saving(state: State, config: Config, saver: Saver) -> None:
    """Once the optimizer has its tensors, memory for their copies can be had while training goes on."""
    if config.checkpoint.keep_last:
        saver.prepare(_tensors(state))


def save(state: State, task: Task, config: Config, saver: Saver) -> None:
    """Saves everything in the background, then removes what retention no longer keeps."""
    if not config.checkpoint.keep_last:
        return
    facts = {
        "task": config.task,
        "fingerprint": task.fingerprint(),
        "identity": identity(config),
        "kept_best": state.kept_best,
        "skipped_steps": state.skipped_steps,
        "skipped_in_a_row": state.skipped_in_a_row,
        "pending": state.pending,
        "scaler": state.scaler.state_dict(),
        "micro_batch": state.micro_batch,
        "torch": torch.__version__,
    }
    keep = partial(saver.retention.after_checkpoint, state.step, [best["step"] for best in state.kept_best])
    saver.save("checkpoints", state.step, _tensors(state), facts, keep)


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
        saver.save("best", state.step, {"model": weights(state.model)}, {"best": new}, then)


def restore(state: State, saved: checkpoint.Checkpoint) -> None:
    """Puts model, optimizer, scaler and counters back to where `saved` was. Raises BadInput where they do not fit."""
    load_weights(state.model, saved.tensors["model"])
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.tensors["optimizer"].items():
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


def identity(config: Config) -> dict[str, int]:
    """What decides which samples a step sees: a run is not resumed with another one."""
    return {
        "seed": config.seed,
        "training.effective_batch": config.training.effective_batch,
        "training.micro_batch_slots": config.training.micro_batch_slots,
    }


def check_resumable(saved: checkpoint.Checkpoint, task: Task, config: Config) -> None:
    """Raises BadInput where going on from `saved` would not be the same run; names what differs."""
    now = {"task": config.task, "data fingerprint": task.fingerprint(), **identity(config)}
    then = {"task": saved.state["task"], "data fingerprint": saved.state["fingerprint"], **saved.state["identity"]}
    differences = [f"{key}: saved {then.get(key)}, now {now[key]}" for key in now if then.get(key) != now[key]]
    if differences:
        raise BadInput(
            f"The run in {saved.path.parent.parent} cannot be resumed with this configuration. "
            f"{'; '.join(differences)}. Go back to the saved values, or start a new run under another run.name."
        )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied tensors once, under their first name (safetensors refuses shared memory)."""
    named: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in model.state_dict().items():
        key = (value.data_ptr(), value.shape)
        if value.numel() == 0 or key not in seen:
            named[name] = value
            seen.add(key)
    return named


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts saved weights back. Raises BadInput unless every tensor of the model is there in its shape."""
    expected = weights(model)
    wrong = [n for n, v in expected.items() if n not in tensors or tensors[n].shape != v.shape]
    extra = sorted(set(tensors) - set(expected))
    if wrong or extra:
        raise BadInput(
            f"The saved weights do not fit the model: {len(wrong)} of {len(expected)} tensors are missing or of "
            f"another shape ({', '.join(wrong[:3])}), {len(extra)} are unknown ({', '.join(extra[:3])}). The workload "
            "settings differ from those of the saved run; compare with config.yaml in its folder."
        )
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(tensors[name])


def _tensors(state: State) -> dict[str, dict[str, Tensor]]:
    return {"model": weights(state.model), "optimizer": _moments(state)}


def _moments(state: State) -> dict[str, Tensor]:
    """The optimizer's tensors by parameter name ("exp_avg/blocks.0.qkv.weight"), free of the order of groups."""
    return {
        f"{kind}/{name}": value
        for name, parameter in state.model.named_parameters()
        for kind, value in state.optimizer.state.get(parameter, {}).items()
    }
