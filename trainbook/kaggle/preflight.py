"""Checks a notebook before a push spends quota; each failed check comes with its remedy."""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import planner, prepared
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

_CORRECT = "Correct what the message names."


class Session(NamedTuple):
    """What a session mounts and runs on: competitions, and a card that some of them offer ("": two T4s)."""

    competitions: Sequence[str] = ()
    accelerator: str = ""

    @property
    def card(self) -> str:
        return self.accelerator or "t4"

    @property
    def cards(self) -> int:
        return 1 if self.accelerator else int(FACTS["kaggle_gpus"].value)

    @property
    def minutes(self) -> float:
        fact = "kaggle_rtx_run_minutes" if self.accelerator else "kaggle_run_minutes"
        return float(FACTS[fact].value)


_PLAIN = Session()


def check(
    path: Path,
    settings: Mapping[str, object],
    folder: str = "",
    root: Path | None = None,
    session: Session = _PLAIN,
) -> dict[str, Any]:
    """Checks notebook, configuration, account and the data in `folder`, or "embedded"; `root` as in `carried`."""
    print("Checking the notebook, its configuration and the account.", flush=True)
    notebook = kernel.read_json(path)
    files = carried.carried_files(notebook)
    name = carried.workload(notebook)[0]
    runs_command = "trainbook/run/notebook.py" in files
    title = f"{name}.yaml"
    entries: list[Entry] = []
    contents = [_contents(path, files, root is not None), _imports(notebook, files)]
    sections = {"Notebook": contents}
    if name:
        overrides = dict(settings)
        if folder:
            overrides["data.dir"] = folder
        sections[title], entries = _configuration(notebook, title, overrides, root, session)
    else:
        contents.append(_without_workload(runs_command))
    has_internet = kernel.is_on(notebook, "isInternetEnabled")
    if not has_internet and any(remote(entry.config) for entry in entries):
        value = "data is to be downloaded, and the notebook's internet is off"
        advice = "Push with --internet, or mount the data."
        contents.append(Finding("internet", value, "bad", advice))
    if session.competitions or session.accelerator:
        contents.append(_offline(path, session, has_internet))
    sections["Account"] = _account(bool(name) or runs_command)
    if entries:
        sections[title] += _runs(entries, folder, session)
    return sections


def _offline(path: Path, session: Session, has_internet: bool) -> Finding:
    """Returns the finding on a session of a competition, which has no internet, and on its card."""
    names = ", ".join(session.competitions)
    notebook = kernel.Notebook(
        path, "OWNER/NAME", competitions=session.competitions, accelerator=session.accelerator
    )
    try:
        kernel.check_inputs(notebook)
    except BadInput as refusal:
        return Finding("competition", str(refusal), "bad", _CORRECT)
    card = session.accelerator or "T4 x2"
    value = f"{names} is mounted, on {card}, without internet, for {session.minutes:.0f} minutes"
    if has_internet:
        return Finding("competition", f"{names} is mounted", "warning", "Many allow no internet.")
    advice = "Accept its rules in the browser first; look there which cards it offers."
    return Finding("competition", value, "ok", advice)


def _without_workload(runs_command: bool) -> Finding:
    if runs_command:
        value = "it runs a command, of which nothing is known here"
        advice = (
            "Give the file of its settings, such as my_run.yaml, to have its repository checked."
        )
        return Finding("training", value, "warning", advice)
    return Finding("training", "it trains nothing: it needs no data, no GPU and no quota")


def check_command(path: Path, found: dict[str, list[Finding]]) -> dict[str, Any]:
    """Returns the findings on a command's repository with those on its built notebook and the account."""
    notebook = kernel.read_json(path)
    contents = _contents(path, carried.carried_files(notebook), is_new=True)
    return {"Notebook": [contents], **found, "Account": _account(True)}


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
    carries = f"{size:,} bytes with {len(files)} files of lib and configs"
    return Finding("contents", f"{carries}, and no secret that is set here")


