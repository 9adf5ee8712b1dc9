"""The samples of a part of the data: sentences as the encoder and the head take them."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.supervised import padded
from lib.task import Batch

_HEAD = 0.7  # of a sentence that is too long; the rest is its end


class Sample(NamedTuple):
    """One sentence."""

    tokens: np.ndarray  # (tokens) int32
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    label: int  # the role; 0 where it is not known
    weight: float  # of its role in the loss
    number: int  # in its part


class Sentences:
    """The sentences of a part (or "new") with their `lengths` in tokens; those of training in their order."""

    def __init__(
        self, part: str, inputs: Sequence[Sequence[int]], positions: np.ndarray, categories: np.ndarray,
        labels: np.ndarray, importance: np.ndarray,
    ):  # fmt: skip
        """`positions` (sentences, POSITIONS); the others (sentences)."""
        self.part, self.positions = part, positions.astype(np.float32)
        self.tokens = np.fromiter((token for tokens in inputs for token in tokens), np.int32)  # of all, for workers
        counts = np.array([len(tokens) for tokens in inputs], int)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.categories, self.labels, self.importance = categories, labels, importance.astype(np.float32)
        # An evaluation meets sentences of a length together, so that little of its batches is padding
        self.order = np.arange(len(labels)) if part == "train" else np.argsort(counts, kind="stable")
        self.lengths = counts[self.order]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.order[index])
        return Sample(
            self.tokens[self.starts[number] : self.starts[number + 1]], self.positions[number],
            int(self.categories[number]), int(self.labels[number]), float(self.importance[number]), number,
        )  # fmt: skip

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def input_of(sentence: Sequence[int], length: int, cls: int, sep: int) -> list[int]:
    """Returns [CLS] sentence [SEP], of a sentence that is too long its beginning and its end."""
    most = length - 2
    head = round(_HEAD * most)
    own = sentence if len(sentence) <= most else [*sentence[:head], *sentence[len(sentence) - (most - head) :]]
    return [cls, *own, sep]


def padding(lengths: np.ndarray, batch: int) -> float:
    """Returns the share of padding where inputs in this order are batched, each batch as long as its longest."""
    room = sum(int(own.max()) * len(own) for own in np.split(lengths, range(batch, len(lengths), batch)))
    return 1 - int(lengths.sum()) / max(1, room)


def collated(samples: Sequence[Sample], pad: int) -> Batch:
    """Returns tokens and mask (B, L), as long as the longest; positions (B, P); the rest (B)."""
    tokens = padded([sample.tokens.tolist() for sample in samples], pad, sys.maxsize)
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    _, positions, *rest = zip(*samples, strict=True)
    return {
        "tokens": tokens,
        "mask": (torch.arange(tokens.shape[1]) < lengths[:, None]).long(),
        "positions": torch.from_numpy(np.stack(positions)),
        **dict(zip(("category", "labels", "weight", "number"), map(torch.tensor, rest), strict=True)),
    }


def in_order(scores: torch.Tensor, numbers: torch.Tensor) -> np.ndarray:
    """Returns (sentences, classes) in the order of the sentences' numbers."""
    return scores[torch.argsort(numbers)].double().numpy()


def example(size: int, length: int, positions: int, device: torch.device) -> Batch:
    """Returns a batch of the largest shape, with arbitrary content."""
    whole, each = (torch.ones(size, *shape, dtype=torch.int64, device=device) for shape in ((length,), ()))
    return {
        "tokens": whole, "mask": whole.clone(), "positions": torch.rand(size, positions, device=device),
        "category": each, "labels": each, "weight": torch.ones(size, device=device), "number": each,
    }  # fmt: skip
