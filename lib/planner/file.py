"""A plan chosen in the memory panel: dotted keys as JSON, in a file that a training notebook reads."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk


def write(folder: Path, config: str, overrides: Mapping[str, Any]) -> Path:
    """Writes `plan-CONFIG.json` into a folder and returns its path. Raises BadInput where that fails."""
    path = folder / f"plan-{config}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_text(path, json.dumps(dict(overrides), indent=2) + "\n")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}. Paste the line above, or change OUTPUT_DIR.") from None
    return path


def find(folder: Path, name: str, check: Callable[[dict[str, Any]], object]) -> tuple[Path, dict[str, Any]] | None:
    """Returns the file and keys of the plan for configuration `name`; prints that a file `check` refuses is ignored."""
    path = folder / f"plan-{name}.json"
    if not os.path.lexists(path):
        return None
    try:
        overrides = untrusted.objects(untrusted.read(path, 64 * 1024))
        check(overrides)
    except (OSError, BadInput) as reason:
        print(f"{printable(path)} is ignored: {str(reason).rstrip('.')}.")
        return None
    return path, overrides


def as_code(overrides: Mapping[str, Any]) -> str:
    """Returns the line to paste into a parameters cell."""
    return "OVERRIDES = {" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()) + "}"
