"""Workloads: the contract that each keeps, how one is found, and the checks of what it returns."""

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
