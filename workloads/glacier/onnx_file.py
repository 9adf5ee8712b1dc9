"""The network as an ONNX file, which other programs and languages run."""

import importlib.util
from pathlib import Path

import torch
from torch import nn

from lib.errors import BadInput
from lib.machine import disk
from workloads.glacier.settings import Settings

FILE = "model.onnx"
_PACKAGES = ("onnx", "onnxscript")  # that torch.onnx imports


def missing() -> str:
    """Returns a sentence on the packages that are not there; "" where all are."""
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    return (
        f"workload.export is onnx, and {' and '.join(absent)} cannot be found: pip install {' '.join(absent)}. The "
        "next call of a completed run then writes the file without training."
    )


def write(model: nn.Module, settings: Settings, folder: Path) -> None:
    """Writes model.onnx into a folder: bands with NaN for no data in, logits of the classes out, any number of tiles.

    Raises BadInput where packages are missing.
    """
    if why := missing():
        raise BadInput(why)
    size, source = settings.tiles.size, settings.source
    device = next(model.parameters()).device
    image = torch.zeros(2, len(source.bands), size, size, device=device)
    with disk.whole(folder / FILE) as aside:
        torch.onnx.export(
            model, (image,), aside, dynamo=True, external_data=False, verbose=False, input_names=["image"],
            output_names=["logits"], dynamic_shapes=({0: torch.export.Dim("tiles")},),
        )  # fmt: skip
    text = (
        f"{FILE} takes `image`, (tiles, {len(source.bands)}, {size}, {size}) float32 of the bands "
        f"{', '.join(source.bands)} as they are in the files, NaN where there is no data.\n"
        f"It returns `logits`, (tiles, {len(source.classes)}, {size}, {size}); the largest is the class: "
        f"{', '.join(f'{code} {name}' for name, code in zip(source.classes, source.codes, strict=True))} by its code.\n"
    )
    disk.write_text(folder / "README.txt", text)
