"""Whether a checkpoint belongs to a run: what must agree, and what only changes the bits."""

import platform
import textwrap
from collections.abc import Mapping
from typing import Any

import torch

from lib import ranks
from lib.config import REMOVED, Config
from lib.config.reader import flat
from lib.errors import BadInput, printable
from lib.task import Task
from lib.text import aligned

# What decides which samples a step sees: with another value it would not be the same run.
_REFUSED = ("task", "data fingerprint", "seed", "training.effective_batch", "training.micro_batch_slots")
# May differ without a warning: it changes neither samples nor arithmetic.
_HARMLESS = (
    "output_dir", "run.", "session.", "queue.", "checkpoint.", "device.", "data.dir", "data.num_workers",
    "data.prefetch_factor", "data.pin_memory", "training.smoke_steps",
)  # fmt: skip


def facts(config: Config, task: Task) -> dict[str, Any]:
    """Returns what a checkpoint keeps to be recognised by: configuration, data, and the machine that computed it."""
    training = config.training
    slot = training.effective_batch // training.micro_batch_slots
    # Micro-batches of a step. Two gradients add up to the same bits in either order, more do not; then the number of
    # ranks changes bits. So it does under FSDP2, where the gradient's norm is summed in pieces.
    addends = training.micro_batch_slots * -(-slot // min(training.micro_batch or slot, slot))
    telling = {key: value for key, value in flat(config).items() if not key.startswith(_HARMLESS)}
    return {
        **{key: list(value) if isinstance(value, tuple) else value for key, value in telling.items()},
        "data fingerprint": task.fingerprint(),
        "version of torch": torch.__version__,
        "version of Python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "CPU threads": torch.get_num_threads(),
        **({"ranks": ranks.world()} if addends > 2 or training.fully_shard else {}),
    }


def check(saved: Mapping[str, Any], now: Mapping[str, Any], where: object) -> str:
    """Returns a warning about what differs between a checkpoint and this run, empty where nothing does.

    Raises BadInput, with a table, where what differs decides which samples a step sees.
    """
    keys = [key for key in {**saved, **now} if key not in REMOVED]
    different = [key for key in keys if saved.get(key) != now.get(key)]
    refused = [key for key in _REFUSED if key in different]
    if refused:
        raise BadInput(
            f"The run in {where} cannot be resumed with this configuration:\n{_table(refused, saved, now)}\n"
            "Go back to the saved values, or start a new run under another run.name."
        )
    if not different:
        return ""
    return f"The run resumes, but not bit for bit, because these differ:\n{_table(different, saved, now)}"


def _table(keys: list[str], saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    shown = ((printable(key), printable(saved.get(key, "-")), printable(now.get(key, "-"))) for key in keys)
    rows = [("", "saved", "now"), *shown]
    return textwrap.indent(aligned(rows, left={0, 1, 2}), "  ")
