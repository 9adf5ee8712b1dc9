"""A plan chosen in the memory panel: dotted keys as JSON, in a file that a training notebook reads."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.config import Config, with_changes
from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.machine import disk, inputs, platform

# What a plan among the inputs may set, beside the task's dials: what the planner decides, and no name or path.
_SIZES = (
    "training.effective_batch", "training.micro_batch", "training.micro_batch_slots",
    "training.gradient_checkpointing", "training.precision",
)  # fmt: skip
_MOST_BYTES = 64 * 1024


def write(folder: Path, config: str, overrides: Mapping[str, Any]) -> Path:
    """Writes `plan-CONFIG.json` into a folder and returns its path. Raises BadInput where that fails."""
    path = folder / f"plan-{config}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_text(path, json.dumps(dict(overrides), indent=2) + "\n")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}. Paste the line above, or change OUTPUT_DIR.") from None
    return path


def find(folder: Path, name: str, config: Config, dials: Mapping[str, Sequence[int]]) -> tuple[Path, dict] | None:
    """Returns the plan for the configuration called `name`, from the output folder or a mounted input, and its keys.

    An input is somebody else's: its plan may set sizes and the task's `dials` alone. Any other key makes the whole file
    ignored before anything is done with it. No plan changes the task. Prints which files are ignored.
    """
    for place in [folder, *inputs.mounted(platform.detect())]:
        path = place / f"plan-{name}.json"
        if not os.path.lexists(path):
            continue
        try:
            overrides = _read(path)
            if place != folder or "task" in overrides:
                _check_keys(overrides, dials)
            with_changes(config, {key: value for key, value in overrides.items() if key not in config.overridden})
        except BadInput as reason:
            print(f"{printable(path)} is ignored: {str(reason).rstrip('.')}.")
            continue
        return path, overrides
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        overrides = json.loads(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"it is not a plan as the memory panel writes it ({printable(reason)})") from None
    if not isinstance(overrides, dict):
        raise BadInput("it is not a plan as the memory panel writes it: a mapping of dotted keys")
    return overrides


def _check_keys(overrides: Mapping[str, Any], dials: Mapping[str, Sequence[int]]) -> None:
    """Raises BadInput where a plan sets what one among the inputs may not."""
    for key, value in overrides.items():
        shown = printable(repr(value), most=60)
        if key not in _SIZES and key not in dials:
            raise BadInput(
                f"it sets {printable(repr(key), most=60)}, and a plan among the inputs may set "
                f"{', '.join([*_SIZES, *dials])} only. Where you trust it, copy the key into OVERRIDES"
            )
        if type(value) not in (int, str):
            raise BadInput(f"its {key} is {shown} instead of a number or a name")
        if key in dials and not (type(value) is int and 1 <= value <= max(dials[key])):
            raise BadInput(f"its {key} is {shown} instead of a whole number from 1 to {max(dials[key])}")


def as_code(overrides: Mapping[str, Any]) -> str:
    """Returns the line to paste into a parameters cell."""
    return "OVERRIDES = {" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()) + "}"
