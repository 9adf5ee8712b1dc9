"""Names the line of a user's code in which an error arose."""

import contextlib
import linecache
import platform
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from lib.errors import BadInput, TrainingFailed, printable
from lib.machine import memory

_HOUSES = Path(__file__).resolve().parents[2]
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
_FOREIGN = {_HOUSES / "lib", _HOUSES / "trainbook", *(Path(path).resolve() for path in _LIBRARIES)}


def place_of(error: BaseException) -> str:
    """Returns "file:line: source" of the innermost line in the user's code; "" without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_own(frame.filename):
            continue
        path = Path(frame.filename).resolve()
        source = frame.line or linecache.getline(frame.filename, frame.lineno or 0)
        if path.is_relative_to(Path.cwd()):
            shown = path.relative_to(Path.cwd())
        else:
            shown = Path(path.name)
        return printable(f"{shown}:{frame.lineno}: {source.strip()}", most=200)
    return ""


def _is_own(filename: str) -> bool:
    """Returns whether a frame is in the user's code: a cell, or a file outside every library."""
    if filename.startswith("<"):
        return filename.startswith("<ipython")
    return _FOREIGN.isdisjoint(Path(filename).resolve().parents)


@contextlib.contextmanager
def naming(what: str, mend: str = "Correct it there.") -> Iterator[None]:
    """Turns an error of the block, unless memory ran out, into BadInput that names `what`."""
    try:
        yield
    except BadInput:
        raise
    except TrainingFailed as error:
        raise BadInput(error) from error
    except Exception as error:
        if memory.is_oom(error):
            raise
        raise BadInput(explained(what, error, mend)) from error


def explained(what: str, error: BaseException, mend: str = "Correct it there.") -> str:
    """Returns one sentence on an error that `what` raised: its line in the user's code, and `mend`."""
    lines = str(error).strip().splitlines()
    text = printable(": ".join([type(error).__name__, *lines[:1]]), most=300)
    if isinstance(error, SyntaxError):
        text += f", read as Python {platform.python_version()}"
    if place := place_of(error):
        text += f" ({place})"
    return f"{what} raises {text}. {mend}".replace("..", ".")
