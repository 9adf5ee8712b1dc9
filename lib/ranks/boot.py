"""The first lines of every rank that `launch` starts. They are run by path, so no import of torch comes before them.

python boot.py PARENT -m MODULE ARGUMENTS...   becomes `python -m MODULE ARGUMENTS...`, and ends with the process PARENT
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path


def die_with(parent: int) -> None:
    """Has Linux kill this process as soon as `parent` is gone, even by kill -9, so that no orphan keeps a GPU."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    # As for `python -m`, instead of the folder of this file; but a user's folder lib does not hide this one.
    library = Path(__file__).resolve().parents[2]
    sys.path[:1] = [str(library), str(Path.cwd())]
    module = sys.argv[3]
    sys.argv[1:] = sys.argv[4:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
