"""Checks of the model, its counts and its losses on real batches."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.ranks.sums import add_counts
from lib.report.meter import add_figures
from lib.task import Batch, check_loss_terms, check_terms
from lib.training import data
from lib.training.contract.asked import Asked, alike
from lib.training.contract.sentences import asking
from lib.training.draws import put_back, seed_all
from lib.training.groups import groups_of
from lib.training.order import INITIALISE, mix
from lib.training.precision import autocast, choose_precision

_DRAWS = 8  # passes of a loss that draws, of which the means are compared
_SEED = 21

Sums = Mapping[str, Tensor]


def build(asked: Asked) -> nn.Module:
    """Returns the model. Raises BadInput where it cannot be made without data, or has nothing to train."""
    model = _made(asked)
    if asked.learned:
        _made(asked, {})  # as the planner makes it, before anything was learned
    name = f"{asked.name}.model()"
    if not isinstance(model, nn.Module):
        raise BadInput(f"{name} returns a {type(model).__name__}. Return the model: a torch.nn.Module.")
    if away := [key for key, value in model.named_parameters() if value.device.type not in ("cpu", "meta")]:
        raise BadInput(f"{name} returns {away[0]!r} on a GPU. Return the model on the CPU; the trainer moves it.")
    if not any(value.requires_grad for value in model.parameters()):
        raise BadInput(f"{name} has no weights to train. Set requires_grad of what is trained, or give it a layer.")
    return model


def _made(asked: Asked, learned: Mapping[str, Any] | None = None) -> Any:
    bare = asked.bare(asked.learned if learned is None else learned)
    mend = (
        "model() must do without data: the planner calls it where there is none. Give the sizes that it needs as "
        "settings (workload:)."
    )
    with put_back(), asking(f"{asked.name}.model()", mend):
        seed_all(mix(INITIALISE, asked.config.seed), torch.device("cpu"))  # as a run does
        return bare.model()


def made_again(asked: Asked, model: nn.Module) -> Iterator[str]:
    """Checks that a second model from the same seed is another one with the same weights."""
    if not asked.thorough:
        return
    again = _made(asked)
    name = f"{asked.name}.model()"
    if again is model or {id(value) for value in again.parameters()} & {id(value) for value in model.parameters()}:
        yield f"{name} returns the same weights each time it is called. Make a new model in it: several vote together."
        return
    one, other = model.state_dict(), again.state_dict()
    if differs := [key for key in {**one, **other} if key not in one or not alike(one[key], other.get(key))]:
        yield (
            f"{name} makes other weights from the same seed, such as {differs[0]!r}. Draw them from torch, np.random "
            "or random, not from a generator of your own or the system, so that a run can be repeated."
        )


def losses(asked: Asked, model: nn.Module, drawn: list[Batch]) -> Iterator[str]:
    """Checks terms, counts, sums and gradients on the drawn batches, in evaluation mode and once in training mode."""
    model.to(asked.device)
    batches = [data.to_device(batch, asked.device) for batch in drawn]
    counts = [_counted(asked, batch) for batch in batches]
    _check_weights(asked, {term: number for names in counts for term, number in names.items()})
    if not any(number for names in counts for number in names.values()):
        samples = sum(map(data.size_of, batches))
        asked.doubts.append(
            f"{asked.name}.count() has no valid target in {samples} samples, from which nothing can be learned."
        )
    with asking(f"{asked.name}.parameter_groups()"):
        groups_of(asked.task, model)
    yield from _in_training(asked, model, batches[0], counts[0])
    _fix(asked, model, batches[0], counts[0])
    for most, batch, numbers in zip((asked.size // 2, 1), batches[:2], counts[:2], strict=True):
        if found := list(_sums(asked, model, batch, numbers, most)):
            yield from found
            break
    model.eval()
    _doubt_shares(asked, model, batches[0])


def _doubt_shares(asked: Asked, model: nn.Module, batch: Batch) -> None:
    """Doubts outputs that are probabilities already, where the loss takes scores and makes probabilities of them."""
    cls = type(asked.task)
    methods = [getattr(cls, name, None) for name in ("loss", "summed_loss")]
    is_cross_entropy = all(getattr(method, "__module__", "").startswith("lib.supervised.") for method in methods)
    if not is_cross_entropy or cls.kind in ("numbers", "labels"):  # type: ignore[attr-defined]
        return
    with put_back(), torch.no_grad(), asking(f"{asked.name}.outputs()"):
        found = asked.task.outputs(model, batch).float()  # type: ignore[attr-defined]
    if found.dim() > 1 and bool((found >= 0).all()) and bool((found.sum(-1) - 1).abs().max() < 1e-3):
        asked.doubts.append(
            f"{asked.name}.outputs() are positive and add up to 1 for each target, as after a softmax. The loss makes "
            "probabilities of scores itself, and of probabilities it learns slowly. Leave the softmax out of the model."
        )


def _counted(asked: Asked, batch: Batch) -> dict[str, float]:
    """Returns the counts of a batch. Raises BadInput where they are none."""
    name, before = f"{asked.name}.count()", {key: value.clone() for key, value in batch.items()}
    with asking(name):
        counts = asked.task.count(batch)
    if not isinstance(counts, Mapping):
        raise BadInput(f"{name} returns {counts!r:.60}. Return a number for each loss term by its name.")
    if not alike(before, batch):
        raise BadInput(f"{name} changes the batch, which loss() is handed after it. Only read it there.")
    return add_counts([counts])


def _check_weights(asked: Asked, counts: Mapping[str, float]) -> None:
    """Raises BadInput where the first or the last step has no weights, or weighs a term that is not there."""
    name = f"{asked.name}.term_weights()"
    for step in (0, asked.config.training.max_steps - 1):
        with asking(name, "It is asked for every step, from 0 to the last."):
            weights = asked.task.term_weights(step)
        if not isinstance(weights, Mapping) or not all(isinstance(one, int | float) for one in weights.values()):
            raise BadInput(f"{name} returns {weights!r:.60}. Return a number for each loss term by its name.")
        check_terms(asked.task, counts, weights, counts)


def _fix(asked: Asked, model: nn.Module, batch: Batch, counts: Mapping[str, float]) -> None:
    """Puts the model into evaluation mode; one without losses there, such as a detector's, only its random layers."""
    model.eval()
    try:
        _without_trace(asked, model, batch, counts)
    except BadInput:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd | nn.modules.batchnorm._NormBase):
                module.eval()


