"""Reads files that somebody else may have made: regular ones alone, and no more of them than is sensible."""

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link",
}  # fmt: skip


def read_bytes(path: Path, most: int) -> bytes:
    """Reads a regular file of at most `most` bytes. Raises OSError for anything else.

    A pipe or a device is not even opened: the one would wait for ever, and the other may have no end.
    """
    size_of(path)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may have become a pipe by now
    with os.fdopen(handle, "rb") as file:
        size = _size(os.fstat(handle), path)
        content = file.read(size + 1) if size <= most else b""
        content += file.read(most) if len(content) > size else b""  # it has grown, or names no size
        if max(size, len(content)) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
    return content


def size_of(path: Path, links: bool = True) -> int:
    """Returns the size of a regular file without opening it. Raises OSError for anything else.

    Without `links`, a link counts as something else too.
    """
    return _size(path.stat() if links else path.lstat(), path)


def _size(found: os.stat_result, path: Path) -> int:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", str(path))
    return found.st_size


def absolute(path: Path) -> Path:
    """Returns a path from the root without any ".."; links in it stay."""
    return Path(os.path.normpath(path.absolute()))


def beside(folder: Path, text: str) -> tuple[str, bool]:
    """Returns a path as it counts from a folder where it is there, else as it is; and whether that hides another one.

    The other one is what the same path means from the working folder. A path that means the same from there stays.
    """
    here, there = Path(text), folder / text
    try:
        if not text or there == here or not there.exists():
            return text, False
        if not here.exists():
            return str(there), False
        return (text, False) if here.samefile(there) else (str(there), True)
    except (OSError, ValueError):  # too long, a NUL: whoever uses it says so
        return text, False
