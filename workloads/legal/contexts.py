"""The encoder's inputs: a sentence with its neighbours as second segment, all lengths known before any is built."""

from collections.abc import Sequence

import numpy as np

MODES = {"single": (), "prev": (-1,), "prev_two": (-1, -2), "surrounding": (-1, 1)}  # neighbours, the nearest first
_HEAD = 0.7  # of a sentence that is too long by itself; the rest is its end


class Texts:
    """The tokens of all sentences of some documents in one array."""

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]]):
        """`documents` has the token numbers of each sentence of each document."""
        sentences = [sentence for document in documents for sentence in document]
        self.lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens = np.concatenate([np.zeros(0, np.int32), *(np.asarray(s, np.int32) for s in sentences)])
        self.document = np.repeat(np.arange(len(documents)), [len(document) for document in documents])

    def __len__(self) -> int:
        return len(self.lengths)

    def of(self, sentence: int) -> np.ndarray:
        return self.tokens[self.starts[sentence] : self.starts[sentence + 1]]


class Inputs:
    """The inputs of all sentences: [CLS] sentence [SEP], and each neighbour with a [SEP] of its own.

    A neighbour has what room the sentence leaves, the nearest first, and keeps the end that touches the sentence. A
    sentence that is too long by itself keeps its beginning and its end. `lengths` (sentences) counts the tokens.
    """

    def __init__(self, texts: Texts, mode: str, length: int, cls: int, sep: int):
        self.texts, self.cls, self.sep = texts, cls, sep
        self.own = np.minimum(texts.lengths, length - 2)
        room = length - 2 - self.own
        taken: list[tuple[int, np.ndarray]] = []
        for offset in MODES[mode]:
            tokens = np.minimum(_shifted(texts, offset), np.maximum(room - 1, 0))
            room = room - tokens - (tokens > 0)
            taken.append((offset, tokens))
        self.neighbours = sorted(taken, key=lambda one: one[0])  # as they follow each other in the document
        self.lengths = length - room

    def of(self, sentence: int) -> tuple[np.ndarray, int]:
        """Returns the token numbers of an input, and how many of them are the first segment."""
        own = self.texts.of(sentence)
        if (most := int(self.own[sentence])) < len(own):
            head = round(_HEAD * most)
            own = np.concatenate([own[:head], own[len(own) - (most - head) :]])
        parts = [[self.cls], own, [self.sep]]
        for offset, tokens in self.neighbours:
            if number := int(tokens[sentence]):
                whole = self.texts.of(sentence + offset)
                parts += [whole[len(whole) - number :] if offset < 0 else whole[:number], [self.sep]]
        return np.concatenate(parts).astype(np.int64), len(own) + 2


def _shifted(texts: Texts, offset: int) -> np.ndarray:
    """Returns the length of each sentence's neighbour; 0 where the document has none there."""
    there = np.arange(len(texts)) + offset
    inside = (there >= 0) & (there < len(texts))
    there = np.where(inside, there, 0)
    same = inside & (texts.document[there] == texts.document) if len(texts) else inside
    return np.where(same, texts.lengths[there], 0) if len(texts) else np.zeros(0, np.int64)


def padding(lengths: np.ndarray, batch: int, filled: int = 0, window: int = 1) -> float:
    """Returns the share of padding where samples in this order are batched, each batch as long as its longest input.

    A sample is a `window` of inputs, of which `lengths` has the longest; `filled` are the tokens of all (0: its sum).
    """
    whole = len(lengths) // batch * batch
    batches = [*lengths[:whole].reshape(-1, batch), *([lengths[whole:]] if whole < len(lengths) else [])]
    room = sum(int(one.max()) * len(one) for one in batches) * window
    return 1 - (filled or int(lengths.sum())) / max(1, room)
