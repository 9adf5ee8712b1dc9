"""Features of pictures, computed once and kept on disk by the content of the picture."""

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.machine import disk, platform
from trainbook.published.encoder import Encoder

_HASH = hashlib.sha256().digest_size


def kept(digest: str, what: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns `compute` of each of (B, ...) pictures, stacked, in fp32 rounded to fp16; known ones come from disk.

    `compute` takes (1, ...), so that no feature depends on the pictures beside it, and returns (1, ...). `digest` is
    the encoder's `sha256`; `what` names the rest that a feature depends on beside the picture.
    """
    folder = platform.detect().scratch_dir / "encoded" / digest[:16]
    rows = []
    for picture in x:
        path = folder / f"{_key(what, picture)}.npy"
        row = _remembered(path)
        if row is None:
            row = compute(picture[None])[0].detach().half().cpu().numpy()
            _remember(path, row)
        rows.append(torch.from_numpy(row).float())
    return torch.stack(rows)


@torch.no_grad()
def pooled(encoder: Encoder, x: Tensor) -> Tensor:
    """(B, 3, H, W) from 0 to 1 -> (B, D) the features at the encoder's own size, on the encoder's device"""
    side = (encoder.size, encoder.size)
    if x.shape[2:] != side:
        x = F.interpolate(x, side, mode="bilinear", antialias=True)
    return encoder(encoder.scaled(x.to(next(encoder.parameters()).device)))


def _key(what: str, picture: Tensor) -> str:
    digest = hashlib.sha256(f"{what} {picture.dtype} {tuple(picture.shape)} ".encode())
    digest.update(picture.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _remembered(path: Path) -> np.ndarray | None:
    """Returns the array in a file; None without one, or if it is damaged."""
    with suppress(OSError, ValueError):
        content = path.read_bytes()
        if hashlib.sha256(content[_HASH:]).digest() == content[:_HASH]:
            return np.load(io.BytesIO(content[_HASH:]), allow_pickle=False)
    return None


def _remember(path: Path, row: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, row, allow_pickle=False)
    content = buffer.getvalue()
    with suppress(OSError):  # a cache: without room it is computed again
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(path, cache=True) as aside:
            aside.write_bytes(hashlib.sha256(content).digest() + content)
