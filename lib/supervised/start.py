"""A run whose answers start at the simple method: the network has a say only as far as validation shows a gain."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from lib.scores import least
from lib.supervised.samples import FLOATS
from lib.supervised.scoring import Judged
from lib.supervised.simple import UNSEEN, fit, losses
from lib.task import Batch

KEY, _GATE = "simple", "simple_gate"  # of batches and what is learned; a buffer of the model
_GATES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
_MOST_ROWS = 20_000  # that calibrate an answer
_SURE = 0.995  # of one side: every validation of a run asks
_MOST_UNITS = 100  # of validation: of more, several are one


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

    Better: with less loss, and no worse by the metric of `selection`; or by that metric, where it follows from sums,
    and with less loss once both are calibrated: any answer but the commonest gains macro F1 where nothing is learned.
    Surely: the lower end of the paired interval over validation's groups is above 0.
    """
    named = task._groups("validation") if task.has_groups else range(1 + int(judged.sample.max()))
    names, unit = np.unique(np.array(named), return_inverse=True)
    unit, units = unit % _MOST_UNITS, min(len(names), _MOST_UNITS)
    if units < 2:
        return 0.0
    answers = [start + gate * (scores - start) for gate in _GATES]
    rows = {str(gate): task.guessed(answer, judged) for gate, answer in zip(_GATES, answers, strict=True)}
    by_metric, by_loss = _of_metric(task, rows, unit, units), _of_loss(task, answers, judged, unit, units)
    worse = [task.strongest({"both": row, "alone": rows["0.0"]}) == "alone" for row in rows.values()]
    by_loss[:, worse] = 0
    if task.kind not in FLOATS:
        calibrated = [_calibrated(answer, torch.from_numpy(judged.true)) for answer in answers]
        known = _of_loss(task, calibrated, judged, unit, units)
        by_metric[:, ~(least(known[0], known[1:], _SURE) > 0)] = 0  # nor where no power was found
    sure = np.any([least(gains[0], gains[1:], _SURE) > 0 for gains in (by_metric, by_loss)], axis=0)
    network, gains = len(_GATES) - 1, [*zip(np.nan_to_num(by_metric[0]), by_loss[0], strict=True)]
    return _GATES[network if sure[network] else max(np.flatnonzero(sure), key=gains.__getitem__, default=0)]


def _calibrated(scores: Tensor, true: Tensor) -> Tensor:
    """Returns a power of probabilities, times a factor for each class, that has the least loss."""
    every = -(-len(true) // _MOST_ROWS)
    with torch.inference_mode(False), torch.enable_grad():
        some, classes = scores[::every].float().clone(), true[::every].clone()
        power, factors = torch.ones((), requires_grad=True), torch.zeros(scores.shape[-1], requires_grad=True)
        optimizer = torch.optim.LBFGS([power, factors], max_iter=20)

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(power * some + factors, classes)
            value.backward()
            return value

        optimizer.step(loss)
    return power.detach() * scores + factors.detach()


def _of_metric(task: Any, rows: Mapping[str, Judged], unit: np.ndarray, units: int) -> np.ndarray:
    """Returns (1 + units, gates) what each gains over the first: of all units, and without each; NaN if unknown."""
    if (tallies := task.tallied(rows, unit, units)) is None:
        return np.full((1 + units, len(rows)), np.nan)
    sums = np.concatenate([tallies.sum(0)[None], tallies.sum(0) - tallies])
    place, sign = task.selected
    gains = [task.measured(sums[:, n], sums[:, 0]) - task.measured(sums[:, 0], sums[:, n]) for n in range(len(rows))]
    return sign * np.stack(gains, 1)[..., place]


def _of_loss(task: Any, answers: Sequence[Tensor], judged: Judged, unit: np.ndarray, units: int) -> np.ndarray:
    """Returns (1 + units, gates) as `_of_metric`, of the loss."""
    counts = task.class_counts("train") if task.balanced else None
    each = np.stack([losses(task, answer, judged.true, counts).double().numpy() for answer in answers], 1)
    sums, sizes = np.zeros((units, len(answers))), np.bincount(unit[judged.sample], minlength=units)[:, None]
    np.add.at(sums, unit[judged.sample], each[:, :1] - each)
    return np.concatenate([sums.sum(0)[None] / sizes.sum(), (sums.sum(0) - sums) / np.maximum(sizes.sum() - sizes, 1)])
