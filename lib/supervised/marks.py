"""What of a target is a name, and the marks of samples that have any number of classes: a 1 for each, 0 for others."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput, printable
from lib.supervised.samples import target_of


def names_in(kind: str, target: Any) -> list[str]:
    """Returns the names of classes in a target; none where it has numbers."""
    if kind == "classes":
        return [target] if isinstance(target, str) else []
    is_collection = kind == "labels" and isinstance(target, list | tuple | set | frozenset)
    return [*target] if is_collection and all(isinstance(name, str) for name in target) else []


def class_names(kind: str, samples: Any) -> list[str]:
    """Returns the names that training samples have for classes, in the order of the alphabet."""
    if kind not in ("classes", "labels"):
        return []
    if kind == "classes":
        is_named = len(samples) and isinstance(target_of(samples[0]), str)
        return sorted({str(target_of(sample)) for sample in samples}) if is_named else []
    return sorted({name for sample in samples for name in names_in(kind, target_of(sample))})


def numbered(kind: str, target: Any, numbers: Mapping[str, int]) -> Any:
    """Returns a target with numbers in the place of names: of a class its own, of labels a mark for each class.

    Raises BadInput for a name that is no class.
    """
    names = names_in(kind, target)
    if unknown := [name for name in names if name not in numbers]:
        known = ", ".join(printable(name, most=40) for name in [*numbers][:12])
        raise BadInput(
            f"There is no class {printable(repr(unknown[0]), most=60)}. The classes are: {known}. Name it in the "
            "setting `classes`, or see that the training samples have it."
        )
    if kind == "classes" and names:
        return numbers[names[0]]
    is_empty = kind == "labels" and isinstance(target, list | tuple | set | frozenset) and not target
    if kind == "labels" and (names or (is_empty and numbers)):
        return [float(name in set(names)) for name in numbers]
    return target


def check_shapes(labels: Tensor, outputs: Tensor, shapes: str) -> None:
    """Raises BadInput unless labels are (samples, classes), and outputs a score for each."""
    if labels.dim() != 2 or outputs.shape != labels.shape:
        raise BadInput(f"{shapes}. With kind = 'labels' both are (samples, classes): a score for each mark.")


def check(labels: Tensor) -> None:
    """Raises BadInput unless labels are marks. They are asked on the CPU, where no device waits for the answer."""
    if bool(((labels != 0) & (labels != 1) & ~labels.isnan()).any()):
        raise BadInput(
            "With kind = 'labels' a label is 1 where the sample has the class and 0 elsewhere; NaN: unknown."
        )


def summed_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns () the sum of binary cross-entropy over known marks."""
    each = F.binary_cross_entropy_with_logits(outputs, labels.nan_to_num(), reduction="none")
    return torch.where(labels.isnan(), 0.0, each).sum()


def rows(shares: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the classes that are likelier than not, with their probabilities, of (samples, classes) shares."""
    found = []
    for row in shares.tolist():
        likely = [number for number, share in enumerate(row) if share > 0.5]
        named = [names[number] if number < len(names) else str(number) for number in likely]
        found.append({"prediction": "; ".join(named), "probability": "; ".join(f"{row[k]:.6f}" for k in likely)})
    return found
