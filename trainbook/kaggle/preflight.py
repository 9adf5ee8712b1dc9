"""Checks to pass before a push spends quota; each one that does not pass says what to do."""

import ast
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import planner
from lib.config import Config, profiles, resolve_lengths
from lib.doctor.rehearsal import remote
from lib.errors import BadInput, TrainingFailed
from lib.launch.queue import Entry
from lib.launch.run import resolved
from lib.machine.facts import FACTS
from lib.report.findings import Finding, Verdict
from lib.task import Task, find_task, with_slots
from lib.task.files import imports
from lib.text import amount
from lib.training.state import saved_bytes
from trainbook.kaggle import carried, client, kernel

_CORRECT, _LOOK = "Correct what the message names.", "See that it is the notebook you mean."
_PRECISIONS: dict[str, tuple[Verdict, str]] = {
    "bf16": ("bad", ", which a T4 only emulates"), "fp32": ("warning", ", far slower than fp16 there")
}  # fmt: skip
_ORIGIN = "its source, lib and configs"


def _judged(name: str, value: str, problem: str = "", advice: str = "", verdict: Verdict = "bad") -> Finding:
    """Returns a finding that is ok, or if there is a problem one of that."""
    return Finding(name, problem, verdict, advice) if problem else Finding(name, value)


class Part(NamedTuple):
    """The runs of a notebook that are alike: `number` of them, each of `steps`; 0 if the length is not known here."""

    name: str
    number: int
    config: Config
    steps: int
    task: Task  # with data, or without where it is not read here


def check(
    path: Path, settings: Mapping[str, object], folder: str = "", measured: float = 0.0, root: Path | None = None
) -> dict[str, list[Finding]]:
    """Checks a built notebook, the configuration that it trains on Kaggle, the account, and at last data.

    `folder` has the data, or is "embedded"; `measured` is in steps/s; `root` is as in `carried.training`. Nothing is
    downloaded. `bad` is what would spend quota for nothing, a `warning` what cannot be decided from here.
    """
    print("Checking the notebook, its configuration and the account.", flush=True)
    text = path.read_text("utf-8")
    notebook = json.loads(text)
    files, name = carried.carried_files(notebook), carried.workload(notebook)[0]
    entries: list[Entry] = []
    sections = {"Notebook": [*_contents(path, text, files, root is not None), _imports(notebook, files)]}
    if name:
        overrides = {**settings, **({"data.dir": folder} if folder else {})}
        sections[f"{name}.yaml"], entries = _configuration(notebook, f"{name}.yaml", overrides, root)
    else:
        sections["Notebook"].append(Finding("training", "it trains nothing: it needs no data, no GPU and no quota"))
    if any(remote(entry.config) for entry in entries) and not _is_on(notebook, "isInternetEnabled"):
        value = "data is to be downloaded, and the notebook's internet is off"
        sections["Notebook"].append(Finding("internet", value, "bad", "Push with --internet, or mount the data."))
    sections["Account"] = _account(bool(name))
    if entries:
        sections[f"{name}.yaml"] += _runs(entries, folder, measured)
    return sections


def _is_on(notebook: Mapping[str, Any], switch: str) -> bool:
    return bool(notebook["metadata"].get("kaggle", {}).get(switch))


def _contents(path: Path, text: str, files: Mapping[str, str], is_new: bool) -> list[Finding]:
    """Checks freshness, unless it was built just now, size and carrier; looks for credentials."""
    fresh = {
        None: Finding("freshness", f"{path.name} has no source here to compare it with", "warning", _LOOK),
        True: Finding("freshness", f"{path.name} is not what {_ORIGIN} would give now", "bad", "Run: make notebooks"),
        False: Finding("freshness", f"{path.name} is what {_ORIGIN} give"),
    }[False if is_new else carried.is_stale(path)]
    try:
        size = kernel.check_text(path, text, files)
        if "lib/__init__.py" not in files:
            raise BadInput(f"{path} does not carry lib. Tag a cell of its source `carrier`, then run: make notebooks")
    except BadInput as refusal:
        return [fresh, Finding("contents", str(refusal), "bad", _CORRECT)]
    value = f"{size:,} bytes with {len(files)} files of lib and configs, and no secret that is set here"
    return [fresh, Finding("contents", value)]


