"""The data that a run keeps in its own folder, to go on with when what is installed or mounted is another by then."""

import hashlib
import json
from pathlib import Path
from typing import Any

from lib import checkpoint, ranks
from lib.config import Config
from lib.config.files import read_bytes, size_of
from lib.errors import BadInput, printable
from lib.launch import torchrun
from lib.launch.folders import earlier
from lib.machine import disk
from lib.report.outputs import DATA, DATA_BYTES
from lib.report.summary import Summary
from lib.task import Task
from lib.text import amount

_MANIFEST = "manifest.json"
_MOST_BYTES = 2**20  # of a manifest
_MOST_KEPT = 2**38  # of a file, as of one in a checkpoint
_CHUNK = 2**20


def take(task: Task, config: Config) -> None:
    """Lets a task of a run that resumes take the data that the run began with; prints what that means.

    All ranks take the first one's. Raises BadInput where another machine does not see it.
    """
    if type(task).take_kept is Task.take_kept:
        return
    place, damage = ranks.from_first(_find(config) if ranks.is_first() else ("", ""))
    sentences = [damage] if damage else []
    if place:
        if not Path(place).is_dir():
            raise BadInput(f"{place} is not seen by all machines of this run. Give an output_dir that they share.")
        task.kept_from = Path(place)
        sentences.append(task.take_kept(task.kept_from))
    if ranks.is_first() and not torchrun.is_watched():  # else the process above has said it
        print("".join(f"{sentence}\n" for sentence in sentences if sentence), end="", flush=True)


def _find(config: Config) -> tuple[str, str]:
    """Returns the folder with the data of the run that is resumed, else "", and a sentence where it is damaged."""
    try:
        folders = earlier(config)
    except BadInput:  # of run.resume_from, which the search for a checkpoint says
        return "", ""
    for run in folders:
        summary = Summary.read(run)
        if not checkpoint.steps(run / "checkpoints") and not (summary and summary.reason == "completed"):
            continue
        folder = run / DATA
        if not (folder / _MANIFEST).is_file():
            return "", ""
        try:
            _verify(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return "", f"The data that is kept in {printable(folder)} is damaged ({_why(error)}), so it is read anew."
        return str(folder), ""
    return "", ""


def of_run(task: Task, run: Path) -> Path | None:
    """Returns the folder with what a task kept of a run's data; None where there is none, or, said, a damaged one."""
    folder = run / DATA
    if type(task).keep is Task.keep or not (folder / _MANIFEST).is_file():
        return None
    try:
        _verify(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"The data that is kept in {printable(folder)} is damaged ({_why(error)}), so it is not used.")
        return None
    return folder


def _why(error: Exception) -> str:
    return printable(getattr(error, "strerror", None) or error, most=200)


def _verify(folder: Path) -> None:
    """Raises OSError, ValueError or what a manifest of another form raises, unless all files are as written."""
    for name, wanted in _manifest(folder)["files"].items():
        if Path(name).name != name or _seal(folder / name) != wanted:
            raise ValueError(f"{name} is not as it was written")


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads(read_bytes(folder / _MANIFEST, _MOST_BYTES))


def _seal(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), size_of(path, links=False)
    if size > _MOST_KEPT:
        raise ValueError(f"{path.name} has {size:,} bytes, and at most {_MOST_KEPT:,} are read")
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def write(run: Path, task: Task) -> None:
    """Keeps what a task has made of its data in a run's folder, once, and says how much that is.

    A full disk is a warning: the run can be resumed all the same while its data is the same.
    """
    if type(task).keep is Task.keep:
        return
    if type(task).take_kept is Task.take_kept:
        name = type(task).__name__
        raise BadInput(f"{name} has keep() and no take_kept(folder), which a resumed run needs. Write it too.")
    folder = run / DATA
    try:
        if _is_there(folder, task):
            return
        disk.remove_tree(folder)
        with disk.whole(folder) as aside:
            aside.mkdir()
            task.keep(aside)
            size = _close(aside, task)
    except OSError as error:
        print(
            f"The data of the run is not kept, because {folder} cannot be written ({error.strerror or error}). The run "
            "resumes only where its data is the same as now."
        )
        return
    archived = "" if size <= DATA_BYTES else f"; the archive leaves it out, which takes {amount(DATA_BYTES)} of it"
    print(f"The data of the run is kept in {folder} ({amount(size)}{archived}): it resumes on that, whatever changes.")


def _is_there(folder: Path, task: Task) -> bool:
    try:
        _verify(folder)
        return bool(_manifest(folder)["fingerprint"] == task.fingerprint())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _close(folder: Path, task: Task) -> int:
    """Syncs the files of a folder and writes their seals beside them; returns their bytes."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    seals = {path.name: _seal(path) for path in paths}
    (folder / _MANIFEST).write_text(json.dumps({"fingerprint": task.fingerprint(), "files": seals}), "utf-8")
    for path in (*paths, folder / _MANIFEST):
        with path.open("rb") as file:
            disk.calls.sync(file.fileno(), path)
    disk.calls.sync_folder(folder)
    return sum(seal["bytes"] for seal in seals.values())
