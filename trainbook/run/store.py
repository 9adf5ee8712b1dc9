"""The verified copies of a command's checkpoints: each a zip with its hash, beside an index of the kept folder.

The store lies outside the kept folder, which the command may delete or write into at any time.
"""

import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from lib import untrusted
from lib.errors import BadInput
from lib.machine import disk
from lib.text import amount
from trainbook.run import groups
from trainbook.run.groups import Files, Key, Seen

FOLDER = "checkpoints"  # in the run's folder; the archive leaves it out
INDEX = "index.json"
QUIET_SECONDS = 1.0  # a file that has not changed for so long is settled
PAUSE_FACTOR = 4.0  # of the seconds that copying took: so long nothing more is copied
SMALL_BYTES = 2**20  # files beside checkpoints up to this size are copied with them
SMALL_TOGETHER = 2**26
SAME_NS = 2 * 10**9  # archives keep times in seconds
_WRITTEN_NS = 10**10  # within which a busy disk has written the index
_MOST_INDEX = 2**26
_CHUNK = 2**22


@dataclass(frozen=True)
class Copy:
    """A zip in the store: the entry of the kept folder that it holds, and its hash."""

    entry: str
    file: str
    sha256: str
    bytes: int
    mtime_ns: int  # of the newest checkpoint file in it


@dataclass
class Index:
    """What is known of a kept folder: files that settled, with their sizes and times, and the copies."""

    keep: str = ""  # its path from the output folder; empty if it lies elsewhere
    session: int = 0
    files: dict[str, list[int]] = field(default_factory=dict)  # settled: size, time in ns
    copies: list[Copy] = field(default_factory=list)
    written_ns: int = 0  # when it was written: its own time tells whether a mount keeps times
    keeps_times: bool = False

    @classmethod
    def read(cls, store: Path) -> "Index | None":
        """Reads the index of a store, which is untrusted; None without one."""
        try:
            values = untrusted.objects(untrusted.read(store / INDEX, _MOST_INDEX))
            copies = [Copy(**copy) for copy in values["copies"]]
            files = {str(path): [int(n) for n in seen] for path, seen in values["files"].items()}
            written = int(values.get("written_ns", 0))
            keeps_times = abs((store / INDEX).stat().st_mtime_ns - written) < _WRITTEN_NS
            keep, session = str(values["keep"]), int(values["session"])
            return cls(keep, session, files, copies, written, keeps_times)
        except (OSError, BadInput, KeyError, TypeError, ValueError, AttributeError):
            return None

    def write(self, store: Path) -> None:
        self.written_ns = time.time_ns()
        disk.write_text(store / INDEX, json.dumps(asdict(self), indent=0))

    def knows(self, path: str, seen: Seen) -> bool:
        """Returns whether a file is the one that settled, by its size and time."""
        size, mtime_ns = self.files.get(path, (-1, 0))
        return size == seen.size and abs(mtime_ns - seen.mtime_ns) < SAME_NS

    def times(self, files: Files) -> dict[str, float]:
        """Returns when each file was written.

        Where a mount has changed all times, those of the index are taken for files of the same size:
        what it does not know was written later.
        """
        own = {path: float(seen.mtime_ns) for path, seen in files.items()}
        known = [path for path in files if path in self.files]
        is_kept = self.keeps_times or any(self.knows(path, files[path]) for path in known)
        if not known or is_kept:
            return own
        for path, seen in files.items():
            size, mtime_ns = self.files.get(path, (-1, 0))
            own[path] = float(mtime_ns) if size == seen.size else float("inf")
        return own


