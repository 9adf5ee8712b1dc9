"""Compares a saved run with the run of now: data order, settings, code, machine."""

import functools
import hashlib
import itertools
import json
import platform
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import torch

from lib import ranks
from lib.config import REMOVED, Config, Training
from lib.config.reader import flat, other_unit
from lib.errors import BadInput, printable
from lib.machine import platform as machine_platform
from lib.task import Task, find_task
from lib.task.contract import differing
from lib.task.files import named_files, own_files
from lib.task.loading import WORKLOADS
from lib.text import aligned

# What decides which samples a step sees: with another value it would not be the same run, whatever the user accepts.
_REFUSED = (
    "task", "data fingerprint", "seed", "training.effective_batch", "training.micro_batch_slots", "data.buckets",
)  # fmt: skip
# May differ without a warning: it changes neither samples nor arithmetic.
_HARMLESS = (
    "output_dir", "run.", "session.", "queue.", "checkpoint.", "device.", "data.dir", "data.num_workers",
    "data.prefetch_factor", "data.pin_memory", "training.smoke_steps", "training.stop_after_evaluations",
    "tracking.",
)  # fmt: skip
# Of the machine: it changes bits, and nothing that a user chose.
_MACHINE = ("version of torch", "version of Python", "device", "CPU threads", "ranks")
# How a run is computed and how long it is, not what it learns from: a warning. Any other difference is an edit.
_COMPUTED = (
    *_MACHINE, "code of lib", "data.evaluation_batch", "memory.", "training.max_steps", "training.micro_batch",
    "training.gradient_checkpointing", "training.precision", "training.deterministic", "training.compile",
    "training.log_every_steps", "training.evaluate_every",
)  # fmt: skip
_HASHED = ("data fingerprint", "code of lib", "code of the task")
_TRAINS = (
    "task/*.py",
    "scores.py",
    "training/*.py",
    "ranks/*.py",
)  # in lib: what decides the numbers of a run
_SAMPLES = "data samples"  # hashes that tell samples from the bytes of their files: see Supervised.replaceable

Differences = Mapping[str, tuple[Any, Any]]  # key -> its value saved, and now


