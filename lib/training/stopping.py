"""Stopping a run early, after some validations in a row without a better value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Stopping:
    """Counts validations since the best one. Like a plateau it has a history, so `facts` is in every checkpoint."""

    after: int  # training.stop_after_evaluations
    metric: str
    direction: str  # "max" or "min": what counts as better
    best: float | None = None
    best_step: int = 0
    waited: int = 0

    @property
    def is_over(self) -> bool:
        return self.waited >= self.after

    def observe(self, value: float, step: int) -> None:
        """Takes a validation's value; one that is not finite is not better than anything."""
        sign = -1 if self.direction == "max" else 1
        if math.isfinite(value) and (self.best is None or sign * value < sign * self.best):
            self.best, self.best_step, self.waited = value, step, 0
        else:
            self.waited += 1

    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load(self, facts: Mapping[str, Any]) -> None:
        self.best, self.best_step, self.waited = facts["best"], facts["best_step"], facts["waited"]

    def sentence(self, step: int, total: int) -> str:
        """Says at which step the run stopped, and why."""
        than = f"{self.best:.6g} of step {self.best_step:,}" if self.best is not None else "no number"
        return (
            f"It stopped early, at step {step:,} of {total:,}: in {self.waited} validations in a row {self.metric} was "
            f"not better than {than} (training.stop_after_evaluations)."
        )
