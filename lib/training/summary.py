"""summary.json: how a session of a run ended, and what the run reached."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from lib import untrusted
from lib.config import Training
from lib.errors import printable
from lib.machine import disk
from lib.training import stopping

FILE = "summary.json"
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
    # What a completed run lacks ("test", "plot"), and why
    missing: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # on the test set, once completed
    # The strongest baseline's, by the same names
    baseline: dict[str, float] = field(default_factory=dict)
    test_loss: float | None = None
    report: str = ""  # what the task says of its result: criteria, advice, where its tables are
    # {"metric", "step", "value"} of the best validation
    best: dict[str, Any] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)  # the runs of an ensemble
    steps_per_second: float = 0.0
    peak_memory_bytes: int = 0
    micro_batch: int = 0
    precision: str = ""
    skipped_steps: int = 0
    # "evaluations" without gain, and the "text" on it
    stopped_early: dict[str, Any] = field(default_factory=dict)
    world_size: int = 1
    # "samples" of the next micro-batch, and the sizes it is for
    limit: dict[str, Any] = field(default_factory=dict)
    # What a checkpoint is recognised by: see training.identity
    identity: dict[str, Any] = field(default_factory=dict)

    def is_done(self, training: Training) -> bool:
        """Returns whether the run is completed, and these settings leave nothing to train."""
        return self.done_until(training) >= training.max_steps

    def done_until(self, training: Training) -> float:
        """Returns the largest `max_steps` that leaves nothing to train; -1 if the run is not completed."""
        if self.reason != "completed":
            return -1
        return math.inf if stopping.holds(self.stopped_early, training) else self.step

    @property
    def has_failed(self) -> bool:
        """Returns whether an error ended the run, or left out its test or another result."""
        return self.reason == "failed" or bool(self.missing)

    @property
    def why_early(self) -> str:
        return str(self.stopped_early.get("text", ""))

    def write(self, folder: Path) -> None:
        """Writes `summary.json` into a run's folder, whole or not at all; metrics keep their order. Raises OSError."""
        text = json.dumps(asdict(self))
        finite = json.loads(text, parse_constant=lambda _: None)  # JSON has no nan and no infinity
        disk.write_text(folder / FILE, json.dumps(finite, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Summary | None":
        """Returns the summary in a folder, None if unreadable. A key that is missing or misfits has its default."""
        try:
            values = untrusted.objects(untrusted.read(folder / FILE, _MOST_BYTES))
        except (OSError, ValueError):
            return None
        fitting: dict[str, Any] = {"run": folder.name, "task": ""}
        for each in fields(cls):
            if each.name not in values:
                continue
            value = values[each.name]
            if each.name in ("metrics", "baseline"):
                if isinstance(value, dict):
                    fitting[each.name] = _scores(value)
            elif untrusted.fits(value, each.type):
                fitting[each.name] = value
        return cls(**fitting) if "reason" in fitting else None


def _scores(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of an untrusted mapping; null is NaN, as `Summary.write` wrote it."""
    scores = {}
    for name, value in values.items():
        if value is None:
            scores[printable(name)] = math.nan
        elif untrusted.fits(value, float):
            scores[printable(name)] = value
    return scores
