"""Checks to pass before a push spends quota; each one that does not pass says what to do."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import planner
from lib.config import Config, profiles, resolve_lengths
from lib.errors import BadInput, TrainingFailed
from lib.machine.facts import FACTS
from lib.planner.table import quota
from lib.report.findings import Finding
from lib.task import Task, find_task
from lib.task.files import imports
from lib.text import amount
from lib.training.state import saved_bytes
from trainbook.doctor.rehearsal import remote
from trainbook.kaggle import carried, client, kernel
from trainbook.launch.queue import Entry
from trainbook.launch.run import resolved

_CORRECT = "Correct what the message names."


def check(
    path: Path,
    settings: Mapping[str, object],
    folder: str = "",
    root: Path | None = None,
    competitions: Sequence[str] = (),
) -> dict[str, Any]:
    """Checks notebook, configuration, account and the data in `folder`, or "embedded"; `root` as in `carried`."""
    print("Checking the notebook, its configuration and the account.", flush=True)
    notebook = kernel.read_json(path)
    files = carried.carried_files(notebook)
    name = carried.workload(notebook)[0]
    entries: list[Entry] = []
    sections = {"Notebook": [_contents(path, files, root is not None), _imports(notebook, files)]}
    if name:
        overrides = {**settings, **({"data.dir": folder} if folder else {})}
        sections[f"{name}.yaml"], entries = _configuration(
            notebook, f"{name}.yaml", overrides, root
        )
    else:
        sections["Notebook"].append(
            Finding("training", "it trains nothing: it needs no data, no GPU and no quota")
        )
    if any(remote(entry.config) for entry in entries) and not kernel.is_on(
        notebook, "isInternetEnabled"
    ):
        value = "data is to be downloaded, and the notebook's internet is off"
        sections["Notebook"].append(
            Finding("internet", value, "bad", "Push with --internet, or mount the data.")
        )
    sections["Account"] = _account(bool(name))
    if entries:
        sections[f"{name}.yaml"] += _runs(entries, folder, competitions)
    return sections


def _contents(path: Path, files: Mapping[str, str], is_new: bool) -> Finding:
    try:
        kernel.check_slug(kernel.slug_of(path))
        size = kernel.check_text(path, path.read_text("utf-8"), files)
        if "lib/__init__.py" not in files:
            raise BadInput(
                f"{path} does not carry lib. Tag a cell of its source `carrier`, then run: make notebooks"
            )
        if not is_new:
            kernel.check_fresh(path)
    except BadInput as refusal:
        return Finding("contents", str(refusal), "bad", _CORRECT)
    value = (
        f"{size:,} bytes with {len(files)} files of lib and configs, and no secret that is set here"
    )
    return Finding("contents", value)


def _imports(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the packages that the cells and a user's carried files import with those of Kaggle's image."""
    modules = {
        name: text
        for name, text in files.items()
        if name.startswith("configs/") and name.endswith(".py")
    }
    codes = [*carried.codes(notebook), *modules.values()]
    names = {
        each.dotted.split(".")[0] for code in codes for each in imports(code) if each.is_needed
    }
    names -= {"lib", "workloads", "trainbook", *sys.stdlib_module_names}
    names -= {
        part for name in modules for part in Path(name).with_suffix("").parts
    }  # beside the task
    if not (lacking := carried.lacking(names)):
        return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported")
    value = f"Kaggle's image is not known to have {lacking}"
    if kernel.is_on(notebook, "isInternetEnabled"):
        return Finding("imports", f"{value}; the notebook's internet is on for them")
    return Finding(
        "imports", value, "bad", "Switch the internet on (--internet), or mount their wheels."
    )


def _configuration(
    notebook: Mapping[str, Any], title: str, overrides: Mapping[str, object], root: Path | None
) -> tuple[list[Finding], list[Entry]]:
    """Reads the configuration as a session would, and checks the keys on which quota depends; returns the runs."""
    try:
        entries = carried.training(notebook, {"OVERRIDES": overrides}, True, root)
    except BadInput as refusal:
        return [Finding("configuration", f"{title} is refused: {refusal}", "bad", _CORRECT)], []
    if entries is None:
        value = "it is a file that only a session sees, on Kaggle or written by a cell"
        advice = "To have it checked before, put task and configuration into files here and give my.yaml instead."
        return [Finding("configuration", value, "warning", advice)], []
    names = ", ".join(entry.name for entry in entries)
    config = entries[-1].config
    cards = int(FACTS["kaggle_gpus"].value)
    slots = config.training.micro_batch_slots
    wasteful = (
        (not kernel.is_on(notebook, "isGpuEnabled"), "GPU", "the notebook does not ask for a GPU",
         "Write `gpu: true` into the header of its source."),
        (slots % cards, "slots", f"{slots} slots cannot be divided among {cards} T4s: one would idle",
         f"Set training.micro_batch_slots to {cards}, or a multiple of it."),
        (config.training.precision == "bf16", "precision", "training.precision is bf16, which a T4 only emulates",
         "Set it to auto (fp16 on a T4)."),
        (not config.checkpoint.keep_last, "checkpoints",
         "checkpoint.keep_last is 0: there would be nothing to resume from", "Set it to 1 or more."),
    )  # fmt: skip
    problems = [
        Finding(name, value, "bad", advice) for is_so, name, value, advice in wasteful if is_so
    ]
    return [Finding("configuration", f"{title} is valid; runs: {names}"), *problems], entries


