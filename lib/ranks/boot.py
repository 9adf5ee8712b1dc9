"""The first lines of torchrun and of every rank. They are run by path, so no import of torch comes before them.

    python boot.py agent PARENT OPTIONS...   becomes torchrun, for the launcher whose process id is PARENT
    python boot.py rank ARGUMENTS...         becomes `python -m lib ARGUMENTS...`, below that torchrun

What these processes have to say before they can import anything goes into the launch's folder: `alive-N` is touched
every second by rank N until its first step is done, and `ended-N` holds its exit code.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEAT_SECONDS = 1.0
TRAINING = "training"  # the last stage of a rank's start


def die_with(parent: int) -> None:
    """Has Linux kill this process as soon as `parent` is gone, even by kill -9, so that no orphan keeps a GPU."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def write_stage(folder: Path, number: int, stage: str) -> None:
    """Notes how far the start of a rank is."""
    with contextlib.suppress(OSError):  # the launcher is gone, and its folder with it
        (folder / f"stage-{number}").write_text(stage, "utf-8")


def read_stage(folder: Path, number: int) -> str:
    """Returns how far the start of a rank is; empty before its first line."""
    path = folder / f"stage-{number}"
    return path.read_text("utf-8") if path.exists() else ""


def _variable(name: str) -> str:
    """Returns the name of an environment variable, from its table, without importing lib."""
    return str(runpy.run_path(str(Path(__file__).parents[1] / "config" / "environment.py"))[name])


class _Recorded(subprocess.Popen):
    """A rank, whose exit code goes into the launch's folder as soon as torchrun sees it."""

    place: Path | None = None

    def __init__(self, args: Any, *others: Any, env: Any = None, **options: Any):
        if env and "RANK" in env:
            self.place = Path(env[_variable("RANK_FOLDER")]) / f"ended-{env['RANK']}"
        super().__init__(args, *others, env=env, **options)

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None and self.place and not self.place.exists():
            with contextlib.suppress(OSError):
                self.place.write_text(str(code), "utf-8")
        return code


def _beat(folder: Path, number: int) -> None:
    with contextlib.suppress(OSError):  # the folder is gone
        while read_stage(folder, number) != TRAINING:
            (folder / f"alive-{number}").touch()
            time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    # As for `python -m`, instead of the folder of this file; but a folder lib of one's own is not taken for this one.
    sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path.cwd())]
    if sys.argv[1] == "agent":
        module, arguments = "torch.distributed.run", sys.argv[3:]
        die_with(int(sys.argv[2]))
        os.environ[_variable("AGENT")] = str(os.getpid())
        subprocess.Popen = _Recorded  # type: ignore[misc]
    else:
        module, arguments = "lib", sys.argv[2:]
        die_with(int(os.environ[_variable("AGENT")]))
        place, rank = Path(os.environ[_variable("RANK_FOLDER")]), int(os.environ["RANK"])
        write_stage(place, rank, "importing")
        threading.Thread(target=_beat, args=(place, rank), name="signs of life", daemon=True).start()
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
