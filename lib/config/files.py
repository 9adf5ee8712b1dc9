"""Reads configurations as text, and finds the paths that they name."""

import os
from pathlib import Path

from lib.errors import BadInput, printable
from lib.untrusted import read as read_bytes
from lib.untrusted import size_of

__all__ = ["absolute", "check_no_pointer", "read_bytes", "read_text", "size_of"]
_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_TEXT = 2**20  # bytes of a configuration

DATA = "data"  # the folder in a run's folder with the files that a task keeps of its data
DATA_BYTES = 2**28  # of them, which go into the archive


def read_text(path: Path) -> str:
    """Reads a UTF-8 file.

    Raises BadInput, with line and column of the first byte that is not UTF-8.
    """
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
        raise BadInput(
            f"{name}: The file cannot be read ({why}). Give the path of a YAML file."
        ) from None


def check_no_pointer(content: bytes) -> None:
    """Raises ValueError for what Git LFS puts in the place of a file that was not fetched."""
    if content.startswith(_POINTER):
        raise ValueError(
            "it is a pointer of Git LFS instead of the file, which git lfs pull fetches"
        )


def absolute(path: Path) -> Path:
    """Returns a path from the root without any ".."; links in it stay."""
    return Path(os.path.normpath(path.absolute()))
