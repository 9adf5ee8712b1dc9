"""Compares a saved run with the current one: data order, settings, code, machine."""

import functools
import hashlib
import json
import math
import platform
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

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
    "output_dir", "run.", "session.", "folds.", "queue.", "checkpoint.", "device.", "data.dir", "data.num_workers",
    "training.smoke_steps", "training.stop_",
    "tracking.",
)  # fmt: skip
# Facts about the machine: they change bits, and no user chose them.
_MACHINE = ("version of torch", "version of Python", "device", "CPU threads", "ranks")
# These change arithmetic or length of a run, not its data: a warning. Any other difference is an edit.
_COMPUTED = (
    *_MACHINE, "code of lib", "data.evaluation_batch", "memory.", "training.max_steps", "training.micro_batch",
    "training.gradient_checkpointing", "training.precision", "training.deterministic", "training.compile",
    "training.log_every_steps", "training.evaluate_every",
)  # fmt: skip
_HASHED = ("data fingerprint", "code of lib", "code of the task")
# in lib: what decides the numbers of a run
_TRAINS = ("task/*.py", "scores.py", "training/*.py", "ranks/*.py")
_SAMPLES = "data samples"  # hashes that tell samples from the bytes of their files: see Supervised.replaceable

Differences = Mapping[str, tuple[Any, Any]]  # key -> its value saved, and now