def _sums(asked: Asked, model: nn.Module, batch: Batch, counts: Mapping[str, float], most: int) -> Iterator[str]:
    """Checks that counts and losses of a batch are the sums of those of its pieces."""
    pieces = list(data.micro_batches(batch, most))
    into = f"its {len(pieces)} pieces of {most} sample{'s' * (most > 1)}"
    added = add_counts(_counted(asked, piece) for piece in pieces)
    for term, number in counts.items():
        if abs(number - added.get(term, 0)) > 1e-4 * max(number, added.get(term, 0)):
            yield (
                f"{asked.name}.count() has {number:g} of {term!r} in a batch, and {added.get(term, 0):g} in {into} "
                "together. Count targets, or add up their weights: each sample by itself."
            )
            return
    loss = partial(_without_trace, asked, model, counts=counts)
    together = [loss(batch, seed=seed) for seed in range(2)]
    passes = 1
    if not all(_near(together[0][term], together[1][term], 1e-4) for term in together[0]):
        passes = _DRAWS
        together += [loss(batch, seed=seed) for seed in range(2, passes)]
    parts = [[loss(piece, seed=1000 * (1 + n) + seed) for n, piece in enumerate(pieces)] for seed in range(passes)]
    for term in together[0]:
        one = torch.stack([sums[term] for sums in together[:passes]]).double()  # (passes)
        other = torch.stack([torch.stack([sums[term] for sums in part]).sum() for part in parts]).double()  # (passes)
        if counts.get(term) and _differs(one, other, _tolerance(model)):
            yield _no_sum(asked, term, float(one.mean()), float(other.mean()), len(pieces), into)
            return


def _near(one: Tensor, other: Tensor, share: float) -> bool:
    return bool((one - other).abs() <= share * torch.maximum(one.abs(), other.abs()) + 1e-12)


def _differs(one: Tensor, other: Tensor, share: float) -> bool:
    """Says whether means differ by more than a share of their size and, of draws, six standard errors."""
    error = ((one.var() + other.var()) / len(one)).sqrt() if len(one) > 1 else torch.zeros((), dtype=one.dtype)
    share = max(share, 0.2) if len(one) > 1 else share
    scale = torch.maximum(one.abs().mean(), other.abs().mean())
    return bool((one.mean() - other.mean()).abs() > share * scale + 6 * error.to(scale.device) + 1e-12)


def _tolerance(model: nn.Module) -> float:
    """Returns the share by which sums may differ in another order: of 24 bits one in a thousand, of 8 bits 5 %."""
    kinds = {value.dtype for value in model.parameters() if value.dtype.is_floating_point}
    return 1e-3 if kinds <= {torch.float32, torch.float64} else 0.05


def _no_sum(asked: Asked, term: str, whole: float, added: float, pieces: int, into: str) -> str:
    begin = f"{asked.name}.loss() gives {whole:.5g} as {term!r} of a batch, and {added:.5g} for {into} together."
    if abs(whole * pieces - added) <= 0.02 * abs(added):
        return (
            f"{begin} It is a mean. Return the sum over the valid targets (reduction='sum', or the mean times its "
            "count): the trainer divides by the count of the whole effective batch."
        )
    return (
        f"{begin} Either it is a mean over what is valid, where a sum is due (reduction='sum', or the mean times its "
        "count), or samples see each other: shapes such as (n, 1) and (n) that are broadcast, or negatives from the "
        "same batch."
    )