class Store:
    """Watches a kept folder, and copies each checkpoint that has stopped changing and opens."""

    def __init__(self, folder: Path, keep: Path, index: Index, newest: int, also: str = ""):
        self.folder, self.keep, self.index = folder, keep, index
        self.newest = newest
        self.also = also  # a glob of entries that are copied besides the newest
        self.longest_save = 0.0  # seconds from the first to the last change of a checkpoint
        self.longest_copy = 0.0  # seconds
        self.saves = 0
        self.was_cut = False  # the command was killed: a folder may lack files for ever
        self.problems: dict[str, str] = {}  # sentences on entries that could not be copied
        self._last: Files = {}
        self._is_idle = False  # nothing is left to copy until a file changes
        self._changed: dict[str, float] = {}  # when a change of a file was noticed
        self._began: dict[str, float] = {}  # when the present writing of a checkpoint began
        self._next_copy = 0.0
        self._copied: set[tuple[str, str]] = set()  # entries with the state that was copied

    def scan(self, is_over: bool = False) -> list[str]:
        """Looks at the kept folder once; returns a line for each new copy. `is_over`: the command has ended."""
        begin = time.monotonic()
        files = groups.listing(self.keep)
        if self._is_idle and files == self._last:
            return []
        self._is_idle = False
        self._notice(files, begin)

        def is_settled(path: str) -> bool:
            is_alone = "/" not in path  # it opens or not; of a folder more files may come
            is_final = is_over and not self.was_cut
            return is_final or is_alone or begin - self._changed[path] >= QUIET_SECONDS

        whole = groups.whole_groups(self.keep, files, is_settled)
        settled = {path: [*files[path]] for paths in whole.values() for path in paths}
        for path in settled:
            self._began.pop(path, None)  # its writing has ended
        lines = []
        may_copy = is_over or begin >= self._next_copy
        if may_copy:
            for entry in self._new_entries(whole, files):
                line = self._copy(entry, whole, files)
                lines += [line] if line else []
            end = time.monotonic()
            self._next_copy = end + PAUSE_FACTOR * (end - begin)
            self.longest_copy = max(self.longest_copy, end - begin)
        if lines or settled != self.index.files:
            self.index.files = settled
            self.index.write(self.folder)
        is_quiet = begin - max(self._changed.values(), default=0.0) >= QUIET_SECONDS
        self._is_idle = may_copy and is_quiet and not lines and not self.problems
        return lines

    def _notice(self, files: Files, now: float) -> None:
        """Notes which files have changed, and how long the writing of a checkpoint has taken so far."""
        changed = [path for path, seen in files.items() if self._last.get(path) != seen]
        self._changed |= dict.fromkeys(changed, now)
        for path in groups.checkpoint_files(self.keep, changed):
            began = self._began.setdefault(path, now)
            self.longest_save = max(self.longest_save, now - began)
        self._last = files

    def _new_entries(self, whole: dict[Key, list[str]], files: Files) -> list[str]:
        """Lists the entries whose whole checkpoints are not copied yet, the newest `newest` of them."""
        by_entry: dict[str, list[str]] = {}
        for paths in whole.values():
            for path in paths:
                by_entry.setdefault(groups.entry_of(path), []).append(path)
        times = {entry: self._time(paths, files) for entry, paths in by_entry.items()}
        wanted = sorted(by_entry, key=times.__getitem__)[-self.newest :]
        if self.also:
            wanted += [
                entry
                for entry in by_entry
                if PurePosixPath(entry).match(self.also) and entry not in wanted
            ]
        marks = {entry: _mark(by_entry[entry], files) for entry in wanted}
        new = [entry for entry in wanted if (entry, marks[entry]) not in self._copied]
        self._copied |= {(entry, marks[entry]) for entry in new}
        return new

    def _time(self, paths: Iterable[str], files: Files) -> int:
        return max(files[path].mtime_ns for path in paths)

    def _copy(self, entry: str, whole: dict[Key, list[str]], files: Files) -> str:
        """Writes the zip of an entry; returns a line on it, or nothing if a file changed meanwhile."""
        inside = [path for path in files if groups.entry_of(path) == entry]
        checkpoints = [
            path for paths in _newest_groups(whole, entry, self.newest) for path in paths
        ]
        found = groups.checkpoint_files(self.keep, inside)
        crowds = groups.crowds(inside, found)
        others = {p for p in set(inside) - set(found) if PurePosixPath(p).parent not in crowds}
        small = sorted(path for path in others if files[path].size <= SMALL_BYTES)
        if sum(files[path].size for path in small) > SMALL_TOGETHER:
            small = []
        newest = self._time(checkpoints, files)
        name = f"{time.time_ns():020d}.zip"
        size = sum(files[path].size for path in checkpoints)
        if not self._make_room(size):
            self._copied.discard((entry, _mark(checkpoints, files)))
            self.problems[entry] = (
                f"There is no room for a copy of {entry} ({amount(size)}). Free some, or lower `newest`."
            )
            return ""
        try:
            with disk.whole(self.folder / name) as aside:
                _zip(aside, self.keep, [*checkpoints, *small])
                after = groups.listing(self.keep)
                if any(after.get(path) != files[path] for path in checkpoints):
                    raise _ChangedMeanwhile
                digest = _sha256(aside)
        except (_ChangedMeanwhile, FileNotFoundError):
            self._copied.discard((entry, _mark(checkpoints, files)))
            return ""
        self.saves += 1
        written = Copy(entry, name, digest, (self.folder / name).stat().st_size, newest)
        self.index.copies = [*self.index.copies, written]
        self._retain()
        return (
            f"Copied {entry}, verified: {len(checkpoints)} checkpoint files and {len(small)} of "
            f"{len(others)} others, {amount(written.bytes)}."
        )

    def _make_room(self, size: int) -> bool:
        """Deletes copies, but for the newest, until another one fits on the disk."""
        while shutil.disk_usage(self.folder).free < 1.1 * size + 2**26:
            if len(self.index.copies) < 2:
                return False
            self._drop(self.index.copies[0])
        return True

    def _retain(self) -> None:
        """Keeps the newest copies, and the latest one of each entry that `also` names."""
        copies = self.index.copies
        kept = {copies[-1].file}
        for copy in reversed(copies[:-1]):
            is_named = bool(self.also) and PurePosixPath(copy.entry).match(self.also)
            is_latest = copy.file == max(c.file for c in copies if c.entry == copy.entry)
            if len(kept) < self.newest or (is_named and is_latest):
                kept.add(copy.file)
        for copy in copies:
            if copy.file not in kept:
                self._drop(copy)

    def _drop(self, copy: Copy) -> None:
        self.index.copies = [other for other in self.index.copies if other.file != copy.file]
        (self.folder / copy.file).unlink(missing_ok=True)


