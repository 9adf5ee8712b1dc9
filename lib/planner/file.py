"""A plan that was chosen in the memory panel, kept as a file that the training notebook beside it picks up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import BadInput
from lib.machine import inputs, platform
from lib.planner.search import Plan

_KIND = "trainbook plan"
_WANTED = {"config": str, "card": str, "cards": int, "overrides": dict}
_WORDS = {str: "a text", int: "a whole number", dict: "a mapping of dotted keys"}


@dataclass(frozen=True)
class Kept:
    """What a file says: for which configuration and cards it was made, and the dotted keys that it sets."""

    path: Path
    config: str
    card: str
    cards: int
    overrides: dict[str, Any]


def write(folder: Path, config: str, plan: Plan, overrides: Mapping[str, Any]) -> Path:
    """Writes `plan-CONFIG.json` into a folder, aside and renamed. Raises BadInput where that cannot be done."""
    path = folder / f"plan-{config}.json"
    kept = {"kind": _KIND, "config": config, "card": plan.card, "cards": plan.cards, "overrides": dict(overrides)}
    aside = path.with_name(f".{path.name}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
        aside.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error}. Paste the line above, or change OUTPUT_DIR.") from None
    return path


def read(path: Path) -> Kept:
    """Reads such a file. Raises BadInput where it is none."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"it is not a plan as the memory panel writes it ({error})") from None
    if not isinstance(values, dict) or values.get("kind") != _KIND:
        raise BadInput(f'it is not a plan as the memory panel writes it (it has no "kind": "{_KIND}")')
    for name, kind in _WANTED.items():
        if not isinstance(values.get(name), kind):
            raise BadInput(f"its {name!r} is {values.get(name)!r} instead of {_WORDS[kind]}")
    return Kept(path, **{name: values[name] for name in _WANTED})


def find(folder: Path, config: str) -> Kept | None:
    """The plan for a configuration, in the output folder or a mounted input; one that is not used is said aloud."""
    for place in [folder, *inputs.mounted(platform.detect())]:
        for path in sorted(place.glob("plan-*.json")):
            try:
                kept = read(path)
            except BadInput as reason:
                print(f"{path} is ignored: {reason}.")
                continue
            if kept.config == config:
                return kept
            print(f"{path} is ignored: it was made for {kept.config}, and this is {config}.")
    return None


def as_code(overrides: Mapping[str, Any]) -> str:
    """The line to paste into a parameters cell."""
    return "OVERRIDES = {" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()) + "}"
