"""What an entity's vector is composed of: pieces of its name, owner and package, its type, and a vector of its own."""

import numpy as np
import torch
from torch import Tensor

from workloads.graphmer import tokens
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.model import PARTS
from workloads.graphmer.ragged import expand

_FILES = 3  # that have a tail, before it has a vector of its own: below that it would be learned by heart


class EntityTable:
    """The compositions of all entities. `own_vectors` entities at most have a vector of their own."""

    def __init__(self, corpus: Corpus, own_vectors: int):
        self.corpus = corpus
        words = (corpus.name, corpus.owner, corpus.package)
        self.pieces = np.concatenate([_cut(corpus, w, most) for w, (_, most) in zip(words, PARTS, strict=True)], 1)
        train = corpus.triples_of("train")
        pairs = np.unique(np.stack([corpus.tail[train], corpus.window_file[corpus.window_of[train]]], 1), axis=0)
        files = np.bincount(pairs[:, 0], minlength=len(corpus.entity_type))
        frequent = np.argsort(-files, kind="stable")[:own_vectors]
        frequent = frequent[files[frequent] >= _FILES]
        self.vector = np.zeros(len(files), np.int64)  # 0: none
        self.vector[frequent] = 1 + np.arange(len(frequent))

    def of(self, entities: np.ndarray) -> dict[str, Tensor]:
        """(C) entities -> pieces (C, 13), and kind, vector, name, name_owner (C)."""
        corpus = self.corpus
        arrays = {
            "pieces": self.pieces[entities],
            "kind": corpus.entity_type[entities].astype(np.int64),
            "vector": self.vector[entities],
            "name": corpus.name[entities],
            "name_owner": corpus.owner[entities],
        }
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}


def _cut(corpus: Corpus, words: np.ndarray, most: int) -> np.ndarray:
    """(E) words, or -1 -> (E, most) their pieces, cut and padded."""
    pieces = corpus.pieces
    length = np.where(words >= 0, np.minimum(pieces.lengths(np.maximum(words, 0)), most), 0)
    row, at = expand(pieces.offsets[np.maximum(words, 0)], length)
    table = np.full((len(words), most), tokens.PAD, np.int64)
    table[row, at - pieces.offsets[np.maximum(words, 0)][row]] = pieces.flat[at]
    return table
