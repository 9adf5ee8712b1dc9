"""What a run takes of the machine's own memory, beside what Python and PyTorch take."""

from dataclasses import dataclass

import torch

from lib.config import Config
from lib.config.batches import slot_of
from lib.planner.trace import seeded
from lib.task import Task
from lib.text import amount
from lib.training.sizes import saved_bytes


@dataclass(frozen=True)
class Host:
    """Bytes in the machine's memory. On a GPU both are pinned: the system cannot swap them."""

    copied_bytes: int  # the copy of all states that a checkpoint is written from while training goes on
    waiting_bytes: int  # slots of batches that are there at once, on all cards
    workers: int  # of all cards

    def sentence(self) -> str:
        """Returns what a person is to know of it."""
        by = f" prepared by {self.workers} workers" if self.workers else ""
        parts = [f"{amount(self.copied_bytes)} for the copy that checkpoints are written from"] * bool(
            self.copied_bytes
        )
        parts.append(f"{amount(self.waiting_bytes)} for batches{by}")
        return f"The machine's own memory: {', '.join(parts)}; beside these Python, PyTorch and the data take theirs."


def of_run(task: Task, config: Config, cards: int) -> Host:
    """Counts it for a run on so many cards. A worker keeps `data.prefetch_factor` slots; without one there is one."""
    held = max(1, config.data.num_workers * config.data.prefetch_factor)
    with seeded():
        batch = task.example_batch(slot_of(config.training), torch.device("cpu"))
        copied = saved_bytes(task, config)[0] if config.checkpoint.keep_last else 0
    waiting = cards * held * sum(value.nbytes for value in batch.values())
    return Host(copied, waiting, cards * config.data.num_workers)
