"""Checks to pass before a push spends quota; each one that does not pass says what to do."""

import ast
import http.client
import importlib
import json
import math
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lib import launch, planner
from lib.config import Config
from lib.doctor.findings import Finding
from lib.errors import BadInput, TrainingFailed
from lib.kaggle import client, credentials, image, kernel
from lib.machine.facts import CARDS, FACTS
from lib.task import load_config
from lib.text import amount
from lib.training.state import new_state, state_tensors

_SECONDS = 10  # that an address may take to answer
_LOCAL_PATH = re.compile(
    r"(?<![\w.:/$~-])(/(home|Users|mnt|media|root|data|opt|srv|scratch)/[^\s'\"`)]*|[A-Za-z]:\\\\?\w[^\s'\"`)]*)"
)
# An address is data to a program, rather than a link in a sentence, where it stands in quotes or as a value.
_ADDRESS = re.compile(r"(?:(?<=['\"])|(?<=: ))https?://[^\s'\"`)>\]]+")
_CORRECT = "Correct what the message names."


def check(
    path: Path, settings: Mapping[str, object], data: str = "", steps_per_second: float = 0.0, urls: Sequence[str] = ()
) -> dict[str, list[Finding]]:
    """Checks a built notebook, the Kaggle-size configurations that it carries, their data, addresses and the account.

    A finding is `bad` where a push would spend quota for nothing, a `warning` where that cannot be decided from here.
    """
    notebook = json.loads(path.read_text("utf-8"))
    carried = kernel.carried_files(notebook)
    on_kaggle = notebook["metadata"].get("kaggle", {})
    texts = {"the notebook": _text(notebook, "code", "markdown")}
    texts |= {name: text for name, text in carried.items() if name.startswith("configs/")}
    sections = {"Notebook": [*_contents(path, carried, texts), _imports(notebook, carried)]}
    configs = [name for name in texts if name.startswith("configs/") and not name.endswith("_small.yaml")]
    for name in configs:
        sections[Path(name).name] = _configuration(kernel.ROOT / name, settings, data, steps_per_second, on_kaggle)
    if not configs:
        sections["Notebook"].append(Finding("configuration", "none of Kaggle size, so nothing is trained"))
    addresses = sorted({*urls, *(address for text in texts.values() for address in _ADDRESS.findall(text))})
    sections["Addresses"] = _addresses(addresses, bool(on_kaggle.get("isInternetEnabled")))
    return {**sections, "Account": _account()}


# --- the notebook -----------------------------------------------------------------------------------------------------


def _text(notebook: Mapping[str, Any], *kinds: str) -> str:
    """Returns the text of all cells of some kinds ("code", "markdown") but the carrier's."""
    carrier = kernel.tagged(notebook, "carrier")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] in kinds and cell not in carrier]
    return "\n".join("".join(cell["source"]) for cell in cells)


def builder() -> ModuleType | None:
    """Returns the checkout's build_notebooks; None where that or jupytext is missing."""
    if str(kernel.ROOT) not in sys.path:
        sys.path.append(str(kernel.ROOT))
    try:
        return importlib.import_module("build_notebooks")
    except ImportError:
        return None


