"""Puts a summary into words; card.json: a run's measurements on its GPU, beside its plan."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.text import aligned
from lib.training.summary import Summary

CARD = "card.json"
_MOST_BYTES = 2**22
# "functions ending with _error, _loss, or _deviance return a value to minimize", "_score" to maximize: scikit-learn's
# guide, 3.4
_SMALLER = ("_error", "_loss", "_deviance")
_ERRORS = ("loss", "mse", "rmse", "mae", "mape", "rmsle")


def with_all(scores: Mapping[str, float], baseline: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that a summary keeps: the baseline's in its order, then all others but the loss."""
    names = [name for name in baseline if name in scores]
    names += [name for name in scores if name not in baseline and name != "loss"]
    return {name: scores[name] for name in names}


def is_error(metric: str) -> bool:
    """Returns whether less of a metric is better, by its name."""
    return metric in _ERRORS or metric.endswith(_SMALLER)


def results(summary: Summary) -> str:
    """Returns a row for each test metric beside the baseline's, with its gain, and the task's report.

    Of an error the gain is by how much it is less.
    """
    metrics = dict(summary.metrics)
    baseline = summary.baseline
    if summary.test_loss is not None:
        metrics.setdefault("loss", summary.test_loss)
    rows = [("metric", "baseline", "model", "gain")]
    for name, value in metrics.items():
        other = baseline.get(name)
        if other is None:
            rows.append((name, "", f"{value:.3f}", ""))
        else:
            gain = other - value if is_error(name) else value - other
            rows.append((name, f"{other:.3f}", f"{value:.3f}", f"{gain:+.3f}"))
    table = aligned(rows, left={0}) if metrics else ""
    return "\n\n".join(filter(None, [table, summary.report]))


@dataclass(frozen=True)
class Predicted:
    """A plan's figures for a run as configured; all 0 without a plan."""

    micro_batch: int = 0
    peak_bytes: int = 0
    step_seconds: list[float] = field(default_factory=list)  # at best and at worst


@dataclass(frozen=True)
class Card:
    """A GPU, and a session's measurements on it. `clocks` are in MHz and degrees, if the driver answers."""

    gpu: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    run: str = ""
    world_size: int = 1
    precision: str = ""
    micro_batch: int = 0
    steps: int = 0
    peak_bytes: int = 0
    step_seconds: float = 0.0
    loss_scale: float = 0.0  # 0: no scaling
    skipped_steps: int = 0
    predicted: Predicted = field(default_factory=Predicted)

    def write(self, folder: Path) -> None:
        disk.make_folders(folder)
        disk.write_text(folder / CARD, json.dumps(asdict(self), indent=1) + "\n")


def read_card(path: Path) -> Card:
    """Reads a `card.json`, which is untrusted. Raises BadInput."""
    try:
        return untrusted.parse(untrusted.read(path, _MOST_BYTES), Card)
    except (OSError, BadInput) as error:
        reason = printable(getattr(error, "strerror", None) or error, most=200)
        raise BadInput(
            f"{printable(path)} is no {CARD} of a run ({reason}). The archive of a run on a GPU has it."
        ) from None
