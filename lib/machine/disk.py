"""Changes the disk in ways that survive a kill: whole files, synced folders.

Tests can make each operation fail.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lib.errors import BadInput, TrainingFailed

CHUNK = (
    16 * 2**20
)  # bytes per write; after each the thread must get the GIL back, which training can hold for 5 ms
_PROBE_BYTES = 64 * 1024  # room for the first files of a run
_NO_FOLDER_SYNC = {
    errno.EINVAL,
    errno.ENOTSUP,
}  # answers of mounted cloud drives, which cannot sync a folder
TROUBLES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
}  # of the disk itself, whatever was to be written
_held: dict[
    int, int
] = {}  # the descriptors of this process that carry a lock: how often it was taken


class Disk:
    """The operations by which checkpoints change the disk; tests replace `calls`."""

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> int:
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)

    def write(self, handle: int, data: memoryview, path: Path) -> None:
        while data:
            data = data[os.write(handle, data) :]

    def sync(self, handle: int, path: Path) -> None:
        os.fsync(handle)

    def sync_folder(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


calls = Disk()


def exists(path: Path) -> bool:
    return os.path.lexists(path)


def make_folders(path: Path) -> None:
    """Makes a folder and its parents, synced against a loss of power."""
    if not path.is_dir():
        make_folders(path.parent)
        with contextlib.suppress(FileExistsError):  # made by another process just now
            calls.mkdir(path)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        calls.sync_folder(path.parent)


def write_file(path: Path, parts: Iterable[memoryview]) -> dict[str, int | str]:
    """Writes and syncs a new file; returns size and sha256 of the bytes in memory."""
    digest = hashlib.sha256()
    size = 0
    handle = calls.create(path)
    try:
        for part in parts:
            for start in range(0, len(part), CHUNK):
                chunk = part[start : start + CHUNK]
                digest.update(chunk)
                calls.write(handle, chunk, path)
            size += len(part)
        calls.sync(handle, path)
    finally:
        os.close(handle)
    return {"bytes": size, "sha256": digest.hexdigest()}


@contextlib.contextmanager
def whole(path: Path, cache: bool = False) -> Iterator[Path]:
    """Yields a path beside `path` to write to, and renames it to `path` after the block.

    Whatever happens in the block, `path` is as it was or has the whole new content, synced. `cache`
    is for what can be made again: not synced, and several processes may write it at once.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp" if cache else f"{path.name}.tmp")
    try:
        remove_tree(aside)  # left by a process that was killed
        yield aside
        if not cache and not aside.is_dir():
            with aside.open("rb") as file:
                calls.sync(file.fileno(), aside)
        if cache and path.is_dir() and not aside.is_dir():
            remove_tree(path)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(aside)
        raise


def remove_tree(path: Path) -> None:
    """Removes a file, or a folder with everything below it; a link is removed itself.

    Nothing happens without one.
    """
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            remove_tree(child)
    if exists(path):
        calls.remove(path)


def discard(path: Path) -> None:
    """Deletes a folder, renaming it first so that half of it can never look whole.

    A failure only warns.
    """
    doomed = path.with_name(path.name + ".del")
    try:
        remove_tree(doomed)
        calls.rename(path, doomed)
        remove_tree(doomed)
    except OSError as error:
        print(
            f"Could not delete {path} ({error}); delete it by hand if space runs out.", flush=True
        )


class Busy(BadInput):
    """Another process holds a lock."""


@contextlib.contextmanager
def lock(folder: Path, busy: str = "") -> Iterator[int | None]:
    """Locks a folder without a file in it; yields the descriptor, None if it cannot be locked.

    The folder is made if need be. The lock ends with this process and every child that inherits it;
    the same process may take it again. Where another holds it, it raises Busy with the words of
    `busy`, or waits.
    """
    handle = _take(folder, busy)
    try:
        yield handle
    finally:
        if handle is not None and handle in _held:
            _held[handle] -= 1
            if not _held[handle]:
                del _held[handle]
                os.close(handle)


def _take(folder: Path, busy: str) -> int | None:
    """Returns a descriptor with a lock, or, after a warning, None where folders cannot be locked."""
    make_folders(folder)
    handle = os.open(folder, os.O_RDONLY)
    for mine in _held:
        if os.path.samestat(os.fstat(mine), os.fstat(handle)):
            os.close(handle)
            _held[mine] += 1
            return mine
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise Busy(busy) from None
        why = error.strerror or error
        print(
            f"Warning: {folder} cannot be locked ({why}). Let nothing else write there meanwhile.",
            flush=True,
        )
        return None
    _held[handle] = 1
    return handle


def _let_go() -> None:
    """Closes inherited locks in a child that was forked without exec, such as a loader process."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def held(folder: Path) -> tuple[int, int]:
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted while this counts
                sizes.append(Path(parent, name).lstat().st_size)
    return sum(sizes), len(sizes)


def write_text(path: Path, text: str) -> None:
    with whole(path) as aside:
        aside.write_text(text, "utf-8")


def twice(write: Callable[[], None]) -> None:
    """Calls `write`, and again after an error of the disk, which may pass."""
    try:
        write()
    except OSError:
        write()


@contextlib.contextmanager
def needed(path: Path, then: str) -> Iterator[None]:
    """Raises TrainingFailed, with the state of the run, if the block cannot write `path`."""
    try:
        yield
    except OSError as error:
        advice = "Free room on the disk, or give another output_dir, and run again."
        raise TrainingFailed(
            f"{path} cannot be written ({error.strerror or error}). {then} {advice}"
        ) from error


def check_writable(folder: Path) -> None:
    try:
        make_folders(folder)
        remove_tree(probe := folder / ".writable.tmp")
        write_file(probe, [memoryview(bytes(_PROBE_BYTES))])
        calls.remove(probe)
    except OSError as error:
        what = f"The output folder {folder} cannot be written to ({error.strerror or error})"
        raise BadInput(
            f"{what}. Give another output_dir: no mounted input, on a disk with room."
        ) from error
