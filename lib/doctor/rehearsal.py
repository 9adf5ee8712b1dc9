"""Examines a run before it starts: its numbers, its room on the disk, and one real save and resume."""

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from lib import checkpoint, launch
from lib.checkpoint.retention import Retention
from lib.checkpoint.saver import Saver
from lib.config import Config, profiles
from lib.config.batches import micro_batch_of, slot_of
from lib.doctor import addresses, findings, machine
from lib.doctor.findings import Finding
from lib.errors import BadInput
from lib.launch import Run
from lib.launch.resume import check_completed, describe_resume, how_to_continue, look_for_checkpoint
from lib.machine import disk, hardware, memory, platform
from lib.report.summary import Summary
from lib.task import checked_blocks
from lib.text import amount
from lib.training import contract
from lib.training.precision import about_precision, choose_precision
from lib.training.recomputation import recomputable, recomputed_layers
from lib.training.state import State, new_state, restore_state, save_state, state_tensors

Groups = dict[str, dict[str, Tensor]]

NO_KERNELS = "not tried: this build of PyTorch has no kernels for the GPU"


def check_run(config: Config) -> list[Finding]:
    """Checks what a configuration will do on this machine. Writes nothing in the run's folder, downloads nothing.

    What takes no time comes first, and data is only read where that found nothing bad.
    """
    folder = platform.output_dir(config) / config.run.name
    first = [check_precision(config), findings.run_check("output path", lambda: check_output(folder))]
    remote = addresses.remote(config)
    first += addresses.check_addresses(remote)
    if any(finding.verdict == "bad" for finding in first):
        return [*first, Finding("data", "not read, because of what is bad above", "warning", "Correct that first.")]
    if remote:
        value = (
            f"the run downloads it from {len(remote)} address{'es' * (len(remote) > 1)}; nothing was downloaded here"
        )
        advice = "Length, resuming and a save are not checked without it. Download it, and give its folder as data.dir."
        return [*first, Finding("data", value, "warning", advice)]
    try:
        run = launch.prepare(config)
    except BadInput as refused:
        return [*first, Finding("configuration", "refused", "bad", str(refused))]
    except Exception as error:
        if not contract.place_of(error):
            raise
        return [*first, Finding("data", "could not be read", "bad", contract.explained(config.task, error))]
    checks = [
        ("data", lambda: Finding("data", run.task.describe_data())),
        ("length", lambda: Finding("length", "\n".join([f"{run.config.training.max_steps:,} steps", *run.lengths]))),
        ("accumulation", lambda: check_accumulation(run.config)),
        ("save interval", lambda: check_save_interval(run.config)),
        ("resume", lambda: check_resume(run)),
        ("contract", lambda: check_contract(run)),
    ]
    return [*first, *(findings.run_check(name, check) for name, check in checks), *_state_checks(run)]


def check_precision(config: Config) -> Finding:
    """Names the number format of training, or why this machine does not have it."""
    device = memory.device()
    try:
        setting = profiles.apply(config, device.type != "cpu")[0].training.precision
        chosen = choose_precision(setting, device)
    except BadInput as refused:
        return Finding("precision", "refused", "bad", str(refused))
    where = str(hardware.gpus()[0]) if device.type == "cuda" else "the CPU"
    slow = about_precision(chosen, device)
    value = f"{chosen} on {where}; training.precision is {setting}"
    return Finding("precision", value, "warning" if slow else "ok", *slow)


def check_accumulation(config: Config) -> Finding:
    """Shows how the effective batch is cut into slots and micro-batches."""
    training = config.training
    slots, slot, micro = training.micro_batch_slots, slot_of(training), micro_batch_of(training)
    passes, rest = divmod(slot, micro)
    last = f", and one of {rest}" if rest else ""
    value = (
        f"effective batch {training.effective_batch} = {slots} slot{'s' * (slots > 1)} of {slot}, "
        f"each in {passes} micro-batch{'es' * (passes > 1)} of {micro}{last}"
    )
    advice = f"A training.micro_batch that divides {slot} leaves no remainder." if rest else ""
    return Finding("accumulation", value, "ok", advice)


