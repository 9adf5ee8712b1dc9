"""Detects the platform of this process: its folders, its limits, and its advice to the user."""

import contextlib
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lib.config import environment
from lib.errors import BadInput, printable
from lib.machine.facts import FACTS

_CONTENT = Path("/content")
_SCRATCH = Path("/tmp/trainbook-cache")
_STUDIO = Path("/teamspace/studios/this_studio")
_MOLAB_HOME = Path("/home/marimo")


def _scratch_dir() -> Path:
    return Path(os.environ.get(environment.CACHE) or _SCRATCH)


@dataclass(frozen=True)
class Platform:
    """A place where runs happen.

    A new one is a function in `_DETECTORS`; no other code knows its name.

    `session_minutes`, `output_bytes` and `output_files` are None without a limit.
    """

    name: str
    output_dir: Path
    gpu_advice: str  # how to get a GPU
    download_advice: str = ""  # how to keep the file `{name}` at `{archive}`; empty: it stays
    batch: bool = False  # unattended: plain lines instead of widgets
    input_dir: Path | None = None
    has_mounts: bool = False  # `input_dir` holds data sets in Kaggle's layouts
    session_minutes: float | None = None
    begins_with_container: bool = False  # the session, from which these minutes count
    output_bytes: int | None = None
    output_files: int | None = None
    scratch_dir: Path = field(default_factory=_scratch_dir)  # for caches; not saved with the output


def detect() -> Platform:
    """Returns the platform of this process. Reads environment variables and never prints one."""
    for detector in _DETECTORS:
        if platform := detector():
            return platform
    scratch = _scratch_dir()
    if not os.environ.get(environment.CACHE):
        with contextlib.suppress(RuntimeError):  # neither HOME nor an entry of the user
            scratch = Path.home() / ".cache" / "trainbook"
    return Platform(
        name="local",
        output_dir=Path("runs"),
        scratch_dir=scratch,
        gpu_advice=("Take a configuration of a small size. If there is a GPU, install its driver."),
    )


def _kaggle() -> Platform | None:
    run_type = os.environ.get("KAGGLE_KERNEL_RUN_TYPE")
    if not run_type:
        return None
    root = Path(os.environ.get(environment.KAGGLE_ROOT, "/kaggle"))
    is_batch = run_type != "Interactive"
    save = "" if is_batch else "Save Version first, or this is lost with the session; then "
    fetch = "the Output tab of this version, {name}; or trainbook kaggle fetch OWNER/NOTEBOOK"
    return Platform(
        name="kaggle",
        output_dir=root / "working",
        gpu_advice="Choose Settings > Accelerator > GPU T4 x2 and run again.",
        download_advice=f"Download: {save}{fetch}",
        batch=is_batch,
        input_dir=root / "input",
        has_mounts=True,
        session_minutes=_limit("kaggle_run_minutes"),
        begins_with_container=environment.KAGGLE_ROOT not in os.environ,
        output_bytes=_limit("kaggle_output_bytes"),
        output_files=_limit("kaggle_output_files"),
    )


def _colab() -> Platform | None:
    # a child process has no IPython shell
    in_child = "COLAB_RELEASE_TAG" in os.environ and _CONTENT.is_dir()
    if not in_child and "google.colab" not in str(_shell()):
        return None
    drive = _CONTENT / "drive" / "MyDrive"
    has_drive = drive.is_dir()
    files = "from google.colab import files; files.download('{archive}')"
    return Platform(
        name="colab",
        output_dir=drive / "trainbook" if has_drive else _CONTENT,
        gpu_advice="Choose Runtime > Change runtime type > T4 GPU and run again.",
        download_advice="" if has_drive else f"Download: {files}, or it is lost at the end.",
        input_dir=drive if has_drive else None,
        session_minutes=_limit("colab_session_minutes"),
        begins_with_container=True,
        output_bytes=_limit("colab_drive_bytes") if has_drive else None,
    )


def _lightning() -> Platform | None:
    """Returns Lightning AI's Studio. Its disk stays; no length of a session is published."""
    if "LIGHTNING_CLOUD_SPACE_ID" not in os.environ or not _STUDIO.is_dir():
        return None
    return Platform(
        name="lightning",
        output_dir=_STUDIO / "runs",
        gpu_advice="Switch the Studio's machine to a T4 and run again.",
    )


def _molab() -> Platform | None:
    """Returns marimo's molab.

    It documents no variable; public repositories show this home folder.
    """
    if not _MOLAB_HOME.is_dir() or importlib.util.find_spec("marimo") is None:
        return None
    return Platform(
        name="molab",
        output_dir=Path("runs"),
        gpu_advice="Switch on the GPU by the button of the notebook's specs and run again.",
        download_advice="Download {archive} by the file tree: the storage of a notebook is small.",
        session_minutes=_limit("molab_session_minutes"),
        begins_with_container=True,
    )


# Kaggle first: COLAB_RELEASE_TAG is set there too, and google.colab can be imported
_DETECTORS = (_kaggle, _colab, _lightning, _molab)


def _limit(fact: str) -> int:
    return int(FACTS[fact].value)


def in_notebook() -> bool:
    """Returns whether this process is a notebook's kernel, and no script or terminal's IPython."""
    return hasattr(_shell(), "kernel")


def _shell() -> object | None:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def output_dir(configured: str) -> Path:
    """Returns the folder for runs: the configured one, or the platform's. Raises BadInput."""
    folder = Path(configured) if configured else detect().output_dir
    try:
        folder.resolve().exists()
    # links in a circle, a NUL, a name too long
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = printable(folder, most=200)
        raise BadInput(f"output_dir cannot be {shown} ({reason}). Give another folder.") from None
    return folder
