"""How much of the network counts beside boosting: nothing, unless validation shows a sure gain."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.task import Batch
from workloads.glacier.boosted import METHODS, Boosted
from workloads.glacier.judging import tile_counts
from workloads.glacier.scores import mcc, scores_of

# Of the network's log-probabilities, the rest is boosting's; .9 has rare classes that .75 loses
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_SURE = 0.975  # of one side
_MOST_PIXELS = 50_000  # of validation that choose


class Gate:
    """Chooses method and weight on validation, whose tiles come in their order."""

    def __init__(self, boosted: Boosted, part: Any, groups: Sequence[str]):
        """`groups` names the scene or square of each tile of the part."""
        self.boosted, self.part, self.unit = boosted, part, np.unique(groups, return_inverse=True)[1]
        self._log_p: dict[tuple[int, int], Tensor] = {}  # (methods, B, classes, s, s) by number and size of a batch

    def counted(self, first: int, batch: Batch, logits: Tensor) -> np.ndarray:
        """Returns (options, B, classes, classes) counts of the tiles from a number on, of some of their pixels."""
        target = batch["target"]
        every = max(1, math.isqrt(len(self.unit) * target[0].numel() // _MOST_PIXELS))
        target, network = target[:, ::every, ::every], logits[..., ::every, ::every].float().log_softmax(1)
        if (place := (first, len(target))) not in self._log_p:
            each = [self.boosted.log_p(batch["image"], method, every) for method in range(len(METHODS))]
            self._log_p[place] = torch.stack(each)
        mixtures = ((1 - w) * log_p + w * network for log_p in self._log_p[place] for w in WEIGHTS)
        return torch.stack([tile_counts(p.argmax(1), target, p.shape[1]) for p in mixtures]).cpu().numpy()

    def choose(self, counts: np.ndarray) -> np.ndarray:
        """Sets method and weight by (options, tiles, classes, classes) counts; returns those of the answer. A step up,
        from pixels to surroundings, then to a share of the network, is taken where it surely gains."""
        sums = np.zeros((len(counts), self.unit.max() + 1, *counts.shape[2:]), np.int64)
        np.add.at(sums, (slice(None), self.unit), counts)
        best, steps = 0, len(WEIGHTS)
        for method in range(1, len(METHODS)):
            best = _surer(sums, best, [method * steps])
        best = _surer(sums, best, range(best + 1, best + steps))
        self.boosted.method.fill_(best // steps)
        self.boosted.weight.fill_(WEIGHTS[best % steps])
        return counts[best]


def _surer(sums: np.ndarray, best: int, others: Sequence[int]) -> int:
    """Returns which of `others` is highest in MCC and mean IoU together, if one of them surely has more MCC. That is
    above `best` in MCC too; else `best`. `sums` are (options, groups, classes, classes)."""
    if not any(least_gain(sums[other], sums[best]) > 0 for other in others):
        return best
    scores = [scores_of(matrix, [*map(str, range(len(matrix)))]) for matrix in sums.sum(1)]
    above = [other for other in others if scores[other]["mcc"] > scores[best]["mcc"]]
    return max(above, key=lambda other: scores[other]["mcc"] + scores[other]["mean_iou"])


def least_gain(new: np.ndarray, old: np.ndarray) -> float:
    """(groups, classes, classes) counts of two answers -> the lower end of the interval of what the first gains in MCC.
    It is Student's, over pseudo-values without each group (Tukey, 1958): draws of few groups are too sure."""
    from scipy import stats
    def gain(*counts: np.ndarray) -> float:
        return mcc(new.sum(0) - counts[0]) - mcc(old.sum(0) - counts[1])

    groups, nothing = len(new), np.zeros_like(new[0])
    if groups < 2:
        return -math.inf
    others = np.array([gain(*pair) for pair in zip(new, old, strict=True)])
    pseudo = groups * gain(nothing, nothing) - (groups - 1) * others
    return float(pseudo.mean() - stats.t.ppf(_SURE, groups - 1) * pseudo.std(ddof=1) / math.sqrt(groups))
