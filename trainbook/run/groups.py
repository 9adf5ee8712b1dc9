"""Which files of a kept folder belong together, and which of these groups are whole checkpoints."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from trainbook.run.opening import is_checkpoint_file, opens

TORN = ".torn"  # the ending that a torn file of an own folder gets
# Numbers that count no steps: model_fold0.pt and model_fold1.pt are both needed, and so is each shard of a model.
# accelerate's optimizer_1.bin belongs to a second model.
_OF_A_SET = (
    r"(?<![a-z])(?:custom_checkpoint|k?fold|part|phase|random_states|rank|rng_state|seed|shard|split"
    r"|stage|task|trial)s?[_=-]?\d+|\d+-of-\d+|(?:optimizer|sampler|scheduler)_\d+(?=\.bin$)"
)
_NUMBER = re.compile(rf"({_OF_A_SET})|\d+", re.IGNORECASE)
_MANY = 8  # files of one folder
_VERSION = re.compile(
    r"-v\d+(?=\.\w+$)"
)  # last-v1.ckpt: Lightning found a last.ckpt of an earlier session


class Seen(NamedTuple):
    """Size and time of a file when it was looked at."""

    size: int
    mtime_ns: int


class Key(NamedTuple):
    """A group of files written together: all groups of one family differ in their numbers."""

    family: str
    numbers: tuple[int, ...]


Files = dict[str, Seen]  # by their paths below the kept folder


def listing(folder: Path) -> Files:
    """Lists the regular files below a folder; links are not followed."""
    files: Files = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except OSError:  # deleted meanwhile
                continue
            if path.is_file() and not path.is_symlink() and not name.endswith(TORN):
                relative = path.relative_to(folder).as_posix()
                files[relative] = Seen(status.st_size, status.st_mtime_ns)
    return files


def template(name: str) -> str:
    """Returns a name with # for each number that counts: checkpoint-50 and checkpoint-100 have the same."""
    return _NUMBER.sub(lambda match: match[1] or "#", name)


def numbers(name: str) -> tuple[int, ...]:
    return tuple(int(match[0]) for match in _NUMBER.finditer(name) if not match[1])


def form(entry: str) -> str:
    """Returns the key shared by entries that replace one another."""
    return template(_VERSION.sub("", entry))


def age(entry: str, written: float) -> tuple[tuple[int, ...], float]:
    """Returns by what entries of one form are ordered: numbers, then time, as a mount may change times."""
    return numbers(_VERSION.sub("", entry)), written


def entry_of(path: str) -> str:
    """Returns the file or folder directly in the kept folder that a path belongs to."""
    return path.partition("/")[0]


def key_of(path: str) -> Key:
    """Returns the group of a file.

    model_3.pt and optim_3.pt of one folder are a group, and so are all files of checkpoint-3/. A
    file without a number directly in the kept folder is a group of its own.
    """
    pure = PurePosixPath(path)
    folder = pure.parent.as_posix()
    if numbers(pure.name):
        return Key(f"{folder}/#", numbers(pure.name))
    if folder == ".":
        return Key(path, ())
    return Key(f"{template(folder)}/", numbers(folder))


def grouped(paths: Iterable[str]) -> dict[Key, list[str]]:
    """Returns the groups with their files, in the order of their families and numbers."""
    groups: dict[Key, list[str]] = {}
    for path in sorted(paths, key=lambda path: (key_of(path), path)):
        groups.setdefault(key_of(path), []).append(path)
    return groups


def checkpoint_files(folder: Path, files: Iterable[str]) -> list[str]:
    return [path for path in files if is_checkpoint_file(folder / path)]


def whole_groups(
    folder: Path,
    files: Mapping[str, Seen],
    is_settled: Callable[[str], bool],
    read_all: bool = False,
) -> dict[Key, list[str]]:
    """Returns the groups that are whole checkpoints: all their files are there and open.

    JSON in a folder with a number, such as trainer_state.json, must be whole and there too.
    A file that always came with another one, as optim_3.pt with model_3.pt, is missing without it.
    Of a group of a new shape nobody knows which files are still to come: `is_settled` says of each
    file that it has stopped changing for a while. A group that is followed by another is over.
    """
    checkpoints = set(checkpoint_files(folder, files))
    groups = grouped([*checkpoints, *_notes(checkpoints, files)])
    newest = {kind: key for key, paths in groups.items() for kind in kinds_of(key, paths)}
    companions: dict[tuple[str, str], set[tuple[str, str]]] = {}  # that came with a kind of file
    whole = {}
    for key, paths in groups.items():
        kinds = kinds_of(key, paths)
        known = [companions[kind] for kind in kinds if kind in companions]
        is_over = any(newest[kind] != key for kind in kinds)
        is_full = set().union(*known) <= kinds
        has_known_shape = len(known) == len(kinds)
        own = [path for path in paths if path in checkpoints]
        is_complete = is_full and (has_known_shape or all(map(is_settled, own)))
        if not (is_over or is_complete):
            continue
        for kind in kinds:
            companions[kind] = companions.get(kind, kinds) & kinds
        if own and all(opens(folder / path, read_all) for path in paths):
            whole[key] = own
    return whole


def _notes(checkpoints: Iterable[str], files: Iterable[str]) -> list[str]:
    """Lists the JSON files that lie beside checkpoints in a folder with a number."""
    folders = {PurePosixPath(path).parent for path in checkpoints}
    numbered = {folder for folder in folders if numbers(folder.name)}
    return [
        path for path in files if path.endswith(".json") and PurePosixPath(path).parent in numbered
    ]


def crowds(files: Iterable[str], checkpoints: Iterable[str]) -> set[PurePosixPath]:
    """Returns the folders below entries that hold many files and no checkpoint, such as pictures of an epoch.

    No resume needs them, and Kaggle keeps 500 files in all.
    """
    places = Counter(PurePosixPath(path).parent for path in files)
    own = {PurePosixPath(path).parent for path in checkpoints}
    entries = {entry_of(path) for path in checkpoints}
    return {
        place
        for place, count in places.items()
        if count > _MANY and place not in own and len(place.parts) > 1 and place.parts[0] in entries
    }


def kinds_of(key: Key, paths: Iterable[str]) -> set[tuple[str, str]]:
    """Returns the names of a group's files without their numbers, each with its family."""
    return {(key.family, template(PurePosixPath(path).name)) for path in paths}


def newest_entry(
    entries: Iterable[str], times: Mapping[str, float], pattern: str = ""
) -> str | None:
    """Returns the newest checkpoint among the names of entries.

    Of names of one form the largest number wins; among the others the time. `pattern` keeps those
    that it matches.
    """
    best: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: age(entry, times[entry])):
        if not pattern or PurePosixPath(entry).match(pattern):
            best[form(entry)] = entry
    return max(best.values(), key=lambda entry: (times[entry], numbers(entry)), default=None)
