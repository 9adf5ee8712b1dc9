"""Samples as a person reads them: dealt to three parts, with a target that can be taken out and replaced."""

import contextlib
import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lib.errors import BadInput, printable
from lib.task.fingerprint import canonical

IGNORED = -100  # the label of what has no target, as in torch and transformers
PARTS = ("train", "validation", "test")
ORDERING = ("weights", "lengths", "order")  # what a sequence of samples may have that decides the order of an epoch


# What is being read: the folder that paths count from, whether it is new data, which is not dealt, the task's groups
_reading: ContextVar[tuple[Path | None, bool, Any]] = ContextVar("reading", default=(None, False, None))


@contextlib.contextmanager
def reading(root: Path | None, is_new: bool = False, group: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """Lets `split` inside the block count paths from `root`, so that the parts are the same wherever data lies."""
    token = _reading.set((root, is_new, group))
    try:
        yield
    finally:
        _reading.reset(token)


def split(
    items: Iterable[Any], validation: float = 0.15, test: float = 0.15, group: Callable[[Any], Any] | None = None
) -> dict[str, list[Any]]:
    """Deals items to "train", "validation" and "test" by a hash of their group: those of one group stay together.

    Adding items moves none of those that were there. `group` returns what items have in common (a patient, a
    document); by default it is that of the task, and where that returns None the item without its target. New data,
    which is read to be predicted, is not dealt.
    """
    root, is_new, usual = _reading.get()
    group = group or usual
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    if not 0 <= validation + test < 1 or min(validation, test) < 0:
        raise BadInput(f"split(validation={validation}, test={test}) leaves nothing to train on. Give smaller shares.")
    for item in items:
        shared = group(item) if group else None
        text = "" if is_new else canonical(input_of(item) if shared is None else shared, root)
        share = int(hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12], 16) / 16**12
        is_held = is_new or share < test
        parts["test" if is_held else "validation" if share < test + validation else "train"].append(item)
    return parts


def records(source: Path, pattern: str = "*.csv") -> Iterator[dict[str, Any]]:
    """Yields the rows of a CSV, TSV or JSON Lines file as dicts; of a folder those of all files that match, by name.

    A column that a file lacks is not in its rows: `row.get("label")` is None where new data has no targets.
    """
    for path in [source] if source.is_file() else sorted(source.glob(pattern)):
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix not in (".json", ".jsonl", ".ndjson"):
                yield from csv.DictReader(file, delimiter="\t" if path.suffix in (".tsv", ".txt") else ",")
                continue
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line) if line.strip() else {}
                    if not isinstance(row, dict):
                        raise ValueError(f"a {type(row).__name__}")
                except ValueError as error:
                    what = f"{printable(path)}:{number}: This line is no JSON object ({error})"
                    raise BadInput(f"{what}. Correct or delete it.") from None
                if line.strip():
                    yield row


def padded(rows: Sequence[Sequence[Any]], value: Any, length: int) -> Tensor:
    """Returns rows cut to `length` and filled with `value` to the longest of them, as a tensor (rows, longest)."""
    if text := next((value for row in rows for value in row[:1] if isinstance(value, str)), None):
        raise BadInput(
            f"padded() was given text such as {printable(repr(text), most=60)}, and a tensor holds numbers. Translate "
            "it in batch(), by the place of a name in the list of all names: [NAMES.index(name) for name in row]."
        )
    width = max(1, min(length, max(map(len, rows), default=1)))
    return torch.tensor([[*row[:width], *[value] * (width - len(row))] for row in rows])


class Item(NamedTuple):
    """A sample on its way into a batch."""

    sample: Any
    training: bool
    fold: int = 0  # of a training sample, where a run starts from a simple method


def target_of(sample: Any) -> Any:
    """Returns the last element of a tuple or list, or the last value of a dict. Raises BadInput for anything else."""
    if isinstance(sample, tuple | list) and sample:
        return sample[-1]
    if isinstance(sample, Mapping) and sample:
        return sample[next(reversed(sample))]
    what = printable(repr(sample), most=60)
    raise BadInput(f"The sample {what} has no target. Let read() return tuples whose last element is the target.")


def input_of(sample: Any) -> Any:
    """Returns a sample without what `target_of` returns; whole where it is no more than one value."""
    if isinstance(sample, Mapping) and len(sample) > 1:
        return dict(list(sample.items())[:-1])
    return sample[:-1] if isinstance(sample, tuple | list) and len(sample) > 1 else sample


def with_target(sample: Any, target: Any) -> Any:
    """Returns a sample with another target."""
    if isinstance(sample, Mapping):
        return {**sample, next(reversed(sample)): target}
    if hasattr(sample, "_replace"):  # a named tuple
        return sample._replace(**{sample._fields[-1]: target})
    return type(sample)([*sample[:-1], target])


def path_of(sample: Any) -> Path | None:
    """Returns the file that a sample begins with; None where it begins with something else."""
    first = sample[0] if isinstance(sample, tuple | list) and sample else sample
    return first if isinstance(first, Path) else None


def in_order(samples: Any, root: Path | None) -> Any:
    """Returns samples that begin with a path in the order of their paths: that of a folder differs between machines."""
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        samples = list(samples)
    is_plain = isinstance(samples, list) and not any(hasattr(samples, name) for name in ORDERING)
    if is_plain and samples and all(path_of(sample) for sample in samples):
        return sorted(samples, key=lambda sample: canonical(path_of(sample), root))
    return samples


def names_in(kind: str, target: Any) -> list[str]:
    """Returns the names of classes in a target; none where it has numbers."""
    if kind == "classes":
        return [target] if isinstance(target, str) else []
    is_collection = kind == "labels" and isinstance(target, list | tuple | set | frozenset)
    return [*target] if is_collection and all(isinstance(name, str) for name in target) else []


def class_names(kind: str, samples: Any) -> list[str]:
    """Returns the names that training samples have for classes, in the order of the alphabet."""
    if kind == "classes" and len(samples) and isinstance(target_of(samples[0]), str):
        return sorted({str(target_of(sample)) for sample in samples})
    return sorted(
        {name for sample in samples for name in names_in(kind, target_of(sample))} if kind == "labels" else ()
    )


def numbered(kind: str, target: Any, numbers: Mapping[str, int]) -> Any:
    """Returns a target with numbers in the place of names: of a class its own, of labels a mark for each class.

    Raises BadInput for a name that is no class.
    """
    names = names_in(kind, target)
    if unknown := [name for name in names if name not in numbers]:
        what = f"There is no class {printable(repr(unknown[0]), most=60)}"
        classes = ", ".join(printable(name, most=40) for name in [*numbers][:12])
        advice = "Name it in the setting `classes`, or see that the training samples have it."
        raise BadInput(f"{what}. The classes are: {classes}. {advice}")
    if kind == "classes":
        return numbers[names[0]] if names else target
    is_empty = isinstance(target, list | tuple | set | frozenset) and not target
    return [float(name in set(names)) for name in numbers] if names or (is_empty and numbers) else target
