"""Hands the figures of a command to TensorBoard and Weights & Biases, as an own run does."""

import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from trainbook.outputs.packing import TRACKING
from trainbook.run.settings import Settings

_STATE = "ids.json"  # by which a later session continues the same run


def bring(earlier: Path | None, folder: Path) -> None:
    """Copies what trackers must know of an earlier session, unless it is here already."""
    source = earlier / TRACKING / _STATE if earlier else None
    target = folder / TRACKING / _STATE
    if source and source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def start(
    chosen: Settings, folder: Path, session: int
) -> Callable[[bool, Mapping[str, float]], None]:
    """Starts the trackers that the settings name; returns what ends them. Rows of metrics.csv go there."""
    if not (chosen.tracking.tensorboard or chosen.tracking.wandb):
        return lambda is_completed, values: None
    from trainbook.outputs.tracking import Tracked  # which no other command needs

    settings = {"command": shlex.join(chosen.command)}
    return Tracked(folder, chosen.tracking, chosen.name, settings, session > 1).end
