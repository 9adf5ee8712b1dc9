"""Samples as a user reads them: dealt to three parts, checked and fingerprinted, each a data set."""

import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.errors import BadInput, printable
from lib.task.place import naming
from trainbook.supervised import copies
from trainbook.supervised.canonical import canonical
from trainbook.supervised.copies import key_of, same_files
from trainbook.supervised.coverage import covering, dealing
from trainbook.supervised.notes import collecting, note

IGNORED = -100  # the label of what has no target, as in torch and transformers
FLOATS = ("numbers", "labels")  # kinds whose labels are floats, unknown where they are NaN
MOST_CLASSES = 1000  # whose probabilities are kept and written: those of more would take more memory than a model
FOLDS = 5  # of training samples, for the simple method
PARTS = ("train", "validation", "test")
_MISSING = (
    "na",
    "n/a",
    "nan",
    "null",
    "nil",
    "none",
    "?",
    "-",
    "--",
    "#n/a",
)  # as programs write no value
_ORDERING = (
    "weights",
    "lengths",
    "order",
)  # what a sequence of samples may have that decides the order of an epoch
# What is being read: the folder that paths count from, whether it is new data, which is not dealt, the task's groups
_reading: ContextVar[tuple[Path | None, bool, Any]] = ContextVar(
    "reading", default=(None, False, None)
)


@contextlib.contextmanager
def reading(
    root: Path | None, is_new: bool = False, group: Callable[[Any], Any] | None = None
) -> Iterator[None]:
    """Lets `split` inside the block count paths from `root`, so that the parts are the same wherever data lies."""
    token = _reading.set((root, is_new, group))
    try:
        with covering(root):
            yield
    finally:
        _reading.reset(token)


def split(
    items: Iterable[Any], validation: float = 0.15, test: float = 0.15
) -> dict[str, list[Any]]:
    """Deals items to three parts by a hash of their group or input: more items move none. New data is not dealt.

    Files with the same bytes go where the first of them goes by name, unless groups decide.
    """
    root, is_new, group = _reading.get()
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    if not 0 <= validation + test < 1 or min(validation, test) < 0:
        raise BadInput(
            f"split(validation={validation}, test={test}) leaves nothing to train on. Give smaller shares."
        )
    with contextlib.nullcontext() if is_new else dealing():
        items = list(items)
    leaders = {} if is_new or group else _leaders(items, root)
    for number, item in enumerate(items):
        leader = leaders.get(number, item)
        if is_new:
            share = -1.0
        else:
            share = _hashed(leader, group(item) if group else None, root) / 16**12
        parts[
            "test" if share < test else "validation" if share < test + validation else "train"
        ].append(item)
    return parts


def _leaders(items: Sequence[Any], root: Path | None) -> dict[int, Any]:
    """Returns for each item with a copy of its files, by number, the first of these by name."""
    contents = same_files(map(input_of, items))
    groups: dict[Hashable, list[tuple[str, int]]] = defaultdict(list)
    for number, item in enumerate(items if contents else ()):
        groups[key_of(input_of(item), contents)].append((canonical(input_of(item), root), number))
    repeated = [sorted(group) for group in groups.values() if len(group) > 1]
    return {number: items[group[0][1]] for group in repeated for _, number in group}


def _hashed(sample: Any, shared: Any, root: Path | None, before: str = "") -> int:
    """Returns a number below 16**12 that follows from what a sample shares with others, else from its input."""
    text = before + canonical(input_of(sample) if shared is None else shared, root)
    return int(hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12], 16)


def padded(rows: Sequence[Sequence[Any]], value: Any, length: int) -> Tensor:
    """Returns rows cut to `length` and filled with `value` to the longest of them, as a tensor (rows, longest)."""
    if text := next((value for row in rows for value in row[:1] if isinstance(value, str)), None):
        raise BadInput(
            f"padded() was given text, {printable(repr(text), most=60)}. Make numbers of it in batch()."
        )
    width = max(1, min(length, max(map(len, rows), default=1)))
    return torch.tensor([[*row[:width], *[value] * (width - len(row))] for row in rows])


def target_of(sample: Any) -> Any:
    """Returns the last element of a tuple or list, or the last value of a dict. Raises BadInput for anything else."""
    if isinstance(sample, tuple | list | Mapping) and sample:
        if isinstance(sample, Mapping):
            return [*sample.values()][-1]
        return sample[-1]
    raise BadInput(
        f"The sample {printable(repr(sample), most=60)} is no tuple whose last element is the target."
    )


def input_of(sample: Any) -> Any:
    """Returns a sample without what `target_of` returns; whole where it is no more than one value."""
    if isinstance(sample, Mapping) and len(sample) > 1:
        return dict(list(sample.items())[:-1])
    if isinstance(sample, tuple | list) and len(sample) > 1:
        return sample[:-1]
    return sample


def with_target(sample: Any, target: Any) -> Any:
    if isinstance(sample, Mapping):
        return {**sample, [*sample][-1]: target}
    if hasattr(sample, "_replace"):  # a named tuple
        return sample._replace(**{sample._fields[-1]: target})
    return type(sample)([*sample[:-1], target])


