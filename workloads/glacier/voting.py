"""Scores each model of a vote alone, with the same views as the vote."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from lib.scores import scores_of
from lib.task import Batch
from lib.text import aligned
from workloads.glacier.judging import MEASURES, tile_counts
from workloads.glacier.maps import probabilities
from workloads.glacier.settings import Split


def flattered(split: Split, members: int) -> str:
    """Returns a warning if some members of a vote trained on its test; otherwise ""."""
    if split.test or members < 2:
        return ""
    return (
        "Warning: there is no test of its own (workload.split.test is 0). The vote is judged on the validation of its "
        "first member, on which members of other folds trained, so its scores flatter. Take the folds' mean instead."
    )


class Alone:
    """What each of several models reaches by itself, with the same views as the vote."""

    def __init__(self, models: int, classes: int):
        self._counts = np.zeros((models, classes, classes), np.int64)

    def add(self, models: Sequence[nn.Module], batch: Batch, views: int) -> list[Tensor]:
        """Returns the probabilities of each model, (B, classes, S, S), and counts its answers."""
        each = [probabilities([model], batch["image"], views) for model in models]
        for counts, p in zip(self._counts, each, strict=True):
            counts += tile_counts(p.argmax(1), batch["target"], len(counts)).sum(0).numpy()
        return each

    def table(
        self, members: Sequence[Mapping[str, Any]], voted: Mapping[str, float], classes: Sequence[str], views: int
    ) -> str:
        """Returns a row a member, and the vote's below them."""
        names = [member["run"] for member in members] or [f"model {n + 1}" for n in range(len(self._counts))]
        keys = [*MEASURES, *(key for key in voted if key.startswith("iou_"))]
        scores = [scores_of(counts, classes) for counts in self._counts]
        rows = [[f"alone, {views} views", *keys]]
        rows += [[name, *(f"{row[key]:.4f}" for key in keys)] for name, row in zip(names, scores, strict=True)]
        return aligned([*rows, ["the vote", *(f"{voted[key]:.4f}" for key in keys)]], left=[0])
