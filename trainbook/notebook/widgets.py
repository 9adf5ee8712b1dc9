"""Interactive cells, of core widgets only, and the file by which a plan reaches a training notebook."""

import json
import os
from collections.abc import Callable, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk, memory, platform


def live() -> bool:
    """Returns whether widgets work here: in a notebook that a person runs, with ipywidgets installed."""
    if not platform.in_notebook() or platform.detect().batch:
        return False
    return find_spec("ipywidgets") is not None


def code(overrides: dict[str, Any]) -> str:
    """Returns the line to paste, as HTML that one click selects."""
    look = "user-select:all;-webkit-user-select:all;white-space:pre-wrap;border:1px solid #888;padding:6px 8px"
    return f'<pre style="{look}">{escape(as_code(overrides))}</pre>'


def as_code(overrides: Mapping[str, Any]) -> str:
    items = [f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()]
    return f"OVERRIDES = {{{', '.join(items)}}}"


def write(folder: Path, config: str, overrides: Mapping[str, Any]) -> Path:
    """Writes `plan-CONFIG.json` into a folder and returns its path. Raises BadInput if that fails."""
    path = folder / f"plan-{config}.json"
    try:
        disk.make_folders(folder)
        disk.write_text(path, json.dumps(dict(overrides), indent=2) + "\n")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error}. Paste the line above, or change OUTPUT_DIR."
        ) from None
    return path


def find(
    folder: Path, name: str, check: Callable[[dict[str, Any]], object]
) -> tuple[Path, dict[str, Any]] | None:
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


def memory_panel() -> Any:
    """Prints the memory in use; with a live kernel, returns a button that frees memory and measures again."""
    print(memory.check_memory())
    if not live():
        return None
    import ipywidgets

    clear = ipywidgets.Button(description="Clear memory")
    readings = ipywidgets.HTML()

    def on_click(_: Any) -> None:
        memory.clear_memory()
        readings.value = f"<pre>{escape(memory.check_memory())}</pre>"

    clear.on_click(on_click)
    return ipywidgets.VBox([clear, readings])
