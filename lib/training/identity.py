"""Whether a checkpoint belongs to a run: what must agree, and what only changes the bits."""

import functools
import hashlib
import inspect
import platform
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lib import ranks
from lib.config import REMOVED, Config, Training
from lib.config.batches import micro_batch_of, slot_of, slots_of
from lib.config.reader import flat
from lib.errors import BadInput, printable
from lib.task import Task
from lib.text import aligned

# What decides which samples a step sees: with another value it would not be the same run.
_REFUSED = (
    "task", "data fingerprint", "seed", "training.effective_batch", "training.micro_batch_slots", "data.buckets",
)  # fmt: skip
_LATER = ("data.buckets", "data.evaluation_batch")  # not in what an earlier version saved, which did without
# May differ without a warning: it changes neither samples nor arithmetic.
_HARMLESS = (
    "output_dir", "run.", "session.", "queue.", "checkpoint.", "device.", "data.dir", "data.num_workers",
    "data.prefetch_factor", "data.pin_memory", "training.smoke_steps", "training.stop_after_evaluations",
    "tracking.",
)  # fmt: skip

# Of the machine: it changes bits, and nothing that a person chose.
_MACHINE = ("version of torch", "version of Python", "device", "CPU threads", "ranks")
_CODE = ("code of lib", "code of the task")  # none in what an earlier version saved
_FILES_AND_PARTS = re.compile(r"([0-9a-f]{64}) [0-9a-f]{16}")  # of data, where an earlier version had the files alone
_TRAINS = ("task/*.py", "scores.py", "training/*.py", "ranks/*.py")  # in lib: what decides the numbers of a run


def facts(config: Config, task: Task) -> dict[str, Any]:
    """Returns what a checkpoint keeps to be recognised by: configuration, data, and the machine that computed it."""
    training = config.training
    # Micro-batches of a step. Two gradients add up to the same bits in either order, more do not; then the number of
    # ranks changes bits. So it does under FSDP2, where the gradient's norm is summed in pieces.
    addends = slots_of(training) * -(-slot_of(training) // micro_batch_of(training))
    telling = {key: value for key, value in _known(config).items() if not key.startswith(_HARMLESS)}
    return {
        **{key: list(value) if isinstance(value, tuple) else value for key, value in telling.items()},
        "data fingerprint": task.fingerprint(),
        "version of torch": torch.__version__,
        "version of Python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "CPU threads": torch.get_num_threads(),
        **({"ranks": ranks.world()} if addends > 2 or training.fully_shard else {}),
        **_code(type(task)),
    }


def _known(config: Config) -> dict[str, Any]:
    values = flat(config) | {"training.micro_batch_slots": slots_of(config.training)}
    return {key: value for key, value in values.items() if value or key not in _LATER}


@functools.cache  # the code that this process runs, whatever is done to its files later
def _code(task: type[Task]) -> dict[str, str]:
    """Returns a digest of the task's source, its package's where it has one, and of what lib trains with."""
    lib = Path(__file__).resolve().parents[1]
    trains = [path for pattern in _TRAINS for path in sorted(lib.glob(pattern))]
    names = (value.__code__.co_filename for value in vars(task).values() if inspect.isfunction(value))
    source = Path(next(names, "")).resolve()
    if not source.is_file():  # a class that was typed into a notebook
        return {"code of lib": _digest(trains)}
    tasks = lib / "tasks"
    package = tasks / source.relative_to(tasks).parts[0] if tasks in source.parents else None
    files = sorted(package.rglob("*.py")) if package else [source]
    return {"code of lib": _digest(trains), "code of the task": _digest(files)}


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def check(saved: Mapping[str, Any], now: Mapping[str, Any], where: object, is_completed: bool = False) -> str:
    """Returns a warning about what differs between a saved run and this one, empty where nothing does.

    Of a completed run the machine that computed it may differ without a warning. Raises BadInput, with a table, where
    what differs decides which samples a step sees.
    """
    saved = {**{key: value for key, value in _defaults().items() if key in now}, **saved}
    left_out = {*REMOVED, *(_MACHINE if is_completed else ()), *(key for key in _CODE if key not in saved)}
    if _is_of_files_alone(saved, now):
        left_out.add("data fingerprint")
    saved, now = _named(saved), _named(now)
    keys = [key for key in {**saved, **now} if key not in left_out]
    different = [key for key in keys if saved.get(key) != now.get(key)]
    refused = [key for key in _REFUSED if key in different]
    if refused:
        is_not = "was completed with another" if is_completed else "cannot be resumed with this"
        raise BadInput(
            f"The run in {where} {is_not} configuration:\n{_table(refused, saved, now)}\n"
            "Go back to the saved values, or start a new run under another run.name."
        )
    if not different:
        return ""
    outcome = "was completed with other settings" if is_completed else "resumes, but not bit for bit"
    return f"The run {outcome}, because these differ:\n{_table(different, saved, now)}"


def _is_of_files_alone(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Says whether an earlier version saved the same files, and not yet which samples are in which part."""
    both = _FILES_AND_PARTS.fullmatch(str(now.get("data fingerprint")))
    return both is not None and saved.get("data fingerprint") == both[1]


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts with a task's own file by its name: elsewhere, and from elsewhere, it has another path."""
    file, colon, name = str(facts.get("task", "")).rpartition(":")
    return {**facts, "task": f"{Path(file).name}:{name}"} if colon else dict(facts)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Returns the defaults of keys: an earlier version did what the default of a key does that it did not have."""
    values = flat(Config(task="", training=Training(effective_batch=1)))
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if key not in _REFUSED and not key.startswith(_HARMLESS)
    }


def check_settings(saved: Mapping[str, Any], config: Config, where: object) -> None:
    """Raises BadInput where a completed run had another seed, batch or task; the data is not looked at."""
    now = {key: value for key, value in _known(config).items() if key in _REFUSED}
    check({key: saved[key] for key in _REFUSED if key in saved and key in flat(config)}, now, where, is_completed=True)


def _table(keys: list[str], saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    shown = ((printable(key), printable(saved.get(key, "-")), printable(now.get(key, "-"))) for key in keys)
    rows = [("", "saved", "now"), *shown]
    return textwrap.indent(aligned(rows, left={0, 1, 2}), "  ")
