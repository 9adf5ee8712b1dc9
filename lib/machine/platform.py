"""Detects Kaggle, Colab or local, with the folders and limits of each."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lib.config import environment
from lib.errors import BadInput, printable
from lib.machine.facts import FACTS

_CONTENT = Path("/content")
_SCRATCH = Path("/tmp/trainbook-cache")


@dataclass(frozen=True)
class Platform:
    """The place where a run happens, its folders and limits; None for what does not exist or has no limit."""

    name: Literal["kaggle", "colab", "local"]
    batch: bool  # nobody watches: plain lines instead of widgets
    input_dir: Path | None
    output_dir: Path
    scratch_dir: Path  # for caches; not saved with the output
    session_minutes: float | None = None
    output_bytes: int | None = None
    output_files: int | None = None


def detect() -> Platform:
    """Returns the platform that this process runs on. Reads environment variables and never shows one."""
    limits = {
        name: int(fact.value)
        for name, fact in FACTS.items()
        if name.endswith(("_bytes", "_files", "_minutes"))
    }
    scratch = Path(os.environ.get(environment.CACHE) or _SCRATCH)
    # Kaggle first: COLAB_RELEASE_TAG is set there too, and google.colab can be imported
    if run_type := os.environ.get("KAGGLE_KERNEL_RUN_TYPE"):
        root = Path(os.environ.get(environment.KAGGLE_ROOT, "/kaggle"))
        most = (
            float(limits["kaggle_run_minutes"]),
            limits["kaggle_output_bytes"],
            limits["kaggle_output_files"],
        )
        return Platform(
            "kaggle", run_type != "Interactive", root / "input", root / "working", scratch, *most
        )
    # a child process on Colab has no IPython shell
    if "google.colab" in str(_shell()) or ("COLAB_RELEASE_TAG" in os.environ and _CONTENT.is_dir()):
        drive = _CONTENT / "drive" / "MyDrive"
        minutes = float(limits["colab_session_minutes"])
        if not drive.is_dir():
            return Platform("colab", False, None, _CONTENT, scratch, minutes)
        return Platform(
            "colab",
            False,
            drive,
            drive / "trainbook",
            scratch,
            minutes,
            limits["colab_drive_bytes"],
        )
    if not os.environ.get(environment.CACHE):
        with contextlib.suppress(RuntimeError):  # neither HOME nor an entry of the user
            scratch = Path.home() / ".cache" / "trainbook"
    return Platform("local", False, None, Path("runs"), scratch)


def in_notebook() -> bool:
    """Says whether this process is the kernel of a notebook, rather than a script or a terminal's IPython."""
    return hasattr(_shell(), "kernel")


def _shell() -> object | None:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def output_dir(configured: str) -> Path:
    """Returns the folder for runs: the configured one, or the platform's. Raises BadInput where none can be."""
    folder = Path(configured) if configured else detect().output_dir
    try:
        folder.resolve().exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # links in a circle, a NUL, a name too long
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"output_dir cannot be {printable(folder, most=200)} ({why}). Give another folder."
        ) from None
    return folder
