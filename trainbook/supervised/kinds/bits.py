"""The tokens of a text, judged by the bits that a model needs for each byte of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainbook.supervised import chunks, evaluation, scoring
from trainbook.supervised.kinds.next_tokens import NextTokens
from trainbook.supervised.samples import IGNORED, target_of
from trainbook.supervised.scoring import Judged


def bits_a_byte(size: np.ndarray, bits: np.ndarray) -> float:
    """Returns the bits for a byte over all samples: it compares models with different tokens."""
    return float(bits.sum() / size.sum())


class Bits(NextTokens):
    """Labels (samples, tokens) as for `NextTokens`; the task's `sizes` (V) are the bytes of each token."""

    name = "bits"
    metrics: ClassVar[tuple[Any, ...]] = (bits_a_byte,)
    has_simple = False  # runs of tokens stand beside the network: see `Language`

    @torch.no_grad()
    def evaluate(self, task: Any, model: nn.Module, loader: Any) -> evaluation.Scored:
        nats: list[Tensor] = []
        sizes: list[np.ndarray] = []
        tokens = 0
        for batch in loader:
            outputs, labels = task.matched(task.outputs(model, batch), batch["labels"])
            nats.append(_nats(outputs, labels).double().cpu())
            known = labels.cpu().numpy()
            sizes.append(_bytes(task, known).sum(1))
            tokens += int((known != IGNORED).sum())
        size = np.concatenate(sizes)
        each = torch.cat(nats).numpy()
        judged = Judged(size, each / math.log(2), sample=np.arange(len(size)))
        losses = {"loss": each.sum() / max(tokens, 1), **scoring.scores(task.metrics, judged)}
        return evaluation.Scored(losses, {"network": judged})

    def tested(self, task: Any) -> Judged:
        labels = map(target_of, task.parts["test"].samples)
        size = np.array([_bytes(task, each[1:]).sum() for each in labels])
        return Judged(size, size, sample=np.arange(len(size)))

    def baselines(self, task: Any, test: Judged) -> dict[str, Judged]:
        return evaluation.judged(test, task._guesses)

    def tallied(
        self, metrics: Sequence[Any], rows: Mapping[str, Judged], unit: np.ndarray, units: int
    ) -> np.ndarray | None:
        """Returns (units, methods, 2) bytes and bits."""
        sums = np.zeros((units, len(rows), 2))
        for place, (size, bits, *_) in enumerate(rows.values()):
            np.add.at(sums[:, place], unit, np.stack([size, bits], 1))
        return sums

    def measured(
        self, metrics: Sequence[Any], sums: np.ndarray, reference: np.ndarray | None = None
    ) -> np.ndarray:
        return sums[..., 1:] / sums[..., :1]

    def has_rows(self, judged: Judged) -> bool:
        return False

    def columns(self, task: Any, judged: Judged) -> dict[str, float]:
        return {}

    def tables(self, task: Any, answer: Judged, folder: Any) -> str | None:
        return None


def _bytes(task: Any, labels: np.ndarray) -> np.ndarray:
    """Returns the bytes of each label; none of an unknown one."""
    return np.where(labels == IGNORED, 0, task.sizes[labels.clip(0)])


def _nats(outputs: Any, labels: Tensor) -> Tensor:
    """Returns (samples) the sum of cross-entropy over the known labels of each."""
    if isinstance(outputs, tuple):
        hidden, head = outputs
        pairs = zip(hidden.split(1), labels.split(1), strict=True)
        return torch.stack([chunks.loss(states, head, wanted) for states, wanted in pairs])
    scores = outputs.float().flatten(0, 1)
    each = F.cross_entropy(scores, labels.flatten(), reduction="none", ignore_index=IGNORED)
    return each.view_as(labels).sum(1)
