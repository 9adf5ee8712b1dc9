"""Samples as a user reads them: dealt to three parts, checked and fingerprinted, each a data set."""

import contextlib
import csv
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib import untrusted
from lib.errors import BadInput, printable
from lib.task.contract import canonical
from lib.task.notes import collecting
from lib.task.place import naming

IGNORED = -100  # the label of what has no target, as in torch and transformers
FLOATS = ("numbers", "labels")  # kinds whose labels are floats, unknown where they are NaN
MOST_CLASSES = 1000  # whose probabilities are kept and written: those of more would take more memory than a model
FOLDS = 5  # of training samples, for the simple method
PARTS = ("train", "validation", "test")
_ORDERING = ("weights", "lengths", "order")  # what a sequence of samples may have that decides the order of an epoch
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


def split(items: Iterable[Any], validation: float = 0.15, test: float = 0.15) -> dict[str, list[Any]]:
    """Deals items to three parts by a hash of their group or input: more items move none. New data is not dealt."""
    root, is_new, group = _reading.get()
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    if not 0 <= validation + test < 1 or min(validation, test) < 0:
        raise BadInput(f"split(validation={validation}, test={test}) leaves nothing to train on. Give smaller shares.")
    for item in items:
        share = -1.0 if is_new else _hashed(item, group(item) if group else None, root) / 16**12
        parts["test" if share < test else "validation" if share < test + validation else "train"].append(item)
    return parts


def _hashed(sample: Any, shared: Any, root: Path | None, before: str = "") -> int:
    """Returns a number below 16**12 that follows from what a sample shares with others, else from its input."""
    text = before + canonical(input_of(sample) if shared is None else shared, root)
    return int(hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12], 16)


