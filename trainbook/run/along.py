"""Brings the folder of a mounted run along: a later session mounts only this session's output."""

import shutil
from pathlib import Path

from lib.report.metrics import EVENTS, METRICS
from trainbook.run.restoring import Earlier

LOG = "output.log"  # in a run's folder: the command's output


def bring(earlier: Earlier | None, folder: Path) -> bool:
    """Copies the folder of a mounted run, with its verified copies; returns whether a run was mounted.

    A later session mounts the output of this one alone.
    """
    source = _mounted(earlier, folder)
    if source is None:
        return False
    for path in sorted(source.rglob("*")):
        target = folder / path.relative_to(source)
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return True


def bring_tables(earlier: Earlier | None, folder: Path) -> None:
    """Copies metrics, events and output of a mounted run, which this session continues."""
    source = _mounted(earlier, folder)
    for name in (METRICS, EVENTS, LOG):
        if source and (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def _mounted(earlier: Earlier | None, folder: Path) -> Path | None:
    """Returns the folder of an earlier session's run, unless this session works in it."""
    if earlier is None or earlier.folder is None or earlier.folder.resolve() == folder.resolve():
        return None
    return earlier.folder
