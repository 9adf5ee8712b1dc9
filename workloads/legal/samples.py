"""The samples of a part of the data: sentences as the encoder and the head take them, or windows of sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.task import Batch
from workloads.legal.contexts import Inputs


class Sample(NamedTuple):
    """One sentence."""

    tokens: np.ndarray  # (tokens) int64
    own: int  # how many of them are the first segment
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    label: int  # the role; 0 where it is not known
    weight: float  # of its role in the loss
    number: int  # in its part; -1 for what stands in a window beside those that it is read for


class Sentences:
    """The sentences of some documents, those of training as they follow each other, others by their length.

    `lengths` and `filled` say how many tokens the input of each sample has. `part` is train, validation, test, or new
    for what has no roles.
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
        self.lengths = self.filled = inputs.lengths[self.order]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.sentence(int(self.order[index]))

    def sentence(self, number: int) -> Sample:
        tokens, own = self.inputs.of(number)
        return Sample(
            tokens, own, self.positions[number], int(self.categories[number]), int(self.labels[number]),
            float(self.importance[number]), number,
        )  # fmt: skip

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


class Windows:
    """The sentences of some documents in windows of `size`; each has its role in one of them.

    The last window of a document begins early enough to be full: its first sentences have their roles in the window
    before, and are context alone. Windows of other parts than training are in the order of `lengths`, each the longest
    input of a window; `filled` says how many tokens all of its inputs have.
    """

    def __init__(self, sentences: Sentences, size: int):
        self.sentences, self.inputs, self.part = sentences, sentences.inputs, sentences.part
        places = np.arange(len(sentences))
        documents = np.split(places, np.flatnonzero(np.diff(self.inputs.texts.document)) + 1)
        windows = [
            (own[max(0, min(begin, len(own) - size)) : begin + size], int(own[begin]))
            for own in documents
            for begin in range(0, len(own), size)
        ]  # the numbers of the sentences, and the first that is read for its own sake
        longest = np.array([self.inputs.lengths[numbers].max() for numbers, _ in windows])
        order = np.arange(len(windows)) if self.part == "train" else np.argsort(longest, kind="stable")
        self.windows, self.lengths = [windows[place] for place in order], longest[order]
        self.filled = np.array([self.inputs.lengths[numbers].sum() for numbers, _ in self.windows])

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> list[Sample]:
        numbers, first = self.windows[index]
        samples = [self.sentences.sentence(number) for number in numbers.tolist()]
        return [one if one.number >= first else one._replace(weight=0.0, number=-1) for one in samples]

    def subset(self, share: float, seed: int) -> "Windows":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def in_windows(samples: Sequence[Sequence[Sample]], pad: int, size: int) -> Batch:
    """Returns what `collated` does with a dimension for the sentences of a window behind that of the samples.

    A document that is shorter than a window has inputs of one token behind its sentences.
    """
    one = samples[0][0]
    filler = Sample(np.array([pad]), 1, np.zeros_like(one.positions), 0, 0, 0.0, -1)
    flat = [sample for window in samples for sample in (*window, *[filler] * (size - len(window)))]
    return {name: value.unflatten(0, (len(samples), size)) for name, value in collated(flat, pad).items()}


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


def in_order(found: torch.Tensor, numbers: torch.Tensor) -> np.ndarray:
    """Returns (sentences, classes) in the order of the sentences' numbers, without what is read for others alone."""
    is_own = numbers >= 0
    return found[is_own][torch.argsort(numbers[is_own])].double().numpy()


def example(size: int, length: int, positions: int, device: torch.device, window: int = 0) -> Batch:
    """Returns a batch of the largest shape, with arbitrary content; `window` sentences are a sample (0: one is)."""
    sizes = (size, window) if window else (size,)

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(*sizes, *shape, dtype=torch.int64, device=device)

    return {
        "tokens": ones(length), "mask": ones(length), "segments": ones(length) - 1,
        "positions": torch.rand(*sizes, positions, device=device), "category": ones(), "labels": ones(),
        "weight": torch.ones(*sizes, device=device), "number": ones(),
    }  # fmt: skip
