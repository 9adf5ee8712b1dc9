"""Reads files of unknown origin: regular ones alone, up to a number of bytes."""

import errno
import os
import stat
from pathlib import Path

from lib.errors import BadInput, printable

_MOST_TEXT = 2**20  # bytes of a configuration
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFLNK: "a link"}


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


def read_text(path: Path) -> str:
    """Reads a UTF-8 file. Raises BadInput, with line and column of the first byte that is not UTF-8."""
    name = printable(path, most=500)
    try:
        raw = read_bytes(path, _MOST_TEXT)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        *lines, last = raw[: error.start].decode("utf-8-sig", "replace").split("\n")
        place = f"{name}:{len(lines) + 1}:{len(last) + 1}"
        raise BadInput(f"{place}: The file is not UTF-8 here. Save it as UTF-8.") from None
    except (OSError, ValueError) as error:  # a ValueError for a path with a NUL
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{name}: The file cannot be read ({why}). Give the path of a YAML file.") from None


def size_of(path: Path, links: bool = True) -> int:
    """Returns the size of a regular file without opening it. Raises OSError for anything else.

    Without `links`, a link counts as something else too.
    """
    return _size(path.stat() if links else path.lstat(), path)


def _size(status: os.stat_result, path: Path) -> int:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return status.st_size


def absolute(path: Path) -> Path:
    """Returns a path from the root without any ".."; links in it stay."""
    return Path(os.path.normpath(path.absolute()))
