"""Paths as a configuration names them."""

import os
from pathlib import Path

from lib.untrusted import read as read_bytes
from lib.untrusted import size_of

__all__ = ["absolute", "beside", "read_bytes", "size_of"]

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
