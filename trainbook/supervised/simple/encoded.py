"""Vectors that a task's frozen encoder makes of samples, each batch encoded once in a process."""

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
    """Vectors by the hash of encoder and batch; the oldest ones go first."""

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
    array = _checked(task, encoded, 1)[0]
    return array.mean(0) if array.ndim == 2 else array


def is_at_hand(task: Any) -> bool:
    """Returns whether a task has an encoder; prints why one cannot be used."""
    try:
        return task._probe is not None
    except BadInput as error:
        print(f"No encoder stands beside what simple methods see. {error}")
        return False


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
    """Encodes a batch into (rows, D), a row a sample, or a position of the labels. Raises BadInput.

    A batch is encoded whole: the last bits of a vector may depend on the samples beside it, and the evaluations of a
    resumed run have the same batches.
    """
    key = _key(task._probe, task.features(batch))
    if key not in _KEPT.vectors:
        with torch.no_grad():
            _KEPT.add(key, _checked(task, task.encoded(batch), len(batch["labels"])))
    array = _KEPT.vectors[key]
    if not task._kind.has_positions:
        return array
    width = batch["labels"].shape[1]
    padded = np.zeros((len(array), width, array.shape[2]), np.float32)
    padded[:, : array.shape[1]] = array[:, :width]
    return padded.reshape(-1, padded.shape[2])


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


def _checked(task: Any, encoded: Any, samples: int) -> np.ndarray:
    """Returns (samples, D), or (samples, positions, D). Raises BadInput for another shape, and for NaN."""
    name = f"{type(task).__name__}.encoded"
    if not isinstance(encoded, Tensor):
        raise BadInput(f"{name} returned a {type(encoded).__name__}. Return a tensor, or None.")
    dimensions = 3 if task._kind.has_positions else 2
    if encoded.dim() != dimensions or len(encoded) != samples:
        shape = "(samples, positions, D)" if dimensions == 3 else "(samples, D)"
        raise BadInput(
            f"{name} returned the shape {tuple(encoded.shape)} for a batch of {samples}. Return {shape}."
        )
    array = encoded.float().cpu().numpy()
    if not np.isfinite(array).all():
        raise BadInput(f"{name} returned NaN or infinity. Look at the encoder, and at its input.")
    return array


def _key(encoder: np.ndarray, features: Any) -> bytes:
    """Returns a hash of the encoder and of a batch's features: texts, lists of words, or a tensor."""
    digest = hashlib.sha256(encoder.tobytes())
    if isinstance(features, Tensor):
        digest.update(f"{features.dtype} {tuple(features.shape)} ".encode())
        digest.update(features.contiguous().cpu().numpy().tobytes())
    else:
        digest.update(repr(features).encode("utf-8", "surrogatepass"))
    return digest.digest()
