"""Arrays and words as text of JSON: compressed, and no more of them unpacked than is expected."""

import base64
import binascii
import zlib
from collections.abc import Sequence

import numpy as np

_MOST_LETTERS = 64 * 2**20  # of the words together


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def packed_array(values: np.ndarray, kind: str) -> str:
    """Returns an array's bytes in a little-endian type, say "<f2"."""
    return packed(np.ascontiguousarray(values, np.dtype(kind)).tobytes())


def unpacked(text: str, most: int) -> bytes:
    """Returns what was packed. Raises ValueError for what was not, or for more than `most` bytes."""
    try:
        machine = zlib.decompressobj()
        content = machine.decompress(base64.b64decode(text, validate=True), most + 1)
    except (binascii.Error, zlib.error, TypeError) as error:
        raise ValueError(f"packed bytes are damaged ({error})") from None
    if len(content) > most or not machine.eof:
        raise ValueError(f"packed bytes are cut off, or more than {most:,}")
    return content


def unpacked_array(text: str, kind: str, shape: Sequence[int]) -> np.ndarray:
    """Returns an array of a shape. Raises ValueError where the bytes are of another length."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    content = unpacked(text, size)
    if len(content) != size:
        raise ValueError(f"{len(content):,} packed bytes are not the {size:,} of {tuple(shape)}")
    return np.frombuffer(content, kind).reshape(shape)


def packed_words(words: Sequence[str]) -> str:
    return packed("\n".join(words).encode("utf-8"))


def unpacked_words(text: str) -> tuple[str, ...]:
    content = unpacked(text, _MOST_LETTERS).decode("utf-8")
    return tuple(content.split("\n")) if content else ()
