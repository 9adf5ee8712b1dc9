"""Finds the checkpoint that a run resumes from."""

import contextlib
import shutil
from pathlib import Path

from lib import checkpoint
from lib.checkpoint import contents, frozen
from lib.config import Config
from lib.config.files import read_bytes
from lib.errors import BadInput
from lib.launch import kept
from lib.launch.run import Run, as_run
from lib.machine import disk, platform
from lib.report.metrics import EVENTS, METRICS
from lib.report.summary import Summary
from lib.report.tracking import FOLDER as TRACKING
from lib.training import identity

SESSION = "session"  # in a run's folder: the number of the session at work, until there is a summary
_OPTIMIZER_IS_LOST = (
    "The checkpoint is lightweight: the optimizer starts anew, so the run resumes, but not bit for bit."
)


def find_checkpoint(run: Run) -> checkpoint.Checkpoint | None:
    """Returns the newest valid checkpoint of a run: from `run.resume_from`, the output folder, or an input.

    A damaged one is passed over with a line; in the run's own folder it is renamed. Raises BadInput where all are
    damaged, where another configuration or a later version made it, or where `run.resume_from` holds none.
    """
    found, sentences = look_for_checkpoint(run, quarantine=True)
    print("".join(f"{sentence}\n" for sentence in sentences), end="")
    return found


_announced: dict[Path, str] = {}  # by the folder of a run


def announce(run: Run) -> checkpoint.Checkpoint | None:
    """Does what `find_checkpoint` does, and prints what a run resumes from; what it printed last is not repeated."""
    found, sentences = look_for_checkpoint(run, quarantine=True)
    text = "\n".join([*sentences, describe_resume(run, found)])
    if not (platform.in_notebook() and _announced.get(run.folder) == text):
        print(text, flush=True)
    _announced[run.folder] = text
    return found


def look_for_checkpoint(run: Run, quarantine: bool = False) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """Does what `find_checkpoint` does, and returns its lines too; without `quarantine` nothing is renamed."""
    damaged: list[str] = []
    for folder in resume_folders(run):
        own = folder.resolve() == (run.folder / "checkpoints").resolve()
        found, sentences = checkpoint.load_newest(folder, own and quarantine, contents.check)
        damaged += sentences
        if found:
            now = identity.facts(run.config, run.task)
            try:
                began = found.path.parent.parent
                warning = identity.check(found.state["identity"], now, began, accepted=_accepted(run.config, began))
            except BadInput as refused:
                raise BadInput("\n".join([*damaged, str(refused)])) from None
            warnings = [warning] if warning else []
            if "optimizer" not in found.tensors:
                warnings.append(_OPTIMIZER_IS_LOST)
            return found, damaged + warnings
    if damaged:
        raise BadInput(
            "\n".join(damaged) + f"\nNo checkpoint of {run.config.run.name} is whole, and nothing was deleted. "
            "To start afresh, delete these folders or choose another run.name."
        )
    if run.config.run.resume_from:
        raise BadInput(
            f"run.resume_from is {run.config.run.resume_from}, which has no checkpoint of {run.config.run.name}. Give "
            "the output folder of the earlier session, the folder of the run in it, or leave it empty."
        )
    return None, []


def check_completed(run: Run, summary: Summary) -> str:
    """Returns a warning about what differs between a completed run and this configuration, empty where nothing does.

    Raises BadInput where resuming would.
    """
    saved = summary.identity or kept.identity(run.folder / "checkpoints")
    now, accepted = identity.facts(run.config, run.task), _accepted(run.config, run.folder)
    return identity.check(saved, now, run.folder, is_completed=True, accepted=accepted) if saved else ""


def _accepted(config: Config, folder: Path) -> str | None:
    """Returns the beginning of the keys that may differ; after an error in the task's code, that code was corrected."""
    if config.run.accept_changes:
        return ""
    summary = Summary.read(folder)
    return "code of the task" if summary and (summary.missing or summary.reason == "failed") else None