def _loss(asked: Asked, model: nn.Module, batch: Batch, counts: Mapping[str, float], seed: int = _SEED) -> Sums:
    """Returns the sums of a batch's loss terms, each of shape (). Raises BadInput for what is none."""
    name, before = f"{asked.name}.loss()", {key: value.clone() for key, value in batch.items()}
    precision = "fp32" if _tolerance(model) < 0.01 else choose_precision(asked.config.training.precision, asked.device)
    with put_back(), asking(name, f"The batch has {', '.join(batch)}."), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(mix(seed), asked.device)  # as in a step
        with autocast(precision, asked.device):
            returned = asked.task.loss(model, dict(batch))
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(one, Mapping) for one in returned)):
        raise BadInput(
            f"{name} returns {_kind(returned)}. Return two mappings: the sum of each loss term by name, and figures to "
            "log, of which there may be none ({})."
        )
    sums, figures = returned
    with asking(f"{name}, by its figures,", "Return numbers."):
        add_figures({}, figures, data.size_of(batch), counts)
    if changed := [key for key, value in before.items() if not alike(value, batch[key])]:
        raise BadInput(
            f"{name} changes {changed[0]!r} of the batch in place, so a step that is repeated would see another batch. "
            "Copy it first: .clone()."
        )
    _check_sums(asked, sums, counts)
    return {term: value.float().reshape(()) for term, value in sums.items()}


def _without_trace(
    asked: Asked, model: nn.Module, batch: Batch, counts: Mapping[str, float], seed: int = _SEED
) -> Sums:
    """Returns a batch's loss terms without gradients, and leaves the model's buffers as they were."""
    kept = [value.clone() for value in model.buffers()]
    try:
        with torch.no_grad():
            return _loss(asked, model, batch, counts, seed)
    finally:
        _restore(model, kept)


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(one).__name__ for one in value)})"
    return f"a {type(value).__name__}"


def _check_sums(asked: Asked, sums: Sums, counts: Mapping[str, float]) -> None:
    name = f"{asked.name}.loss()"
    check_loss_terms(asked.task, counts, sums)
    check_terms(asked.task, counts, {}, sums)
    for term, value in sums.items():
        if not isinstance(value, Tensor):
            raise BadInput(
                f"{name} returns {term!r} as a {type(value).__name__}, from which no gradient comes. Return the "
                "tensor: no .item() and no float()."
            )
        if value.numel() != 1:
            raise BadInput(f"{name} returns {term!r} of shape {tuple(value.shape)}. Return one number: .sum().")
        if counts.get(term) and not bool(torch.isfinite(value)):
            raise BadInput(
                f"{name} gives {float(value.detach())} as {term!r} of real samples and new weights. Look for a "
                "division by zero, a logarithm of zero, and NaN in the data."
            )


# --- in training mode -------------------------------------------------------------------------------------------------


def _in_training(asked: Asked, model: nn.Module, batch: Batch, counts: Mapping[str, float]) -> Iterator[str]:
    """Checks gradients, and that all that is drawn follows from the seeds of the trainer."""
    model.train()
    kept = [value.clone() for value in model.buffers()]
    sums = _loss(asked, model, batch, counts)
    yield from _gradients(asked, model, sums, counts)
    _restore(model, kept)
    found = [_without_trace(asked, model, batch, counts) for _ in range(2)]
    if differs := [term for term in found[0] if not _near(found[0][term], found[1][term], 1e-4)]:
        yield (
            f"{asked.name}.loss() or the model gives another {differs[0]!r} for the same batch and the same seed, so a "
            "resumed run would differ. Draw from torch, np.random or random, which are seeded for each micro-batch, "
            "not from a generator of your own, the system or the clock, and keep no state between two calls."
        )


def _restore(model: nn.Module, kept: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for value, before in zip(model.buffers(), kept, strict=True):
            value.copy_(before)


def _gradients(asked: Asked, model: nn.Module, sums: Sums, counts: Mapping[str, float]) -> Iterator[str]:
    due = {term: value for term, value in sums.items() if counts.get(term)}
    if not due:
        return
    without = [term for term, value in due.items() if not value.requires_grad]
    if len(without) == len(due):
        yield (
            f"{asked.name}.loss() returns {without[0]!r} without a gradient, so nothing is trained. Compute it from "
            "the model's output in torch: no .item(), .detach(), .data, .numpy(), torch.tensor(...) or torch.no_grad() "
            "on the way."
        )
        return
    with asking(f"The backward pass of {asked.name}.loss()"):
        torch.stack([due[term] / counts[term] for term in due if term not in without]).sum().backward()
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    model.zero_grad(set_to_none=True)
    if bad:
        yield (
            f"{asked.name}.loss() gives {bad[0]!r} a gradient that is not finite, of real samples and new weights. "
            "Look for sqrt, log or a norm at zero, and a division by it; torch.where does not stop their NaN in "
            "backward."
        )
