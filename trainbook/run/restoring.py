"""Brings the checkpoints of an earlier session into the kept folder, and finds the newest of them."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from lib.machine import inputs, platform
from trainbook.run import groups, store
from trainbook.run.groups import TORN, Files
from trainbook.run.opening import named_in
from trainbook.run.store import Copy, Index


@dataclass(frozen=True)
class Earlier:
    """The output of an earlier session: its run's folder, its index, and its kept folder, if any."""

    folder: Path | None
    index: Index
    keep: Path | None


@dataclass
class Restored:
    """The checkpoints in the kept folder now, with the times at which they were written."""

    times: dict[str, float] = field(default_factory=dict)  # by entry
    lines: list[str] = field(default_factory=list)

    def newest(self, pattern: str = "") -> str | None:
        return groups.newest_entry(self.times, self.times, pattern)


def find_earlier(name: str, folder: Path, keep: Path) -> Earlier | None:
    """Finds a run in this folder or in mounted earlier outputs; returns its latest session."""
    here = platform.detect()
    own = Index.read(folder / store.FOLDER)
    if own:
        return Earlier(folder, own, None)
    found = []
    for place in inputs.earlier_runs(name, here):
        index = Index.read(place / store.FOLDER)
        if index:
            mounted = place.parent / index.keep
            has_keep = bool(index.keep) and mounted.is_dir()
            found.append(Earlier(place, index, mounted if has_keep else None))
    if found:
        return max(found, key=lambda earlier: earlier.index.session)
    if keep.is_absolute():
        return None
    for mount in inputs.mounted(here):  # an output of a session without this command
        if (mount / keep).is_dir():
            return Earlier(None, Index(), mount / keep)
    return None


def restore(earlier: Earlier | None, keep: Path, also: str = "") -> Restored:
    """Makes the kept folder hold the newest whole checkpoints of an earlier session, and replaces torn files.

    Files of a mounted kept folder are taken where they open and had stopped changing. What is torn
    or lacks there comes from the verified copies. Of entries that differ in numbers the newest comes
    back, with those that it names, such as the best one, and those that the pattern `also` matches:
    a command's own retention does not see earlier sessions. Nothing in the earlier output is changed.
    """
    restored = Restored()
    index = earlier.index if earlier else Index()
    if earlier and earlier.keep and not any(keep.glob("*")):
        _take(earlier.keep, index, keep, restored, also)
    else:
        _mend(index, keep, restored)
    if earlier and earlier.folder:
        _take_copies(earlier.folder / store.FOLDER, index.copies, keep, restored, also)
    return restored


def _whole_files(folder: Path, files: Files, index: Index) -> list[str]:
    """Lists the files of whole checkpoints.

    A file directly in the kept folder need not have settled: it opens or not. Of a folder nobody
    knows which files were still to come.
    """

    def is_settled(path: str) -> bool:
        return "/" not in path or not index.files or index.knows(path, files[path])

    whole = groups.whole_groups(folder, files, is_settled, read_all=True)
    return [path for paths in whole.values() for path in paths]


def _times(files: Files, paths: Iterable[str], index: Index) -> dict[str, float]:
    written = index.times(files)
    times: dict[str, float] = {}
    for path in paths:
        entry = groups.entry_of(path)
        times[entry] = max(times.get(entry, 0.0), written[path])
    return times


def _take(source: Path, index: Index, keep: Path, restored: Restored, also: str) -> None:
    """Copies a mounted kept folder: its whole checkpoints, and its other files unchanged."""
    files = groups.listing(source)
    checkpoints = set(groups.checkpoint_files(source, files))
    whole = _whole_files(source, files, index)
    times = _times(files, whole, index)
    written = index.times(files)
    entries = _needed(times, source, also)
    forms = {groups.form(entry) for entry in times}
    taken = [path for path in whole if groups.entry_of(path) in entries]
    crowds = groups.crowds(files, checkpoints)
    half = {PurePosixPath(path).parent for path in checkpoints.difference(whole)}
    half -= {PurePosixPath(path).parent for path in whole} | {PurePosixPath(".")}
    for path in sorted(files.keys() - checkpoints):
        entry = groups.entry_of(path)
        is_old = groups.form(entry) in forms and entry not in entries
        is_half = not half.isdisjoint(PurePosixPath(path).parents)  # its folder looks whole by name
        if not (is_old or is_half or PurePosixPath(path).parent in crowds):
            taken.append(path)
    for path in taken:
        _copy_file(source / path, keep / path, written[path])
    restored.times |= {entry: times[entry] for entry in entries}
    torn = len(checkpoints) - len(whole)
    left = len(files) - len(taken) - torn
    restored.lines.append(
        f"Restored {len(taken):,} files of {keep.name} from {source}; {left:,} others stay there."
    )
    if torn:
        restored.lines.append(f"{torn:,} checkpoint files there are torn or incomplete.")