def _imports(notebook: Mapping[str, Any], files: Mapping[str, str]) -> Finding:
    """Compares the imports of cells and of a user's carried files with the packages of Kaggle's image."""
    codes = [*carried.codes(notebook)]
    local = {"lib", "workloads", "trainbook"}
    for name, text in files.items():
        if name.startswith("configs/") and name.endswith(".py"):
            codes.append(text)
            local |= {*Path(name).with_suffix("").parts}  # modules beside the task
    names: set[str] = set()
    for code in codes:
        names |= {each.dotted.split(".")[0] for each in imports(code) if each.is_needed}
    names -= {*local, *sys.stdlib_module_names}
    lacking = carried.lacking(names)
    if not lacking:
        return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported")
    value = f"Kaggle's image is not known to have {lacking}"
    if kernel.is_on(notebook, "isInternetEnabled"):
        return Finding("imports", f"{value}; the notebook's internet is on for them")
    advice = "Switch the internet on (--internet), or mount their wheels."
    return Finding("imports", value, "bad", advice)


def _configuration(
    notebook: Mapping[str, Any],
    title: str,
    overrides: Mapping[str, object],
    root: Path | None,
    session: Session,
) -> tuple[list[Finding], list[Entry]]:
    """Reads the configuration as a session would, and checks the keys that cost quota; returns the runs."""
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
    cards = session.cards
    slots = config.training.micro_batch_slots
    findings = [Finding("configuration", f"{title} is valid; runs: {names}")]
    if not kernel.is_on(notebook, "isGpuEnabled"):
        advice = "Write `gpu: true` into the header of its source."
        findings.append(Finding("GPU", "the notebook does not ask for a GPU", "bad", advice))
    if slots % cards:
        value = f"{slots} slots cannot be divided among {cards} T4s: one would idle"
        advice = f"Set training.micro_batch_slots to {cards}, or a multiple of it."
        findings.append(Finding("slots", value, "bad", advice))
    if config.training.precision == "bf16" and session.card == "t4":
        value = "training.precision is bf16, which a T4 only emulates"
        findings.append(Finding("precision", value, "bad", "Set it to auto (fp16 on a T4)."))
    if not config.checkpoint.keep_last:
        value = "checkpoint.keep_last is 0: there would be nothing to resume from"
        findings.append(Finding("checkpoints", value, "bad", "Set it to 1 or more."))
    return findings, entries


def _runs(entries: Sequence[Entry], folder: str, session: Session) -> list[Finding]:
    """Checks the data, and memory, time and space of all runs; runs of a kind are alike."""
    findings: list[Finding] = []
    hours = 0.0
    size = 0
    newest = 0
    counts = Counter(entry.kind for entry in entries)
    for kind, number in counts.items():
        entry = next(entry for entry in entries if entry.kind == kind)
        try:
            finding, config, task = _data(entry, folder, session.competitions)
        except BadInput as refusal:
            return [*findings, Finding("data", f"refused: {refusal}", "bad", _CORRECT)]
        print(f"Tracing a step of {kind} for a {session.card}.", flush=True)
        memory, seconds = _memory(config, session.card)
        findings += [finding, memory]
        steps = config.training.max_steps
        hours += number * steps * seconds / 3600 if steps else math.nan
        checkpoint, weights = saved_bytes(task, config)
        last = config.checkpoint.keep_last
        best = config.checkpoint.keep_best
        size += number * (last * checkpoint + 2 * best * weights)  # the archive has the best, too
        newest = max(newest, checkpoint + min(1, best) * weights)  # one more while it is written
    return [*findings, _time(len(entries), hours, session.minutes), _space(size + newest)]


def _space(size: int) -> Finding:
    limit = int(FACTS["kaggle_output_bytes"].value)
    value = f"checkpoints and archive of all runs take at most {amount(size)} of {amount(limit)}"
    if size <= limit:
        return Finding("space", value)
    advice = "Lower checkpoint.keep_last or checkpoint.keep_best."
    return Finding("space", value, "bad", advice)