def path_of(sample: Any) -> Path | None:
    if isinstance(sample, tuple | list) and sample:
        first = sample[0]
    else:
        first = sample
    return first if isinstance(first, Path) else None


def names_in(kind: str, target: Any) -> list[str] | None:
    if kind == "classes":
        if isinstance(target, str):
            return [target]
        return None
    is_collection = kind == "labels" and isinstance(target, list | tuple | set | frozenset)
    if is_collection and all(isinstance(name, str) for name in target):
        return [*target]
    return None


def prepared(task: Any, sample: Any) -> Any:
    """Returns a sample with classes as numbers or marks if its target has names. Raises BadInput for others."""
    if task.kind in ("classes", "labels"):
        names = names_in(task.kind, target_of(sample))
    else:
        names = None
    if names is None:
        return sample
    if unknown := [name for name in names if name not in task._numbers]:
        raise BadInput(
            f"There is no class {printable(repr(unknown[0]), most=60)}. Name it in the setting `classes`."
        )
    if task.kind == "classes":
        return with_target(sample, task._numbers[names[0]])
    return with_target(sample, [float(name in names) for name in task._numbers])


class Item(NamedTuple):
    sample: Any
    training: bool  # whether it is on its way into a batch of training


class Part:
    """The samples of a part as a data set, lazy if they are, with their `weights`, `lengths`, `order` and `subset`."""

    def __init__(self, task: Any, name: str, samples: Any):
        self.task = task
        self.name = name
        self.samples = samples
        self.training = name == "train"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        return Item(self.task.prepared(self.samples[index]), self.training)

    def fold(self, index: int) -> int:
        """Returns the fold of a sample among training samples, by a hash of its group or of its input."""
        sample = self.samples[index]
        groups = getattr(self.samples, "groups", None)
        shared = self.task.group(sample) if groups is None else groups[index]
        return _hashed(sample, shared, self.task.source, "fold ") % FOLDS

    def __getattr__(self, name: str) -> Any:
        if name not in (*_ORDERING, "subset") or "samples" not in vars(
            self
        ):  # as in a copy while it is made
            raise AttributeError(f"A part of the samples has no {name}.")
        value = getattr(self.samples, name)
        if name != "subset":
            return value
        return lambda *share: Part(self.task, self.name, value(*share))

    def texts(self) -> Iterator[str]:
        """Returns a text for each sample without its target. Raises BadInput for what has none."""
        if not isinstance(self.samples, list | tuple):
            raise BadInput("Samples of a lazy sequence are not read for their texts.")
        return (canonical(input_of(sample), self.task.source) for sample in self.samples)


def read_parts(task: Any) -> tuple[dict[str, Part], list[str]]:
    """Returns the samples by part, as `read` of a task returns or `split` deals them, and readers' notes on the data.

    Raises BadInput.
    """
    name = f"{type(task).__name__}.read"
    source = task.source
    advice = "Look at data.dir, and at how the data is read."
    with naming(name, advice), collecting() as notes, reading(source, group=task.group):
        data = task.read() if source is None else task.read(source)
        order = next((order for order in _ORDERING if hasattr(data, order)), "")
        if order and not isinstance(data, Mapping):
            what = f"{name} returned one list with `{order}`, which belongs to the training samples"
            raise BadInput(f'{what}. Return {{"train": ..., "validation": ..., "test": ...}}.')
        data = data if isinstance(data, Mapping) else split(data)
        parts = {part: in_order(rows, source) for part, rows in data.items() if rows is not None}
    if not any(map(len, parts.values())):
        if source:
            endings = Counter(path.suffix for path in source.rglob("*") if path.is_file())
        else:
            endings = Counter()
        has = ", ".join(
            f"{number:,} {printable(ending)}" for ending, number in endings.most_common(3)
        )
        where = f" in {printable(source)}, which has files: {has or 'none'}" if source else ""
        raise BadInput(f"{name} found no samples{where}. {advice}")
    _check_targets(task.kind, name, parts, notes)
    with collecting() as more:
        _note_copies(parts, source)
        _note_classes(task.kind, task._given_names(), parts)
    return {part: Part(task, part, rows) for part, rows in parts.items()}, [*notes, *more]


