"""Finds the checkpoint that a run resumes from, also after memory ran out."""

import contextlib
import shutil

from lib import checkpoint, ranks
from lib.checkpoint import contents
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import disk, memory
from lib.machine.inputs import saved_facts
from lib.prepared import Run
from lib.report.metrics import EVENTS, METRICS, EventLog
from lib.training import identity, loop, optimization, stopping
from lib.training.session import Session
from lib.training.summary import Summary
from trainbook.launch.run import accepted_changes, progress
from trainbook.outputs.packing import TRACKING

ATTEMPTS = 3  # in a row without a new checkpoint


def announce(run: Run) -> checkpoint.Checkpoint | None:
    """Returns the checkpoint of `look_for_checkpoint`, renames damaged ones, and prints the run's start."""
    saved, sentences = look_for_checkpoint(run, quarantine=True)
    print("\n".join([*sentences, describe_resume(run, saved)]), flush=True)
    return saved


def look_for_checkpoint(
    run: Run, quarantine: bool = False
) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """Returns the newest valid checkpoint, and lines; `quarantine` renames damaged ones. Raises BadInput."""
    lines: list[str] = []
    name = run.config.run.name
    resume_from = run.config.run.resume_from
    for place in run.places:
        is_output = place.resolve() == run.folder.resolve()
        saved, sentences = checkpoint.load_newest(
            place / "checkpoints", is_output and quarantine, contents.check
        )
        lines += sentences
        if saved:
            origin = saved.path.parent.parent
            accepted = accepted_changes(run.config.run.accept_changes, origin)
            try:
                lines.append(
                    identity.check(saved.state["identity"], run.identity, origin, accepted=accepted)
                )
            except BadInput as refused:
                raise BadInput("\n".join([*lines, str(refused)])) from None
            if "optimizer" not in saved.tensors:
                lines.append(
                    "The checkpoint is lightweight: the run resumes, but its optimizer starts anew."
                )
            return saved, [line for line in lines if line]
    if lines:
        advice = "To start afresh, delete these folders or choose another run.name."
        raise BadInput(
            "\n".join(
                [*lines, f"No checkpoint of {name} is whole, and nothing was deleted. {advice}"]
            )
        )
    if resume_from:
        advice = "Give the output folder of the earlier session, the folder of the run in it, or leave it empty."
        raise BadInput(
            f"run.resume_from is {resume_from}, which has no checkpoint of {name}. {advice}"
        )
    return None, []


def check_completed(run: Run, summary: Summary) -> str:
    """Returns a warning if a completed run differs from this configuration; raises BadInput if a resumed one would."""
    saved = summary.identity or saved_facts("identity", run.folder)
    accepted = accepted_changes(run.config.run.accept_changes, run.folder)
    if saved:
        return identity.check(saved, run.identity, run.folder, is_completed=True, accepted=accepted)
    return ""


def how_to_continue(summary: Summary) -> str:
    """Names the key that continues a completed run; a run that stopped early needs another one."""
    if summary.why_early:
        return f"{summary.why_early} {stopping.HOW_TO_CONTINUE}"
    return "A larger training.max_steps continues it."


def describe_resume(run: Run, saved: checkpoint.Checkpoint | None) -> str:
    """Returns the checkpoint, its step, how many steps are left, and a changed learning rate: a line each."""
    total = run.config.training.max_steps
    name = run.config.run.name
    if saved is None:
        return f"No earlier checkpoint of {name}: training starts at step 0 of {total:,}."
    left = max(0, total - saved.step)
    if left and stopping.is_stopped(saved.state, run.config.training):
        return f"{name} stopped early at step {saved.step:,} ({saved.path}). {stopping.HOW_TO_CONTINUE}"
    step = f"{saved.step:,}"
    line = f"Resuming {name} from {saved.path}, step {step}: {left:,} of {total:,} steps left."
    seam = ""
    if left:
        seam = optimization.seam(saved.state["identity"], run.config, saved.step)
    return f"{line}\n{seam}" if seam else line