def records(source: Path, pattern: str = "*.csv", numbers: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields the rows of a CSV, TSV or JSON Lines file as dicts; of a folder those of all files that match, by name.

    A column that a file lacks is not in its rows. Columns of a CSV or TSV file in `numbers` become floats. Raises
    BadInput with the line of what is no number or no JSON object.
    """
    for path in [source] if source.is_file() else sorted(source.glob(pattern)):
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix in (".json", ".jsonl", ".ndjson"):
                yield from (_object(line, f"{printable(path)}:{n}") for n, line in enumerate(file, 1) if line.strip())
                continue
            rows = csv.DictReader(file, delimiter="\t" if path.suffix in (".tsv", ".txt") else ",")
            for cells in rows:
                place = f"{printable(path)}:{rows.line_num}"
                yield cells | {name: _number(cells[name], name, place) for name in numbers if name in cells}


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        return untrusted.objects(line)
    except BadInput as error:
        raise BadInput(f"{place}: {error}. Correct or delete the line.") from None


def _number(value: Any, column: str, place: str) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return number
    what = f"{place}: {printable(repr(value), most=60)} in the column {printable(column)} is no number"
    raise BadInput(f"{what}. Correct it, leave the row out, or write in read() which number it stands for.")


def padded(rows: Sequence[Sequence[Any]], value: Any, length: int) -> Tensor:
    """Returns rows cut to `length` and filled with `value` to the longest of them, as a tensor (rows, longest)."""
    if text := next((value for row in rows for value in row[:1] if isinstance(value, str)), None):
        raise BadInput(f"padded() was given text, {printable(repr(text), most=60)}. Make numbers of it in batch().")
    width = max(1, min(length, max(map(len, rows), default=1)))
    return torch.tensor([[*row[:width], *[value] * (width - len(row))] for row in rows])


def target_of(sample: Any) -> Any:
    """Returns the last element of a tuple or list, or the last value of a dict. Raises BadInput for anything else."""
    if isinstance(sample, tuple | list | Mapping) and sample:
        return [*sample.values()][-1] if isinstance(sample, Mapping) else sample[-1]
    raise BadInput(f"The sample {printable(repr(sample), most=60)} is no tuple whose last element is the target.")


def input_of(sample: Any) -> Any:
    """Returns a sample without what `target_of` returns; whole where it is no more than one value."""
    if isinstance(sample, Mapping) and len(sample) > 1:
        return dict(list(sample.items())[:-1])
    return sample[:-1] if isinstance(sample, tuple | list) and len(sample) > 1 else sample


def with_target(sample: Any, target: Any) -> Any:
    if isinstance(sample, Mapping):
        return {**sample, [*sample][-1]: target}
    if hasattr(sample, "_replace"):  # a named tuple
        return sample._replace(**{sample._fields[-1]: target})
    return type(sample)([*sample[:-1], target])


def path_of(sample: Any) -> Path | None:
    first = sample[0] if isinstance(sample, tuple | list) and sample else sample
    return first if isinstance(first, Path) else None


def names_in(kind: str, target: Any) -> list[str] | None:
    if kind == "classes":
        return [target] if isinstance(target, str) else None
    is_collection = kind == "labels" and isinstance(target, list | tuple | set | frozenset)
    return [*target] if is_collection and all(isinstance(name, str) for name in target) else None


def prepared(task: Any, sample: Any) -> Any:
    """Returns a sample with classes as numbers or marks if its target has names. Raises BadInput for others."""
    names = names_in(task.kind, target_of(sample)) if task.kind in ("classes", "labels") else None
    if names is None:
        return sample
    if unknown := [name for name in names if name not in task._numbers]:
        raise BadInput(f"There is no class {printable(repr(unknown[0]), most=60)}. Name it in the setting `classes`.")
    if task.kind == "classes":
        return with_target(sample, task._numbers[names[0]])
    return with_target(sample, [float(name in names) for name in task._numbers])


class Item(NamedTuple):
    sample: Any
    training: bool  # whether it is on its way into a batch of training


class Part:
    """The samples of a part as a data set, lazy if they are, with their `weights`, `lengths`, `order` and `subset`."""

    def __init__(self, task: Any, name: str, samples: Any):
        self.task, self.name, self.samples, self.training = task, name, samples, name == "train"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        return Item(self.task.prepared(self.samples[index]), self.training)

    def fold(self, index: int) -> int:
        """Returns the fold of a sample among training samples, by a hash of its group or of its input."""
        sample, groups = self.samples[index], getattr(self.samples, "groups", None)
        shared = self.task.group(sample) if groups is None else groups[index]
        return _hashed(sample, shared, self.task.source, "fold ") % FOLDS

    def __getattr__(self, name: str) -> Any:
        if name not in (*_ORDERING, "subset") or "samples" not in vars(self):  # as in a copy while it is made
            raise AttributeError(f"A part of the samples has no {name}.")
        value = getattr(self.samples, name)
        return value if name != "subset" else lambda *share: Part(self.task, self.name, value(*share))

    def texts(self) -> Iterator[str]:
        """Returns a text for each sample without its target. Raises BadInput for what has none."""
        if not isinstance(self.samples, list | tuple):
            raise BadInput("Samples of a lazy sequence are not read for their texts.")
        return (canonical(input_of(sample), self.task.source) for sample in self.samples)


def read_parts(task: Any) -> tuple[dict[str, Part], list[str]]:
    """Returns the samples by part, as `read` of a task returns or `split` deals them, and readers' notes on the data.

    Raises BadInput.
    """
    name, source, advice = f"{type(task).__name__}.read", task.source, "Look at data.dir, and at how the data is read."
    with naming(name, advice), reading(source, group=task.group), collecting() as notes:
        data = task.read() if source is None else task.read(source)
        order = next((order for order in _ORDERING if hasattr(data, order)), "")
        if order and not isinstance(data, Mapping):
            what = f"{name} returned one list with `{order}`, which belongs to the training samples"
            raise BadInput(f'{what}. Return {{"train": ..., "validation": ..., "test": ...}}.')
        data = data if isinstance(data, Mapping) else split(data)
        parts = {part: in_order(rows, source) for part, rows in data.items() if rows is not None}
    if not any(map(len, parts.values())):
        endings = Counter(path.suffix for path in source.rglob("*") if path.is_file()) if source else Counter()
        has = ", ".join(f"{number:,} {printable(ending)}" for ending, number in endings.most_common(3))
        where = f" in {printable(source)}, which has files: {has or 'none'}" if source else ""
        raise BadInput(f"{name} found no samples{where}. {advice}")
    if unknown := sum(target_of(row) is None for rows in parts.values() if isinstance(rows, list) for row in rows):
        raise BadInput(f"{name} returned {unknown:,} samples whose target is None. Look at the target's column.")
    return {part: Part(task, part, rows) for part, rows in parts.items()}, notes


def in_order(samples: Any, root: Path | None) -> Any:
    """Returns samples that begin with a path in the order of their paths: that of a folder differs between machines."""
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        samples = list(samples)
    is_plain = isinstance(samples, list) and not any(hasattr(samples, name) for name in _ORDERING)
    if is_plain and samples and all(path_of(sample) for sample in samples):
        return sorted(samples, key=lambda sample: canonical(path_of(sample), root))
    return samples


def digest(parts: Mapping[str, Part]) -> str:
    """Returns a hash of which samples are in which part; of a lazy sequence, or what has no text, their number."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        source, digested = part.task.source, list | tuple if part.task.source else list | tuple | np.ndarray
        digest.update(f"{name} {len(part)}\n".encode())
        try:
            for sample in part.samples if isinstance(part.samples, digested) else ():
                digest.update(canonical(sample, source).encode("utf-8", "surrogateescape") + b"\n")
        except BadInput:
            if source is None:
                raise
            digest.update(b"objects\n")
    return digest.hexdigest()[:16]


def is_same(one: Part, other: Part) -> bool:
    """Tells whether two parts have the same samples, in any order; lazy sequences only if they are one."""
    lists = [part.samples for part in (one, other)]
    if lists[0] is lists[1]:
        return True
    if len(lists[0]) != len(lists[1]) or not all(isinstance(rows, list | tuple) for rows in lists):
        return False
    if all(first is second for first, second in zip(*lists, strict=True)):
        return True
    with contextlib.suppress(BadInput):
        texts = ([canonical(row, one.task.source) for row in rows] for rows in lists)
        first, second = map(sorted, texts)
        return first == second
    return False


def class_names(kind: str, samples: Any) -> list[str]:
    if kind != "labels" and not (kind == "classes" and len(samples) and names_in(kind, target_of(samples[0]))):
        return []
    return sorted({name for sample in samples for name in names_in(kind, target_of(sample)) or ()})


def check_names(parts: Mapping[str, Part], names: list[str]) -> None:
    """Raises BadInput for samples whose class, a name, is none of `names`: all such classes."""
    missing = Counter[str]()
    for rows in (part for part in parts.values() if isinstance(part.samples, list | tuple)):
        missing.update(name for sample in rows.samples for name in names_in(rows.task.kind, target_of(sample)) or ())
    if shown := [f"{name!r} ({missing[name]:,})" for name in sorted(missing.keys() - names)]:
        what = f"Classes in no training sample and in no setting `classes`: {printable(', '.join(shown), most=600)}"
        raise BadInput(f"{what}. List them there, or leave their samples (in brackets: how many) out in read().")


def of_files(samples: Any, source: Path | None) -> dict[str, Any]:
    """Returns the suffixes of files that samples are beside their targets; the folder, where targets are files too."""
    if not (isinstance(samples, list) and samples and len(samples[0]) == 2 and path_of(samples[0])):
        return {}
    paths = [path for sample in samples if (path := path_of(sample))]
    first, *others = {canonical(path.parent, source) for path in paths}
    has_folder = isinstance(target_of(samples[0]), Path) and not others and not Path(first).is_absolute()
    return {"suffixes": sorted({path.suffix for path in paths}), **({"folder": first} if has_folder else {})}
