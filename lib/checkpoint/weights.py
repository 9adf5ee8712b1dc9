"""Takes weights out of a model by name, puts them back, and transfers them to a model of another shape."""

from collections.abc import Container, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lib import checkpoint
from lib.checkpoint import contents
from lib.checkpoint.contents import plain
from lib.config.files import size_of
from lib.errors import BadInput

_HALVES = (torch.float16, torch.bfloat16)


def of(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's parameters and buffers by name, in their shapes, uncopied; tied ones once, as first named."""
    named: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        key = (id(value) if value.is_meta else value.data_ptr(), value.shape)  # what is on `meta` has no address
        if value.numel() == 0 or key not in seen:
            named[plain(name)] = value.detach()
            seen.add(key)
    return named


def widen(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dtype in _HALVES:
            parameter.data = parameter.data.float()
    for module in model.modules():
        for name, value in module._buffers.items():
            if value is not None and value.dtype in _HALVES:
                module._buffers[name] = value.float()


def put_back(model: nn.Module, tensors: Mapping[str, Tensor], left_out: Container[str] = ()) -> None:
    """Copies saved weights into a model. Raises BadInput unless they are its tensors, but for some `left_out`."""
    # a model of 16 bits of which all is trained is made fp32 where that was saved: a run trains it so
    saved = {plain(name): value for name, value in tensors.items()}
    wider = any(n in saved and saved[n].dtype is torch.float32 for n, v in of(model).items() if v.dtype in _HALVES)
    if wider and all(parameter.requires_grad for parameter in model.parameters()):
        widen(model)
    expected = {name: value for name, value in of(model).items() if name in saved or name not in left_out}
    wrong = [name for name, value in expected.items() if name not in saved or saved[name].shape != value.shape]
    extra = sorted(set(saved) - set(expected))
    if wrong or extra:
        misfits = f"{len(wrong)} of {len(expected)} tensors are missing or of another shape ({', '.join(wrong[:3])})"
        unknown = f"{len(extra)} are unknown ({', '.join(extra[:3])})"
        advice = "Compare the workload settings with config.yaml of the saved run."
        raise BadInput(f"The saved weights do not fit the model: {misfits}, {unknown}. {advice}")
    _copy(expected, saved)


def transfer(model: nn.Module, tensors: Mapping[str, Tensor], least_share: float) -> str:
    """Copies another model's tensors of same name and shape; returns the counts. Raises BadInput if too few match."""
    expected = of(model)
    source = {plain(name): value for name, value in tensors.items()}
    absent = [name for name in expected if name not in source]
    matched = {n: value for n, value in expected.items() if n in source and source[n].shape == value.shape}
    reshaped = [name for name in expected if name in source and name not in matched]
    counts = (
        f"{len(matched)} of {len(expected)} tensors match; {len(reshaped)} have another shape "
        f"({', '.join(reshaped[:3]) or 'none'}), {len(absent)} are not there ({', '.join(absent[:3]) or 'none'})"
    )
    if len(matched) < least_share * len(expected):
        what = f"That is less than {least_share:.0%} (run.initial_weights_share)"
        raise BadInput(f"The initial weights hardly fit the model: {counts}. {what}. Give other weights, or lower it.")
    _copy(matched, source)
    return f"Initial weights: {counts}."


def _copy(into: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in into.items():
            value.copy_(source[name])


def read(path: Path) -> checkpoint.Checkpoint:
    """Reads weights: of a .safetensors file, a checkpoint with its state, a run, a published model. Raises BadInput."""
    if not (inside := _checkpoint_in(path)):
        return checkpoint.Checkpoint(path, 0, {"model": _tensors(path)}, {})
    try:
        saved = checkpoint.load_model(inside)
        contents.parsed(saved.state, contents.Names)
    except checkpoint.DamagedCheckpoint as damage:
        raise BadInput(f"The weights {inside} are damaged ({damage}). Download or copy them again.") from None
    return saved


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        from lib.machine import published

        try:
            return published.read(published.find_model(str(path)))
        except BadInput as error:
            advice = "Give a .safetensors file, a checkpoint, the folder of a run, or one with published weights."
            raise BadInput(f"There are no weights in {path} that can be taken. {error} {advice}") from None
    if path.suffix != ".safetensors":
        why = "Pickled weights (.pt, .pth, .bin) can run code, and are never opened here"
        raise BadInput(f"{path} is no .safetensors file. {why}: convert them once with safetensors.torch.save_file.")
    try:
        size_of(path)  # a pipe would be waited for
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"The weights {path} cannot be read: {error}. Download or copy them again.") from None


def _checkpoint_in(path: Path) -> Path | None:
    """Returns a checkpoint itself, or the best or newest one of a run; None where there is none."""
    for folder in (path, path / "best", path / "checkpoints"):
        if steps := checkpoint.steps(folder):
            return checkpoint.path_of(folder, steps[-1])
    return path if (path / checkpoint.MANIFEST).is_file() else None
