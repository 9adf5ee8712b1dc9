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

IGNORED = -100  # the label of a missing target, as in torch and transformers
MOST_CLASSES = 1000  # probabilities of more classes would take more memory than a model
FOLDS = 5  # of training samples, for the simple method
PARTS = ("train", "validation", "test")
# A class that is called so may be a missing value, as programs write it
_MISSING = ("na", "n/a", "nan", "null", "nil", "none", "?", "-", "--", "#n/a")
_ORDERING = (
    "weights",
    "lengths",
    "order",
)  # of a sequence of samples: decides the order of an epoch


class _Reading(NamedTuple):
    """What is being read: the folder that paths count from, whether the data is new, the task's `group`, its folds."""

    root: Path | None = None
    is_new: bool = False  # new data is not dealt
    group: Callable[[Any], Any] | None = None
    folding: Any = None  # a `Folding`, which deals the folds of a run


_reading: ContextVar[_Reading] = ContextVar("reading", default=_Reading())  # noqa: B039


@contextlib.contextmanager
def reading(
    root: Path | None,
    is_new: bool = False,
    group: Callable[[Any], Any] | None = None,
    folding: Any = None,
) -> Iterator[None]:
    """Lets `split` inside the block count paths from `root`, so that the parts are the same wherever data lies."""
    token = _reading.set(_Reading(root, is_new, group, folding))
    try:
        with covering(root):
            yield
    finally:
        _reading.reset(token)


def split(
    items: Iterable[Any], validation: float = 0.15, test: float = 0.15
) -> dict[str, list[Any]]:
    """Deals items to "train", "validation" and "test" by a hash of their group or input.

    More items move no earlier one; all new data for a prediction goes to "test". Files with the same bytes go where the
    first of them goes by name, unless groups decide. In a run of `folds` the fold is validation and test, or with
    `folds.nested` the test, and shares have no effect. Raises BadInput for shares that leave nothing to train on.
    """
    if not 0 <= validation + test < 1 or min(validation, test) < 0:
        raise BadInput(
            f"split(validation={validation}, test={test}) leaves nothing to train on. "
            "Give smaller shares."
        )
    root, is_new, group, folding = _reading.get()
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    if is_new:
        parts["test"] += items
        return parts
    with dealing():
        items = list(items)
    if folding is not None:
        return folding.dealt(items)
    leaders = {} if group else leaders_of(items, root)
    for number, item in enumerate(items):
        shared = group(item) if group else None
        place = hashed(leaders.get(number, item), shared, root) / 16**12
        if place < test:
            parts["test"].append(item)
        elif place < test + validation:
            parts["validation"].append(item)
        else:
            parts["train"].append(item)
    return parts


def leaders_of(items: Sequence[Any], root: Path | None) -> dict[int, Any]:
    """Returns for each item with a copy of its files, by number, the first of these by name."""
    contents = same_files(map(input_of, items))
    if not contents:
        return {}
    groups: dict[Hashable, list[tuple[str, int]]] = defaultdict(list)
    for number, item in enumerate(items):
        given = input_of(item)
        groups[key_of(given, contents)].append((canonical(given, root), number))
    leaders = {}
    for group in groups.values():
        _, first = min(group)
        if len(group) > 1:
            leaders.update({number: items[first] for _, number in group})
    return leaders


def hashed(sample: Any, shared: Any, root: Path | None, before: str = "") -> int:
    """Returns a number below 16**12 from the sample's group, or from its input if it has no group."""
    text = before + canonical(input_of(sample) if shared is None else shared, root)
    return int(hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12], 16)