def _runs(entries: Sequence[Entry], folder: str, competitions: Sequence[str]) -> list[Finding]:
    """Checks the data, and the memory, time and space that all runs take together; those of a kind are alike."""
    findings: list[Finding] = []
    hours = 0.0
    size = 0
    newest = 0
    for kind in dict.fromkeys(entry.kind for entry in entries):
        number = sum(entry.kind == kind for entry in entries)
        try:
            entry = next(entry for entry in entries if entry.kind == kind)
            finding, config, task = _data(entry, folder, competitions)
        except BadInput as refusal:
            return [*findings, Finding("data", f"refused: {refusal}", "bad", _CORRECT)]
        print(f"Tracing a step of {kind} for a T4.", flush=True)
        memory, seconds = _memory(config)
        findings += [finding, memory]
        hours += (
            number * config.training.max_steps * seconds / 3600
            if config.training.max_steps
            else math.nan
        )
        checkpoint, weights = saved_bytes(task, config)
        last = config.checkpoint.keep_last
        best = config.checkpoint.keep_best
        size += number * (
            last * checkpoint + 2 * best * weights
        )  # the archive holds the best weights once more
        newest = max(newest, checkpoint + min(1, best) * weights)  # one more while it is written
    limit = int(FACTS["kaggle_output_bytes"].value)
    value = f"checkpoints and archive of all runs take at most {amount(size + newest)} of {amount(limit)}"
    verdict = (
        ("bad", "Lower checkpoint.keep_last or checkpoint.keep_best.")
        if size + newest > limit
        else ()
    )
    return [*findings, _time(len(entries), hours), Finding("space", value, *verdict)]


def _data(entry: Entry, folder: str, competitions: Sequence[str]) -> tuple[Finding, Config, Task]:
    """Returns a finding on the data, which is only read where `folder` names some, configuration and task."""
    config, _ = profiles.apply(entry.config, has_gpu=True)
    addresses = remote(config)
    if folder and not addresses and (folder == "embedded" or config.data.dir != "embedded"):
        print(
            f"Reading the data of {entry.kind}; the first time takes minutes where it is large.",
            flush=True,
        )
        task, config, _ = resolved(config)
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in task.datasets().items())
        return Finding("data", f"{entry.kind}: {folder} is valid ({sizes})"), config, task
    in_steps, _ = resolve_lengths(config, config.training.effective_batch)
    task = find_task(config.task)(in_steps)
    config = config if config.training.epochs else in_steps
    if addresses:
        value = f"the session downloads it from {', '.join(addresses)}"
        advice = "Download it, and give --data."
    elif competitions:
        value = f"the session mounts {', '.join(competitions)}, which was not read"
        advice = (
            "Download its files, and give their folder here with --data to have them validated."
        )
    elif names := carried.here(config.data):
        value = f"data.dir is {', '.join(names)}, which is on this machine and in no session"
        advice = "Upload it (kaggle dataset), and push with --param DATA_DIR=OWNER/SLUG."
    else:
        value = f"data.dir is {config.data.dir or 'empty, so the embedded data is used'}, which was not read"
        advice = "Give the folder here with --data to have it validated."
    return Finding("data", f"{entry.kind}: {value}", "warning", advice), config, task


def _memory(config: Config) -> tuple[Finding, float]:
    """Traces a step for a T4; returns the finding, and the expected seconds of a step, NaN where there is no plan."""
    try:
        plan = planner.plan(config, "t4")
    except BadInput as refusal:
        return Finding(
            "memory", f"the step does not fit a T4: {refusal}", "bad", _CORRECT
        ), math.nan
    except TrainingFailed as failure:
        value = f"a training step fails: {str(failure).splitlines()[-1]}"
        return Finding("memory", value, "bad", "See `trainbook plan` with the same keys."), math.nan
    peak = plan.chosen.prediction.peak_bytes / 2**30
    usable = plan.usable_bytes / 2**30
    value = f"micro-batch {plan.chosen.micro_batch} takes {peak:.2f} of {usable:.2f} GiB of a T4"
    return Finding("memory", value), plan.chosen.expected_seconds


def _time(number: int, hours: float) -> Finding:
    if math.isnan(hours):
        value = "it is not known without a plan and, for a length in epochs, the data"
        return Finding("time", value, "warning", "Give a length in epochs its data (--data).")
    share, sessions = quota(3600 * hours)
    needs = f"{sessions} session(s), {share} of a week's quota"
    value = f"{number} run(s) take {hours:.1f} h, as the planner expects: {needs}"
    verdict = (
        ("warning", "`trainbook kaggle chain` runs one session after another.")
        if sessions > 1
        else ()
    )
    return Finding("time", value, *verdict)


def _account(needs_quota: bool) -> list[Finding]:
    try:
        name = client.username()
        week = client.insist(client.quota)
    except (BadInput, client.NoAnswer) as refusal:
        return [
            Finding(
                "account", f"not checked: {refusal}", "warning", "The browser needs none of this."
            )
        ]
    left = Finding(
        "quota",
        "Kaggle names none",
        "warning",
        "GPUs need a verified phone number: kaggle.com/settings.",
    )
    if week:
        wait = f"Wait for {week.refreshes or 'the next week'}."
        verdict = ("bad", wait) if needs_quota and week.remaining < 1 else ()
        left = Finding(
            "quota",
            f"{week.remaining:.1f} of {week.total:.0f} GPU hours are left this week",
            *verdict,
        )
    return [Finding("account", f"the kaggle client is signed in as {name}"), left]
