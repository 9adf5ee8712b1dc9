"""A program that predicts without Trainbook, for a grader: solution.py with the weights of one model or several."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from lib.errors import BadInput
from lib.machine import disk
from workloads.glacier import maps, model, standalone
from workloads.glacier.augment import undo, view
from workloads.glacier.data.quality import hidden
from workloads.glacier.data.scene_folders import has_word
from workloads.glacier.data.stretch import _MOST_PIXELS, limits, spacing
from workloads.glacier.geotiff import coding
from workloads.glacier.model import UNet
from workloads.glacier.settings import BAND, Settings

_TAKEN = (
    model.UNet, model.Net, model.normalised, model.difference, model.Residual, model.Up, model.ScSE, view, undo,
    maps.windows, maps._cores, maps.probabilities, has_word, hidden, spacing, limits,
)  # fmt: skip
_IMPORTS = "import itertools\nimport math\nimport torch.nn.functional as F\nfrom torch import Tensor\n"


def write(models: Sequence[nn.Module], settings: Settings, folder: Path, shares: Sequence[float] = ()) -> None:
    """Writes solution.py and weights.pt into a folder. The program is made of the code that predicts here.

    `shares` are as in `maps.probabilities`.
    """
    if settings.model.encoder:
        raise BadInput(
            f"solution.py carries the own U-Net alone, and these models have timm's {settings.model.encoder}. Predict "
            "with `trainbook predict`, or train with workload.model.encoder empty."
        )
    source = settings.source
    if source.quality.files:
        raise BadInput(
            "solution.py reads no files of quality beside the images (workload.source.quality.files). Predict with "
            "`trainbook predict`, or train on images that have it as a band."
        )
    if BAND in source.images:
        raise BadInput(
            "solution.py reads scenes in one file, in a folder each, or in folders Band1, Band2, ..., and these lie in "
            f"{source.images} (workload.source.images). Predict with `trainbook predict`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    saved = {
        "bands": list(source.bands), "channels": list(source.chosen), "codes": list(source.codes),
        "nodata": list(source.nodata), "name_pattern": source.name_pattern, "size": settings.tiles.size,
        "band_files": list(source.band_files), "shares": list(shares),
        "quality_band": source.quality.band, "quality": [list(source.quality.values), list(source.quality.bits)],
        "stretch": list(source.stretch),
        "dtype": coding(source.codes)[0].name, "views": settings.prediction.views,
        "indices": [list(one.indices) for one in models], "priors": [one.prior is not None for one in models],
        "sizes": [_sizes(one) for one in models],
        "weights": [{name: value.detach().cpu() for name, value in one.state_dict().items()} for one in models],
    }  # fmt: skip
    with disk.whole(folder / "weights.pt") as aside:
        torch.save(saved, aside)
    disk.write_text(folder / "solution.py", text())


def text() -> str:
    """Returns the program: `standalone` with what it imports from lib in the place of those imports."""
    lines = inspect.getsource(standalone).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("from lib."))
    rest = [line for line in lines[first:] if not line.startswith("from lib.")]
    constants = f"STRIDE, _VIEWS, _MOST_PIXELS = {model.STRIDE}, {maps._VIEWS}, {_MOST_PIXELS}"
    return "\n".join([*lines[:first], _IMPORTS, constants, *map(inspect.getsource, _TAKEN), *rest, ""])


def _sizes(one: nn.Module) -> dict[str, list[int]]:
    """Returns the sizes of a U-Net, as its own weights have them: members of an ensemble may differ."""
    assert isinstance(one, UNet)
    stem, *stages = one.blocks[:5]
    depths = [len(stage) for stage in stages]  # type: ignore[arg-type]
    widths = [stem[0].out_channels, *(stage[0].conv1.out_channels for stage in stages)]  # type: ignore[index]
    decoder = [up.conv1.out_channels for up in one.blocks[5:]]
    return {"widths": widths, "depths": depths, "decoder": decoder}
