"""summary.json: how a run ended and what it reached; card.json: what it met on its GPU, beside its plan."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from lib import untrusted
from lib.config import Training
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.text import aligned

FILE = "summary.json"
CARD = "card.json"
_MOST_BYTES = 2**22
Reason = Literal["completed", "deadline", "interrupted", "failed"]


@dataclass(frozen=True)
class Summary:
    """One session's end of a run. What does not apply (the speed of an ensemble, the error of a good end) is empty."""

    run: str
    task: str
    reason: Reason
    step: int = 0
    max_steps: int = 0
    session: int = 1  # counted over the sessions of the run
    error: str = ""  # why it failed
    missing: dict[str, str] = field(
        default_factory=dict
    )  # what a completed run lacks ("test", "plot"), and why
    metrics: dict[str, float] = field(default_factory=dict)  # on the test set, once completed
    baseline: dict[str, float] = field(
        default_factory=dict
    )  # the strongest baseline's, by the same names
    test_loss: float | None = None
    report: str = ""  # what the task says of its result: criteria, advice, where its tables are
    best: dict[str, Any] = field(
        default_factory=dict
    )  # {"metric", "step", "value"} of the best validation
    members: list[str] = field(default_factory=list)  # the runs of an ensemble
    steps_per_second: float = 0.0
    peak_memory_bytes: int = 0
    micro_batch: int = 0
    precision: str = ""
    skipped_steps: int = 0
    stopped_early: dict[str, Any] = field(
        default_factory=dict
    )  # "evaluations" without gain, and the "text" on it
    world_size: int = 1
    limit: dict[str, Any] = field(
        default_factory=dict
    )  # "samples" of the next micro-batch, and the sizes it is for
    identity: dict[str, Any] = field(
        default_factory=dict
    )  # what a checkpoint is recognised by: see training.identity

    def is_done(self, training: Training) -> bool:
        """Returns whether the run is completed, and these settings leave nothing to train."""
        waited = self.stopped_early.get("evaluations")
        has_stopped = isinstance(waited, int) and 0 < training.stop_after_evaluations <= waited
        return self.reason == "completed" and (self.step >= training.max_steps or has_stopped)

    @property
    def why_early(self) -> str:
        return str(self.stopped_early.get("text", ""))

    def write(self, folder: Path) -> None:
        """Writes `summary.json` into a run's folder, whole or not at all; metrics keep their order. Raises OSError."""
        finite = json.loads(
            json.dumps(asdict(self)), parse_constant=lambda _: None
        )  # JSON has no nan and no infinity
        disk.write_text(folder / FILE, json.dumps(finite, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Summary | None":
        """Returns the summary in a folder, None if unreadable. A key that is missing or misfits has its default."""
        try:
            values = untrusted.objects(untrusted.read(folder / FILE, _MOST_BYTES))
        except (OSError, ValueError):
            return None
        kinds = {f.name: f.type for f in fields(cls)} | dict.fromkeys(("metrics", "baseline"), dict)
        fitting = {
            n: values[n]
            for n, kind in kinds.items()
            if n in values and untrusted.fits(values[n], kind)
        }
        for name in {"metrics", "baseline"} & fitting.keys():
            numbers = {n: v for n, v in fitting[name].items() if untrusted.fits(v, float | None)}
            fitting[name] = {
                printable(n): math.nan if value is None else value for n, value in numbers.items()
            }
        if "reason" in fitting:
            return cls(**{"run": folder.name, "task": "", **fitting})
        return None


def with_all(scores: Mapping[str, float], baseline: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that a summary keeps: those of the baseline in its order, then all others but the loss."""
    first = [name for name in baseline if name in scores]
    return {
        name: scores[name]
        for name in [*first, *(n for n in scores if n not in baseline and n != "loss")]
    }


def results(summary: Summary) -> str:
    """Returns a row for each test metric beside the baseline's, and the task's report."""
    metrics = dict(summary.metrics)
    baseline = summary.baseline
    if summary.test_loss is not None:
        metrics.setdefault("loss", summary.test_loss)
    rows = [("metric", "baseline", "model", "difference")]
    for name, value in metrics.items():
        other = baseline.get(name)
        if other is None:
            cells = ("", "")
        else:
            cells = (f"{other:.3f}", f"{value - other:+.3f}")
        rows.append((name, cells[0], f"{value:.3f}", cells[1]))
    return "\n\n".join(filter(None, [aligned(rows, left={0}) if metrics else "", summary.report]))


@dataclass(frozen=True)
class Predicted:
    """What a plan says of a run as it is configured; without one all is 0."""

    micro_batch: int = 0
    peak_bytes: int = 0
    step_seconds: list[float] = field(default_factory=list)  # at best and at worst


@dataclass(frozen=True)
class Card:
    """A GPU, and what a session measured on it. `clocks` are in MHz and degrees, where the driver answers."""

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
    loss_scale: float = 0.0  # 0: none
    skipped_steps: int = 0
    predicted: Predicted = field(default_factory=Predicted)

    def write(self, folder: Path) -> None:
        disk.make_folders(folder)
        disk.write_text(folder / CARD, json.dumps(asdict(self), indent=1) + "\n")


def read_card(path: Path) -> Card:
    """Reads a `card.json`, which may be anybody's. Raises BadInput."""
    try:
        return untrusted.parse(untrusted.read(path, _MOST_BYTES), Card)
    except (OSError, BadInput) as error:
        problem = f"is no {CARD} of a run ({printable(getattr(error, 'strerror', None) or error, most=200)})"
        raise BadInput(
            f"{printable(path)} {problem}. The archive of a run on a GPU has it."
        ) from None