def check_save_interval(config: Config) -> Finding:
    """Checks how often the run is saved, which is how much a killed session can lose."""
    options, total = config.checkpoint, config.training.max_steps
    if not options.keep_last:
        advice = "A run whose session ends early starts again at step 0. Set checkpoint.keep_last to 2."
        return Finding("save interval", "no checkpoint is kept (checkpoint.keep_last is 0)", "warning", advice)
    intervals = [f"{options.every_minutes:g} minutes"] if options.every_minutes else []
    intervals += [f"{options.every_steps:,} steps"] if 0 < options.every_steps < total else []
    if not intervals:
        advice = "A killed session loses all its work. Set checkpoint.every_minutes to 5."
        return Finding("save interval", "at the session's end only", "warning", advice)
    every = " or ".join(intervals) + (", whichever comes first" if len(intervals) > 1 else "")
    return Finding("save interval", f"every {every}: a kill loses at most that and the time of one save")


def check_resume(run: Run) -> Finding:
    """Checks where the run would resume: verifies every file of that checkpoint, and renames none."""
    summary = Summary.read(run.folder)
    total = run.config.training.max_steps
    if summary and summary.is_done(total, run.config.training.stop_after_evaluations):
        value = f"completed at step {summary.step:,}: there is nothing left to do"
        advice = f"{how_to_continue(summary)} Another run.name starts afresh."
        try:
            different = check_completed(run, summary)
        except BadInput as refused:
            return Finding("resume", "another run of this name was completed", "bad", str(refused))
        return Finding("resume", value, "warning" if different else "ok", f"{different}\n{advice}".strip())
    try:
        newest, sentences = look_for_checkpoint(run)
    except BadInput as refused:
        return Finding("resume", "the run cannot be resumed", "bad", str(refused))
    return Finding("resume", describe_resume(run, newest), "warning" if sentences else "ok", "\n".join(sentences))


def check_contract(run: Run) -> Finding:
    """Asks the task what a run would find out after hours: see lib/training/contract."""
    if _no_kernels():
        return Finding("contract", NO_KERNELS, "warning")
    found = contract.examine(run.task, run.config)
    both = "\n".join([*found.wrong, *found.doubts])
    if found.wrong:
        many = f"{len(found.wrong)} places" if len(found.wrong) > 1 else "one place"
        return Finding("contract", f"{type(run.task).__name__} breaks it in {many}", "bad", both)
    value = f"{type(run.task).__name__} keeps it, by some samples of each data set"
    return Finding("contract", value, "warning" if found.doubts else "ok", both)


def check_output(folder: Path) -> Finding:
    """Checks that the run's folder can be written to."""
    existing = next(path for path in (folder, *folder.absolute().parents) if disk.exists(path))
    if problem := machine.unwritable(existing):
        value = f"{folder} cannot be written to ({problem})"
        return Finding("output path", value, "bad", "Give another output_dir.")
    new = "" if folder.is_dir() else ", which will be made"
    return Finding("output path", f"{folder}{new}: writable")


def _no_kernels() -> bool:
    return torch.cuda.is_available() and machine.check_kernels().verdict == "bad"


# --- with the model and its optimizer ---------------------------------------------------------------------------------


def _state_checks(run: Run) -> list[Finding]:
    """Checks recomputation, size and one save with the run's own model, unless the GPU has no kernels for it."""
    name = "save and resume"
    if _no_kernels():
        return [Finding(name, NO_KERNELS, "warning")]
    try:
        state = _after_one_update(run)
    except BadInput as refused:
        return [Finding("model", "refused", "bad", str(refused))]
    except OSError as error:  # torch itself needs a temporary folder for its first optimizer
        advice = "See that the files it reads exist, and a temporary folder that can be written to (TMPDIR)."
        return [Finding("model", f"could not be made ({error})", "bad", advice)]
    except Exception as error:
        if not memory.is_oom(error):
            if not contract.place_of(error):
                raise
            return [Finding("model", "could not be made", "bad", contract.explained(run.config.task, error))]
        advice = "Make the model smaller, or use a machine with more memory. Activations need more on top."
        return [Finding("model", "its weights and the optimizer's states do not fit into memory", "bad", advice)]
    return [
        findings.run_check("recomputation", lambda: check_recomputation(run, state)),
        findings.run_check("checkpoints", lambda: check_room(run, state)),
        findings.run_check(name, lambda: check_round_trip(run, state)),
    ]


