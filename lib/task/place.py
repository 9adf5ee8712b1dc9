"""The line of a person's own code in which an error arose."""

import contextlib
import linecache
import sysconfig
import traceback
from pathlib import Path

from lib.errors import printable

_LIBRARY = Path(__file__).resolve().parents[1]  # lib
_FOREIGN = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str:
    """Returns "file:line: source" of the innermost line of the person's own code; empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_own(frame.filename):
            source = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            return printable(f"{_short(frame.filename)}:{frame.lineno}: {source}", most=200)
    return ""


def _is_own(file: str) -> bool:
    path = Path(file).resolve()
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    return not any(folder in path.parents for folder in (_LIBRARY, _LIBRARY.with_name("trainbook"), *_FOREIGN))


def _short(file: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(file).resolve().relative_to(Path.cwd()))
    return Path(file).name