def how_to_continue(summary: Summary) -> str:
    """Says what makes a completed run go on; one that stopped early has other ways than one that reached its end."""
    if not summary.why_early:
        return "A larger training.max_steps continues it."
    waited = summary.stopped_early.get("evaluations")
    return (
        f"{summary.why_early} A larger training.max_steps does not continue it. training.stop_after_evaluations does, "
        f"with 0 or more than {waited}."
    )


def check_settings(summary: Summary, config: Config, folder: Path) -> None:
    """Raises BadInput where other settings or code made the completed run in `folder`; it reads no data for that."""
    if summary.identity:
        config, _ = as_run(config)
        identity.check_settings(summary.identity, config, folder, _accepted(config, folder))


def resume_folders(run: Run) -> list[Path]:
    """Returns where checkpoints of a run may lie, in the order in which they are tried."""
    return [folder / "checkpoints" for folder in kept.earlier(run.config)]


def describe_resume(run: Run, found: checkpoint.Checkpoint | None) -> str:
    """Returns one sentence: the checkpoint, its step, and how many steps are left."""
    total = run.config.training.max_steps
    if found is None:
        return f"No earlier checkpoint of {run.config.run.name}: training starts at step 0 of {total:,}."
    stopping = found.state.get("stopping", {})
    if 0 < run.config.training.stop_after_evaluations <= stopping.get("waited", 0) and found.step < total:
        how = "a larger training.stop_after_evaluations, or 0, continues it"
        return f"{run.config.run.name} stopped early at step {found.step:,} ({found.path}): {how}."
    left = max(0, total - found.step)
    return f"Resuming {run.config.run.name} from {found.path}, step {found.step:,}: {left:,} of {total:,} steps left."


def sessions(run: Run) -> int:
    """Returns how many sessions a run had, killed ones included, which leave no summary."""
    with contextlib.suppress(BadInput):  # of run.resume_from, which the search for a checkpoint says
        for folder in resume_folders(run):
            if checkpoint.steps(folder):
                summary, counted = Summary.read(folder.parent), 1
                with contextlib.suppress(OSError, ValueError):  # the first session writes none
                    counted = int(read_bytes(folder.parent / SESSION, 20))
                return max(counted, summary.session if summary else 0)
    return 0


def bring_along(run: Run, found: checkpoint.Checkpoint) -> None:
    """Copies history, best and frozen weights of a run that is resumed from elsewhere.

    Raises BadInput where the frozen weights, which no checkpoint has, cannot be written.
    """
    origin = found.path.parent.parent
    if origin.resolve() == run.folder.resolve():
        return
    for name in (METRICS, EVENTS):
        with disk.needed(run.folder / name, f"Nothing is lost: {origin} stays as it is."):
            (run.folder / name).unlink(missing_ok=True)  # of a start that was killed
            if (origin / name).is_file() and not (origin / name).is_symlink():
                shutil.copyfile(origin / name, run.folder / name)
    if (origin / TRACKING).is_dir() and not (origin / TRACKING).is_symlink():
        shutil.rmtree(run.folder / TRACKING, ignore_errors=True)
        try:
            shutil.copytree(origin / TRACKING, run.folder / TRACKING, ignore=_irregular)
        except OSError as error:
            print(f"Warning: {origin / TRACKING} could not be copied ({error}): trackers begin new runs.")
    for kind in ("best", frozen.FOLDER):
        for step in checkpoint.steps(origin / kind):
            with contextlib.suppress(checkpoint.DamagedCheckpoint):  # then the next best
                kept = checkpoint.load_model(checkpoint.path_of(origin / kind, step))
                try:
                    checkpoint.save(run.folder / kind, step, {"model": kept.tensors["model"]}, kept.state)
                except checkpoint.CheckpointNotSaved as error:
                    if kind == frozen.FOLDER:
                        raise BadInput(
                            f"The frozen weights of {origin} could not be copied, and without them no later session "
                            f"could go on from this one. {error} Nothing was trained, and {origin} stays as it is."
                        ) from error


def _irregular(folder: str, names: list[str]) -> list[str]:
    """Returns the links, pipes and devices of a folder, which no run brings along."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.is_symlink() or not (path.is_file() or path.is_dir())]