def facts(config: Config, task: Task) -> dict[str, Any]:
    """Returns what a checkpoint keeps to be recognised by: configuration, data, and the machine that computed it."""
    training = config.training
    # Micro-batches of a step. Two gradients add up to the same bits in either order, more do not: then the number of
    # ranks changes bits.
    addends = training.slots * -(-training.slot // training.largest_micro_batch)
    return {
        **{key: value for key, value in _values(config).items() if not key.startswith(_HARMLESS)},
        "data fingerprint": task.fingerprint(), "CPU threads": torch.get_num_threads(),
        "version of torch": torch.__version__, "version of Python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        **({"ranks": ranks.world()} if addends > 2 else {}),
        **({_SAMPLES: hashes} if (hashes := getattr(task, "replaceable", {})) else {}),
        **_code(type(task), tuple(named_files(config).values())),
    }  # fmt: skip


def _values(config: Config) -> dict[str, Any]:
    """Returns the settings by dotted key, as JSON gives them back."""
    values = flat(config) | {"training.micro_batch_slots": config.training.slots}
    return json.loads(json.dumps(values))


@functools.cache  # the code that this process runs, whatever is done to its files later
def _code(task: type[Task], named: tuple[Path, ...]) -> dict[str, str]:
    """Returns a digest of what lib trains with, and one of the task's source with the files that its settings name."""
    lib = Path(__file__).resolve().parents[1]
    of_lib = {
        "code of lib": _digest(path for pattern in _TRAINS for path in sorted(lib.glob(pattern)))
    }
    source = Path(getattr(sys.modules.get(task.__module__), "__file__", None) or "").resolve()
    if not source.is_file():  # a class that was typed into a notebook
        return of_lib
    if WORKLOADS in source.parents:
        package = WORKLOADS / source.relative_to(WORKLOADS).parts[0]
    else:
        package = None
    if package:
        files = sorted(package.rglob("*.py"))
    else:
        files = [*own_files(source).files, *named]
    return {**of_lib, "code of the task": _digest(files)}


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(
        b"".join(f"{file.name}\n".encode() + file.read_bytes() for file in files)
    ).hexdigest()[:12]


def check(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    run: Path,
    is_completed: bool = False,
    accepted: str | None = None,
) -> str:
    """Returns a warning about what differs between the run saved in the folder `run` and this one, or "".

    Raises BadInput, with a table and the line to write, where settings, code of the task or data differ. Keys that
    begin with `accepted` may differ, those of the order of samples aside.
    """
    different, is_other = compare(saved, now, is_completed, accepted)
    if is_other:
        is_not = "was completed with another" if is_completed else "cannot be resumed with this"
        free = next(
            name
            for n in itertools.count(2)
            if not (run.parent / (name := f"{run.name}-{n}")).exists()
        )
        line = "--set {}={}"
        where = "on the command line"
        yes = "true"
        if machine_platform.in_notebook():
            line = 'OVERRIDES["{}"] = {!r}'
            where = "at the end of the Parameters cell"
            yes = True
        ways = f"To train this configuration as a run of its own, write {where}:\n  {line.format('run.name', free)}"
        if different.keys().isdisjoint(_REFUSED):
            ways += "\nTo keep the trained weights and continue with the changes:\n  "
            ways += line.format("run.accept_changes", yes)
        raise BadInput(f"The run in {run} {is_not} configuration:\n{_table(different)}\n{ways}")
    lines = [_replaced(saved, now)]
    if different:
        outcome = (
            "was completed with other settings" if is_completed else "resumes, but not bit for bit"
        )
        lines.append(f"The run {outcome}, because these differ:\n{_table(different)}")
    return "\n".join(filter(None, lines))


def _has_same_samples(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether samples, targets and splits are the same, whatever bytes the samples' files have."""
    one = saved.get(_SAMPLES)
    other = now.get(_SAMPLES)
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    return one.get("rest") == other["rest"] and isinstance(one.get("files"), str)


def _replaced(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns how many files of the samples have other bytes than saved; "" for none."""
    if saved.get("data fingerprint") == now.get("data fingerprint") or not _has_same_samples(
        saved, now
    ):
        return ""
    number = differing(saved[_SAMPLES]["files"], now[_SAMPLES]["files"])
    total = now[_SAMPLES]["number"]
    what = f"Other bytes than when the run was saved: at least {number:,} of the samples' {total:,} files"
    return f"{what}. Samples, targets and splits are the same."


def compare(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    is_completed: bool = False,
    accepted: str | None = None,
) -> tuple[Differences, bool]:
    """Returns what differs, and whether that makes another run; then only what makes it one."""
    if _has_same_samples(saved, now):
        now = {**now, "data fingerprint": saved.get("data fingerprint")}
    saved, now = (
        {key: value for key, value in side.items() if key != _SAMPLES} for side in (saved, now)
    )
    saved = _portable({**{key: value for key, value in _defaults().items() if key in now}, **saved})
    now = _portable(now)
    left_out = {*(REMOVED.keys() - now.keys()), *(_MACHINE if is_completed else ())}
    keys = [
        key for key in {**saved, **now} if key not in left_out and saved.get(key) != now.get(key)
    ]
    is_shorter = is_completed and now.get("training.max_steps", 0) < saved.get(
        "training.max_steps", 0
    )
    allowed = tuple(key for key in _COMPUTED if not (is_shorter and key == "training.max_steps"))
    allowed += () if accepted is None else (accepted,)
    refused = [key for key in keys if key in _REFUSED or not key.startswith(allowed)]
    return {key: (saved.get(key, "-"), now.get(key, "-")) for key in refused or keys}, bool(refused)


def in_a_line(different: Differences) -> str:
    """Returns `optimizer.lr 0.1 -> 0.2, code of the task`: of a hash its name alone."""
    words = (
        key if key in _HASHED else f"{key} {old} -> {new}" for key, (old, new) in different.items()
    )
    return ", ".join(printable(word, most=100) for word in words)


def _table(different: Differences) -> str:
    shown = (
        tuple(printable(value, most=80) for value in (key, *values))
        for key, values in different.items()
    )
    return textwrap.indent(aligned([("", "saved", "now"), *shown], left={0, 1, 2}), "  ")


def _portable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts with names for paths: elsewhere, and from elsewhere, task files and folders lie differently."""
    file, colon, name = str(facts.get("task", "")).rpartition(":")
    texts = {
        key: value
        for key, value in facts.items()
        if key.startswith("workload.") and isinstance(value, str)
    }
    named = {key: PurePath(value).name for key, value in texts.items() if "/" in value}
    return {**facts, **named, **({"task": f"{PurePath(file).name}:{name}"} if colon else {})}


@functools.cache
def _defaults() -> dict[str, Any]:
    """Returns the defaults of keys: an earlier version did what the default of a key does that it did not have."""
    values = _values(Config(task="", training=Training(effective_batch=1)))
    return {
        key: value
        for key, value in values.items()
        if key not in _REFUSED and not key.startswith(_HARMLESS)
    }


def check_settings(
    saved: Mapping[str, Any], config: Config, run: Path, accepted: str | None = None
) -> None:
    """Does what `check` does for a completed run, without its data: lengths in epochs are not compared."""
    now = _values(config) | _code(find_task(config.task), tuple(named_files(config).values()))
    unknown = set()
    for key in (key for key, value in now.items() if key.endswith("epochs") and value):
        section, dot, name = key.rpartition(".")
        unknown |= {key, f"{section}{dot}{other_unit(name)}"}
    keys = {key for key in now if not key.startswith(_HARMLESS)} - unknown
    saved, now = (
        {key: value for key, value in side.items() if key in keys} for side in (saved, now)
    )
    check(saved, now, run, is_completed=True, accepted=accepted)
