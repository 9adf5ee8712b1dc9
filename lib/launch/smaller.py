"""Trains on in smaller micro-batches where memory ran out at a place from which a step cannot be repeated."""

from lib import checkpoint, ranks
from lib.config.batches import slot_of
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.launch import limits, watching
from lib.launch.resume import find_checkpoint, resume_folders
from lib.launch.run import Run
from lib.machine import memory
from lib.report.metrics import EVENTS, EventLog
from lib.training import loop
from lib.training.session import Session

ATTEMPTS = 3  # in a row without a new checkpoint


def train(run: Run, session: Session, found: checkpoint.Checkpoint | None) -> loop.Outcome:
    """Trains from `found`, and again from the newest checkpoint with the smaller micro-batch of an OutOfMemory.

    Raises OutOfMemory where that does not help, or where there are other ranks: the launching process starts all again.
    """
    places = [run.folder, *(folder.parent for folder in resume_folders(run))] if ranks.is_first() else []
    most = ranks.from_first(limits.newest(places, run.config))
    training, folder = run.config.training, run.folder / "checkpoints"
    if 0 < most < (training.micro_batch or slot_of(training)):
        print(
            f"Memory ran out in an earlier session: a micro-batch has at most {most} samples. Another "
            "training.micro_batch or training.gradient_checkpointing lifts that."
        )
    left, reached = ATTEMPTS, checkpoint.newest_step(folder)
    while True:
        try:
            return loop.train(run.task, run.config, run.folder, session, watching.progress(run), found, most)
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