def _imports(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the packages that the cells and a user's carried files import with those of Kaggle's image."""
    modules = {name: text for name, text in files.items() if name.startswith("configs/") and name.endswith(".py")}
    nodes = list(carried.syntax(notebook))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {each.dotted for code in modules.values() for each in imports(code) if each.is_needed}
    names = {name.split(".")[0] for name in names} - {"lib", "workloads", "trainbook", *sys.stdlib_module_names}
    names -= {part for name in modules for part in Path(name).with_suffix("").parts}  # beside the task
    lacked, unknown = carried.compared(names)
    lacks = f"Kaggle's image lacks {', '.join(lacked)}"
    if lacked and not _is_on(notebook, "isInternetEnabled"):
        return Finding("imports", lacks, "bad", "Switch the internet on, or mount their wheels.")
    if unknown:
        return Finding("imports", unknown, "warning", carried.INSTALLED)
    if lacked:
        return Finding("imports", f"{lacks}; the notebook's internet is on for them")
    return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported")


def _configuration(
    notebook: Mapping[str, Any], title: str, overrides: Mapping[str, object], root: Path | None
) -> tuple[list[Finding], list[Entry]]:
    """Reads the configuration as a session would, and checks the keys on which quota depends; returns the runs."""
    try:
        training = carried.training(notebook, {"OVERRIDES": overrides}, True, root)
    except BadInput as refusal:
        return [Finding("configuration", f"{title} is refused: {refusal}", "bad", _CORRECT)], []
    if training is None:
        value = "it is a file that only a session sees, on Kaggle or written by a cell"
        advice = "To have it checked before, put task and configuration into files here and give my.yaml instead."
        return [Finding("configuration", value, "warning", advice)], []
    names = [entry.name for entry in training.entries]
    findings = [Finding("configuration", f"{title} is valid")]
    findings += [Finding("queue", f"{len(names)} runs: {', '.join(names)}")] if len(names) > 1 else []
    config, cards = training.entries[-1].config, int(FACTS["kaggle_gpus"].value)
    slots, precision = with_slots(config, cards).training.micro_batch_slots, config.training.precision
    problem = f"{slots} slots cannot be divided among {cards} T4s: one would idle" if slots % cards else ""
    advice = f"Set training.micro_batch_slots to {cards}, or a multiple of it."
    if not _is_on(notebook, "isGpuEnabled"):
        problem, advice = "the notebook does not ask for a GPU", "Write `gpu: true` into the header of its source."
    busy = f"T4 x{cards} is chosen, and {slots} slots keep {cards} cards busy"
    findings.append(_judged("GPU", busy, problem, advice))
    verdict, words = _PRECISIONS.get(precision, ("ok", ": fp16 on a T4"))
    advice = "" if verdict == "ok" else "Set it to auto (fp16 on a T4)."
    findings.append(Finding("precision", f"training.precision is {precision}{words}", verdict, advice))
    last, best, limit = (
        config.checkpoint.keep_last,
        config.checkpoint.keep_best,
        float(FACTS["kaggle_run_minutes"].value),
    )
    saved = f"the last {last} and the best {best} are kept, and the clock is on"
    problem = "" if last else "checkpoint.keep_last is 0: there would be nothing to resume from"
    findings.append(_judged("checkpoints", saved, problem, "Set it to 1 or more."))
    if (minutes := config.session.minutes) > limit:
        value = f"session.minutes {minutes:g} is longer than the {limit:.0f} that a run may use"
        findings.append(Finding("session", value, "bad", "Set it to 0, which takes the platform's limit."))
    return findings, training.entries


def _runs(entries: Sequence[Entry], folder: str, measured: float) -> list[Finding]:
    """Checks the data, and the memory, time and space that all runs take together."""
    findings: list[Finding] = []
    parts: list[Part] = []
    for kind in dict.fromkeys(entry.kind for entry in entries):
        try:
            finding, part = _part(kind, [entry for entry in entries if entry.kind == kind], folder)
        except BadInput as refusal:
            return [*findings, Finding("data", f"refused: {refusal}", "bad", _CORRECT)]
        findings.append(finding)
        parts.append(part)
    size = newest = 0
    for part in parts:
        checkpoint, weights = saved_bytes(part.task, part.config)
        last, best = part.config.checkpoint.keep_last, part.config.checkpoint.keep_best
        size += part.number * (last * checkpoint + 2 * best * weights)  # the archive holds the best weights once more
        newest = max(newest, checkpoint + min(1, best) * weights)  # one more while it is written
    limit = int(FACTS["kaggle_output_bytes"].value)
    value = f"checkpoints and archive of all runs take at most {amount(size + newest)} of {amount(limit)}"
    advice = "Lower checkpoint.keep_last or checkpoint.keep_best."
    space = _judged("space", value, value if size + newest > limit else "", advice)
    return [*findings, *_speed(parts, measured), space]


def _part(kind: str, entries: Sequence[Entry], folder: str) -> tuple[Finding, Part]:
    """Returns a finding on the data of runs that are alike, and these runs. Raises BadInput.

    Data is only read where `folder` names some: the embedded data takes minutes to make.
    """
    config, _ = profiles.apply(entries[0].config, has_gpu=True)
    data, in_epochs, sizes, missing, addresses = config.data, bool(config.training.epochs), "", "", remote(config)
    if folder and not addresses and (folder == "embedded" or data.dir != "embedded"):
        print(f"Reading the data of {kind}; the first time takes minutes where it is large.", flush=True)
        try:
            task, config, _ = resolved(config)
            sizes = f" ({', '.join(f'{len(split):,} {name}' for name, split in task.datasets().items())})"
        except BadInput as refusal:
            if data.dir != "embedded":
                raise
            missing = str(refusal)  # a session's machine has what its image has
    if not sizes:
        config, _ = resolve_lengths(config, config.training.effective_batch)
        task = find_task(config.task)(config)
    part = Part(kind, len(entries), config, config.training.max_steps if sizes or not in_epochs else 0, task)
    if addresses:
        value, advice = f"the session downloads it from {', '.join(addresses)}", "Download it, and give --data."
    elif missing:
        value, advice = f"the embedded data cannot be made on this machine: {missing}", "See that the image has it."
    elif data.dir == "embedded":
        return Finding("data", f"{kind}: the embedded data{sizes}"), part
    elif folder and data.dir:
        return Finding("data", f"{folder} is valid{sizes}"), part
    elif names := carried.here(data):
        value = f"data.dir is {', '.join(names)}, which is on this machine and in no session"
        advice = "Upload it (kaggle dataset), and push with --param DATA_DIR=OWNER/SLUG."
    elif data.dir:
        value = f"data.dir is {', '.join(data.dirs)}, which only a session sees"
        advice = "Give the folder here with --data to have it validated."
    else:
        value, advice = "none is given: the embedded data is used", "Give your own with --data, unless you want this."
    return Finding("data", f"{kind}: {value}", "warning", advice), part


def _speed(parts: Sequence[Part], measured: float) -> list[Finding]:
    """Traces a step of each part for a T4, and counts all runs in sessions; `measured` steps/s replace the plan's."""
    session, weekly = float(FACTS["kaggle_run_minutes"].value) / 60, float(FACTS["kaggle_gpu_quota_hours"].value)
    findings, hours, each = [], 0.0, []
    for part in parts:
        print(f"Tracing a step of {part.name} for a T4.", flush=True)
        memory, planned = _memory(part)
        findings.append(memory)
        speed = measured or planned
        hours += part.number * part.steps / speed / 3600 if part.steps and speed else math.nan
        each.append(f"{part.number} runs of " * (part.number > 1) + f"{part.steps:,} steps at {speed:.3g} steps/s")
    if math.isnan(hours):
        advice = "Give a length in epochs its data (--data), and a measured speed as --steps-per-second."
        value = "length or speed is not known without the data or a plan"
        return [*findings, Finding("time", value, "warning", advice)]
    origin = "as you measured" if measured else "as the planner expects"
    at_most = " at most" * any(part.config.training.stop_after_evaluations for part in parts)
    sessions, weeks = math.ceil(hours / session), math.ceil(hours / weekly)
    needs = f"{sessions} session(s), {weeks} week(s) of quota"
    value = f"{' and '.join(each)}, {origin}, take{at_most} {hours:.1f} h: {needs}"
    advice = "`trainbook kaggle chain` runs one session after another."
    return [*findings, _judged("time", value, value if sessions > 1 else "", advice, "warning")]


def _memory(part: Part) -> tuple[Finding, float]:
    """Traces a step for a T4; returns the finding, and steps per second, 0 where there is no plan."""
    try:
        plan = planner.plan(part.config, "t4")
    except BadInput as refusal:
        return Finding("memory", f"the step does not fit a T4: {refusal}", "bad", _CORRECT), 0.0
    except TrainingFailed as failure:
        value = f"a training step fails: {str(failure).splitlines()[-1]}"
        return Finding("memory", value, "bad", "See `trainbook plan` with the same keys."), 0.0
    peak, usable = plan.chosen.prediction.peak_bytes / 2**30, plan.usable_bytes / 2**30
    value = f"micro-batch {plan.chosen.micro_batch} takes {peak:.2f} of {usable:.2f} GiB of a T4"
    return Finding("memory", value), 1 / plan.chosen.expected_seconds


def _account(needs_quota: bool) -> list[Finding]:
    try:
        name, quota = client.username(), client.insist(client.quota)
    except (BadInput, client.NoAnswer) as refusal:
        return [Finding("account", f"not checked: {refusal}", "warning", "The browser needs none of this.")]
    account = Finding("account", f"the kaggle client is signed in as {name}")
    if quota is None:
        advice = "See kaggle.com/settings; GPUs need a verified phone number."
        return [account, Finding("quota", "Kaggle names none", "warning", advice)]
    left = f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week"
    problem = left if needs_quota and quota.remaining < 1 else ""
    return [account, _judged("quota", left, problem, f"Wait for {quota.refreshes or 'the next week'}.")]
