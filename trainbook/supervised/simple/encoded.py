"""Vectors that a task's frozen encoder makes of samples, each sample encoded once in a process."""

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.errors import BadInput
from lib.task import Batch

SEEN = "seen"  # the fields of paired rows
VECTOR = "vector"
_MOST_BYTES = 2**29  # of vectors that are kept
_CLOSE = 0.01  # the relative difference of two machines' vectors is about 1e-6


class _Kept:
    """Vectors by the hash of encoder and sample; the oldest ones go first."""

    def __init__(self) -> None:
        self.vectors = OrderedDict[bytes, np.ndarray]()
        self.size = 0

    def add(self, key: bytes, vectors: np.ndarray) -> None:
        self.vectors[key] = vectors
        self.size += vectors.nbytes
        while self.size > _MOST_BYTES:
            _, oldest = self.vectors.popitem(last=False)
            self.size -= oldest.nbytes


_KEPT = _Kept()


def probe(task: Any) -> np.ndarray | None:
    """Encodes a task's example into (D,): it tells encoders apart. Returns None without an encoder."""
    example = task._numbered(task.example())
    batch = task.labelled([example])
    with torch.no_grad():
        encoded = task.encoded(batch)
    if encoded is None:
        return None
    array = _checked(task, encoded)
    if array.ndim == 2:
        return array.mean(0)
    return array


def check(task: Any, name: str, expected: np.ndarray) -> None:
    """Raises BadInput if a task has no encoder, or another one than the method was fitted with."""
    current = task._probe
    if current is None:
        raise BadInput(
            f"The simple method {name!r} needs the encoder that it was fitted with, and "
            "encoded(batch) returns None. Name or mount the encoder again."
        )
    if current.shape == expected.shape:
        distance = np.linalg.norm(current - expected)
        if distance <= _CLOSE * np.linalg.norm(expected):
            return
    raise BadInput(
        f"The simple method {name!r} was fitted with another encoder: the vectors of example() "
        "differ. Mount the encoder that the run began with, or train a new run."
    )


def vectors(task: Any, batch: Batch) -> np.ndarray:
    """Encodes a batch into (rows, D), a row a sample, or a position of the labels. Raises BadInput."""
    seen = task.features(batch)
    labels = batch["labels"]
    encoder = task._probe.tobytes()
    rows = []
    for place in range(len(labels)):
        key = _key(encoder, seen[place])
        if key not in _KEPT.vectors:
            _KEPT.add(key, _encoded(task, batch, place))
        rows.append(_KEPT.vectors[key])
    if not task._kind.has_positions:
        return np.stack(rows)
    width = labels.shape[1]
    padded = np.zeros((len(rows), width, len(task._probe)), np.float32)
    for row, array in zip(padded, rows, strict=True):
        row[: len(array)] = array[:width]
    return padded.reshape(-1, padded.shape[-1])


def paired(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns rows with two fields: what is seen, and the encoder's vector."""
    fields = [
        (SEEN, values.dtype, values.shape[1:]),
        (VECTOR, np.float32, vectors.shape[1:]),
    ]
    rows = np.zeros(len(values), fields)
    rows[SEEN] = values
    rows[VECTOR] = vectors
    return rows


def _encoded(task: Any, batch: Batch, place: int) -> np.ndarray:
    """Encodes one sample alone, so that no vector depends on the samples beside it."""
    single = {name: value[place : place + 1] for name, value in batch.items()}
    with torch.no_grad():
        return _checked(task, task.encoded(single))


def _checked(task: Any, encoded: Any) -> np.ndarray:
    """Returns (D,), or (positions, D), of a batch with one sample. Raises BadInput for another shape, and for NaN."""
    name = f"{type(task).__name__}.encoded"
    if not isinstance(encoded, Tensor):
        raise BadInput(f"{name} returned a {type(encoded).__name__}. Return a tensor, or None.")
    dimensions = 3 if task._kind.has_positions else 2
    if encoded.dim() != dimensions or len(encoded) != 1:
        shape = "(samples, positions, D)" if dimensions == 3 else "(samples, D)"
        raise BadInput(
            f"{name} returned the shape {tuple(encoded.shape)} for one sample. Return {shape}."
        )
    array = encoded[0].float().cpu().numpy()
    if not np.isfinite(array).all():
        raise BadInput(f"{name} returned NaN or infinity. Look at the encoder, and at its input.")
    return array


def _key(encoder: bytes, value: Any) -> bytes:
    """Returns a hash of the encoder and of a sample's features: a text, a list of words, or a tensor."""
    digest = hashlib.sha256(encoder)
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.contiguous().numpy().tobytes())
    else:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
    return digest.digest()