def _data(entry: Entry, folder: str, competitions: Sequence[str]) -> tuple[Finding, Config, Task]:
    """Returns a finding on the data, which is read if `folder` names it, configuration and task."""
    config, _ = profiles.apply(entry.config, has_gpu=True)
    addresses = remote(config)
    if folder and not addresses and (folder == "embedded" or config.data.dir != "embedded"):
        print(
            f"Reading the data of {entry.kind}; the first time takes minutes where it is large.",
            flush=True,
        )
        task, config, _ = prepared.in_steps(config)
        splits = task.datasets().items()
        sizes = ", ".join(f"{len(samples):,} {name}" for name, samples in splits)
        return Finding("data", f"{entry.kind}: {folder} is valid ({sizes})"), config, task
    in_steps, _ = resolve_lengths(config, config.training.effective_batch)
    task = find_task(config.task)(in_steps)
    if not config.training.epochs:
        config = in_steps
    if addresses:
        value = f"the session downloads it from {', '.join(addresses)}"
        advice = "Download it, and give --data."
    elif competitions:
        value = f"the session mounts {', '.join(competitions)}, which was not read"
        advice = "Download its files, and give their folder here with --data to validate them."
    elif names := carried.here(config.data):
        value = f"data.dir is {', '.join(names)}, which is on this machine and in no session"
        advice = "Upload it (kaggle dataset), and push with --param DATA_DIR=OWNER/SLUG."
    else:
        source = config.data.dir or "empty, so the embedded data is used"
        value = f"data.dir is {source}, which was not read"
        advice = "Give the folder here with --data to have it validated."
    return Finding("data", f"{entry.kind}: {value}", "warning", advice), config, task


def _memory(config: Config, card: str) -> tuple[Finding, float]:
    """Traces a step for a card; returns the finding, and the expected seconds of a step, NaN without a plan."""
    try:
        plan = planner.plan(config, card)
    except BadInput as refusal:
        value = f"the step does not fit a {card}: {refusal}"
        return Finding("memory", value, "bad", _CORRECT), math.nan
    except TrainingFailed as failure:
        value = f"a training step fails: {str(failure).splitlines()[-1]}"
        return Finding("memory", value, "bad", "See `trainbook plan` with the same keys."), math.nan
    peak = plan.chosen.prediction.peak_bytes / 2**30
    usable = plan.usable_bytes / 2**30
    name = planner.find_card(card).card.name
    value = (
        f"micro-batch {plan.chosen.micro_batch} takes {peak:.2f} of {usable:.2f} GiB of a {name}"
    )
    return Finding("memory", value), plan.chosen.expected_seconds


def _time(number: int, hours: float, minutes: float) -> Finding:
    if math.isnan(hours):
        value = "it is not known without a plan and, for a length in epochs, the data"
        return Finding("time", value, "warning", "Give a length in epochs its data (--data).")
    share, _ = quota(3600 * hours)
    sessions = max(1, math.ceil(60 * hours / minutes))
    needs = f"{sessions} session(s), {share} of a week's quota"
    value = f"{number} run(s) take {hours:.1f} h, as the planner expects: {needs}"
    if sessions == 1:
        return Finding("time", value)
    advice = "`trainbook kaggle chain` runs one session after another."
    return Finding("time", value, "warning", advice)


def _account(needs_quota: bool) -> list[Finding]:
    try:
        name = client.username()
        week = client.insist(client.quota)
    except (BadInput, client.NoAnswer) as refusal:
        advice = "The browser needs none of this."
        return [Finding("account", f"not checked: {refusal}", "warning", advice)]
    account = Finding("account", f"the kaggle client is signed in as {name}")
    return [account, _quota(week, needs_quota)]


def _quota(week: client.Quota | None, is_needed: bool) -> Finding:
    if week is None:
        advice = "GPUs need a verified phone number: kaggle.com/settings."
        return Finding("quota", "Kaggle names none", "warning", advice)
    value = f"{week.remaining:.1f} of {week.total:.0f} GPU hours are left this week"
    if is_needed and week.remaining < 1:
        return Finding("quota", value, "bad", f"Wait for {week.refreshes or 'the next week'}.")
    return Finding("quota", value)
