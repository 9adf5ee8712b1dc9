"""The samples of a part of the data: questions as the model takes them, those of a picture beside each other."""

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.supervised import padded
from lib.task import Batch
from lib.training.order import mix, permutation
from workloads.vqa import objectives, pictures
from workloads.vqa.objectives import Target
from workloads.vqa.records import Record
from workloads.vqa.settings import Pictures, Settings
from workloads.vqa.tokens import Tokens

_CACHED = 2**28  # bytes of pictures that a process keeps
_PICTURES, _RUNS = 1, 2  # domains of `mix`


class Sample(NamedTuple):
    """One question about a picture."""

    record: Record
    question: list[int]
    target: Target
    number: int  # in its part
    is_training: bool


class Questions:
    """The questions of a part. `part` is train, validation, test, or new for what has no answers."""

    def __init__(self, part: str, records: Sequence[Record], settings: Settings, reader: Tokens, writer: Tokens):
        """`reader` is the tokenizer of questions, `writer` that of answers."""
        self.part, self.most = part, settings.together
        names = {name: number for number, name in enumerate(sorted({one.picture for one in records}))}
        self.pictures = np.array([names[one.picture] for one in records], int)
        # An evaluation meets the questions of a picture together, so that it is read and encoded once for them
        shown = np.arange(len(records)) if part == "train" else np.argsort(self.pictures, kind="stable")
        self.records, self.pictures = [records[n] for n in shown], self.pictures[shown]
        self.questions = reader.questions([one.question for one in self.records], settings.text.length)
        self.targets = objectives.targets(self.records, writer, settings.decoder.length)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.records[index], self.questions[index], self.targets[index], index, self.part == "train")

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Returns an epoch's order: of each picture `most` questions after each other at most, then another's."""
        shuffled = permutation(mix(_PICTURES, seed), epoch, len(self))
        by_picture = shuffled[np.argsort(self.pictures[shuffled], kind="stable")]
        own = self.pictures[by_picture]
        place = np.arange(len(own)) - np.searchsorted(own, own)  # within its picture
        begins = np.flatnonzero(place % self.most == 0)
        run = np.cumsum(place % self.most == 0) - 1
        return by_picture[np.argsort(permutation(mix(_RUNS, seed), epoch, len(begins))[run], kind="stable")]


class Album:
    """Decoded pictures, of which a process keeps as many as a limit on memory allows."""

    def __init__(self, settings: Pictures):
        self.settings = settings
        self.load = functools.lru_cache(max(1, _CACHED // (3 * settings.side**2)))(self._load)

    def __reduce__(self) -> tuple:
        return Album, (self.settings,)  # a loader worker decodes its own

    def _load(self, path: str) -> np.ndarray:
        return pictures.load(path, self.settings.side, self.settings.limit_pixels)

    def of(self, samples: Sequence[Sample], generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns (samples, 3, side, side) uint8, changed once a picture, and which sample has it first."""
        first: dict[str, int] = {}
        places = [first.setdefault(one.record.picture, number) for number, one in enumerate(samples)]
        loaded: dict[int, np.ndarray] = {}
        for number in first.values():
            loaded[number] = self.load(samples[number].record.image)
            if self.settings.augment and samples[number].is_training:
                own = [one.record for one, place in zip(samples, places, strict=True) if place == number]
                loaded[number] = pictures.augment(loaded[number], [f"{r.kind} {r.question}" for r in own], generator)
        pixels = np.stack([loaded[place] for place in places]).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(pixels), np.array(places)


def collated(samples: Sequence[Sample], album: Album, pads: tuple[int, int], generator: Any) -> Batch:
    """Returns the tensors of a batch, as long as its longest question and answer; `pads` are their padding."""
    pixels, picture = album.of(samples, generator)
    question = padded([one.question for one in samples], pads[0], sys.maxsize)
    counts = torch.tensor([[len(one.question)] for one in samples])
    return {
        "picture": torch.from_numpy(picture), "pixels": torch.from_numpy(pixels), "question": question,
        "words": torch.arange(question.shape[1]) < counts, "number": torch.tensor([one.number for one in samples]),
        "target": padded([one.target.tokens for one in samples], pads[1], sys.maxsize),
        "part": padded([one.target.parts for one in samples], 0, sys.maxsize),
    }  # fmt: skip


def example(size: int, settings: Settings, device: torch.device) -> Batch:
    """Returns a batch of the largest shape: as many pictures as questions, all as long as they can be."""
    side, lengths = settings.pictures.side, (settings.text.length, settings.decoder.length)
    question, target = (torch.full((size, length), 4, device=device) for length in lengths)
    return {
        "picture": torch.arange(size, device=device), "number": torch.ones_like(question[:, 0]),
        "pixels": torch.ones(size, 3, side, side, dtype=torch.uint8, device=device),
        "question": question, "words": question > 0, "target": target, "part": target * 0 + objectives.ANSWER,
    }  # fmt: skip
