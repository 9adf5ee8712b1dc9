"""A plan chosen in the memory panel, saved as a file that a training notebook reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import BadInput
from lib.machine import disk, inputs, platform
from lib.planner.search import Plan

_KIND = "trainbook plan"
_TYPES = {"config": str, "card": str, "cards": int, "overrides": dict}
_WORDS = {str: "a text", int: "a whole number", dict: "a mapping of dotted keys"}


@dataclass(frozen=True)
class PlanFile:
    """A saved plan: the configuration and cards that it was made for, and the dotted keys that it sets."""

    path: Path
    config: str
    card: str
    cards: int
    overrides: dict[str, Any]


def write(folder: Path, config: str, plan: Plan, overrides: Mapping[str, Any]) -> Path:
    """Writes `plan-CONFIG.json` into a folder and returns its path. Raises BadInput where that fails."""
    path = folder / f"plan-{config}.json"
    values = {"kind": _KIND, "config": config, "card": plan.card, "cards": plan.cards, "overrides": dict(overrides)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with disk.whole(path) as aside:
            aside.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}. Paste the line above, or change OUTPUT_DIR.") from None
    return path


def read(path: Path) -> PlanFile:
    """Reads a saved plan. Raises BadInput, with the reason, where the file is none."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"it is not a plan as the memory panel writes it ({error})") from None
    if not isinstance(values, dict) or values.get("kind") != _KIND:
        raise BadInput(f'it is not a plan as the memory panel writes it (it has no "kind": "{_KIND}")')
    for name, kind in _TYPES.items():
        if not isinstance(values.get(name), kind):
            raise BadInput(f"its {name!r} is {values.get(name)!r} instead of {_WORDS[kind]}")
    return PlanFile(path, **{name: values[name] for name in _TYPES})


def find(folder: Path, config: str) -> PlanFile | None:
    """Returns the plan for a configuration from the output folder or a mounted input; prints which it ignores."""
    for place in [folder, *inputs.mounted(platform.detect())]:
        for path in sorted(place.glob("plan-*.json")):
            try:
                plan = read(path)
            except BadInput as reason:
                print(f"{path} is ignored: {reason}.")
                continue
            if plan.config == config:
                return plan
            print(f"{path} is ignored: it was made for {plan.config}, and this is {config}.")
    return None


def as_code(overrides: Mapping[str, Any]) -> str:
    """Returns the line to paste into a parameters cell."""
    return "OVERRIDES = {" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()) + "}"
