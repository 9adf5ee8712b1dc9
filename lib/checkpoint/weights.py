"""Weights by name: out of a model, back into it, and into a model of another shape."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lib import checkpoint
from lib.errors import BadInput
from lib.ranks import sharding

# What DistributedDataParallel and torch.compile put in front of every name.
_PREFIXES = ("module.", "_orig_mod.")


def of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied tensors once, under their first name (safetensors refuses shared memory)."""
    named: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        # A rank's part of a small tensor may be empty, so shards are known by their parameter.
        key = (id(value) if sharding.is_shard(value) else value.data_ptr(), value.shape)
        if value.numel() == 0 or key not in seen:
            named[plain(name)] = value.detach()
            seen.add(key)
    return named


def plain(name: str) -> str:
    """A name without the prefixes of wrappers, wherever and however often they stand."""
    for prefix in _PREFIXES:
        while name.startswith(prefix) or f".{prefix}" in name:
            name = name.removeprefix(prefix).replace(f".{prefix}", ".")
    return name


def put_back(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts saved weights back. Raises BadInput unless every tensor of the model is there in its shape."""
    expected = of(model)
    given = {plain(name): value for name, value in tensors.items()}
    wrong = [name for name, value in expected.items() if name not in given or given[name].shape != value.shape]
    extra = sorted(set(given) - set(expected))
    if wrong or extra:
        raise BadInput(
            f"The saved weights do not fit the model: {len(wrong)} of {len(expected)} tensors are missing or of "
            f"another shape ({', '.join(wrong[:3])}), {len(extra)} are unknown ({', '.join(extra[:3])}). The workload "
            "settings differ from those of the saved run; compare with config.yaml in its folder."
        )
    _copy(expected, given, list(expected))


def transfer(model: nn.Module, tensors: Mapping[str, Tensor], least_share: float) -> str:
    """Starts a model from the weights of another one: what has the same name and shape is taken, the rest stays new.

    Returns one sentence with the counts. Raises BadInput where less than `least_share` of the model's tensors match: a
    silent mismatch of names would load nothing and look like success.
    """
    expected = of(model)
    given = {plain(name): value for name, value in tensors.items()}
    matched = [name for name, value in expected.items() if name in given and given[name].shape == value.shape]
    reshaped = [name for name in expected if name in given and given[name].shape != expected[name].shape]
    absent = [name for name in expected if name not in given]
    counts = (
        f"{len(matched)} of {len(expected)} tensors match; {len(reshaped)} have another shape "
        f"({', '.join(reshaped[:3]) or 'none'}), {len(absent)} are not there ({', '.join(absent[:3]) or 'none'})"
    )
    if len(matched) < least_share * len(expected):
        raise BadInput(
            f"The initial weights hardly fit the model: {counts}. That is less than {least_share:.0%}, the "
            "run.initial_weights_share of the configuration. Give other weights, or lower it if this is meant."
        )
    _copy(expected, given, matched)
    return f"Initial weights: {counts}."


def _copy(into: Mapping[str, Tensor], given: Mapping[str, Tensor], names: list[str]) -> None:
    with torch.no_grad():
        for name in names:
            into[name].copy_(sharding.sharded_like(into[name], given[name]))


def read(path: Path) -> dict[str, Tensor]:
    """Weights from a .safetensors file, a checkpoint, or a folder of checkpoints (the newest). Raises BadInput."""
    if path.is_dir():
        return _read_folder(path)
    if path.suffix != ".safetensors":
        raise BadInput(
            f"{path} is no .safetensors file. Pickled weights (.pt, .pth, .bin) can run code when they are loaded, so "
            "they are never opened here: convert them once with safetensors.torch.save_file."
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"The weights {path} cannot be read: {error}. Download or copy them again.") from None


def _read_folder(folder: Path) -> dict[str, Tensor]:
    for place in (folder, folder / "best", folder / "checkpoints"):
        if found := checkpoint.steps(place):
            return checkpoint.load(checkpoint.path_of(place, found[-1])).tensors["model"]
    if (folder / "model.safetensors").is_file():
        return checkpoint.load(folder).tensors["model"]
    raise BadInput(f"There are no weights in {folder}. Give a .safetensors file, a checkpoint or the folder of a run.")
