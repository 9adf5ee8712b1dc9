"""The three parts of a `Supervised` task's samples: read, checked, told apart from those of another reading."""

import contextlib
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from lib.supervised.marks import names_in
from lib.supervised.samples import ORDERING, PARTS, Item, in_order, input_of, path_of, reading, split, target_of
from lib.task.fingerprint import canonical
from lib.task.loading import locate_data
from lib.task.place import place_of

_SHOWN = 12  # classes that a sentence names


class Part:
    """The samples of one part as a data set; a lazy sequence of them stays lazy.

    Where the sequence has `weights`, `lengths` or `order(seed, epoch)`, the part has them too.
    """

    def __init__(self, task: Any, name: str, samples: Any):
        self.task, self.name, self.samples, self.training = task, name, samples, name == PARTS[0]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        return Item(self.task.prepared(self.samples[index]), self.training)

    def __getattr__(self, name: str) -> Any:
        if name in ORDERING and "samples" in vars(self):  # which a copy has not yet while it is made
            return getattr(self.samples, name)
        raise AttributeError(f"A part of the samples has no {name}.")

    def content(self) -> str:
        """Returns the samples as text, of a lazy sequence their number. Raises BadInput for what has no text."""
        samples = self.samples
        return canonical([*samples]) if isinstance(samples, list | tuple | np.ndarray) else f"{len(samples)} samples"

    def texts(self) -> Iterator[str] | None:
        """Returns a text for each sample without its target; None for a lazy sequence, and for what has no text."""
        if not isinstance(self.samples, list | tuple):
            return None
        return _texts((input_of(sample) for sample in self.samples), self.task.source)


def _texts(values: Any, root: Path | None) -> Iterator[str]:
    return (canonical(value, root) for value in values)


def read(task: Any) -> dict[str, Part]:
    """Returns the samples by part, as `read` of a task returns or `split` deals them. Raises BadInput."""
    name = type(task).__name__
    with reading(task.source), _naming_errors(f"{name}.read", task.source):
        found = task.read() if task.source is None else task.read(Path(task.source))
        found = found if isinstance(found, Mapping) else _dealt(found, name)
        read = {part: in_order(samples, task.source) for part, samples in found.items() if samples is not None}
    if not any(map(len, read.values())):
        where = f"in {printable(task.source)}" if task.source else ""
        raise BadInput(f"{name}.read found no samples {where}. Look at data.dir, and at the files that it looks for.")
    unknown = sum(target_of(s) is None for samples in read.values() if isinstance(samples, list) for s in samples)
    if unknown:
        raise BadInput(f"{name}.read returned {unknown:,} samples whose target is None. Leave them out of the lists.")
    return {part: Part(task, part, samples) for part, samples in read.items()}


def _dealt(found: Any, name: str) -> Mapping[str, Any]:
    if of_order := [one for one in ORDERING if hasattr(found, one)]:
        raise BadInput(
            f"{name}.read returned one list with `{of_order[0]}`, which is to be dealt to three parts. Return "
            '{"train": ..., "validation": ..., "test": ...}: it belongs to the training samples.'
        )
    return split(found)


@contextlib.contextmanager
def _naming_errors(name: str, source: Path | None) -> Iterator[None]:
    """Turns an error of a person's `read` into BadInput: a file that is not there, or the line of anything else."""
    try:
        yield
    except (BadInput, MemoryError):
        raise
    except OSError as error:
        why = f"{error.strerror or error}: {printable(error.filename)}" if error.filename else f"{error}"
        raise BadInput(f"{name} cannot read {printable(source)} ({why}). Look at data.dir.") from error
    except Exception as error:
        what, where = printable(f"{type(error).__name__}: {error}", most=300), place_of(error)
        raise BadInput(
            f"{name} raises {what}{f' ({where})' if where else ''}. Look at data.dir, and at how the data is read."
        ) from error


def digest(parts: Mapping[str, Part]) -> str:
    """Returns a hash of which samples are in which part; of a lazy sequence, or of what has no text, their number."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {len(part)}\n".encode())
        if isinstance(part.samples, list | tuple):
            try:
                for text in _texts(part.samples, part.task.source):
                    digest.update(text.encode("utf-8", "surrogateescape") + b"\n")
            except BadInput:
                digest.update(b"objects\n")
    return digest.hexdigest()[:16]


def check_names(parts: Mapping[str, Part], names: list[str]) -> None:
    """Raises BadInput for samples whose class, a name, is none of `names`: all such classes, part by part."""
    found = {}
    for name, part in parts.items():
        if isinstance(part.samples, list | tuple):
            kind = part.task.kind
            targets = Counter(one for sample in part.samples for one in names_in(kind, target_of(sample)))
            found[name] = Counter({target: number for target, number in targets.items() if target not in names})
    missing = {name: targets for name, targets in found.items() if targets}
    if not missing:
        return
    where = ". ".join(f"{name}: {_listed(targets)}" for name, targets in missing.items())
    count = len(set().union(*missing.values()))
    raise BadInput(
        f"{count} {'class is' if count == 1 else 'classes are'} in no training sample and in no setting `classes` "
        f"(in brackets the number of samples). {where}. List all classes in the setting `classes`, so that the model "
        "has outputs for them, or leave these samples out in read()."
    )


def _listed(targets: Mapping[str, int]) -> str:
    shown = [f"{printable(repr(name), most=40)} ({number:,})" for name, number in sorted(targets.items())[:_SHOWN]]
    return ", ".join([*shown, *([f"and {len(targets) - _SHOWN} more"] if len(targets) > _SHOWN else [])])


def located(task: Any) -> Path | None:
    """Returns where the data of a task lies that was made without it; None where it is not on this machine."""
    try:
        return locate_data(task.config.data.dir, task.sentinels, task.homes)
    except BadInput:
        return None


def check_unnamed(task: Any) -> None:
    """Raises BadInput for classes with names that only data would tell."""
    if names_in(task.kind, target_of(task.example())):
        raise BadInput(
            f"The names of the classes of {type(task).__name__} come from its training samples, and there is no data "
            "here (data.dir). For a plan without data give the classes in a setting `classes`, in the order of the "
            "model's outputs."
        )


def of_files(samples: Any, source: Path | None) -> dict[str, Any]:
    """Returns the suffixes of files that samples are beside their targets; the folder, where targets are files too."""
    if not (isinstance(samples, list) and samples and len(samples[0]) == 2 and path_of(samples[0])):
        return {}
    paths = [path_of(sample) for sample in samples]
    found: dict[str, Any] = {"suffixes": sorted({path.suffix for path in paths})}
    folders = {canonical(path.parent, source) for path in paths}
    if (
        isinstance(target_of(samples[0]), Path)
        and len(folders) == 1
        and not Path(folder := folders.pop()).is_absolute()
    ):
        found["folder"] = folder
    return found


def asks(read: Any) -> bool:
    """Says whether `read` cannot do without a source."""
    return any(parameter.default is parameter.empty for parameter in inspect.signature(read).parameters.values())


def as_json(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns values as they come back from a checkpoint: lists for tuples, text for keys. Raises BadInput."""
    try:
        return json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}.learn returned no JSON ({error}). Return numbers, text, or lists of them.") from None
