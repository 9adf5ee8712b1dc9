"""The check of a corpus that comes out of an archive, which may be anybody's."""

import numpy as np

from workloads.graphmer.corpus import Corpus


def check(corpus: Corpus, pieces: int) -> None:
    """Raises ValueError where an array is no list of whole numbers, or leads out of another one.

    `pieces` is how many pieces of words the model has vectors for.
    """
    words, entities, files = len(corpus.word_list), len(corpus.entities), len(corpus.files)
    text, facts = len(corpus.text) + 1, len(corpus.tail) + 1
    below = {
        "text": words, "parts": words, "window_start": text, "window_stop": text, "first_triple": facts,
        "head": entities, "tail": entities, "relation": len(corpus.relations), "window_file": files, "split": 3,
        "entity_type": len(corpus.types), "entity_file": files, "part_offsets": len(corpus.parts) + 1,
        "piece_flat": pieces, "piece_offsets": len(corpus.piece_flat) + 1,
    }  # fmt: skip
    for name, most in below.items():
        array, least = getattr(corpus, name), -1 if name == "entity_file" else 0
        if (
            array.ndim != 1
            or array.dtype.kind not in "iu"
            or (len(array) and (array.min() < least or array.max() >= most))
        ):
            raise ValueError(f"{name} leads out of the corpus")
    windows = len(corpus)
    lengths = {
        "window_start": windows, "window_stop": windows, "window_file": windows, "split": windows,
        "first_triple": windows + 1, "relation": facts - 1, "entity_type": entities, "entity_file": entities,
        "part_offsets": entities + 1, "piece_offsets": words + 1,
    }  # fmt: skip
    for name, length in lengths.items():
        if len(getattr(corpus, name)) != length:
            raise ValueError(f"{name} has another length than it must have")
    ends = {"first_triple": facts - 1, "part_offsets": len(corpus.parts), "piece_offsets": len(corpus.piece_flat)}
    for name, end in ends.items():
        array = getattr(corpus, name)
        if array[0] != 0 or array[-1] != end or (np.diff(array) < (name == "part_offsets")).any():
            raise ValueError(f"{name} does not ascend to its end")
    if (corpus.window_stop < corpus.window_start).any():
        raise ValueError("a window ends before it begins")
