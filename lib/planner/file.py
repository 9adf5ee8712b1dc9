"""A plan chosen in the memory panel, saved as a file that a training notebook reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.config import Config, with_changes
from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.machine import disk, inputs, platform
from lib.planner.search import Plan

_KIND = "trainbook plan"
_TYPES = {"config": str, "card": str, "cards": int, "overrides": dict}
_WORDS = {str: "a text", int: "a whole number", dict: "a mapping of dotted keys"}
# What a plan among the inputs may set, beside the task's dials: what the planner decides, and no name or path.
_SIZES = (
    "training.effective_batch", "training.micro_batch", "training.micro_batch_slots",
    "training.gradient_checkpointing", "training.precision",
)  # fmt: skip
_MOST_BYTES = 64 * 1024
_MOST_FILES = 20  # of one input


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
        values = json.loads(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"it is not a plan as the memory panel writes it ({printable(reason)})") from None
    if not isinstance(values, dict) or values.get("kind") != _KIND:
        raise BadInput(f'it is not a plan as the memory panel writes it (it has no "kind": "{_KIND}")')
    for name, kind in _TYPES.items():
        if type(values.get(name)) is not kind:
            raise BadInput(f"its {name!r} is {_shown(values.get(name))} instead of {_WORDS[kind]}")
    return PlanFile(path, **{name: values[name] for name in _TYPES})


def find(folder: Path, name: str, config: Config, dials: Mapping[str, Sequence[int]]) -> PlanFile | None:
    """Returns the plan for the configuration called `name`, from the output folder or a mounted input.

    An input is somebody else's: its plan may set sizes and the task's `dials` alone. Any other key makes the whole file
    ignored before anything is done with it. No plan changes the task. Prints which files are ignored.
    """
    for place in [folder, *inputs.mounted(platform.detect())]:
        for path in sorted(place.glob("plan-*.json"))[:_MOST_FILES]:
            try:
                plan = read(path)
                if plan.config != name:
                    raise BadInput(f"it was made for {printable(plan.config, most=60)}, and this is {name}")
                if place != folder or "task" in plan.overrides:
                    _check_keys(plan, dials)
                _check_fit(plan, config)
            except BadInput as reason:
                print(f"{printable(path)} is ignored: {str(reason).rstrip('.')}.")
                continue
            return plan
    return None


def _check_fit(plan: PlanFile, config: Config) -> None:
    """Raises BadInput where a configuration cannot have the values of a plan, its own overrides aside."""
    try:
        with_changes(config, {key: value for key, value in plan.overrides.items() if key not in config.overridden})
    except BadInput as error:
        raise BadInput(f"it does not fit this configuration:\n{error}") from None


def _check_keys(plan: PlanFile, dials: Mapping[str, Sequence[int]]) -> None:
    """Raises BadInput where a plan of an input sets what it may not."""
    for key, value in plan.overrides.items():
        if key not in _SIZES and key not in dials:
            may = ", ".join([*_SIZES, *dials])
            raise BadInput(
                f"it sets {_shown(key)}, and a plan among the inputs may set {may} only. Nothing of it was used. Where "
                "you trust it, copy the key into OVERRIDES"
            )
        if type(value) not in (int, str):
            raise BadInput(f"its {key} is {_shown(value)} instead of a number or a name")
        if key in dials and not (type(value) is int and 1 <= value <= max(dials[key])):
            raise BadInput(f"its {key} is {_shown(value)} instead of a whole number from 1 to {max(dials[key])}")


def _shown(value: object) -> str:
    return printable(repr(value), most=60)


def as_code(overrides: Mapping[str, Any]) -> str:
    """Returns the line to paste into a parameters cell."""
    return "OVERRIDES = {" + ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in overrides.items()) + "}"
