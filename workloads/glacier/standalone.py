"""Masks of scenes by trained models, without Trainbook: this file, `weights.pt` beside it, torch, numpy and rasterio.

    python solution.py FOLDER_OF_BANDS masks

FOLDER_OF_BANDS holds Band1, Band2, ... with one GeoTIFF a scene, or rasters with all bands. A grader calls the
function `maskgeration`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import rasterio
import torch
from torch import nn

from workloads.glacier.data.quality import hidden
from workloads.glacier.data.scene_folders import has_word
from workloads.glacier.data.stretch import limits, spacing
from workloads.glacier.maps import probabilities, windows
from workloads.glacier.model import Net

_ENDINGS = (".tif", ".tiff", ".jp2", ".img", ".png", ".jpg", ".jpeg")
_FEW_IDS = (r"img(\d+)", r"(\d{2}_\d{2})")  # GlacierHack's two ways to number tiles


def load(folder: Path) -> tuple[dict[str, Any], list[nn.Module]]:
    """Returns the settings and the models of `weights.pt` in a folder, on the GPU where there is one."""
    saved = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
    models, device = [], torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = zip(saved["weights"], saved["sizes"], saved["indices"], saved["priors"], strict=True)
    for weights, sizes, indices, prior in kinds:
        model = Net(len(saved["bands"]), len(saved["codes"]), SimpleNamespace(**sizes), indices, prior)
        model.load_state_dict(weights)
        models.append(model.to(device).eval())
    return saved, models


def scenes(where: dict[str, Any] | str | Path, settings: dict[str, Any]) -> dict[str, list[Path]]:
    """Returns the files of each scene by its name: one for each band, or one with all of them."""
    if not isinstance(where, dict) and (Path(where) / f"Band{settings['channels'][0]}").is_dir():
        where = {f"Band{number}": Path(where) / f"Band{number}" for number in settings["channels"]}
    if not isinstance(where, dict) and settings["band_files"]:
        return _in_folders(Path(where), settings["band_files"])
    if not isinstance(where, dict):
        return {name: [path] for name, path in _by_name(Path(where), settings).items()}
    folders = [_by_name(Path(where[f"Band{number}"]), settings) for number in settings["channels"]]
    return {name: [paths[name] for paths in folders] for name in sorted(set.intersection(*map(set, folders)))}


def _in_folders(where: Path, words: list[str]) -> dict[str, list[Path]]:
    found = {}
    for folder in [where, *sorted(path for path in where.rglob("*") if path.is_dir())]:
        files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _ENDINGS and path.name[:2] != "._"]
        paths = [next((path for path in files if has_word(path.stem, word)), None) for word in words]
        if all(paths):
            found[folder.relative_to(where).as_posix() if folder != where else folder.name] = paths
    return found


def _by_name(folder: Path, settings: dict[str, Any]) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _ENDINGS and not path.name.startswith("._"):
            match = re.search(settings["name_pattern"], path.stem) if settings["name_pattern"] else None
            found[match[1] if match else path.stem] = path
    return found


def read(paths: list[Path], settings: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns (bands, h, w) float32 with NaN where a band has no data, and the place on the map."""
    numbers = [(path, 1) for path in paths] if len(paths) > 1 else [(paths[0], n) for n in settings["channels"]]
    planes, place = [], {}
    for path, number in numbers:
        with rasterio.open(path) as file:
            values = file.read(number)
            plane = values.astype(np.float32)
            for nodata in (file.nodatavals[number - 1], *settings["nodata"]):
                if nodata is not None and not np.isnan(nodata):
                    plane[values == nodata] = np.nan
            planes.append(plane)
            place = place or ({"crs": file.crs, "transform": file.transform} if file.crs else {})
    image = np.stack(planes)
    image[:, ~np.isfinite(image).all(0)] = np.nan
    if settings["quality_band"]:
        with rasterio.open(paths[0]) as file:
            image[:, hidden(file.read(settings["quality_band"]), *settings["quality"])] = np.nan
    if settings["stretch"]:
        step = spacing(*image.shape[1:])
        low, high = limits(image[:, ::step, ::step].reshape(len(image), -1), settings["stretch"])
        image = (image - low) / (high - low)
    return image, place


def predict(image: np.ndarray, settings: dict[str, Any], models: list[nn.Module]) -> np.ndarray:
    """(bands, h, w) -> (h, w) codes; what has no data is the first class."""
    size, codes = settings["size"], np.asarray(settings["codes"], settings["dtype"])
    result = np.full(image.shape[1:], codes[0])
    for (top, left, h, w), (rows, columns) in windows(*image.shape[1:], size):
        tile = image[:, top : top + h, left : left + w]
        tile = np.pad(tile, ((0, 0), (0, size - h), (0, size - w)), constant_values=np.nan)
        classes = probabilities(models, torch.from_numpy(tile)[None], settings["views"], settings["shares"])[0]
        classes = classes.argmax(0).numpy()
        inner = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
        result[rows, columns] = np.where(np.isnan(tile[0][inner]), codes[0], codes[classes[inner]])
    return result


def maskgeration(imagepath: dict[str, Any] | str, out_dir: str) -> dict[str, np.ndarray]:
    """Returns masks (height, width) by tile id, out of folders by band: {"Band1": folder, ...}.

    They are written to `out_dir` as GeoTIFFs too, unless the weights lie there.
    """
    holds_weights = (Path(out_dir) / "weights.pt").is_file()
    settings, models = load(Path(out_dir) if holds_weights else Path(__file__).resolve().parent)
    masks = {}
    for name, paths in scenes(imagepath, settings).items():
        image, place = read(paths, settings)
        mask = predict(image, settings, models)
        if not holds_weights:
            Path(out_dir).mkdir(parents=True, exist_ok=True)
            shape = {"height": mask.shape[0], "width": mask.shape[1], "count": 1, "dtype": mask.dtype.name}
            with rasterio.open(Path(out_dir) / f"{name}.tif", "w", driver="GTiff", **shape, **place) as file:
                file.write(mask, 1)
        found = next((match for pattern in _FEW_IDS if (match := re.search(pattern, name))), None)
        masks[found[1] if found else name] = mask
    return masks


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"{len(maskgeration(sys.argv[1], sys.argv[2]))} masks are in {sys.argv[2]}.")
