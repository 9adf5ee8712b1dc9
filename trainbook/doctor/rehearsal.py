"""Examines a run before it starts: its data and task, its room on the disk, and one real save and resume."""

import dataclasses
import hashlib
import json
import re
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lib import checkpoint
from lib.checkpoint.saver import Retention, Saver
from lib.config import Config
from lib.errors import BadInput
from lib.machine import disk, memory, published
from lib.planner import fp16
from lib.report.findings import Finding, run_check
from lib.task import find_task, locate_data
from lib.task.place import explained, place_of
from lib.text import amount
from lib.training.precision import about_precision, choose_precision
from lib.training.state import (
    State,
    new_state,
    restore_state,
    save_state,
    seal_frozen,
    state_tensors,
)
from lib.training.summary import Summary
from trainbook import launch
from trainbook.doctor.machine import check_kernels
from trainbook.launch import Run, checks
from trainbook.launch.resume import (
    check_completed,
    describe_resume,
    how_to_continue,
    look_for_checkpoint,
)

Groups = dict[str, dict[str, Tensor]]


@published.reading_once()
def check_run(config: Config) -> list[Finding]:
    """Rehearses a configuration on this machine. Writes nothing in the run's folder, downloads nothing."""
    addresses = remote(config)
    if addresses:
        value = f"downloaded by the run from {', '.join(addresses)}; nothing was downloaded here"
        advice = "Length, resuming and a save are not checked without it. Download it, and give its folder as data.dir."
        return [Finding("data", value, "warning", advice)]
    try:
        run = launch.prepare(config)
    except Exception as error:
        return [_refusal("data", config, error)]
    device = memory.device()
    precision = choose_precision(run.config.training.precision, device)
    slow = about_precision(precision, device)
    lengths = [f"{run.config.training.max_steps:,} steps", *run.lengths]
    findings = [
        Finding("precision", f"{precision} on {device.type}", "warning" if slow else "ok", *slow),
        run_check("data", lambda: Finding("data", run.task.describe_data())),
        Finding("length", "\n".join(lengths)),
        run_check("resume", partial(check_resume, run)),
    ]
    if torch.cuda.is_available() and check_kernels().verdict == "bad":
        value = "not tried: this build of PyTorch has no kernels for the GPU"
        return [*findings, Finding("save and resume", value, "warning")]
    if precision == "fp16":
        findings.append(run_check("fp16", lambda: fp16.examine_fp16(run.task, run.config).finding))
    operators = partial(fp16.examine_operators, run.task, run.config)
    findings.append(run_check("GPU operators", operators))
    troubles = checks.examine(run.task, run.config)
    findings += troubles
    if not troubles:
        name = type(run.task).__name__
        findings.append(Finding("task", f"{name} passes all checks, on some samples of each split"))
    return findings + check_saving(run)


def remote(config: Config) -> list[str]:
    """Returns the addresses, without credentials, in a configuration; empty if `data.dir` or an input has the data."""
    if config.data.dir or locate_data("", find_task(config.task).sentinels):
        return []
    text = json.dumps(dataclasses.asdict(config), default=str)
    addresses = re.findall(r'"(https?://[^\s"]+)"', text)
    return [re.sub(r"(?<=//)[^/@]*@|[?#].*", "", address) for address in addresses]


def _refusal(name: str, config: Config, error: Exception) -> Finding:
    """Returns the finding on an error of the configuration, the task or memory. Raises any other."""
    if isinstance(error, BadInput):
        return Finding(name, "refused", "bad", str(error))
    if memory.is_oom(error):
        value = "its weights and optimizer states do not fit into memory"
        advice = "Make the model smaller, or use a machine with more memory. Activations need more on top."
        return Finding(name, value, "bad", advice)
    if not place_of(error):
        raise error
    return Finding(name, "could not be made", "bad", explained(config.task, error))


def check_resume(run: Run) -> Finding:
    """Checks where the run would resume: verifies every file of that checkpoint without renaming any."""
    summary = Summary.read(run.folder)
    try:
        if summary and summary.is_done(run.config.training):
            different = check_completed(run, summary)
            value = f"completed at step {summary.step:,}: there is nothing left to do"
            advice = f"{different}\n{how_to_continue(summary)} Another run.name starts afresh."
            return Finding("resume", value, "warning" if different else "ok", advice.strip())
        newest, sentences = look_for_checkpoint(run)
    except BadInput as refused:
        return Finding("resume", "the run cannot be resumed", "bad", str(refused))
    value = describe_resume(run, newest)
    return Finding("resume", value, "warning" if sentences else "ok", "\n".join(sentences))


