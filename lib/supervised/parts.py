"""Reads, checks and fingerprints the three splits of a `Supervised` task."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from lib.supervised import samples as of
from lib.supervised.samples import ORDERING, Item, input_of, names_in, path_of, target_of
from lib.supervised.simple import FOLDS
from lib.task.fingerprint import canonical
from lib.task.place import explained

_SHOWN = 12  # classes that a sentence names


class Part:
    """The samples of one part as a data set; a lazy sequence of them stays lazy.

    Where the sequence has `weights`, `lengths`, `order(seed, epoch)` or `subset(share, seed)`, the part has them too.
    """

    def __init__(self, task: Any, name: str, samples: Any):
        self.task, self.name, self.samples, self.training = task, name, samples, name == of.PARTS[0]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Item:
        fold = self.fold(index) if self.task.starts and self.training else 0
        return Item(self.task.prepared(self.samples[index]), self.training, fold)

    def fold(self, index: int) -> int:
        """Returns the fold of a sample among training samples, by a hash of its group or of its input."""
        has_groups, sample = hasattr(self.samples, "groups"), self.samples[index]
        shared = self.samples.groups[index] if has_groups else self.task.group(sample)
        name = canonical(input_of(sample) if shared is None else shared, self.task.source)
        return int(hashlib.sha256(f"fold {name}".encode("utf-8", "surrogateescape")).hexdigest()[:12], 16) % FOLDS

    def __getattr__(self, name: str) -> Any:
        if name in ORDERING and "samples" in vars(self):  # which a copy has not yet while it is made
            return getattr(self.samples, name)
        if name == "subset" and "samples" in vars(self) and hasattr(self.samples, name):
            return lambda share, seed: Part(self.task, self.name, self.samples.subset(share, seed))
        raise AttributeError(f"A part of the samples has no {name}.")

    def texts(self) -> Iterator[str]:
        """Returns a text for each sample without its target. Raises BadInput for what has none."""
        if not isinstance(self.samples, list | tuple):
            raise BadInput("Samples of a lazy sequence are not read for their texts.")
        return (canonical(input_of(sample), self.task.source) for sample in self.samples)


def read(task: Any) -> dict[str, Part]:
    """Returns the samples by part, as `read` of a task returns or `split` deals them. Raises BadInput."""
    name, source = f"{type(task).__name__}.read", task.source
    advice = "Look at data.dir, and at how the data is read."
    try:
        with of.reading(source, group=task.group):
            data = task.read() if source is None else task.read(source)
            order = next((order for order in ORDERING if hasattr(data, order)), "")
            if order and not isinstance(data, Mapping):
                raise BadInput(
                    f"{name} returned one list with `{order}`, which is to be dealt to three parts. Return "
                    '{"train": ..., "validation": ..., "test": ...}: it belongs to the training samples.'
                )
            data = data if isinstance(data, Mapping) else of.split(data)
            parts = {part: of.in_order(rows, source) for part, rows in data.items() if rows is not None}
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        what = f"{name}, which reads {printable(source)}," if isinstance(error, OSError) else name
        raise BadInput(explained(what, error, advice)) from error
    if not any(map(len, parts.values())):
        raise BadInput(f"{name} found no samples {f'in {printable(source)}' if source else ''}. {advice}")
    unknown = sum(target_of(row) is None for rows in parts.values() if isinstance(rows, list) for row in rows)
    if unknown:
        raise BadInput(f"{name} returned {unknown:,} samples whose target is None. Leave them out of the lists.")
    return {part: Part(task, part, rows) for part, rows in parts.items()}


def content(parts: Mapping[str, Part]) -> str:
    """Returns all samples as text; of a lazy sequence their number. Raises BadInput for what has no text."""
    every = (part.samples for part in parts.values())
    return canonical(
        [canonical([*s]) if isinstance(s, list | tuple | np.ndarray) else f"{len(s)} samples" for s in every]
    )


def digest(parts: Mapping[str, Part]) -> str:
    """Returns a hash of which samples are in which part; of a lazy sequence, or of what has no text, their number."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {len(part)}\n".encode())
        try:
            for sample in part.samples if isinstance(part.samples, list | tuple) else ():
                digest.update(canonical(sample, part.task.source).encode("utf-8", "surrogateescape") + b"\n")
        except BadInput:
            digest.update(b"objects\n")
    return digest.hexdigest()[:16]


def check_names(parts: Mapping[str, Part], names: list[str]) -> None:
    """Raises BadInput for samples whose class, a name, is none of `names`: all such classes, part by part."""
    where, missing = [], set()
    for name, part in parts.items():
        samples = part.samples if isinstance(part.samples, list | tuple) else []
        targets = (target for sample in samples for target in names_in(part.task.kind, target_of(sample)))
        counts = sorted(Counter(target for target in targets if target not in names).items())
        missing |= {target for target, _ in counts}
        shown = [f"{printable(repr(target), most=40)} ({number:,})" for target, number in counts[:_SHOWN]]
        shown += [f"and {len(counts) - _SHOWN} more"] if len(counts) > _SHOWN else []
        where += [f"{name}: {', '.join(shown)}"] if shown else []
    if missing:
        raise BadInput(
            f"{len(missing)} {'class is' if len(missing) == 1 else 'classes are'} in no training sample and in no "
            f"setting `classes` (in brackets the number of samples). {'. '.join(where)}. List all classes in the "
            "setting `classes`, so that the model has outputs for them, or leave these samples out in read()."
        )


def of_files(samples: Any, source: Path | None) -> dict[str, Any]:
    """Returns the suffixes of files that samples are beside their targets; the folder, where targets are files too."""
    if not (isinstance(samples, list) and samples and len(samples[0]) == 2 and path_of(samples[0])):
        return {}
    paths = [path_of(sample) for sample in samples]
    first, *others = {canonical(path.parent, source) for path in paths}
    has_folder = isinstance(target_of(samples[0]), Path) and not others and not Path(first).is_absolute()
    return {"suffixes": sorted({path.suffix for path in paths}), **({"folder": first} if has_folder else {})}
