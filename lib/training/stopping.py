"""Rules that end a run before its last step. Each has its settings, its counters in checkpoints, and its sentences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lib.config import Training

HOW_TO_CONTINUE = "A larger training.stop_after_evaluations, or 0, continues it."
_COUNTERS = ("best", "best_step", "waited")


@dataclass
class Stopping:
    """Counts validations since the best one. It has a history, so every checkpoint has its `facts`."""

    training: Training
    metric: str
    direction: str  # "max" or "min" is better
    best: float | None = None
    best_step: int = 0
    waited: int = 0

    @property
    def is_on(self) -> bool:
        return self.training.stop_after_evaluations > 0

    @property
    def is_over(self) -> bool:
        return self.is_on and self.waited >= self.training.stop_after_evaluations

    def observe(self, value: float, step: int) -> None:
        """Takes a validation's value. NaN and infinity are never better."""
        self.waited += 1
        if math.isfinite(value) and self._is_better(value):
            self.best = value
            self.best_step = step
            self.waited = 0

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return True
        if self.direction == "max":
            return value > self.best
        return value < self.best

    def facts(self) -> dict[str, Any]:
        """Returns the counters for a checkpoint."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def load(self, facts: Mapping[str, Any]) -> None:
        """Takes the counters of a checkpoint."""
        for name in _COUNTERS:
            setattr(self, name, facts[name])

    def early(self, step: int, total: int) -> dict[str, Any]:
        """Returns the number of validations and a sentence for a run that ends before step `total`, or {}."""
        if not self.is_over or step >= total:
            return {}
        best = "no number"
        if self.best is not None:
            best = f"{self.best:.6g} of step {self.best_step:,}"
        text = (
            f"It stopped early, at step {step:,} of {total:,}: in {self.waited} validations in a row {self.metric} "
            f"was not better than {best} (training.stop_after_evaluations)."
        )
        return {"evaluations": self.waited, "text": text}


def holds(stopped_early: Mapping[str, Any], training: Training) -> bool:
    """Returns whether a run with these values of `Stopping.early` stays over with these settings."""
    waited = stopped_early.get("evaluations")
    return isinstance(waited, int) and 0 < training.stop_after_evaluations <= waited


def is_stopped(state: Mapping[str, Any], training: Training) -> bool:
    """Returns whether a run with this state of a checkpoint is over before its last step with these settings."""
    return holds({"evaluations": state.get("stopping", {}).get("waited")}, training)