def padded(rows: Sequence[Sequence[Any]], value: Any, length: int) -> Tensor:
    """Returns (rows, longest) a tensor of rows that are cut to `length` and filled with `value`.

    Raises BadInput for text.
    """
    texts = [first for row in rows for first in row[:1] if isinstance(first, str)]
    if texts:
        text = printable(repr(texts[0]), most=60)
        raise BadInput(f"padded() was given text, {text}. Make numbers of it in batch().")
    width = max(1, min(length, max(map(len, rows), default=1)))
    filler = [value] * width
    return torch.tensor([[*row[:width], *filler[len(row) :]] for row in rows])


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
    """Returns a sample without its target; a sample of a single value is returned whole."""
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
    """Returns the path that a sample is or begins with; None for others."""
    is_row = isinstance(sample, tuple | list) and len(sample) > 0
    first = sample[0] if is_row else sample
    return first if isinstance(first, Path) else None


def prepared(task: Any, sample: Any) -> Any:
    """Returns a sample with classes as numbers or marks if its target has names. Raises BadInput for others."""
    kind = task._kind
    names = kind.names_in(target_of(sample)) if kind.has_names else None
    if names is None:
        return sample
    numbers = task._numbers
    for name in names:
        if name not in numbers:
            shown = printable(repr(name), most=60)
            raise BadInput(f"There is no class {shown}. Name it in the setting `classes`.")
    return with_target(sample, kind.numbered(names, numbers))


class Item(NamedTuple):
    sample: Any
    training: bool  # whether it is on its way into a batch of training


class Part:
    """The samples of a part as a data set, lazy if they are, with their `weights`, `lengths`, `order` and `subset`."""

    def __init__(self, task: Any, name: str, samples: Any, numbers: Sequence[int] = ()):
        self.task = task
        self.name = name
        self.samples = samples
        self.numbers = numbers
        self.training = name == "train"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        return Item(prepared(self.task, self.samples[index]), self.training)

    def fold(self, index: int) -> int:
        """Returns the fold of a sample among training samples, by a hash of its group or of its input."""
        sample = self.samples[index]
        groups = getattr(self.samples, "groups", None)
        shared = self.task.group(sample) if groups is None else groups[index]
        return hashed(sample, shared, self.task.source, "fold ") % FOLDS

    def number(self, index: int) -> int:
        """Returns the number of a sample in all of the data, if folds were dealt, else in its part."""
        return self.numbers[index] if self.numbers else index

    def __getattr__(self, name: str) -> Any:
        is_made = "samples" in vars(self)  # unlike a copy while it is made
        if name not in (*_ORDERING, "subset") or not is_made:
            raise AttributeError(f"A part of the samples has no {name}.")
        value = getattr(self.samples, name)
        if name != "subset":
            return value
        return lambda *share: Part(self.task, self.name, value(*share))

    def texts(self) -> Iterator[str]:
        """Returns a text for each sample without its target. Raises BadInput for a sample without a text."""
        if not isinstance(self.samples, list | tuple):
            raise BadInput("Samples of a lazy sequence are not read for their texts.")
        return (canonical(input_of(sample), self.task.source) for sample in self.samples)


def read_parts(task: Any, folding: Any = None) -> tuple[dict[str, Part], list[str]]:
    """Returns the samples by part, as `read` of a task returns or `split` deals them, and readers' notes on the data.

    With a `Folding` the parts are those of a fold. Raises BadInput.
    """
    name = f"{type(task).__name__}.read"
    source = task.source
    advice = "Look at data.dir, and at how the data is read."
    with (
        naming(name, advice),
        collecting() as notes,
        reading(source, group=task.group, folding=folding),
    ):
        data = task.read() if source is None else task.read(source)
        if not isinstance(data, Mapping):
            data = _dealt(data, name)
        elif folding is not None and not folding.count:
            data = folding.pooled(data, name)
        parts = {part: in_order(rows, source) for part, rows in data.items() if rows is not None}
    if not any(map(len, parts.values())):
        raise BadInput(f"{name} found no samples{_found_in(source)}. {advice}")
    _check_targets(task._kind, name, parts, notes)
    with collecting() as more:
        _note_copies(parts, source)
        _note_classes(task._kind, task._given_names(), parts)
    named = {}
    for part, rows in parts.items():
        numbers = folding.numbers_of(rows) if folding is not None else ()
        named[part] = Part(task, part, rows, numbers)
    return named, [*notes, *more]


