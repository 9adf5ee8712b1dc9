"""Changes the disk in ways that survive a kill: whole files, synced folders. Tests can make each operation fail."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lib.errors import BadInput

CHUNK = 16 * 2**20  # bytes per write; after each the thread must get the GIL back, which training can hold for 5 ms
_PROBE_BYTES = 64 * 1024  # room for the first files of a run
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}  # answers of mounted cloud drives, which cannot sync a folder


class Disk:
    """The operations by which checkpoints change the disk, all made by `calls`, which a test can replace."""

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
        """Removes one file or one empty folder."""
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


calls = Disk()


def exists(path: Path) -> bool:
    """Says whether anything has this name, a broken link too."""
    return os.path.lexists(path)


def make_folders(path: Path) -> None:
    """Makes a folder and those above it, and syncs each name in its parent, so that no loss of power removes it."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with contextlib.suppress(FileExistsError):  # made by another process just now
        calls.mkdir(path)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    calls.sync_folder(path.parent)


def write_file(path: Path, parts: Iterable[memoryview]) -> dict[str, int | str]:
    """Writes and syncs a new file; returns its size and its sha256, computed from the bytes in memory."""
    digest, size = hashlib.sha256(), 0
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
    """Yields a path beside `path` to write a file or folder to, and renames it to `path` when the block ends.

    Whatever happens in the block, `path` is as it was or has the whole new content. A file is synced before it is
    renamed. `cache` is for what can be made again: not synced, and several processes may write it at once. Raises
    whatever the block raises, and OSError.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp" if cache else f"{path.name}.tmp")
    try:
        remove_tree(aside)  # left by a process that was killed
        yield aside
        if not cache and not aside.is_dir():
            with aside.open("rb") as file:
                calls.sync(file.fileno(), aside)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(aside)
        raise


def remove_tree(path: Path) -> None:
    """Removes a file, or a folder with everything below it; of a link only itself; nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            remove_tree(child)
    if exists(path):
        calls.remove(path)


def discard(path: Path) -> None:
    """Deletes a folder, renaming it first so that half of it can never look whole. A failure only warns."""
    doomed = path.with_name(path.name + ".del")
    try:
        remove_tree(doomed)
        calls.rename(path, doomed)
        remove_tree(doomed)
    except OSError as error:
        print(f"Could not delete {path} ({error}); delete it by hand if space runs out.", flush=True)


def held(folder: Path) -> tuple[int, int]:
    """Returns the bytes and the number of the files below a folder."""
    size = number = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted while this counts
                size += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118  thousands of names
                number += 1
    return size, number


def check_writable(folder: Path) -> None:
    """Makes the folder and tries to write into it. Raises BadInput if that fails."""
    probe = folder / ".writable.tmp"
    try:
        make_folders(folder)
        remove_tree(probe)
        write_file(probe, [memoryview(bytes(_PROBE_BYTES))])
        calls.remove(probe)
    except OSError as error:
        raise BadInput(
            f"The output folder {folder} cannot be written to ({error.strerror or error}). Give another output_dir: "
            "not a mounted input, with permission to write, on a disk with room."
        ) from error
