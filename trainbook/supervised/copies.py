"""Finds samples that have the same input: the same bytes under two names, or the same row twice."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.errors import BadInput, printable
from trainbook.supervised.canonical import canonical

_END = (
    2**12
)  # bytes at the end of a file, which differ unless all of it is the same, in most formats
_MOST_FILES = 2**17  # of which the hashes are remembered
_SCALARS = {str, bytes, bool, int, float, complex, type(None)}


def same_files(values: Iterable[Any]) -> dict[Path, str]:
    """Returns a hash of the content of each file among the values that has a copy. Most files are not read."""
    paths = {path for value in values for path in _paths(value)}
    for key in (_size, _end, _content):  # the cheapest first: few files are left for the next one
        paths = _with_twins(paths, key)
    return {path: _content(path) for path in paths}


def _with_twins(paths: Iterable[Path], key: Callable[[Path], Hashable]) -> set[Path]:
    """Returns the paths that share a key, if it is none of nothing, with another one."""
    groups: dict[Hashable, list[Path]] = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    return {path for value, group in groups.items() if value and len(group) > 1 for path in group}


def _size(path: Path) -> int:
    """Returns the bytes of a file; 0 where there is none, which a reader names when it opens it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _end(path: Path) -> tuple[int, str]:
    size = _size(path)
    return size, _hash(path, path.stat().st_mtime_ns, max(0, size - _END))


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
    """Returns a hash of a file from a byte on; `time` is when it was changed."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return str(path)


def key_of(value: Any, contents: Mapping[Path, str]) -> Hashable:
    """Returns what equal values share: of a file with a copy its content. Raises BadInput for values without text."""
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
    """Yields what is to be known of copies: of all, of those in two splits, of those with two targets."""
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
    number = sum(map(len, repeated)) - len(repeated)
    first, second = repeated[0][:2]
    example = _equal(first, second, root)
    yield f"Samples with the input of an earlier one: {number:,} of {len(samples):,}, such as {example}."
    yield from _crossing(repeated, root)
    pairs = [pair for group in repeated if (pair := _contradiction(group, contents))]
    if pairs:
        example = " and ".join(
            f"{_name(one.value, root)} ({_short(one.target)})" for one in pairs[0]
        )
        yield f"Inputs with different targets: {len(pairs):,}, such as {example}."


def _crossing(groups: Sequence[Sequence[Sample]], root: Path | None) -> Iterator[str]:
    """Yields a sentence for each two splits with the same inputs."""
    crossing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for first, *others in groups:
        for other in others:
            if other.part != first.part:
                crossing[other.part, first.part].append(_equal(first, other, root))
    for (part, earlier), examples in crossing.items():
        text = (
            f"Samples of {part} that are in {earlier} too: {len(examples):,}, such as {examples[0]}"
        )
        yield f"{text}. Their scores say nothing about new data."


def _contradiction(group: Sequence[Sample], contents: Mapping[Path, str]) -> list[Sample]:
    """Returns two samples of a group with different targets, if there are any."""
    first, *others = group
    target = key_of(first.target, contents)
    different = (other for other in others if key_of(other.target, contents) != target)
    return next(([first, other] for other in different), [])


def _equal(first: Sample, other: Sample, root: Path | None) -> str:
    names = dict.fromkeys([_name(first.value, root), _name(other.value, root)])
    return " = ".join(names)


def _name(value: Any, root: Path | None) -> str:
    """Returns the file of an input, else what it begins with."""
    path = next(_paths(value), None)
    if path:
        return printable(canonical(path, root), most=100)
    return _short(value)


def _short(value: Any) -> str:
    return printable(repr(value), most=60)