def _dealt(samples: Any, name: str) -> dict[str, list[Any]]:
    """Returns one list of samples as `split` deals it. Raises BadInput if it decides the order of an epoch."""
    for order in _ORDERING:
        if hasattr(samples, order):
            raise BadInput(
                f"{name} returned one list with `{order}`, which belongs to the training samples. "
                'Return {"train": ..., "validation": ..., "test": ...}.'
            )
    return split(samples)


def _found_in(source: Path | None) -> str:
    """Returns words on the commonest suffixes of files in a folder."""
    if source is None:
        return ""
    endings = Counter(path.suffix for path in source.rglob("*") if path.is_file())
    counts = [f"{number:,} {printable(ending)}" for ending, number in endings.most_common(3)]
    return f" in {printable(source)}, which has files: {', '.join(counts) or 'none'}"


def _check_targets(kind: Any, name: str, parts: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Raises BadInput for samples whose target is None, or a class without a letter; `notes` are of the reading."""
    rows = [row for samples in parts.values() if isinstance(samples, list) for row in samples]
    empty = [row for row in rows if kind.is_empty(target_of(row))]
    if not empty:
        return
    example = printable(repr(empty[0]), most=200)
    about = "\n".join(["Look at the target's column.", *notes])
    raise BadInput(
        f"{name} returned {len(empty):,} samples whose target is None or empty, "
        f"such as {example}. {about}"
    )


def _note_copies(parts: Mapping[str, Any], root: Path | None) -> None:
    samples = []
    for part, rows in parts.items():
        if isinstance(rows, list):
            samples += [copies.Sample(part, input_of(row), target_of(row)) for row in rows]
    for sentence in copies.sentences(samples, root):
        note(sentence)


def _note_classes(kind: Any, names: Sequence[str], parts: Mapping[str, Any]) -> None:
    """Notes classes without a training sample, unknown tags, and names that differ by spaces or capitals.

    Raises BadInput if no training sample has a tag.
    """
    train = parts.get("train")
    if not isinstance(train, list):
        return
    seen = Counter(label for row in train for label in kind.labels_in(target_of(row)))
    if kind.has_tags:
        _check_tags(train, seen)
    absent = [name for number, name in enumerate(names) if name not in seen and number not in seen]
    if seen and absent:
        shown = printable(", ".join(absent), most=400)
        note(
            f"Classes without a training sample: {shown}. Is a folder or a label spelled otherwise?"
        )
    if kind.has_tags and names:
        _note_other_tags(seen, names)
    _note_spellings([name for name in seen if isinstance(name, str)])


def _check_tags(train: Sequence[Any], seen: Mapping[Any, int]) -> None:
    """Raises BadInput if no training sample has a tag."""
    if train and not seen and all(_is_unknown(target_of(row)) for row in train):
        example = printable(repr(train[0]), most=200)
        raise BadInput(
            f"No training sample has a tag, such as {example}. Look at the target's column."
        )


def _note_other_tags(seen: Mapping[Any, int], names: Sequence[str]) -> None:
    """Notes tags of the data that no class is called by, with how often they come."""
    other = {tag: number for tag, number in seen.items() if isinstance(tag, str)}
    tags = sorted(f"{tag!r} ({number:,})" for tag, number in other.items() if tag not in names)
    if tags:
        note(f"Tags in no setting `classes`: {printable(', '.join(tags), most=400)}.")


def _note_spellings(names: Sequence[str]) -> None:
    """Notes classes that may be one, such as 1 and 1.0, and those that are called as a missing value."""
    spellings = defaultdict[Hashable, list[str]](list)
    for name in names:
        spellings[_spelled(name)].append(name)
    for alike in spellings.values():
        if len(alike) > 1:
            shown = printable(", ".join(map(repr, alike)), most=200)
            note(f"Classes that differ in spelling alone: {shown}.")
    missing = [name for name in names if name.strip().casefold() in _MISSING]
    if missing and len(names) > len(missing):
        shown = printable(", ".join(map(repr, missing)), most=200)
        note(
            f"Classes that are called as a missing value: {shown}. "
            "Leave their samples out, if they have no class."
        )


def _spelled(name: str) -> Hashable:
    """Returns a key that all spellings of a class share: its number, or its letters."""
    with contextlib.suppress(ValueError):
        number = float(name)
        return number if number == number else ""
    return " ".join(name.casefold().split())


def _is_unknown(tags: Any) -> bool:
    """Returns whether a target is tags of words, all of them unknown."""
    if not isinstance(tags, list | tuple):
        return False
    return all(isinstance(tag, str | int) and tag in ("", IGNORED) for tag in tags)


def in_order(samples: Any, root: Path | None) -> Any:
    """Sorts samples by their path: the order of a folder differs between machines."""
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        samples = list(samples)
    is_plain = isinstance(samples, list) and not any(hasattr(samples, name) for name in _ORDERING)
    if is_plain and samples and all(path_of(sample) for sample in samples):
        return sorted(samples, key=lambda sample: canonical(path_of(sample), root))
    return samples


def digest(parts: Mapping[str, Part]) -> str:
    """Returns a hash of the split of the samples; lazy sequences and samples without a text count by number."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        source = part.task.source
        digested = list | tuple if source else list | tuple | np.ndarray
        digest.update(f"{name} {len(part)}\n".encode())
        if not isinstance(part.samples, digested):
            continue
        try:
            for sample in part.samples:
                text = canonical(sample, source)
                digest.update(text.encode("utf-8", "surrogateescape") + b"\n")
        except BadInput:
            if source is None:
                raise
            digest.update(b"objects\n")
    return digest.hexdigest()[:16]


def is_same(one: Part, other: Part) -> bool:
    """Tells whether two parts have the same samples, in any order; lazy sequences only if they are one."""
    samples = one.samples
    others = other.samples
    if samples is others:
        return True
    if len(samples) != len(others):
        return False
    if not isinstance(samples, list | tuple) or not isinstance(others, list | tuple):
        return False
    if all(first is second for first, second in zip(samples, others, strict=True)):
        return True
    source = one.task.source
    with contextlib.suppress(BadInput):
        texts = sorted(canonical(row, source) for row in samples)
        return texts == sorted(canonical(row, source) for row in others)
    return False


def check_names(parts: Mapping[str, Part], names: list[str]) -> None:
    """Raises BadInput with all class names of samples that are missing in `names`."""
    numbers = Counter[str]()
    for part in parts.values():
        if isinstance(part.samples, list | tuple):
            kind = part.task._kind
            numbers.update(
                name for sample in part.samples for name in kind.names_in(target_of(sample)) or ()
            )
    missing = sorted(numbers.keys() - names)
    if missing:
        shown = ", ".join(f"{name!r} ({numbers[name]:,})" for name in missing)
        raise BadInput(
            f"Classes in no training sample and in no setting `classes`: "
            f"{printable(shown, most=600)}. List them there, or leave their samples "
            "(in brackets: how many) out in read()."
        )


def of_files(samples: Any, source: Path | None) -> dict[str, Any]:
    """Returns the suffixes of files that samples are beside their targets; the folder, if targets are files too."""
    if not (isinstance(samples, list) and samples and len(samples[0]) == 2 and path_of(samples[0])):
        return {}
    paths = [path for sample in samples if (path := path_of(sample))]
    values: dict[str, Any] = {"suffixes": sorted({path.suffix for path in paths})}
    folder, *others = {canonical(path.parent, source) for path in paths}
    has_file = isinstance(target_of(samples[0]), Path)
    if has_file and not others and not Path(folder).is_absolute():
        values["folder"] = folder
    return values