def _contents(path: Path, carried: Mapping[str, str], texts: Mapping[str, str]) -> list[Finding]:
    """Checks freshness, size and carrier, and looks for credentials and paths of one machine."""
    source, module = kernel.ROOT / "notebooks_src" / f"{path.stem}.py", builder()
    findings = [Finding("freshness", f"{path.name} is what its source, lib and configs give")]
    if module is None or not source.is_file():
        value = f"{path.name} has no source here to compare it with"
        findings = [Finding("freshness", value, "warning", "See that it is the notebook you mean.")]
    elif module.notebook_text(source) != path.read_text("utf-8"):
        value = f"{path.name} is not what its source, lib and configs would give now"
        findings = [Finding("freshness", value, "bad", "Run: make notebooks")]
    size, limit = path.stat().st_size, int(FACTS["kaggle_notebook_bytes"].value)
    if size < limit:
        findings.append(Finding("size", f"{size:,} of {limit:,} bytes"))
    else:
        value = f"{size:,} bytes; Kaggle has refused {limit:,}"
        findings.append(Finding("size", value, "bad", "Carry less: see the header of the notebook's source."))
    if "lib/__init__.py" in carried:
        total = sum(len(text.encode()) for text in carried.values())
        findings.append(Finding("carrier", f"{len(carried)} files of lib and configs, {total:,} bytes"))
    else:
        advice = "Tag a cell of its source `carrier`, then run: make notebooks"
        findings.append(Finding("carrier", "the notebook does not carry lib", "bad", advice))
    try:
        credentials.refuse_in_files([path])
        credentials.refuse_in_text("\n".join(carried.values()), path)  # which is packed in the notebook
        findings.append(Finding("credentials", "the notebook holds no secret that is set here"))
    except BadInput as refusal:
        advice = "Use Add-ons > Secrets on Kaggle instead, and renew the credential."
        findings.append(Finding("credentials", str(refusal), "bad", advice))
    local = [f"{match[0]} in {name}" for name, text in texts.items() for match in _LOCAL_PATH.finditer(text)]
    if local:
        advice = "Remove them: a notebook finds mounted data, or takes owner/slug in DATA_DIR."
        return [*findings, Finding("paths", f"of one machine: {', '.join(local)}", "bad", advice)]
    return [*findings, Finding("paths", "no path of one machine in the notebook and its configurations")]


def _imports(notebook: Mapping[str, Any], carried: Mapping[str, str]) -> Finding:
    """Compares the packages that the notebook and the carried files import with those of Kaggle's image."""
    names: set[str] = set()
    for text in (_text(notebook, "code"), *(text for name, text in carried.items() if name.endswith(".py"))):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    names -= {*sys.stdlib_module_names, "lib", "__future__"}
    if absent := sorted(name for name in names & image.PACKAGES.keys() if image.PACKAGES[name].version is None):
        advice = "Switch the internet on, or mount their wheels."
        return Finding("imports", f"Kaggle's image lacks {', '.join(absent)}", "bad", advice)
    if unknown := sorted(names - image.PACKAGES.keys()):
        advice = "Look on Kaggle, and add them to lib/kaggle/image.py."
        return Finding("imports", f"whether Kaggle's image has {', '.join(unknown)} is not known", "warning", advice)
    newest = max((image.PACKAGES[name].checked for name in names), default="-")
    return Finding("imports", f"Kaggle's image has all {len(names)} packages that are imported (checked {newest})")


# --- the configuration, its data, time and space ----------------------------------------------------------------------


def _configuration(
    path: Path, settings: Mapping[str, object], data: str, steps_per_second: float, on_kaggle: Mapping[str, Any]
) -> list[Finding]:
    """Checks a configuration, its data, and the memory, time and space that its run takes."""
    overrides = {**settings, **({"data.dir": data} if data else {})}
    try:
        config = load_config(path, overrides)
    except BadInput as refusal:
        return [Finding("configuration", f"{path.name} is refused: {refusal}", "bad", _CORRECT)]
    findings = [Finding("configuration", f"{path.name} is valid"), *_options(config, on_kaggle)]
    try:
        run = launch.prepare(config if data else load_config(path, {**overrides, "data.dir": ""}))
    except BadInput as refusal:
        return [*findings, Finding("data", f"refused: {refusal}", "bad", _CORRECT)]
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in run.task.datasets().items())
    if data:
        findings.append(Finding("data", f"{data} is valid: {sizes}"))
    elif config.data.dir:
        advice = "Give the folder here with --data to have it validated."
        findings.append(
            Finding("data", f"data.dir is {config.data.dir}, which is read on Kaggle only", "warning", advice)
        )
    else:
        advice = "Give your own with --data, unless this is what you want."
        findings.append(Finding("data", f"none is given: the embedded default is used ({sizes})", "warning", advice))
    return [*findings, *_speed(run.config, steps_per_second), _space(run)]