def _after_one_update(run: Run) -> State:
    """Returns the run's state with the optimizer's tensors, after one update from a made-up gradient, without data."""
    state = new_state(run.task, run.config)
    for parameter in state.parameters:
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1e-3)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step = 1
    return state


def check_recomputation(run: Run, state: State) -> Finding:
    """Counts the model's blocks that are recomputed in the backward pass."""
    asked = run.config.training.gradient_checkpointing
    blocks = recomputable(state.model, checked_blocks(run.task, state.model))
    if not blocks:
        return Finding("recomputation", "none; the model has no layers that are repeated, or recomputes them itself")
    return Finding("recomputation", f"{recomputed_layers(asked, blocks)} of {len(blocks)} blocks")


def check_room(run: Run, state: State) -> Finding:
    """Checks that disk and platform have room for the checkpoints that the run keeps."""
    options = run.config.checkpoint
    if not options.keep_last:
        return Finding("checkpoints", "none is kept")
    one, best = _bytes(state_tensors(state, run.config)), _bytes({"model": state_tensors(state, run.config)["model"]})
    weights = (options.keep_best + 1) * best if options.keep_best else 0
    least, most = 2 * one + weights, (options.keep_last + 1) * one + weights  # one more while it is written
    own = sum(disk.held(run.folder / kind)[0] for kind in ("checkpoints", "best"))
    room = Retention(run.folder, options).available() + own
    value = (
        f"{amount(one)} each, {amount(most)} at most with the last {options.keep_last} and the best "
        f"{options.keep_best}; there is room for {amount(max(0, room))}"
    )
    if room >= most:
        return Finding("checkpoints", value)
    if room < least:
        advice = f"A save needs room beside the one before it: {amount(least)}. Make room in {run.output_dir}."
        return Finding("checkpoints", value, "bad", advice)
    advice = "Older ones are deleted before checkpoint.keep_last is reached. Make room, or lower it."
    return Finding("checkpoints", value, "warning", advice)


def _bytes(groups: Groups) -> int:
    return sum(value.numel() * value.element_size() for group in groups.values() for value in group.values())


def check_round_trip(run: Run, state: State) -> Finding:
    """Saves as the trainer does, wipes the state, restores it as the trainer does, and compares every bit."""
    name = "save and resume"
    if not run.config.checkpoint.keep_last:
        return Finding(name, "not tried: no checkpoint is kept")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / run.config.run.name
        begin = time.perf_counter()
        with Saver(folder, Retention(folder, run.config.checkpoint)) as saver:
            save_state(state, run.task, run.config, saver)
            saver.wait()
        seconds = time.perf_counter() - begin
        saved = checkpoint.load(checkpoint.path_of(folder / "checkpoints", state.step))
        scaler = state.scaler.state_dict()
        different = differences(saved.tensors, state_tensors(state, run.config))
        for named in state_tensors(state, run.config).values():  # so that the next comparison is of the disk alone
            for value in named.values():
                value.zero_()
        state.optimizer.state.clear()
        begin = time.perf_counter()
        restore_state(state, saved)
        restored = time.perf_counter() - begin
        different += differences(saved.tensors, state_tensors(state, run.config))
        if state.scaler.state_dict() != scaler:
            different.append("the loss scale")
        size = disk.held(folder)[0]
    if different:
        advice = f"{len(different)} did not come back, such as {', '.join(different[:3])}. A resumed run would differ."
        return Finding(name, "not the same", "bad", f"{advice} Does the model replace its tensors while it trains?")
    return Finding(name, f"{amount(size)} saved in {seconds:.1f} s, restored in {restored:.1f} s: the same bit for bit")


def differences(one: Groups, other: Groups) -> list[str]:
    """Lists the tensors that are not in both, or differ in shape, dtype or any bit."""
    first, second = (
        {f"{group}/{key}": value for group, named in groups.items() for key, value in named.items()}
        for groups in (one, other)
    )
    different = first.keys() ^ second.keys()
    for name in first.keys() & second.keys():
        a, b = (tensors[name].detach().cpu().contiguous() for tensors in (first, second))
        if (a.shape, a.dtype) != (b.shape, b.dtype) or not torch.equal(_bits(a), _bits(b)):
            different.add(name)
    return sorted(different)


def _bits(value: Tensor) -> Tensor:
    return value.reshape(-1).view(torch.uint8)
