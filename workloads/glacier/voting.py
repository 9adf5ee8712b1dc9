"""How much each model counts in a vote, and what each reaches alone with the same views."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from lib.errors import BadInput
from lib.scores import scores_of
from lib.task import Batch
from lib.text import aligned
from workloads.glacier.judging import MEASURES, tile_counts
from workloads.glacier.maps import probabilities
from workloads.glacier.settings import Prediction, Split

_LEAST, _MOST = 1e-3, 1 - 1e-3  # of a validation, so that its odds are a number


def shares(members: Sequence[Mapping[str, Any]], options: Prediction) -> list[float]:
    """Returns what each member of a vote counts for, 1 together; none where all count alike.

    Raises BadInput where the options ask for the best validation of a run that has none.
    """
    if not (options.weighted or options.most_behind):
        return []
    scores = [member["score"] for member in members]
    if not scores:
        raise BadInput("Models vote by their best validation, which runs have that are loaded by lib.launch.ensemble.")
    if unknown := [member["run"] for member, score in zip(members, scores, strict=True) if score is None]:
        raise BadInput(
            f"{unknown[0]} has no best validation in its summary.json, by which it would vote. Leave "
            "workload.prediction.weighted and most_behind as they are, or give the run as it was trained."
        )
    bounded = np.clip(scores, _LEAST, _MOST)
    weights = bounded / (1 - bounded) if options.weighted else np.ones(len(scores))
    if options.most_behind:
        weights = np.where(max(scores) - np.array(scores) > options.most_behind, 0.0, weights)
    return (weights / weights.sum()).tolist()


def flattered(split: Split, members: int) -> str:
    """Returns a warning where the test of a vote is what some members trained on; else ""."""
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
        self,
        members: Sequence[Mapping[str, Any]],
        weights: Sequence[float],
        voted: Mapping[str, float],
        classes: Sequence[str],
        views: int,
    ) -> str:
        """Returns a row a member, and the vote's below them."""
        names = [member["run"] for member in members] or [f"model {n}" for n in range(1, len(weights) + 1)]
        keys = [*MEASURES, *(key for key in voted if key.startswith("iou_"))]
        rows = [[f"alone, {views} views", "counts", *keys]]
        for name, counts, weight in zip(names, self._counts, weights, strict=True):
            scores = scores_of(counts, classes)
            rows.append([name, f"{weight:.0%}" if weight else "left out", *(f"{scores[key]:.4f}" for key in keys)])
        rows.append(["the vote", "", *(f"{voted[key]:.4f}" for key in keys)])
        return aligned(rows, left=[0])
