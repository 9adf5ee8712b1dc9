"""Trains on in smaller micro-batches where memory ran out at a place from which a step cannot be repeated."""

from typing import Any

from lib import checkpoint, ranks
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.launch.resume import find_checkpoint, resume_folders
from lib.launch.run import Run
from lib.machine import memory
from lib.report.metrics import EVENTS, EventLog
from lib.report.progress import choose_progress
from lib.report.summary import Summary
from lib.training import loop
from lib.training.session import Session

ATTEMPTS = 3  # in a row without a new checkpoint


def train(run: Run, session: Session, found: checkpoint.Checkpoint | None) -> loop.Outcome:
    """Trains from `found`, and again from the newest checkpoint with the smaller micro-batch of an OutOfMemory.

    Raises OutOfMemory where that does not help, or where there are other ranks: the launching process starts all again.
    """
    most = ranks.from_first(_limit_of_last_session(run) if ranks.is_first() else 0)
    training, folder = run.config.training, run.folder / "checkpoints"
    if 0 < most < (training.micro_batch or training.effective_batch // training.micro_batch_slots):
        print(
            f"Memory ran out in an earlier session: a micro-batch has at most {most} samples. Another "
            "training.micro_batch or training.gradient_checkpointing lifts that."
        )
    left, reached = ATTEMPTS, checkpoint.newest_step(folder)
    while True:
        try:
            return loop.train(run.task, run.config, run.folder, session, choose_progress(), found, most)
        except Exception as error:
            failure = _without_traceback(error)
            if failure is None:
                raise
            now = checkpoint.newest_step(folder)
            left, reached = (ATTEMPTS if now > reached else left) - 1, max(now, reached)
            if ranks.world() > 1 or not failure.micro_batch or not left:
                raise failure from error
        memory.clear_memory()  # outside the except block, where the traceback no longer pins model and optimizer
        found = find_checkpoint(run)
        EventLog(run.folder / EVENTS).record(
            found.step if found else 0, "oom_restart", failure.before, failure.micro_batch,
            f"{failure.text} Training starts again from {f'step {found.step:,}' if found else 'the first step'} in "
            f"micro-batches of {failure.micro_batch}.",
        )  # fmt: skip
        most = failure.micro_batch


def limit_for_next_session(run: Run, error: BaseException) -> dict[str, Any]:
    """Returns what a summary notes: the smaller size of an OutOfMemory, or the one noted before, and what it is for."""
    if size := getattr(error, "micro_batch", 0):
        return {"samples": size, **_asked_for(run)}
    earlier = Summary.read(run.folder)
    return earlier.limit if earlier else {}


def _limit_of_last_session(run: Run) -> int:
    """Returns the most samples of a micro-batch that an earlier session noted, here or in an input; 0 for none.

    It holds as long as the configuration asks for the same micro-batch and recomputation.
    """
    folders = [run.folder, *(folder.parent for folder in resume_folders(run))]
    earlier = next(filter(None, map(Summary.read, folders)), None)
    limit = dict(earlier.limit) if earlier else {}
    samples = limit.pop("samples", 0)
    return max(0, samples) if isinstance(samples, int) and limit == _asked_for(run) else 0


def _asked_for(run: Run) -> dict[str, Any]:
    training = run.config.training
    return {"micro_batch": training.micro_batch, "gradient_checkpointing": training.gradient_checkpointing}


def _without_traceback(error: Exception) -> OutOfMemory | None:
    """Returns the OutOfMemory that an error means; None for any other."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.text, error.micro_batch, error.advice, error.before)
    if isinstance(error, BadInput | TrainingFailed) or not memory.is_oom(error):
        return None
    return OutOfMemory(
        "Memory ran out before the first step: the model and its states alone do not fit.",
        0,
        "Make the model smaller, take a card with more memory, or divide the states among several by "
        "training.fully_shard.",
    )
