"""Stores the files of a user's task in its run's folder, from which they get into the archive."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lib.config import Config, read_config, with_changes
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.task.files import file_of, label, named_files, own_files

FOLDER = "code"  # in a run's folder
NAMED = "named"  # there too: what settings with path=True name


def keep(run: Path, config: Config) -> Config:
    """Writes the files of a configuration's task, and those that its settings name, into its run's folder.

    Returns the configuration with these paths. Files that the task no longer imports are removed. For a task of lib it
    does nothing.
    """
    file = file_of(config)
    if file is None:
        return config
    own, folder = own_files(file), run / FOLDER
    contents = {folder / path.relative_to(own.folder): path.read_bytes() for path in own.files}
    for old in folder.rglob("*"):
        if old.is_file() and old not in contents:
            old.unlink()
    named = {key: (run / NAMED / key / path.name, path) for key, path in named_files(config).items()}
    contents |= {place: path.read_bytes() for place, path in named.values()}
    for path, content in contents.items():
        if not (path.is_file() and path.read_bytes() == content):
            disk.make_folders(path.parent)
            with disk.whole(path) as aside:
                aside.write_bytes(content)
    places = {key: place.relative_to(run).as_posix() for key, (place, _) in named.items()}
    stored = with_changes(config, places) if places else config
    return dataclasses.replace(stored, task=f"{FOLDER}/{label(config.task)}")


def named_by(run: Path) -> str:
    """Returns the task that a run's configuration names; "" for a damaged one. Nothing of it is imported."""
    names: list[str] = []

    def note(name: str) -> type:
        names.append(name)
        raise BadInput("The settings below workload: are not read.")

    with contextlib.suppress(BadInput):
        read_config(run / "config.yaml", workload=note)
    return names[0] if names else ""


def tasks_in(runs: Sequence[Path]) -> dict[Path, str]:
    """Returns the task of each run, file.py:Class in its own folder of code; "" for a task of lib. Nothing is run.

    Runs with the same code share the file of the first of them, so that their tasks and settings are of one class.
    Raises BadInput for a file elsewhere.
    """
    tasks: dict[Path, str] = {}
    first: dict[object, str] = {}
    for run in runs:
        task, folder = named_by(run), (run / FOLDER).resolve()
        file = Path(task.rpartition(":")[0])
        if ":" in task and not (file.resolve().is_relative_to(folder) and file.is_file()):
            raise BadInput(
                f"The configuration of {printable(run.name)} names the task {printable(task, most=200)}, and no such "
                f"file is in its folder {FOLDER}. Give the file here: --task file.py:Class."
            )
        files = sorted(folder.rglob("*.py")) if ":" in task else []
        content = tuple((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files)
        tasks[run] = first.setdefault((label(task), content), task) if files else ""
    return tasks
