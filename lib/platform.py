"""Kaggle, Colab or local: the table of facts, which of the three this is, and where inputs are mounted.

Facts change. Each one stands here once, with its source and the month in which it was checked; where the machine can
be asked (free disk, memory, CPUs), it is asked at run time instead.
"""

import fnmatch
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lib.errors import BadInput

GB = 10**9
_CHECKED = "2026-10"
_CONTENT = Path("/content")
_SCRATCH = Path("/tmp/trainbook-cache")


@dataclass(frozen=True)
class Fact:
    """One number about a platform: `checked` is the month in which `source` said so."""

    value: float | str
    unit: str
    source: str
    checked: str = _CHECKED


_DOCS = "kaggle.com/docs/notebooks"
_MEASURED = "measured reports, 2026-09"
_SURVEY = "the project's survey; primary source not noted"

FACTS: dict[str, Fact] = {
    "kaggle_session_minutes": Fact(720, "minutes, CPU or GPU, interactive and batch alike", _DOCS),
    "kaggle_run_minutes": Fact(690, "minutes a run may use", "own choice: a killed session may lose its output"),
    "kaggle_tpu_session_minutes": Fact(540, "minutes", _DOCS),
    "kaggle_idle_minutes": Fact(20, "minutes, interactive only; another page says 60", _DOCS),
    "kaggle_gpu_quota_hours": Fact(30, "hours a week, sometimes more; T4 x2 counts once", "docs, account quota API"),
    "kaggle_tpu_quota_hours": Fact(20, "hours a week", "docs, account quota API"),
    "kaggle_quota_reset": Fact("Saturday 00:00", "UTC", "docs, account quota API"),
    "kaggle_batch_gpu_sessions": Fact(2, "batch GPU sessions at once", "reported text of the error"),
    "kaggle_gpus": Fact(2, "T4 cards; a single one is not offered", "kaggle-cli #1198"),
    "kaggle_machine_shape": Fact("NvidiaTeslaT4", "machine_shape of kernel-metadata.json", "kaggle-cli #1198"),
    "kaggle_t4_memory_mib": Fact(14_911, "MiB of one T4 as torch sees it", _MEASURED),
    "kaggle_t4_memory_taken_mib": Fact(107, "MiB taken on a T4 at the start", _MEASURED),
    "kaggle_ram_gib": Fact(31.35, "GiB; the documentation says 29", f"{_DOCS}, measured"),
    "kaggle_vcpus": Fact(4, "vCPUs, for both cards together", f"{_DOCS}, measured"),
    "kaggle_output_bytes": Fact(20 * GB, "bytes below /kaggle/working", _DOCS),
    "kaggle_output_files": Fact(500, "files, a soft budget: staff deny a cap", "product-feedback 181143, 420538"),
    "kaggle_scratch_bytes": Fact(50 * GB, "bytes in /tmp at least, not saved", "reports of 50 to 60 GB"),
    "kaggle_host": Fact(
        "www.kaggle.com",
        "a name that is not resolved in a session whose internet is off",
        "reports of pip's 'Temporary failure in name resolution'; not measured",
    ),
    "kaggle_notebook_bytes": Fact(1_000_000, "bytes of an .ipynb that Kaggle has refused", _SURVEY),
    "kaggle_dataset_bytes": Fact(200 * GB, "bytes of a data set", _SURVEY),
    "kaggle_dataset_files": Fact(50, "top-level files of a data set", _SURVEY),
    "colab_session_minutes": Fact(720, "minutes at most; the idle limit is unpublished", _SURVEY),
    "colab_gpus": Fact(1, "T4 card", _SURVEY),
    "colab_vcpus": Fact(2, "vCPUs", _SURVEY),
    "colab_ram_gib": Fact(12.7, "GiB", _SURVEY),
    "colab_drive_bytes": Fact(15 * GB, "bytes of a free Drive", _SURVEY),
}


@dataclass(frozen=True)
class Card:
    """A GPU: GiB that torch sees, GB/s, and TFLOP/s; None where a figure is not known, or the format not supported."""

    name: str
    capability: tuple[int, int]
    memory_gib: float
    bandwidth_gb_s: float
    fp16_tflops: float
    fp16_sustained_tflops: float | None
    bf16_tflops: float | None
    fp32_tflops: float
    source: str = _SURVEY
    checked: str = _CHECKED


CARDS: dict[str, Card] = {
    # 65 TFLOP/s is the peak; the card is power-capped at 70 W, and fp16 matrix products sustain about 24
    "t4": Card("T4", (7, 5), 14.56, 320, 65, 24, None, 8.1, f"published peaks; memory: {_MEASURED}"),
    "p100": Card("P100 (retired on Kaggle)", (6, 0), 15.9, 732, 18.7, None, None, 9.3),
    # 36 TFLOP/s with fp16 accumulation; products that accumulate in fp32, as torch's do, reach 18
    "rtx3050": Card("RTX 3050 8 GB", (8, 6), 7.6, 224, 36, None, 18, 9.1),
    "l4": Card("L4", (8, 9), 22, 300, 121, None, 121, 30),
    "a100-40": Card("A100 40 GB", (8, 0), 39, 1555, 312, None, 312, 19.5),
    "a100-80": Card("A100 80 GB", (8, 0), 79, 2039, 312, None, 312, 19.5),
    "h200": Card("H200", (9, 0), 139, 4800, 989, None, 989, 67),
}


@dataclass(frozen=True)
class Platform:
    """Where a run happens: its folders and limits. None stands for what does not exist or has no limit."""

    name: Literal["kaggle", "colab", "local"]
    batch: bool  # nobody watches: plain lines instead of widgets
    input_dir: Path | None
    output_dir: Path
    scratch_dir: Path  # for caches; not saved with the output
    session_minutes: float | None
    output_bytes: int | None
    output_files: int | None


def detect() -> Platform:
    """The platform that this process runs on. Reads environment variables and never shows one."""
    # Kaggle first: COLAB_RELEASE_TAG is set there too, and google.colab can be imported
    if run_type := os.environ.get("KAGGLE_KERNEL_RUN_TYPE"):
        return _kaggle(batch=run_type != "Interactive")
    # a child process on Colab has no IPython shell
    if "google.colab" in str(_shell()) or ("COLAB_RELEASE_TAG" in os.environ and _CONTENT.is_dir()):
        return _colab()
    return Platform("local", False, None, Path("runs"), _cache(Path.home() / ".cache" / "trainbook"), None, None, None)


def _kaggle(batch: bool) -> Platform:
    root = Path(os.environ.get("TRAINBOOK_KAGGLE_ROOT", "/kaggle"))
    return Platform(
        name="kaggle",
        batch=batch,
        input_dir=root / "input",
        output_dir=root / "working",
        scratch_dir=_cache(_SCRATCH),
        session_minutes=_number("kaggle_run_minutes"),
        output_bytes=int(_number("kaggle_output_bytes")),
        output_files=int(_number("kaggle_output_files")),
    )


def _colab() -> Platform:
    drive = _CONTENT / "drive" / "MyDrive"
    mounted = drive.is_dir()
    return Platform(
        name="colab",
        batch=False,
        input_dir=drive if mounted else None,
        output_dir=drive / "trainbook" if mounted else _CONTENT,
        scratch_dir=_cache(_SCRATCH),
        session_minutes=_number("colab_session_minutes"),
        output_bytes=int(_number("colab_drive_bytes")) if mounted else None,
        output_files=None,
    )


def _cache(usual: Path) -> Path:
    return Path(os.environ.get("TRAINBOOK_CACHE") or usual)


def _number(name: str) -> float:
    return float(FACTS[name].value)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, rather than a script or a terminal's IPython."""
    return hasattr(_shell(), "kernel")


def _shell() -> object | None:
    """IPython's shell, if this process runs in one; then IPython has been imported, so it need not be imported here."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython, "get_ipython", lambda: None)()


def mounted(platform: Platform) -> list[Path]:
    """The mounted inputs in both of Kaggle's layouts, sorted; none where there is no folder of inputs."""
    if platform.name != "kaggle" or platform.input_dir is None:
        return []
    found: list[Path] = []
    for folder in _folders(platform.input_dir):
        depth = _NEW_LAYOUT.get(folder.name)
        below = list(_descend(folder, depth)) if depth else []
        # a data set of the old layout may be called "datasets" too; then nothing lies as deep as in the new one
        found += below or [folder]
    return sorted(found)


# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _descend(folder: Path, depth: int) -> Iterator[Path]:
    for inner in _folders(folder):
        if depth == 1:
            yield inner
        else:
            yield from _descend(inner, depth - 1)


def find_input(name: str, platform: Platform) -> Path:
    """The folder or file of an input: a path, or a mounted one as "slug", "owner/slug" or its path below the inputs.

    Raises BadInput, which lists what is mounted, where there is no such input or more than one.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    mounts = mounted(platform)
    found: list[Path] = []
    if platform.input_dir:
        if (platform.input_dir / path).exists():
            return platform.input_dir / path
        found = [mount for mount in mounts if _answers_to(mount.relative_to(platform.input_dir).parts, path.parts)]
    if len(found) == 1:
        return found[0]
    shown = [str(m.relative_to(platform.input_dir)) for m in found or mounts if platform.input_dir]
    names = ", ".join(shown) or "nothing"
    if found:
        raise BadInput(f"The name {name} stands for {len(found)} mounted inputs: {names}. Give one of these.")
    advice = "Add it with Add Input, or correct the name." if platform.name == "kaggle" else "Give a path that exists."
    raise BadInput(f"There is no input {name}: no such path, and no such mounted input (mounted: {names}). {advice}")


def _answers_to(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a mount, by its parts below the inputs, is what "slug" or "owner/slug" stands for."""
    if len(parts) == 1:  # the old layout has no owners
        return len(wanted) <= 2 and parts[0] == wanted[-1]
    if parts[0] == "models":  # models/<owner>/<model>/<framework>/<variation>/<version>
        return wanted in (parts[1:][: len(wanted)], parts[2:][: len(wanted)])
    return parts[1:][-len(wanted) :] == wanted


def search_inputs(sentinels: Sequence[str], platform: Platform, limit: int = 20_000) -> list[Path]:
    """Folders of the mounted inputs that hold a file matching one of the glob patterns, shallow ones first.

    Lists no further folder after `limit` entries, and prints a line when something was left out.
    """
    level, found, seen = mounted(platform), [], 0
    while level:
        below: list[Path] = []
        for folder in level:
            if seen >= limit:
                print(f"Looked at {seen:,} entries of the mounted inputs, not at all. Name the folder in data.dir.")
                return found
            names, folders = _entries(folder)
            seen += len(names) + len(folders)
            if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in sentinels):
                found.append(folder)
            below += folders
        level = below
    return found


def _entries(folder: Path) -> tuple[list[str], list[Path]]:
    """Names of the files and paths of the folders in a folder, sorted; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return [], []
    folders = [folder / entry.name for entry in ordered if entry.is_dir(follow_symlinks=False)]
    return [entry.name for entry in ordered if not entry.is_dir()], folders
