"""Finds samples that have the same input: the same bytes under two names, or the same row twice."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import BadInput, printable
from lib.task.contract import canonical

_END = 2**12  # bytes at the end of a file, which differ unless all of it is the same, in most formats
_MOST_FILES = 2**17  # of which the hashes are remembered
_SCALARS = {str, bytes, bool, int, float, complex, type(None)}


def same_files(values: Iterable[Any]) -> dict[Path, str]:
    """Returns a hash of the content of each file among the values that has a copy. Most files are not read."""
    by_size: dict[int, list[tuple[Path, int]]] = defaultdict(list)
    for path in {path for value in values for path in _paths(value)}:
        try:
            status = path.stat()
        except OSError:  # which a reader names when it opens the file
            continue
        by_size[status.st_size].append((path, status.st_mtime_ns))
    likely: dict[tuple[int, str], list[tuple[Path, int]]] = defaultdict(list)
    for size, files in by_size.items():
        if size and len(files) > 1:
            for path, time in files:
                likely[size, _hash(path, time, max(0, size - _END))].append((path, time))
    same: dict[tuple[int, str], list[Path]] = defaultdict(list)
    for (size, _), files in likely.items():
        if len(files) > 1:
            for path, time in files:
                same[size, _hash(path, time, 0)].append(path)
    return {path: content for (_, content), paths in same.items() if len(paths) > 1 for path in paths}


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
        return tuple(value) if is_flat else tuple(key_of(inner, contents) for inner in value)
    return canonical(value)


def sentences(parts: Mapping[str, Sequence[tuple[Any, Any]]], root: Path | None) -> Iterator[str]:
    """Yields what is to be known of copies among samples (input, target): in a part, in two, with two targets."""
    contents = same_files(sample for part in parts.values() for sample in part)
    groups: dict[Hashable, list[tuple[str, Any, Any]]] = defaultdict(list)
    try:
        for name, part in parts.items():
            for value, target in part:
                groups[key_of(value, contents)].append((name, value, target))
    except BadInput:  # objects, which cannot be told from each other
        return
    repeated = [group for group in groups.values() if len(group) > 1]
    if not repeated:
        return
    total = sum(map(len, parts.values()))
    copies = sum(len(group) - 1 for group in repeated)
    yield f"Samples with the input of an earlier one: {copies:,} of {total:,}, such as {_pair(repeated[0], root)}."
    yield from _crossing(repeated, root)
    pairs = [pair for group in repeated if (pair := _contradiction(group, contents))]
    if pairs:
        (_, first, target), (_, second, other) = pairs[0]
        example = f"{_name(first, root)} ({_short(target)}) and {_name(second, root)} ({_short(other)})"
        yield f"Inputs with different targets: {len(pairs):,}, such as {example}."


def _crossing(groups: Sequence[Sequence[tuple[str, Any, Any]]], root: Path | None) -> Iterator[str]:
    """Yields a sentence for each two parts with the same inputs."""
    crossing: dict[tuple[str, str], list[list[tuple[str, Any, Any]]]] = defaultdict(list)
    for group in groups:
        first, *others = {sample[0]: sample for sample in group}.values()
        for other in others:
            number = sum(sample[0] == other[0] for sample in group)
            crossing[first[0], other[0]] += [[first, other]] * number
    for (first_part, part), pairs in crossing.items():
        text = f"Samples of {part} that are in {first_part} too: {len(pairs):,}, such as {_pair(pairs[0], root)}"
        yield f"{text}. Their scores say nothing about new data."


def _contradiction(group: Sequence[tuple[str, Any, Any]], contents: Mapping[Path, str]) -> list[tuple[str, Any, Any]]:
    """Returns two samples of a group with different targets, if there are any."""
    first, *others = group
    target = key_of(first[2], contents)
    return next(([first, other] for other in others if key_of(other[2], contents) != target), [])


def _pair(group: Sequence[tuple[str, Any, Any]], root: Path | None) -> str:
    names = dict.fromkeys(_name(value, root) for _, value, _ in group[:2])
    return " = ".join(names)


def _name(value: Any, root: Path | None) -> str:
    """Returns the file of an input, else what it begins with."""
    path = next(_paths(value), None)
    return printable(canonical(path, root), most=100) if path else _short(value)


def _short(value: Any) -> str:
    return printable(repr(value), most=60)