def facts(config: Config, task: Task) -> dict[str, Any]:
    """Identifies a run in its checkpoints by configuration, data, code, and the machine that computed it."""
    training = config.training
    saved = {key: value for key, value in _values(config).items() if not key.startswith(_HARMLESS)}
    saved["data fingerprint"] = task.fingerprint()
    saved["CPU threads"] = torch.get_num_threads()
    saved["version of torch"] = torch.__version__
    saved["version of Python"] = platform.python_version()
    saved["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    # Two gradients add up to the same bits in either order, more do not: then the number of ranks changes bits.
    micro_batches = training.slots * math.ceil(training.slot / training.largest_micro_batch)
    if micro_batches > 2:
        saved["ranks"] = ranks.world()
    if hashes := getattr(task, "replaceable", {}):
        saved[_SAMPLES] = hashes
    return saved | _code_of(type(task), config)


def _values(config: Config) -> dict[str, Any]:
    """Returns the settings by dotted key, as JSON gives them back."""
    values = flat(config) | {"training.micro_batch_slots": config.training.slots}
    return json.loads(json.dumps(values))


def _code_of(task: type[Task], config: Config) -> dict[str, str]:
    files = named_files(config).values()
    return _code(task, tuple(files))  # type: ignore[arg-type]  # classes are hashable


@functools.cache  # the code that this process runs, whatever is done to its files later
def _code(task: type[Task], named: tuple[Path, ...]) -> dict[str, str]:
    """Hashes the code of lib that trains, and the task's source with the files `named` by its settings."""
    lib = Path(__file__).resolve().parents[1]
    trains = (path for pattern in _TRAINS for path in sorted(lib.glob(pattern)))
    of_lib = {"code of lib": _digest(trains)}
    source = Path(getattr(sys.modules.get(task.__module__), "__file__", None) or "").resolve()
    if not source.is_file():  # a class that was typed into a notebook
        return of_lib
    if WORKLOADS in source.parents:
        package = WORKLOADS / source.relative_to(WORKLOADS).parts[0]
        files = sorted(package.rglob("*.py"))
    else:
        files = [*own_files(source).files, *named]
    return {**of_lib, "code of the task": _digest(files)}


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def check(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    run: Path,
    is_completed: bool = False,
    accepted: str | None = None,
) -> str:
    """Compares the run saved in the folder `run` with this one; returns a warning about differences, or "".

    Raises BadInput, with a table and the line to write, if settings, code of the task or data differ. Keys that
    begin with `accepted` may differ, except those that decide the order of samples.
    """
    different, is_other = compare(saved, now, is_completed, accepted)
    if is_other:
        problem = "was completed with another" if is_completed else "cannot be resumed with this"
        raise BadInput(
            f"The run in {run} {problem} configuration:\n{_table(different)}\n{_ways(different, run)}"
        )
    lines = [_replaced(saved, now)]
    if different:
        outcome = (
            "was completed with other settings" if is_completed else "resumes, but not bit for bit"
        )
        lines.append(f"The run {outcome}, because these differ:\n{_table(different)}")
    return "\n".join(filter(None, lines))


class Earlier(NamedTuple):
    """A run of an earlier session, with its identity."""

    name: str
    facts: Mapping[str, Any]
    done_until: float  # the largest max_steps that leaves nothing to train
    has_failed: bool


def accepted_keys(is_accepted: bool, has_failed: bool) -> str | None:
    """Returns the prefix of the keys that may differ; after an error in the task's code, that code was corrected."""
    if is_accepted:
        return ""
    return "code of the task" if has_failed else None


def name_of(
    first: str, earlier: Sequence[Earlier], now: Mapping[str, Any], is_accepted: bool
) -> tuple[str, str]:
    """Returns the name of the earlier run that is `now`, else the first free one of NAME, NAME-2, NAME-3 ...

    The second value is what differs in the first run that is another one.
    """
    differs = ""
    for run in earlier:
        is_done = run.done_until >= now["training.max_steps"]
        accepted = accepted_keys(is_accepted, run.has_failed)
        different, is_other = compare(run.facts, now, is_done, accepted)
        if not is_other:
            return run.name, differs
        differs = differs or in_a_line(different)
    taken = {run.name for run in earlier}
    name = first
    number = 1
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name, differs


def _ways(different: Differences, run: Path) -> str:
    """Returns the lines to write for a new run, or to continue the one in the folder `run`."""
    number = 2
    while run.with_name(f"{run.name}-{number}").exists():
        number += 1
    name = f"{run.name}-{number}"
    if machine_platform.in_notebook():
        where = "at the end of the Parameters cell"
        rename = f'OVERRIDES["run.name"] = {name!r}'
        accept = 'OVERRIDES["run.accept_changes"] = True'
    else:
        where = "on the command line"
        rename = f"--set run.name={name}"
        accept = "--set run.accept_changes=true"
    ways = f"To train this configuration as a run of its own, write {where}:\n  {rename}"
    if different.keys().isdisjoint(_REFUSED):
        ways += f"\nTo keep the trained weights and continue with the changes:\n  {accept}"
    return ways


def _has_same_samples(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether samples, targets and splits are equal, whatever bytes the samples' files have."""
    before = saved.get(_SAMPLES)
    after = now.get(_SAMPLES)
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return False
    return before.get("rest") == after["rest"] and isinstance(before.get("files"), str)


def _replaced(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns how many files of the samples have other bytes than saved; "" for none."""
    is_same = saved.get("data fingerprint") == now.get("data fingerprint")
    if is_same or not _has_same_samples(saved, now):
        return ""
    number = differing(saved[_SAMPLES]["files"], now[_SAMPLES]["files"])
    total = now[_SAMPLES]["number"]
    return (
        f"Other bytes than when the run was saved: at least {number:,} of the samples' {total:,} files. "
        "Samples, targets and splits are the same."
    )


def compare(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    is_completed: bool = False,
    accepted: str | None = None,
) -> tuple[Differences, bool]:
    """Returns the differences, and whether they make another run; then only those that make it one."""
    if _has_same_samples(saved, now):
        now = {**now, "data fingerprint": saved.get("data fingerprint")}
    defaults = {key: value for key, value in _defaults().items() if key in now}
    before = _portable({**defaults, **saved})
    after = _portable(now)
    ignored = {_SAMPLES, *(REMOVED.keys() - now.keys())}
    if is_completed:
        ignored.update(_MACHINE)
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    keys = [key for key in keys if key not in ignored]
    allowed = {*_COMPUTED}
    length = "training.max_steps"
    if is_completed and after.get(length, 0) < before.get(length, 0):
        allowed.remove(length)  # a completed run cannot become shorter
    if accepted is not None:
        allowed.add(accepted)
    refused = [key for key in keys if key in _REFUSED or not key.startswith(tuple(allowed))]
    differences = {key: (before.get(key, "-"), after.get(key, "-")) for key in refused or keys}
    return differences, bool(refused)


def in_a_line(different: Differences) -> str:
    """Returns the differences in one line: `optimizer.lr 0.1 -> 0.2, code of the task` (hashes by name)."""
    words = []
    for key, (old, new) in different.items():
        word = key if key in _HASHED else f"{key} {old} -> {new}"
        words.append(printable(word, most=100))
    return ", ".join(words)


def _table(different: Differences) -> str:
    rows = [("", "saved", "now")]
    for key, (old, new) in different.items():
        rows.append((printable(key, most=80), printable(old, most=80), printable(new, most=80)))
    return textwrap.indent(aligned(rows, left={0, 1, 2}), "  ")


def _portable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces paths by file names, so that a run compares equal on another machine."""
    portable = dict(facts)
    for key, value in facts.items():
        if key.startswith("workload.") and isinstance(value, str) and "/" in value:
            portable[key] = PurePath(value).name
    file, colon, name = str(facts.get("task", "")).rpartition(":")
    if colon:
        portable["task"] = f"{PurePath(file).name}:{name}"
    return portable


@functools.cache
def _defaults() -> dict[str, Any]:
    """Returns the defaults of keys: before a key existed, a run did what its default does."""
    values = _values(Config(task="", training=Training(effective_batch=1)))
    compared = [key for key in values if not key.startswith(_HARMLESS)]
    return {key: values[key] for key in compared if key not in _REFUSED}


def check_settings(
    saved: Mapping[str, Any], config: Config, run: Path, accepted: str | None = None
) -> None:
    """Checks a completed run like `check`, without its data. Lengths in epochs are not compared."""
    now = _values(config) | _code_of(find_task(config.task), config)
    unknown = set()
    for key, value in now.items():
        if key.endswith("epochs") and value:
            section, dot, name = key.rpartition(".")
            unknown |= {key, f"{section}{dot}{other_unit(name)}"}
    compared = {key for key in now if not key.startswith(_HARMLESS)} - unknown
    before = {key: value for key, value in saved.items() if key in compared}
    after = {key: value for key, value in now.items() if key in compared}
    check(before, after, run, is_completed=True, accepted=accepted)
