"""What a task has returned, checked against the contract where the trainer takes it."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.utils.data import IterableDataset

from lib.errors import BadInput, printable
from lib.task.contract import Task

SPLITS = ("train", "validation", "test")


def checked_datasets(task: Task) -> dict[str, Any]:
    """Returns `datasets()` of a task. Raises BadInput where it is not three map-style data sets with samples."""
    name, sets = f"{type(task).__name__}.datasets()", task.datasets()
    if not isinstance(sets, Mapping) or {*SPLITS} - sets.keys():
        splits = ", ".join(map(repr, sets)) if isinstance(sets, Mapping) else f"a {type(sets).__name__}"
        advice = 'It must return {"train": ..., "validation": ..., "test": ...}.'
        raise BadInput(f"{name} returns {splits or 'nothing'}. {advice}")
    for split in SPLITS:
        kind, methods = f"{name} returns a {type(sets[split]).__name__} as {split!r}", ("__getitem__", "__len__")
        if isinstance(sets[split], IterableDataset) or not all(hasattr(sets[split], method) for method in methods):
            raise BadInput(f"{kind}. Return one with __getitem__ and __len__: a run is resumed at any sample.")
        if not len(sets[split]):
            sizes = ", ".join(f"{part} {len(sets[part]):,}" for part in SPLITS)
            raise BadInput(f"{name}: {split} has no samples ({sizes}). Look at data.dir, and at how they are split.")
    return dict(sets)


def checked_blocks(task: Task, model: nn.Module) -> list[nn.Module]:
    """Returns `blocks` of a task, each once. Raises BadInput where one is no module of the model."""
    blocks, modules = list(dict.fromkeys(task.blocks(model))), set(model.modules())
    if strange := [block for block in blocks if block not in modules]:
        what = f"{type(task).__name__}.blocks returned a {type(strange[0]).__name__} that is no module of the model"
        raise BadInput(f"{what}. Return modules that the model calls, such as list(model.layers).")
    return blocks


def checked_scores(task: Task, scores: Any) -> dict[str, float]:
    """Returns what `evaluate` of a task has returned. Raises BadInput unless it has the metric of `selection`."""
    name, numbers = type(task).__name__, checked_numbers(task, "evaluate", scores)
    metric, direction = task.selection
    if metric not in scores or direction not in ("max", "min"):
        advice = f"Name a metric that {name}.evaluate returns ({', '.join(map(str, scores))})"
        raise BadInput(f'{name}.selection is {task.selection!r}. {advice}, and whether "max" or "min" is better.')
    return numbers


def checked_numbers(task: Task, method: str, values: Any) -> dict[str, float]:
    """Returns what a method of a task has returned as metrics. Raises BadInput unless they are numbers by name."""
    name = f"{type(task).__name__}.{method}"
    if not isinstance(values, Mapping) or not (values or method == "baseline"):  # which may have none
        raise BadInput(f"{name} returned {printable(repr(values), most=60)} instead of metrics by name.")
    try:
        return {metric: value if isinstance(value, int | float) else float(value) for metric, value in values.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} returned a metric that is no number ({error}).") from None


def check_terms(task: Task, counts: Mapping[str, float], weights: Iterable[str], summed: Iterable[str]) -> None:
    """Raises BadInput where `term_weights` and `count` name other terms than `loss`, which has `summed` those there."""
    check_loss_terms(task, counts, weights, "term_weights weighs")
    if missing := sorted({term for term, count in counts.items() if count} - set(summed)):
        name = type(task).__name__
        what = f"{name}.count has {counts[missing[0]]} targets of the term {missing[0]!r}"
        raise BadInput(f"{what}, and {name}.loss returned no such term. Both must name the same terms.")


def check_loss_terms(
    task: Task, counts: Mapping[str, float], terms: Iterable[str], does: str = "loss returned"
) -> None:
    """Raises BadInput where `loss` returned a term that `count` does not have."""
    if unknown := sorted(set(terms) - counts.keys()):
        name, known = type(task).__name__, ", ".join(map(repr, counts)) or "none"
        what = f"{name}.{does} {unknown[0]!r}, which is no loss term. {name}.count has: {known}"
        raise BadInput(f"{what}. Both must name the same terms.")
