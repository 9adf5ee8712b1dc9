"""Stores learned values of a task with its run: values in each checkpoint, files in the run's folder."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import checkpoint, ranks, untrusted
from lib.config.files import DATA, DATA_BYTES
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.machine.inputs import saved_facts
from lib.task import Task
from lib.text import amount

_MOST_BYTES = 12 * 2**20  # of JSON; an untrusted state.json of more than 16 MiB is not read
_REFERENCE = {"file", "bytes", "sha256"}  # keys of a file's entry in a checkpoint


def take(
    task: Task, saved: checkpoint.Checkpoint | None, run: Path | None = None
) -> Mapping[str, Any]:
    """Gives a task its learned values after a round trip through JSON, and returns them. Raises BadInput.

    They come from the first rank's checkpoint `saved`, or from `task.learned()`. Files always come from the task, which
    has them from `restored` in a resumed run; they are stored in the folder `run`.
    """
    name = type(task).__name__
    own = task.learned()
    if not isinstance(own, Mapping):
        raise BadInput(
            f"{name}.learned returned a {type(own).__name__}. Return a dict of values by name."
        )
    files = _files(own)
    fresh = {name: value for name, value in own.items() if name not in files}
    values = ranks.from_first((saved and saved.state.get("learned")) or fresh)
    try:
        plain = {key: value for key, value in values.items() if not _is_reference(value)}
        text = json.dumps(plain, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{name}.learned returned values that JSON cannot hold ({printable(error)}). Return text, finite numbers, "
            "paths of files, lists, and dicts whose keys are text: str(key)."
        ) from None
    if len(text) > _MOST_BYTES:
        raise BadInput(
            f"{name}.learned returned {len(text):,} bytes, which every checkpoint would hold; {_MOST_BYTES:,} are "
            "the most. Write a large table into a file and return its Path."
        )
    _check_same(values, files)
    if own and type(task).take_learned is Task.take_learned:
        raise BadInput(
            f"{name} has learned() and no take_learned(values), which a resumed run needs. Write it too."
        )
    # sorted once more, because whole numbers as keys became text
    plain = json.loads(json.dumps(json.loads(text), sort_keys=True))
    if run and ranks.is_first():
        store(task, run)
    if taken := {**plain, **files}:
        task.take_learned(taken)
    return taken


def as_saved(taken: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of `take` for a checkpoint, with name, size and hash in place of each file."""
    files = {key: _reference(key, path) for key, path in _files(taken).items()}
    return {**taken, **files}


def _check_same(values: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Raises BadInput if a file of a resumed run is damaged and the task has another in its place."""
    for name, path in files.items():
        before: Any = values.get(name)
        if _is_reference(before) and _reference(name, path) != before:
            raise BadInput(
                f"The file {printable(before['file'])} of this run is damaged or gone, and {printable(path)} is "
                "another. Copy the run's folder again, or choose another run.name to begin with it."
            )


def store(task: Task, run: Path) -> None:
    """Copies the files that a task learned into its run's folder. A later call retries after a disk error."""
    for name, path in _files(task.learned()).items():
        reference = _reference(name, path)
        place = run / DATA / reference["file"]
        try:
            if place.is_file() and _is_stored(name, reference, place):
                continue
            disk.make_folders(place.parent)
            with disk.whole(place) as aside:
                shutil.copyfile(path, aside)
            disk.calls.sync_folder(place.parent)
        except OSError as error:
            reason = error.strerror or error
            print(
                f"The data of the run is not kept, because {place} cannot be written ({reason}). "
                "The run resumes only where its data is the same as now."
            )
            continue
        size = disk.held(place.parent)[0]
        details = amount(size)
        if size > DATA_BYTES:
            details += f"; the archive leaves it out, which takes {amount(DATA_BYTES)} of it"
        print(
            f"The data of the run is kept in {place} ({details}): it resumes on that.", flush=True
        )


def restored(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Returns the values of a checkpoint with the paths of their files, without files that are missing or damaged."""
    paths: dict[str, Any] = dict(values)
    for name, value in values.items():
        if not _is_reference(value):
            continue
        try:
            paths[name] = run / DATA / str(value["file"])
            if not _is_stored(name, value, paths[name]):
                raise OSError("it is not as it was written")
        except OSError as error:
            del paths[name]
            what = printable(run / DATA / str(value["file"]), most=500)
            print(f"{what} is not used: {printable(error.strerror or error, most=200)}.")
    return paths


def before(places: Sequence[Path]) -> dict[str, Any]:
    """Returns what the task had learned when the run in one of `places` began, on every rank.

    Raises BadInput if a machine of this run does not see a learned file.
    """
    found = (restored(saved_facts("learned", place), place) for place in places)
    values = ranks.from_first(next(filter(None, found), {}))
    for path in _files(values).values():
        if not path.is_file():
            raise BadInput(
                f"{path} is not seen by all machines of this run. Give an output_dir that they share."
            )
    return values


def _files(values: Mapping[str, Any]) -> dict[str, Path]:
    return {name: value for name, value in values.items() if isinstance(value, Path)}


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == _REFERENCE


def _is_stored(name: str, reference: Mapping[str, Any], path: Path) -> bool:
    """Returns whether a file has the size and hash of a reference. A file of another size is not read."""
    if not untrusted.is_name(reference["file"]) or untrusted.size_of(path) != reference["bytes"]:
        return False
    return _reference(name, path) == reference


def _reference(name: str, path: Path) -> dict[str, Any]:
    """Returns the name that a file has in a run's folder, its size and its hash."""
    size = untrusted.size_of(path)
    with path.open("rb") as file:
        return {
            "file": name + path.suffix,
            "bytes": size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }
