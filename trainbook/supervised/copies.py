"""Finds samples with the same input: equal bytes under two names, or the same row twice."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.errors import BadInput, printable
from trainbook.supervised.canonical import canonical

_END = 2**12  # bytes at the end of a file: in most formats they differ if any byte differs
_MOST_FILES = 2**17  # whose hashes are cached
_SCALARS = {str, bytes, bool, int, float, complex, type(None)}


def same_files(values: Iterable[Any]) -> dict[Path, str]:
    """Returns a hash of each file's content, for files with a copy. Most files are not read."""
    paths = {path for value in values for path in _paths(value)}
    for key in (_size, _end, _content):  # the cheapest first: few files are left for the next one
        paths = _with_twins(paths, key)
    return {path: _content(path) for path in paths}


def _with_twins(paths: Iterable[Path], key: Callable[[Path], Hashable]) -> set[Path]:
    """Returns the paths that share a key with another one, without empty and missing files."""
    groups: dict[Hashable, list[Path]] = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    groups.pop(0, None)
    twins = [group for group in groups.values() if len(group) > 1]
    return {path for group in twins for path in group}


def _size(path: Path) -> int:
    """Returns the size of a file in bytes; 0 for a missing one, which its reader will name."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _end(path: Path) -> tuple[int, str]:
    size = _size(path)
    begin = max(0, size - _END)
    return size, _hash(path, path.stat().st_mtime_ns, begin)


def _content(path: Path) -> str:
    return _hash(path, path.stat().st_mtime_ns, 0)


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        yield from _paths(list(value.values()))
    elif isinstance(value, tuple | list) and not _SCALARS.issuperset(map(type, value)):
        for inner in value:
            yield from _paths(inner)


@functools.lru_cache(maxsize=_MOST_FILES)
def _hash(path: Path, time: int, begin: int) -> str:
    """Returns a hash of a file from byte `begin` on; the cache needs its `time`."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return str(path)


def key_of(value: Any, contents: Mapping[Path, str]) -> Hashable:
    """Returns a key that equal values share; copies of a file share their content.

    Raises BadInput for values without a canonical text.
    """
    if isinstance(value, Path):
        return contents.get(value, value)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return tuple((name, key_of(inner, contents)) for name, inner in value.items())
    if isinstance(value, tuple | list):
        is_flat = _SCALARS.issuperset(map(type, value))
        if is_flat:
            return tuple(value)
        return tuple(key_of(inner, contents) for inner in value)
    return canonical(value)


class Sample(NamedTuple):
    """The split, the input and the target of a sample."""

    part: str
    value: Any
    target: Any


def sentences(samples: Sequence[Sample], root: Path | None) -> Iterator[str]:
    """Yields sentences on copies: on all, on copies across splits, on copies with other targets."""
    contents = same_files(samples)
    groups: dict[Hashable, list[Sample]] = defaultdict(list)
    try:
        for sample in samples:
            groups[key_of(sample.value, contents)].append(sample)
    except BadInput:  # objects, which cannot be told from each other
        return
    repeated = [group for group in groups.values() if len(group) > 1]
    if not repeated:
        return
    share = f"{len(samples) - len(groups):,} of {len(samples):,}"
    first, second = repeated[0][:2]
    example = _equal(first, second, root)
    yield f"Samples with the input of an earlier one: {share}, such as {example}."
    yield from _crossing(repeated, root)
    pairs = [pair for group in repeated if (pair := _contradiction(group, contents))]
    if pairs:
        one, other = [_with_target(sample, root) for sample in pairs[0]]
        yield f"Inputs with different targets: {len(pairs):,}, such as {one} and {other}."


def _crossing(groups: Sequence[Sequence[Sample]], root: Path | None) -> Iterator[str]:
    """Yields a sentence for each two splits with the same inputs."""
    crossing = defaultdict[tuple[str, str], list[str]](list)
    for first, *others in groups:
        for other in others:
            if other.part != first.part:
                crossing[other.part, first.part].append(_equal(first, other, root))
    for (part, earlier), examples in crossing.items():
        yield (
            f"Samples of {part} that are in {earlier} too: {len(examples):,}, such as "
            f"{examples[0]}. Their scores say nothing about new data."
        )


def _contradiction(group: Sequence[Sample], contents: Mapping[Path, str]) -> list[Sample]:
    """Returns two samples of a group with different targets, or []."""
    first, *others = group
    target = key_of(first.target, contents)
    different = (other for other in others if key_of(other.target, contents) != target)
    return next(([first, other] for other in different), [])


def _equal(first: Sample, other: Sample, root: Path | None) -> str:
    names = [_name(sample.value, root) for sample in (first, other)]
    return " = ".join(dict.fromkeys(names))


def _with_target(sample: Sample, root: Path | None) -> str:
    return f"{_name(sample.value, root)} ({_short(sample.target)})"


def _name(value: Any, root: Path | None) -> str:
    """Returns the file of an input, or its beginning."""
    path = next(_paths(value), None)
    if path:
        return printable(canonical(path, root), most=100)
    return _short(value)


def _short(value: Any) -> str:
    return printable(repr(value), most=60)