def _options(config: Config, on_kaggle: Mapping[str, Any]) -> list[Finding]:
    """Checks the keys of a configuration on which the use of a session depends: GPUs, precision, checkpoints."""
    cards, slots = int(FACTS["kaggle_gpus"].value), config.training.micro_batch_slots
    gpu = Finding("GPU", f"T4 x{cards} is chosen, and {slots} slots keep {cards} cards busy")
    if not on_kaggle.get("isGpuEnabled"):
        advice = "Write `gpu: true` into the header of its source."
        gpu = Finding("GPU", "the notebook does not ask for a GPU", "bad", advice)
    elif slots % cards:
        advice = f"Set training.micro_batch_slots to {cards}, or a multiple of it."
        gpu = Finding("GPU", f"{slots} slots cannot be divided among {cards} T4s: one would idle", "bad", advice)

    name = config.training.precision
    precision = Finding("precision", f"training.precision is {name}: fp16 on a T4")
    if name == "bf16":
        value = "training.precision is bf16, which a T4 only emulates"
        precision = Finding("precision", value, "bad", "Set it to auto (fp16 on a T4).")
    elif name == "fp32":
        t4 = CARDS["t4"]
        advice = f"Set it to auto, unless fp16 fails: {t4.fp16_tflops:.0f} TFLOP/s at best against {t4.fp32_tflops}."
        precision = Finding("precision", "training.precision is fp32", "warning", advice)

    last, best, limit = config.checkpoint.keep_last, config.checkpoint.keep_best, FACTS["kaggle_run_minutes"].value
    saves = Finding("checkpoints", f"the last {last} and the best {best} are kept, and the clock is on")
    if not last:
        value = "checkpoint.keep_last is 0: there would be nothing to resume from"
        saves = Finding("checkpoints", value, "bad", "Set it to 1 or more.")
    elif config.session.minutes > float(limit):
        value = f"session.minutes {config.session.minutes:g} is longer than the {limit:.0f} that a run may use"
        saves = Finding("session", value, "bad", "Set it to 0, which takes the platform's limit.")
    return [gpu, precision, saves]


def _speed(config: Config, measured: float) -> list[Finding]:
    """Checks by the planner's tracing that a step fits a T4; counts the run in sessions and weeks.

    `measured` is in steps/s; where it is 0, the planner's estimate is taken.
    """
    speed, origin = measured, "as you measured"
    try:
        plan = planner.plan(config, "t4")
        peak, usable = plan.chosen.prediction.peak_bytes / 2**30, plan.usable_bytes / 2**30
        memory = Finding(
            "memory", f"micro-batch {plan.chosen.micro_batch} takes {peak:.2f} of {usable:.2f} GiB of a T4"
        )
        if not measured:
            speed, origin = 1 / plan.chosen.expected_seconds, "as the planner expects"
    except BadInput as refusal:
        memory = Finding("memory", f"the step does not fit a T4: {refusal}", "bad", "Change what the message names.")
    except TrainingFailed as failure:
        value = f"a training step fails: {str(failure).splitlines()[-1]}"
        memory = Finding("memory", value, "bad", "See `python -m lib plan` with the same keys.")
    steps, session = config.training.max_steps, float(FACTS["kaggle_run_minutes"].value) / 60
    if not speed:
        value = f"{steps:,} steps fit one session from {steps / session / 3600:.2f} steps/s on; the speed is not known"
        advice = "Read the smoke test's line, and give its speed here as --steps-per-second."
        return [memory, Finding("time", value, "warning", advice)]
    hours = steps / speed / 3600
    sessions, weeks = (math.ceil(hours / each) for each in (session, float(FACTS["kaggle_gpu_quota_hours"].value)))
    value = f"{steps:,} steps at {speed:.3g} steps/s, {origin}, take {hours:.1f} h: {sessions} session(s)"
    value += f", {weeks} week(s) of quota"
    if sessions > 1:
        advice = "`python -m lib kaggle chain` runs one session after another."
        return [memory, Finding("time", value, "warning", advice)]
    return [memory, Finding("time", value)]


