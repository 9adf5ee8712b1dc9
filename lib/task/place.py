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
_FOREIGN = [_HOUSES / "lib", _HOUSES / "trainbook"]
_FOREIGN += [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]


def place_of(error: BaseException) -> str:
    """Returns "file:line: source" of the innermost line of the person's own code; empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        is_cell = frame.filename.startswith("<ipython")
        if is_cell or not (
            frame.filename.startswith("<") or any(folder in path.parents for folder in _FOREIGN)
        ):
            source = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            if path.is_relative_to(Path.cwd()):
                shown = path.relative_to(Path.cwd())
            else:
                shown = path.name
            return printable(f"{shown}:{frame.lineno}: {source}", most=200)
    return ""


@contextlib.contextmanager
def naming(what: str, mend: str = "Correct it there.") -> Iterator[None]:
    """Turns an error of the block into BadInput that names `what` raised it; lack of memory stays as it is."""
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
    """Returns one sentence on an error that `what` raised, with the line of the user's code, and the mend."""
    place = place_of(error)
    lines = str(error).strip().splitlines()
    text = printable(": ".join([type(error).__name__, *lines[:1]]), most=300)
    text += (
        f", read as Python {platform.python_version()}" if isinstance(error, SyntaxError) else ""
    )
    return f"{what} raises {text}{f' ({place})' if place else ''}. {mend}".replace("..", ".")
