"""The micro-batch that the next start may have at most, kept in summary.json where memory ran out."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lib.config import Config
from lib.report.summary import Summary


def after(folder: Path, config: Config, error: BaseException) -> dict[str, Any]:
    """Returns what a summary keeps after an error: the smaller size of an OutOfMemory, or what was kept before."""
    if size := getattr(error, "micro_batch", 0):
        return {"samples": size, **_asked_for(config)}
    earlier = Summary.read(folder)
    return earlier.limit if earlier else {}


def keep(folder: Path, config: Config, error: BaseException) -> None:
    """Writes the smaller size of an OutOfMemory into the summary of a run whose processes have ended."""
    earlier = Summary.read(folder) or Summary(config.run.name, config.task, "failed", error=str(error))
    dataclasses.replace(earlier, limit=after(folder, config, error)).write(folder)


def newest(folders: Iterable[Path], config: Config) -> int:
    """Returns the most samples of a micro-batch that the first summary in `folders` keeps; 0 for none.

    It holds as long as the configuration asks for the same micro-batch and recomputation.
    """
    earlier = next(filter(None, map(Summary.read, folders)), None)
    limit = dict(earlier.limit) if earlier else {}
    samples = limit.pop("samples", 0)
    return max(0, samples) if isinstance(samples, int) and limit == _asked_for(config) else 0


def _asked_for(config: Config) -> dict[str, Any]:
    training = config.training
    return {"micro_batch": training.micro_batch, "gradient_checkpointing": training.gradient_checkpointing}
