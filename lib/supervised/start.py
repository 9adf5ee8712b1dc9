"""A run whose answers start at the simple method: the network has a say only as far as validation shows a gain."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.supervised.scoring import Judged
from lib.supervised.simple import UNSEEN, fit, losses
from lib.task import Batch

KEY, _GATE = "simple", "simple_gate"  # of batches and what is learned; a buffer of the model
_GATES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
_SURE = 0.995  # of one side: every validation of a run asks


def with_buffers(make: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    """Wraps a task's `model`: the gate is a buffer, so that checkpoints, ranks and archives have it."""

    @functools.wraps(make)
    def model(task: Any) -> nn.Module:
        network = make(task)
        if task.starts and isinstance(network, nn.Module):
            network.register_buffer(_GATE, torch.zeros(()))
        return network

    return model


def learned(task: Any) -> dict[str, Any]:
    """Fits the simple method that a run starts from; returns what the run keeps of it. Raises BadInput."""
    if (simple := fit(task)) is None:
        what = f"{type(task).__name__}.features gives a tensor of a form that no simple method takes"
        raise BadInput(f"{what}. Return texts or numbers there, or leave training.start_from_baseline out.")
    return {KEY: simple.as_json()}


def batch(task: Any, batch: Batch) -> Batch:
    return {**batch, KEY: task.simple.scores(task, batch)} if task.starts else batch


def outputs(task: Any, model: nn.Module, batch: Batch) -> Any:
    return task.outputs(model, {name: value for name, value in batch.items() if name != KEY})


def shaped(start: Tensor, outputs: Tensor) -> Tensor:
    """Returns the simple method's scores in the shape of outputs: of further classes it has seen no example."""
    if start.numel() == outputs.numel():
        return start.view(outputs.shape)
    return F.pad(start, (0, outputs.shape[-1] - start.shape[-1]), value=UNSEEN)


def gated(model: nn.Module, scores: Tensor, start: Tensor) -> Tensor:
    """Returns the simple method's scores, moved towards the network's by the gate: of classes a product of both."""
    start = shaped(start, scores)
    return start + model.get_buffer(_GATE).to(scores.device) * (scores - start)


def combined(task: Any, model: nn.Module, scores: Tensor, part: str) -> dict[str, Tensor]:
    """Returns the network's scores and those that the gate lets through; a validation sets the gate."""
    start, judged = task.started
    if part == "validation":
        model.get_buffer(_GATE).fill_(_opened(task, scores, start, judged))
    name, gate = task.simple.name, float(model.get_buffer(_GATE))
    shut = f"The gate is shut: validation shows no sure gain, so {name!r} alone answers."
    share = f"The gate is open by {gate:g}: the answer is that share of the network, and {name!r} for the rest."
    task.about_gate = share if gate else shut
    return {"network": scores, "answer": gated(model, scores, start)}


def _opened(task: Any, scores: Tensor, start: Tensor, judged: Judged) -> float:
    """Returns 1 where the network is surely better than the simple method, else the best sure share, else 0.

    Better: with less loss, and no worse by the metric of `selection`. Surely: the lower end of Student's paired
    interval over validation's groups, of which there may be few, is above 0.
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
    network = len(_GATES) - 1
    return _GATES[network if network in able else max(able, key=gain.__getitem__, default=0)]
