"""Workloads: their contract, how one is loaded, and the checks of its results."""

from lib.task.contract import SPLITS, Batch, Task
from lib.task.loading import (
    find_task,
    load_config,
    load_task,
    locate_data,
    model_on_meta,
    with_slots,
)

__all__ = [
    "SPLITS", "Batch", "Task", "find_task", "load_config", "load_task", "locate_data", "model_on_meta", "with_slots",
]  # fmt: skip
