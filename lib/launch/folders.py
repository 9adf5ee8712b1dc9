"""Folders that may hold an earlier state of a run, and what their checkpoints were made with."""

import contextlib
import glob
from pathlib import Path
from typing import Any

from lib import checkpoint, untrusted
from lib.config import Config
from lib.errors import BadInput
from lib.machine import inputs, platform

_STATE_BYTES = 2**24  # of a state.json


def earlier(config: Config) -> list[Path]:
    """Returns the folders that may hold an earlier state of a run, in the order in which they are tried."""
    name, here = config.run.name, platform.detect()
    if config.run.resume_from:
        base = inputs.find_input(config.run.resume_from, here)
        inner = sorted(path.parent for path in base.glob(f"*/{glob.escape(name)}/checkpoints"))
        return [base, base / name, *inner]
    return [platform.output_dir(config) / name, *inputs.earlier_runs(name, here)]


def saved(run: Path, key: str) -> dict[str, Any]:
    """Returns what the newest readable checkpoint of a run, else its best weights, has of a key; empty without one."""
    for folder in (run / "checkpoints", run / "best"):
        for step in reversed(checkpoint.steps(folder)):
            with contextlib.suppress(OSError, BadInput):
                path = checkpoint.path_of(folder, step) / "state.json"
                facts = untrusted.objects(untrusted.read(path, _STATE_BYTES)).get(key)
                if isinstance(facts, dict):
                    return facts
    return {}


def slots(config: Config) -> int:
    """Returns the slots of the run that is resumed, if they divide the batch; 0 for a new run."""
    folders: list[Path] = []
    with contextlib.suppress(BadInput):  # of run.resume_from, which the search for a checkpoint reports
        folders = earlier(config)
    facts = next(filter(None, (saved(folder, "identity") for folder in folders)), {})
    number = facts.get("training.micro_batch_slots")
    return number if type(number) is int and number > 0 and config.training.effective_batch % number == 0 else 0