def _check_targets(kind: str, name: str, parts: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Raises BadInput for samples whose target is None, or a class without a letter; `notes` are of the reading."""
    rows = [row for samples in parts.values() if isinstance(samples, list) for row in samples]
    empty = [row for row in rows if _is_empty(kind, target_of(row))]
    if not empty:
        return
    example = printable(repr(empty[0]), most=200)
    about = "\n".join(["Look at the target's column.", *notes])
    raise BadInput(
        f"{name} returned {len(empty):,} samples whose target is None or empty, such as {example}. {about}"
    )


def _is_empty(kind: str, target: Any) -> bool:
    is_blank = kind == "classes" and isinstance(target, str) and not target.strip()
    return target is None or is_blank


def _note_copies(parts: Mapping[str, Any], root: Path | None) -> None:
    lists = {part: rows for part, rows in parts.items() if isinstance(rows, list)}
    samples = [
        copies.Sample(part, input_of(row), target_of(row))
        for part, rows in lists.items()
        for row in rows
    ]
    for sentence in copies.sentences(samples, root):
        note(sentence)


def _note_classes(kind: str, names: Sequence[str], parts: Mapping[str, Any]) -> None:
    """Notes classes without a training sample, tags that are no class, and names that differ by spaces or capitals."""
    train = parts.get("train")
    if kind not in ("classes", "labels", "tokens") or not isinstance(train, list):
        return
    seen = Counter(label for row in train for label in _labels_in(kind, target_of(row)))
    if (
        kind == "tokens"
        and not seen
        and train
        and all(_is_unknown(target_of(row)) for row in train)
    ):
        example = printable(repr(train[0]), most=200)
        raise BadInput(
            f"No training sample has a tag, such as {example}. Look at the target's column."
        )
    absent = [name for number, name in enumerate(names) if name not in seen and number not in seen]
    if seen and absent:
        what = f"Classes without a training sample: {printable(', '.join(absent), most=400)}"
        note(f"{what}. Is a folder or a label spelled otherwise?")
    tags = [
        f"{tag!r} ({number:,})"
        for tag, number in seen.items()
        if isinstance(tag, str) and tag not in names
    ]
    if kind == "tokens" and names and tags:
        note(f"Tags in no setting `classes`: {printable(', '.join(sorted(tags)), most=400)}.")
    _note_spellings([name for name in seen if isinstance(name, str)])


def _note_spellings(names: Sequence[str]) -> None:
    """Notes classes that may be one, such as 1 and 1.0, and those that are called as a missing value."""
    spellings = defaultdict[Hashable, list[str]](list)
    for name in names:
        spellings[_spelled(name)].append(name)
    for alike in spellings.values():
        if len(alike) > 1:
            note(
                f"Classes that differ in spelling alone: {printable(', '.join(map(repr, alike)), most=200)}."
            )
    missing = [name for name in names if name.strip().casefold() in _MISSING]
    if missing and len(names) > len(missing):
        shown = printable(", ".join(map(repr, missing)), most=200)
        note(
            f"Classes that are called as a missing value: {shown}. Leave their samples out, if they have no class."
        )


def _spelled(name: str) -> Hashable:
    """Returns what a class has in common with another spelling of it: its number, or its letters."""
    with contextlib.suppress(ValueError):
        number = float(name)
        return number if number == number else ""
    return " ".join(name.casefold().split())


def _is_unknown(tags: Any) -> bool:
    """Returns whether a target is tags of words, all of them unknown."""
    return isinstance(tags, list | tuple) and all(
        isinstance(tag, str | int) and tag in ("", IGNORED) for tag in tags
    )


def _labels_in(kind: str, target: Any) -> Sequence[Hashable]:
    """Returns the names or numbers of classes in a target; none of one of another form."""
    if kind == "classes":
        if isinstance(target, str | int):
            return [target]
        return []
    if isinstance(target, list | tuple | set | frozenset):
        names = target
    else:
        names = ()
    is_known = all(
        isinstance(name, str) or (kind == "tokens" and type(name) is int) for name in names
    )
    if is_known:
        return [name for name in names if name not in ("", IGNORED)]
    return []


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
        source, digested = (
            part.task.source,
            list | tuple if part.task.source else list | tuple | np.ndarray,
        )
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
    if kind != "labels" and not (
        kind == "classes" and len(samples) and names_in(kind, target_of(samples[0]))
    ):
        return []
    return sorted({name for sample in samples for name in names_in(kind, target_of(sample)) or ()})


def check_names(parts: Mapping[str, Part], names: list[str]) -> None:
    """Raises BadInput for samples whose class, a name, is none of `names`: all such classes."""
    missing = Counter[str]()
    for rows in (part for part in parts.values() if isinstance(part.samples, list | tuple)):
        missing.update(
            name
            for sample in rows.samples
            for name in names_in(rows.task.kind, target_of(sample)) or ()
        )
    if shown := [f"{name!r} ({missing[name]:,})" for name in sorted(missing.keys() - names)]:
        what = f"Classes in no training sample and in no setting `classes`: {printable(', '.join(shown), most=600)}"
        raise BadInput(
            f"{what}. List them there, or leave their samples (in brackets: how many) out in read()."
        )


def of_files(samples: Any, source: Path | None) -> dict[str, Any]:
    """Returns the suffixes of files that samples are beside their targets; the folder, where targets are files too."""
    if not (isinstance(samples, list) and samples and len(samples[0]) == 2 and path_of(samples[0])):
        return {}
    paths = [path for sample in samples if (path := path_of(sample))]
    first, *others = {canonical(path.parent, source) for path in paths}
    has_folder = (
        isinstance(target_of(samples[0]), Path) and not others and not Path(first).is_absolute()
    )
    return {
        "suffixes": sorted({path.suffix for path in paths}),
        **({"folder": first} if has_folder else {}),
    }