def _space(run: launch.Run) -> Finding:
    """Compares what the run keeps at most with what Kaggle keeps of an output."""
    checkpoint, weights = saved_bytes(run)
    last, best = run.config.checkpoint.keep_last, run.config.checkpoint.keep_best
    # One more than is kept, while a new one is written; the archive holds the best weights once more.
    size = (last + 1) * checkpoint + (2 * best + min(1, best)) * weights
    limit = int(FACTS["kaggle_output_bytes"].value)
    value = (
        f"{last} + 1 checkpoints of {amount(checkpoint)}, the best weights ({amount(weights)} each) and the archive "
        f"take at most {amount(size)} of {amount(limit)}"
    )
    if size > limit:
        return Finding("space", value, "bad", "Lower checkpoint.keep_last or checkpoint.keep_best.")
    return Finding("space", value)


def saved_bytes(run: launch.Run) -> tuple[int, int]:
    """Returns the bytes of the tensors in a checkpoint of a run, and of those in its best weights.

    They are counted after an update on the `meta` device, so the optimizer's tensors and the average take no memory.
    """
    state = new_state(run.task, run.config, torch.device("meta"), "fp32")
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    state.optimizer.step()
    groups = state_tensors(state, run.config)
    sizes = {
        group: sum(value.numel() * value.element_size() for value in named.values()) for group, named in groups.items()
    }
    return sum(sizes.values()), sizes["model"]


# --- addresses and account --------------------------------------------------------------------------------------------


def _addresses(addresses: Sequence[str], internet: bool) -> list[Finding]:
    if not addresses:
        return [Finding("download", "nothing is downloaded from an address")]
    with ThreadPoolExecutor(8) as pool:
        findings = list(pool.map(check_address, addresses))
    if internet:
        return findings
    value = f"{len(addresses)} addresses are to be read, and the notebook's internet is off"
    return [Finding("internet", value, "bad", "Push with --internet, or mount the data."), *findings]


def check_address(address: str, seconds: float = _SECONDS) -> Finding:
    """Checks whether an address answers a HEAD request (or a GET, where HEAD is not allowed) within some seconds."""
    shown = credentials.clean(address)
    for method in ("HEAD", "GET"):
        try:
            request = urllib.request.Request(address, method=method, headers={"User-Agent": "trainbook-preflight"})
            with urllib.request.urlopen(request, timeout=seconds) as response:
                size = response.headers.get("Content-Length")
                return Finding("download", f"{shown} answers" + (f", {int(size):,} bytes" if size else ""))
        except urllib.error.HTTPError as error:
            if method == "GET" or error.code not in (403, 405, 501):
                value = f"{shown} answers {error.code} {error.reason}"
                return Finding("download", value, "bad", "Correct it, or mount the data instead.")
        except (OSError, ValueError, http.client.HTTPException) as error:
            value = f"{shown} does not answer in {seconds:g} s ({getattr(error, 'reason', error)})"
            return Finding("download", value, "bad", "Try it in a browser; mount the data instead.")
    raise AssertionError("unreachable")


def _account() -> list[Finding]:
    try:
        name, quota = client.username(), client.quota()
    except BadInput as refusal:
        return [Finding("account", f"not asked: {refusal}", "warning", "The browser needs none of this.")]
    account = Finding("account", f"the kaggle client is signed in as {name}")
    if quota is None:
        advice = "See kaggle.com/settings; GPUs need a verified phone number."
        return [account, Finding("quota", "Kaggle names none", "warning", advice)]
    left = f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week"
    if quota.remaining < 1:
        return [account, Finding("quota", left, "bad", f"Wait for {quota.refreshes or 'the next week'}.")]
    return [account, Finding("quota", left)]
