"""A network that starts from the simple method: what it adds counts only as far as validation shows a gain."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.supervised.scoring import Judged
from lib.supervised.simple import UNSEEN, fit, losses
from lib.task import Batch

KEY, CENTRE = "simple", "simple_centre"  # of batches and what is learned; the mean of the training's numbers
_SCALE, _GATE = "simple_scale", "simple_gate"  # buffers of the model
_GATES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
_SURE = 0.995  # of one side: every validation of a run asks
_SHARE = 0.1  # of the steps, in which what the network says grows from nothing to its full size


def with_buffers(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    """Wraps a task's `model`: scale and gate are buffers, so that checkpoints, ranks and archives have them."""

    @functools.wraps(make)
    def model(task: Any) -> nn.Module:
        network = make(task)
        for name in (_SCALE, _GATE) if task.starts and isinstance(network, nn.Module) else ():
            network.register_buffer(name, torch.zeros(()))
        return network

    return model


def learned(task: Any) -> dict[str, Any]:
    """Fits the simple method that a run starts from; returns what the run keeps of it. Raises BadInput."""
    if (simple := fit(task)) is None:
        what = f"{type(task).__name__}.features gives a tensor of a form that no simple method takes"
        raise BadInput(f"{what}. Return texts or numbers there, or leave training.start_from_baseline out.")
    centre = {CENTRE: np.nanmean(task.targets("train"), 0).tolist()} if task.kind == "numbers" else {}
    return {KEY: simple.as_json(), **centre}


def batch(task: Any, batch: Batch, folds: Sequence[int] | None = None) -> Batch:
    """Returns a batch with the simple method's scores, of training samples by `folds`, where the run starts there."""
    if not task.starts:
        return batch
    if task.simple is None:  # in a plan without data
        classes = () if task.kind in ("numbers", "labels") else (max(2, len(task.known_names())),)
        return {**batch, KEY: torch.zeros(*batch["labels"].shape, *classes)}
    return {**batch, KEY: task.simple.scores(task, batch, folds)}


def shaped(start: Tensor, outputs: Tensor) -> Tensor:
    """Returns the simple method's scores in the shape of outputs: of further classes it has seen no example."""
    if start.numel() == outputs.numel():
        return start.view(outputs.shape)
    return F.pad(start, (0, outputs.shape[-1] - start.shape[-1]), value=UNSEEN)


def both(task: Any, model: nn.Module, batch: Batch) -> Tensor:
    """Returns outputs, where the run starts there on top of the simple method's scores.

    They are scaled by 0 at step 0 and by 1 soon, so that a fresh last layer spoils nothing.
    """
    outputs = task.outputs(model, {name: value for name, value in batch.items() if name != KEY})
    if not task.starts:
        return outputs
    if model.training:
        model.get_buffer(_SCALE).fill_(min(1.0, task.step / max(1.0, _SHARE * task.config.training.max_steps)))
    outputs = outputs.float()
    if task.kind == "numbers":
        outputs = outputs - outputs.new_tensor(task.learned().get(CENTRE, 0.0))
    return shaped(batch[KEY], outputs) + model.get_buffer(_SCALE) * outputs


def gated(model: nn.Module, scores: Tensor, start: Tensor) -> Tensor:
    """Returns the simple method's scores and as much of what was added as the gate lets through."""
    start = shaped(start, scores)
    return start + model.get_buffer(_GATE).to(scores.device) * (scores - start)


def combined(task: Any, model: nn.Module, scores: Tensor, part: str) -> dict[str, Tensor]:
    """Returns the scores of both together and those that the gate lets through; a validation sets the gate."""
    start, judged = task.started
    if part == "validation":
        model.get_buffer(_GATE).fill_(_opened(task, scores, start, judged))
    name, gate = task.simple.name, float(model.get_buffer(_GATE))
    shut = f"The gate is shut: validation shows no sure gain, so {name!r} alone answers."
    task.about_gate = f"The gate is open by {gate:g} for what the network adds to {name!r}." if gate else shut
    return {f"{name} + network": scores, "answer": gated(model, scores, start)}


def _opened(task: Any, scores: Tensor, start: Tensor, judged: Judged) -> float:
    """Returns the gate with the least loss of those whose loss is surely less than the simple method's, else 0.

    Surely: the lower end of Student's paired interval over validation's groups, of which there may be few, is above 0.
    The metric of `selection` must be no worse either.
    """
    from scipy import stats  # a second that a process which only loads data does not need

    counts = task.class_counts("train") if task.balanced else None
    units = np.array(task._groups("validation"))[judged.sample] if task.has_groups else judged.sample
    names, unit = np.unique(units, return_inverse=True)
    if len(names) < 2:
        return 0.0
    answers = [start + gate * (scores - start) for gate in _GATES]
    each = np.stack([losses(task, answer, judged.true, counts).double().numpy() for answer in answers], 1)
    sums, sizes = np.zeros((len(names), len(answers))), np.bincount(unit)[:, None]
    np.add.at(sums, unit, each[:, :1] - each)  # (groups, gates) what each gains
    gain = sums.sum(0) / len(unit)
    error = np.sqrt(((sums - sizes * gain) ** 2).sum(0) * len(names) / (len(names) - 1)) / len(unit)
    low = gain - stats.t.ppf(_SURE, len(names) - 1) * error  # Cochran, Sampling Techniques, 1977, 6.4
    rows = [task.guessed(answer, judged) for answer in answers]
    sure = np.flatnonzero(low > 0).tolist()
    able = [n for n in sure if task.strongest({"both": rows[n], "alone": rows[0]}) == "both"]
    return _GATES[max(able, key=gain.__getitem__, default=0)]