def check_saving(run: Run) -> list[Finding]:
    """Checks the room for checkpoints and one save, with the run's own model after an update without data."""
    try:
        state = new_state(run.task, run.config)
        for parameter in state.parameters:
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, 1e-3)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step = 1
        seal_frozen(state, run.config)  # so that a save leaves out what the run's do
    except Exception as error:
        return [_refusal("model", run.config, error)]
    if not run.config.checkpoint.keep_last:
        return [Finding("save and resume", "not tried: no checkpoint is kept")]
    examinations = {"checkpoints": check_room, "save and resume": check_round_trip}
    return [run_check(name, partial(check, run, state)) for name, check in examinations.items()]


def check_room(run: Run, state: State) -> Finding:
    """Checks that disk and platform have room for the checkpoints that the run keeps."""
    options = run.config.checkpoint
    tensors = state_tensors(state, options.lightweight)
    sizes = {}
    for group, named in tensors.items():
        sizes[group] = sum(value.nbytes for value in named.values())
    whole = sum(sizes.values())
    best = (options.keep_best + 1) * sizes["model"] if options.keep_best else 0
    least = 2 * whole + best
    most = (options.keep_last + 1) * whole + best  # one more while it is written
    occupied = sum(disk.held(run.folder / kind)[0] for kind in ("checkpoints", "best"))
    room = Retention(run.folder, options).available() + occupied
    free = amount(max(0, room))
    value = f"{amount(whole)} each, {amount(most)} at most; there is room for {free}"
    if room >= least:
        return Finding("checkpoints", value)
    advice = f"A save needs room beside the one before it: {amount(least)}. Make room in {run.output_dir}."
    return Finding("checkpoints", value, "bad", advice)


def check_round_trip(run: Run, state: State) -> Finding:
    """Saves as the trainer does, wipes the state, restores it as the trainer does, and compares every bit."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / run.config.run.name
        begin = time.perf_counter()
        lightweight = run.config.checkpoint.lightweight
        with Saver(folder, Retention(folder, run.config.checkpoint)) as saver:
            save_state(state, run.task, run.config, saver)
            saver.wait()
        saved_at = time.perf_counter()
        saved = checkpoint.load(checkpoint.path_of(folder / "checkpoints", state.step))
        scale = state.scaler.state_dict()
        different = differences(saved.tensors, state_tensors(state, lightweight))
        # Zeros, so that the next comparison reads only the disk
        for named in state_tensors(state, lightweight).values():
            for value in named.values():
                value.zero_()
        state.optimizer.state.clear()
        restore_state(state, saved)
        different += differences(saved.tensors, state_tensors(state, lightweight))
        different += ["the loss scale"] * (state.scaler.state_dict() != scale)
        size = disk.held(folder)[0]
        seconds = (saved_at - begin, time.perf_counter() - saved_at)
    if different:
        advice = (
            f"{len(different)} did not come back, such as {', '.join(different[:3])}. A resumed run would differ. "
            "Does the model replace its tensors while it trains?"
        )
        return Finding("save and resume", "not the same", "bad", advice)
    times = f"saved in {seconds[0]:.1f} s, restored in {seconds[1]:.1f} s"
    return Finding("save and resume", f"{amount(size)} {times}: the same bit for bit")


def differences(saved: Groups, restored: Groups) -> list[str]:
    """Lists the tensors that are not in both, or differ in shape, dtype or any bit."""
    first = _fingerprints(saved)
    second = _fingerprints(restored)
    names = first.keys() | second.keys()
    return sorted(name for name in names if first.get(name) != second.get(name))


def _fingerprints(groups: Groups) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    fingerprints = {}
    for group, named in groups.items():
        for name, value in named.items():
            bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest = hashlib.sha256(bits.numpy().data).digest()
            fingerprints[f"{group}/{name}"] = (value.dtype, value.shape, digest)
    return fingerprints
