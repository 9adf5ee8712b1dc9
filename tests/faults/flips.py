"""Every bit of a checkpoint is flipped, one at a time; loading must notice each."""

from pathlib import Path

import torch

from lib import checkpoint


def tiny(folder: Path, step: int = 1) -> Path:
    tensors = {
        "model": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.float16)},
        "optimizer": {"exp_avg/weight": torch.rand(2, 3), "step/weight": torch.tensor(7.0)},
    }
    return checkpoint.save(folder, step, tensors, {"kept_best": [], "scaler": {}, "micro_batch": 8})


def bit_flips(folder: Path, stride: int = 1) -> dict:
    """Flips every `stride`-th bit and loads; counts those that were found."""
    path = tiny(folder)
    checkpoint.load(path)
    tried = found = size = 0
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        size += len(whole)
        for bit in range(0, 8 * len(whole), stride):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            tried += 1
            found += _is_found(path)
        file.write_bytes(whole)
    checkpoint.load(path)
    assert found == tried, f"{tried - found} of {tried} flips were not found"
    return {"bit flips": {"bytes": size, "tried": tried, "found": found}}


def _is_found(path: Path) -> bool:
    try:
        checkpoint.load(path)
    except checkpoint.DamagedCheckpoint:
        return True
    return False