def _needed(times: Mapping[str, float], folder: Path, also: str) -> set[str]:
    """Returns the entries that a resume needs: the newest of each form, entries that it names, matches of `also`."""
    newest: dict[str, str] = {}
    for entry in sorted(times, key=lambda entry: groups.age(entry, times[entry])):
        newest[groups.form(entry)] = entry
    named = _named(times, folder)
    return {*newest.values(), *named, *(entry for entry in times if _is_meant(entry, also))}


def _named(times: Mapping[str, float], folder: Path, more: Iterable[str] = ()) -> set[str]:
    """Returns which entries, or others of the names `more`, the newest checkpoint names in its files."""
    newest = groups.newest_entry(times, times)
    if newest is None:
        return set()
    place = folder / newest
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    names = {*times, *more} - {newest}
    return {name for file in files for name in named_in(file, names)}


def _is_meant(entry: str, also: str) -> bool:
    return bool(also) and PurePosixPath(entry).match(also)


def _copy_file(source: Path, target: Path, written: float) -> None:
    """Copies a file, writable, with the time (ns) at which it was written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    mtime_ns = source.stat().st_mtime_ns if written == float("inf") else int(written)
    os.utime(target, ns=(mtime_ns, mtime_ns))


def _mend(index: Index, keep: Path, restored: Restored) -> None:
    """Sets torn checkpoints of an own kept folder aside, under a name with `.torn` behind."""
    files = groups.listing(keep)
    whole = _whole_files(keep, files, index)
    restored.times |= _times(files, whole, index)
    for path in set(groups.checkpoint_files(keep, files)) - set(whole):
        if not index.knows(path, files[path]):
            (keep / path).rename(keep / f"{path}{TORN}")
            restored.lines.append(
                f"{keep.name}/{path} is torn or incomplete; it is {path}{TORN} now."
            )


def _take_copies(
    folder: Path, copies: Sequence[Copy], keep: Path, restored: Restored, also: str
) -> None:
    """Unpacks the newest undamaged copy of each entry that a resume needs and the kept folder has not as new."""
    done: set[str] = set()
    for copy in _newest_first(copies):
        # of the same time: the kept file is whole, and not older than its copy
        is_there = restored.times.get(copy.entry, -1.0) >= copy.mtime_ns
        if copy.entry in done or is_there:
            continue
        named = _named(restored.times, keep, [copy.entry])
        is_needed = copy.entry in named or _is_meant(copy.entry, also)
        if not is_needed and _has_newer(restored.times, copy):
            continue
        if not store.unpack(folder, copy, keep):
            restored.lines.append(
                f"The copy {folder / copy.file} is damaged; an earlier one is taken."
            )
            continue
        done.add(copy.entry)
        restored.times[copy.entry] = float(copy.mtime_ns)
        restored.lines.append(f"Restored {copy.entry} from a verified copy.")


def _newest_first(copies: Sequence[Copy]) -> list[Copy]:
    """Orders copies by the newest of their form, in a form by age: the newest one names others."""
    newest: dict[str, int] = {}
    for copy in copies:
        form = groups.form(copy.entry)
        newest[form] = max(newest.get(form, 0), copy.mtime_ns)

    def order(copy: Copy) -> tuple[Any, ...]:
        age = groups.age(copy.entry, copy.mtime_ns)
        return newest[groups.form(copy.entry)], age, copy.file

    return sorted(copies, key=order, reverse=True)


def _has_newer(times: Mapping[str, float], copy: Copy) -> bool:
    """Returns whether another entry of a copy's form is newer than it."""
    own = groups.age(copy.entry, copy.mtime_ns)
    alike = groups.form(copy.entry)
    others = [entry for entry in times if groups.form(entry) == alike and entry != copy.entry]
    return any(groups.age(entry, times[entry]) > own for entry in others)


def newest_whole(folder: Path, pattern: str = "") -> str | None:
    """Returns the name of the newest whole checkpoint in a folder; None without one."""
    files = groups.listing(folder)
    whole = _whole_files(folder, files, Index())
    times = _times(files, whole, Index())
    return groups.newest_entry(times, times, pattern)