class _ChangedMeanwhile(Exception):
    """A file was written while it was copied."""


def _mark(paths: Iterable[str], files: Files) -> str:
    return repr([(path, files[path]) for path in sorted(paths)])


def _newest_groups(whole: dict[Key, list[str]], entry: str, most: int) -> list[list[str]]:
    """Returns the newest groups of an entry, at most `most` of each family."""
    families: dict[str, list[list[str]]] = {}
    for key, paths in whole.items():
        if groups.entry_of(paths[0]) == entry:
            families.setdefault(key.family, []).append(paths)
    return [paths for family in families.values() for paths in family[-most:]]


def _zip(target: Path, folder: Path, paths: Iterable[str]) -> None:
    """Writes files into a zip without compression, with their times in the comment of each."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for path in paths:
            info = zipfile.ZipInfo(path)
            info.comment = str((folder / path).stat().st_mtime_ns).encode()
            with (
                (folder / path).open("rb") as source,
                archive.open(info, "w", force_zip64=True) as out,
            ):
                shutil.copyfileobj(source, out, _CHUNK)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(store: Path, copy: Copy, keep: Path) -> bool:
    """Writes the files of a copy into the kept folder, with their times; returns False if it is damaged."""
    path = store / copy.file
    if not untrusted.is_name(copy.file) or not path.is_file() or _sha256(path) != copy.sha256:
        return False
    root = keep.resolve()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            target = (root / info.filename).resolve()
            if not target.is_relative_to(root):
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            with disk.whole(target) as aside, archive.open(info) as source, aside.open("wb") as out:
                shutil.copyfileobj(source, out, _CHUNK)
            mtime_ns = int(info.comment or 0)
            os.utime(target, ns=(mtime_ns, mtime_ns))
    return True
