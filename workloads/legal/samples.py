"""The sentences of a part as the encoder and the head take them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from workloads.legal.counting.features import position_features
from workloads.legal.documents import Document

_HEAD = 0.7  # of a sentence that is too long; the rest is its end


class Sample(NamedTuple):
    """One sentence, whose role is its target."""

    document: str
    number: int  # in it, from 0
    tokens: np.ndarray  # (tokens) int32
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    role: str | int  # 0 where it is not known


class Sentences(list[Sample]):
    """The sentences of documents: those of training in their order, others by length, so that batches pad little."""

    def __init__(self, task: Any, documents: Sequence[Document], in_order: bool = False):
        """Cuts sentences into tokens; `lengths` are theirs, and `places` those that they have in the documents."""
        tokens, most, samples = task.tokens, task.settings.context.length, list[Sample]()
        category = {name: number for number, name in enumerate(task.learned()["categories"], 1)}
        for document in documents:
            positions, kind = position_features(document).astype(np.float32), category.get(document.category, 0)
            for number, cut in enumerate(tokens.numbers(document.sentences)):
                numbers = np.array(input_of(cut, most, tokens.cls, tokens.sep), np.int32)
                role = document.roles[number] if document.roles else 0
                samples.append(Sample(document.name, number, numbers, positions[number], kind, role))
        lengths = np.array([len(sample.tokens) for sample in samples])
        self.places = np.arange(len(samples)) if in_order else np.argsort(lengths, kind="stable")
        self.lengths = lengths[self.places]
        super().__init__(samples[place] for place in self.places)

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def input_of(sentence: Sequence[int], length: int, cls: int, sep: int) -> list[int]:
    """Returns [CLS] sentence [SEP], of a sentence that is too long its beginning and its end."""
    most = length - 2
    head = round(_HEAD * most)
    fitting = sentence if len(sentence) <= most else [*sentence[:head], *sentence[len(sentence) - (most - head) :]]
    return [cls, *fitting, sep]