def newest_summary(run: Run) -> Summary:
    """Returns the newest summary of an earlier session; killed sessions leave no summary."""
    first = Summary(run.config.run.name, run.config.task, "failed", session=0)
    return next(filter(None, map(Summary.read, [run.folder, *run.places])), first)


def bring_along(run: Run, saved: checkpoint.Checkpoint) -> None:
    """Copies history and best weights of a run resumed from elsewhere. Raises BadInput."""
    origin = saved.path.parent.parent
    if origin.resolve() == run.folder.resolve():
        return
    for name in (METRICS, EVENTS):
        with disk.needed(run.folder / name, f"Nothing is lost: {origin} stays as it is."):
            (run.folder / name).unlink(missing_ok=True)  # of a start that was killed
            if (origin / name).is_file() and not (origin / name).is_symlink():
                shutil.copyfile(origin / name, run.folder / name)
    if (origin / TRACKING).is_dir() and not (origin / TRACKING).is_symlink():
        shutil.rmtree(run.folder / TRACKING, ignore_errors=True)
        with contextlib.suppress(OSError):  # trackers then begin new runs
            for path in (origin / TRACKING).rglob("*"):
                if path.is_file() and not path.is_symlink():  # and no pipe or device
                    place = run.folder / path.relative_to(origin)
                    disk.make_folders(place.parent)
                    shutil.copyfile(path, place)
    for step in checkpoint.steps(origin / "best"):
        # One that is damaged or cannot be saved gives way to the next best
        with contextlib.suppress(checkpoint.DamagedCheckpoint, checkpoint.CheckpointNotSaved):
            weights = checkpoint.load_model(checkpoint.path_of(origin / "best", step))
            tensors = {"model": weights.tensors["model"]}
            checkpoint.save(run.folder / "best", step, tensors, weights.state)


def train(run: Run, session: Session, saved: checkpoint.Checkpoint | None) -> loop.Outcome:
    """Trains from `saved`; after OutOfMemory again from the newest checkpoint, in smaller micro-batches."""
    training = run.config.training
    folder = run.folder / "checkpoints"
    limit = newest_summary(run).limit
    samples = limit.get("samples", 0)
    is_same = isinstance(samples, int) and limit == {"samples": samples, **training.sizes}
    most = ranks.from_first(max(0, samples) if is_same else 0)
    if 0 < most < (training.micro_batch or training.slot):
        print(
            f"Memory ran out in an earlier session: a micro-batch has at most {most} samples. "
            "Another training.micro_batch or training.gradient_checkpointing lifts that."
        )
    left = ATTEMPTS
    reached = checkpoint.newest_step(folder)
    while True:
        try:
            return loop.train(run.task, run.config, run.folder, session, progress(run), saved, most)
        except Exception as error:
            if isinstance(error, OutOfMemory):  # a new one, without the traceback
                failure = OutOfMemory(error.text, error.micro_batch, error.advice, error.before)
            elif isinstance(error, BadInput | TrainingFailed) or not memory.is_oom(error):
                raise
            else:
                failure = OutOfMemory(
                    "Memory ran out before the first step: model and states do not fit.",
                    0,
                    "Make the model smaller, or take a larger card.",
                )
            now = checkpoint.newest_step(folder)
            if now > reached:
                reached = now
                left = ATTEMPTS
            left -= 1
            if ranks.world() > 1 or not failure.micro_batch or not left:
                raise failure from error
        memory.clear_memory()  # outside the except block: inside it the traceback pins model and optimizer
        saved, sentences = look_for_checkpoint(run, quarantine=True)
        print("".join(f"{sentence}\n" for sentence in sentences), end="")
        most = failure.micro_batch
        step = 0
        start = "the first step"
        if saved:
            step = saved.step
            start = f"step {step:,}"
        text = f"{failure.text} Training starts again from {start} in micro-batches of {most}."
        EventLog(run.folder / EVENTS).record(step, "oom_restart", failure.before, most, text)
