"""The samples of a part of the data: sentences as the encoder and the head take them, and their batches."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.task import Batch
from lib.tasks.legal.contexts import Inputs


class Sample(NamedTuple):
    """One sentence."""

    tokens: np.ndarray  # (tokens) int64
    own: int  # how many of them are the first segment
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    label: int  # the role; 0 where it is not known
    weight: float  # of its role in the loss
    number: int  # in its part


class Sentences:
    """The sentences of some documents, those of training as they follow each other, others by their length.

    `lengths` says how many tokens each input has. `part` is train, validation, test, or new for what has no roles.
    """

    def __init__(
        self,
        part: str,
        inputs: Inputs,
        positions: np.ndarray,
        categories: np.ndarray,
        labels: np.ndarray,
        importance: np.ndarray,
    ):
        """`positions` (sentences, POSITIONS); the others (sentences)."""
        self.part, self.inputs, self.positions = part, inputs, positions.astype(np.float32)
        self.categories, self.labels, self.importance = categories, labels, importance.astype(np.float32)
        # An evaluation meets sentences of a length together, so that little of its batches is padding
        self.order = np.arange(len(labels)) if part == "train" else np.argsort(inputs.lengths, kind="stable")

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths[self.order]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        number = int(self.order[index])
        tokens, own = self.inputs.of(number)
        return Sample(
            tokens, own, self.positions[number], int(self.categories[number]), int(self.labels[number]),
            float(self.importance[number]), number,
        )  # fmt: skip

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def collated(samples: Sequence[Sample], pad: int) -> Batch:
    """Returns tokens, mask and segments (B, L), as long as the longest; positions (B, P); the rest (B)."""
    longest = max(len(sample.tokens) for sample in samples)
    tokens = np.full((len(samples), longest), pad, np.int64)
    mask, segments = np.zeros_like(tokens), np.zeros_like(tokens)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = sample.tokens
        mask[row, : len(sample.tokens)] = 1
        segments[row, sample.own : len(sample.tokens)] = 1
    return {
        "tokens": torch.from_numpy(tokens),
        "mask": torch.from_numpy(mask),
        "segments": torch.from_numpy(segments),
        "positions": torch.from_numpy(np.stack([sample.positions for sample in samples])),
        "category": torch.tensor([sample.category for sample in samples]),
        "labels": torch.tensor([sample.label for sample in samples]),
        "weight": torch.tensor([sample.weight for sample in samples]),
        "number": torch.tensor([sample.number for sample in samples]),
    }


def example(size: int, length: int, positions: int, device: torch.device) -> Batch:
    """Returns a batch of the largest shape, with arbitrary content."""

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(size, *shape, dtype=torch.int64, device=device)

    return {
        "tokens": ones(length), "mask": ones(length), "segments": ones(length) - 1,
        "positions": torch.rand(size, positions, device=device), "category": ones(), "labels": ones(),
        "weight": torch.ones(size, device=device), "number": ones(),
    }  # fmt: skip
