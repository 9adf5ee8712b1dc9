"""What networks answer on a part of the data, tile by tile: together, and each of a vote alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from lib.report import figure
from lib.scores import Confusion, scores_of
from lib.task import Batch
from lib.text import aligned
from workloads.glacier import figures
from workloads.glacier.figures import Shown
from workloads.glacier.judging import MEASURES, tile_counts
from workloads.glacier.maps import probabilities
from workloads.glacier.settings import Split

_SHOWN = 4  # tiles of each figure


class Tested:
    """Counts of each tile, the first tiles as examples, and the tiles with most wrong pixels, one of a scene."""

    def __init__(self, part: Any, classes: int):
        """`part` are the `Tiles` that are met in their order."""
        self.part, self.classes = part, classes
        self.confusion, self.examples = Confusion(classes), list[Shown]()
        self._counts: list[np.ndarray] = []
        self._worst: dict[int, tuple[int, Shown]] = {}  # by the number of the scene

    def add(self, batch: Batch, predicted: Tensor) -> None:
        """Takes the next tiles with their answers, (B, S, S)."""
        first = sum(map(len, self._counts))
        counts = tile_counts(predicted, batch["target"], self.classes).cpu().numpy()
        self.confusion.add(predicted.cpu(), batch["target"].cpu())
        self.examples += figures.shown(batch, predicted, _SHOWN - len(self.examples))
        wrong = counts.sum((1, 2)) - np.trace(counts, axis1=1, axis2=2)
        for number, pixels in enumerate(wrong.tolist()):
            scene = int(self.part.store.table.scene[self.part.chosen[first + number]])
            if self._is_worse(scene, pixels):
                one = slice(number, number + 1)
                tile = {name: batch[name][one] for name in ("image", "target")}
                self._worst[scene] = pixels, figures.shown(tile, predicted[one], 1)[0]
        self._counts.append(counts)

    def _is_worse(self, scene: int, wrong: int) -> bool:
        """Says whether a tile is to be shown; makes room for it."""
        if scene in self._worst:
            return wrong > self._worst[scene][0]
        if len(self._worst) == _SHOWN:
            best = min(self._worst, key=lambda number: self._worst[number][0])
            if self._worst[best][0] >= wrong:
                return False
            del self._worst[best]
        return True

    @property
    def counts(self) -> np.ndarray:
        """(tiles, classes, classes), rows are the truth."""
        return np.concatenate(self._counts)

    @property
    def worst(self) -> list[Shown]:
        """The tiles with most wrong pixels, each of another scene, the worst first."""
        return [tile for _, tile in sorted(self._worst.values(), key=lambda found: -found[0])]

    def draw(self, classes: tuple[str, ...], folder: Path) -> None:
        """Draws the confusion matrix, examples and the worst tiles into `plots`."""
        figure.confusion(self.confusion.matrix, classes, folder / "plots" / "confusion.png", unit="pixels")
        figures.predictions(self.examples, classes, folder / "plots" / "predictions.png")
        figures.predictions(self.worst, classes, folder / "plots" / "worst.png")


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

    def table(self, members: Sequence[str], voted: Mapping[str, float], classes: Sequence[str], views: int) -> str:
        """Returns a row a member, and the vote's below them."""
        names = members or [f"model {n + 1}" for n in range(len(self._counts))]
        keys = [*MEASURES, *(key for key in voted if key.startswith("iou_"))]
        scores = [scores_of(counts, classes) for counts in self._counts]
        rows = [[f"alone, {views} views", *keys]]
        rows += [[name, *(f"{row[key]:.4f}" for key in keys)] for name, row in zip(names, scores, strict=True)]
        return aligned([*rows, ["the vote", *(f"{voted[key]:.4f}" for key in keys)]], left=[0])
