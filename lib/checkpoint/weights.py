"""Takes weights out of a model by name, puts them back, and transfers them to a model of another shape.

A checkpoint omits frozen weights of a published file: it has their hash.
"""

import hashlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lib import checkpoint
from lib.checkpoint import contents
from lib.checkpoint.contents import plain
from lib.config.files import size_of
from lib.errors import BadInput, printable

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def of(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's parameters and buffers by name, in their shapes, uncopied; tied ones once, as first named."""
    named: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        key = (
            id(value) if value.is_meta else value.data_ptr(),
            value.shape,
        )  # what is on `meta` has no address
        if value.numel() == 0 or key not in seen:
            named[plain(name)] = value.detach()
            seen.add(key)
    return named


def widen(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dtype in _HALVES:
            parameter.data = parameter.data.float()
    for module in model.modules():
        for name, value in [*module.named_buffers(recurse=False)]:
            if value.dtype in _HALVES:
                setattr(module, name, value.float())


def put_back(
    model: nn.Module, tensors: Mapping[str, Tensor], left_out: Container[str] = ()
) -> None:
    """Copies saved weights into a model. Raises BadInput unless they are its tensors, but for some `left_out`."""
    # a model of 16 bits of which all is trained is made fp32 where that was saved: a run trains it so
    saved = {plain(name): value for name, value in tensors.items()}
    wider = any(
        n in saved and saved[n].dtype is torch.float32
        for n, v in of(model).items()
        if v.dtype in _HALVES
    )
    if wider and all(parameter.requires_grad for parameter in model.parameters()):
        widen(model)
    expected = {
        name: value for name, value in of(model).items() if name in saved or name not in left_out
    }
    wrong = [
        name
        for name, value in expected.items()
        if name not in saved or saved[name].shape != value.shape
    ]
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
    matched = {
        n: value for n, value in expected.items() if n in source and source[n].shape == value.shape
    }
    reshaped = [name for name in expected if name in source and name not in matched]
    counts = (
        f"{len(matched)} of {len(expected)} tensors match; {len(reshaped)} have another shape "
        f"({', '.join(reshaped[:3]) or 'none'}), {len(absent)} are not there ({', '.join(absent[:3]) or 'none'})"
    )
    if len(matched) < least_share * len(expected):
        what = f"That is less than {least_share:.0%} (run.initial_weights_share)"
        raise BadInput(
            f"The initial weights hardly fit the model: {counts}. {what}. Give other weights, or lower it."
        )
    _copy(matched, source)
    return f"Initial weights: {counts}."


def _copy(into: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in into.items():
            value.copy_(source[name])


def trained(model: nn.Module) -> dict[str, str]:
    """Returns type and shape of every parameter that is trained, by name: "float32 (4, 3)"."""
    return {plain(name): _described(p) for name, p in model.named_parameters() if p.requires_grad}


def frozen(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are not trained, by the names that they have in a checkpoint."""
    resting = {plain(name): p for name, p in model.named_parameters() if not p.requires_grad}
    return {name: resting[name] for name in of(model) if name in resting}


def _described(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def seal(value: Tensor, like: str = "") -> str:
    """Returns type, shape and sha256 of a tensor's values; in the type of another seal where one is given."""
    whole = value.detach().cpu()
    if (kind := _FLOATS.get(like.partition(" ")[0])) and whole.is_floating_point():
        whole = whole.to(kind)
    content: Any = whole.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{_described(whole)} {hashlib.sha256(content).hexdigest()}"


def seal_of_all(named: Mapping[str, Tensor]) -> str:
    """Returns one sha256 for the names, types, shapes and values of tensors."""
    lines = (f"{name} {seal(value)}\n" for name, value in sorted(named.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def unsaved(model: nn.Module) -> tuple[str, list[str]]:
    """Returns one hash of the buffers that no checkpoint has, "" for none, and their names."""
    in_checkpoints = model.state_dict().keys()
    buffers = {plain(name): b for name, b in model.named_buffers() if name not in in_checkpoints}
    return seal_of_all(buffers) if buffers else "", list(buffers)


def with_own(model: nn.Module, found: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """Returns the weights of a checkpoint with those of this model that it omits. Raises BadInput if these differ."""
    named = found.tensors["model"]
    here = of(model)
    left_out = {
        n: known
        for n, known in found.state.get("frozen", {}).items()
        if n in here and n not in named
    }
    own = {name: here[name].cpu() for name in left_out}
    if wrong := [name for name, known in left_out.items() if seal(own[name], known) != known]:
        what = f"The initial weights {printable(found.path)} lack {len(wrong)} frozen tensors ({_listed(wrong)})"
        advice = "Let model() load the same weights, with the same training.frozen_precision"
        raise BadInput(
            f"{what}, and this model has others. {advice}, or train that run with checkpoint.frozen: save."
        )
    return {**named, **own}


def restore(model: nn.Module, saved: checkpoint.Checkpoint) -> None:
    """Copies a checkpoint's weights into a model; frozen ones that it omits stay. Raises BadInput if any differ."""
    left_out = saved.state.get("frozen", {})
    _check_trained(model, saved)
    put_back(model, saved.tensors["model"], left_out)
    here = of(model) if left_out else {}
    if wrong := [
        name
        for name, hashed in left_out.items()
        if name not in here or seal(here[name], hashed) != hashed
    ]:
        published = [
            printable(n, most=100)
            for n, taken in saved.state.get("published", {}).items()
            if "config" in taken
        ]
        source = f"published as {', '.join(published)}" if published else "loaded by model()"
        what = f"of {len(left_out)} that it omits, {len(wrong)} have another hash now ({_listed(wrong)})"
        where = f"The frozen weights are not those of {printable(saved.path)}"
        raise BadInput(f"{where}: {what}. They were {source}: mount exactly these.")
    with torch.no_grad():
        for name, hashed in left_out.items():
            here[name].copy_(here[name].to(_FLOATS.get(hashed.partition(" ")[0], here[name].dtype)))


def _check_trained(model: nn.Module, saved: checkpoint.Checkpoint) -> None:
    """Raises BadInput if the saved run trained other parameters."""
    before = saved.state.get("trained")
    now = trained(model)
    if before is None or before == now:  # best weights name none
        return
    then = [f"{name} {kind}" for name, kind in before.items() if now.get(name) != kind]
    since = [f"{name} {kind}" for name, kind in now.items() if before.get(name) != kind]
    what = f"What is trained differs from {printable(saved.path)}: then {_listed(then)}; now {_listed(since)}"
    why = "loaded adapters come back frozen unless asked to be trainable, and a model wrapped twice has other names"
    raise BadInput(f"{what}. model() must return the same model each time: {why}.")


def _listed(names: list[str]) -> str:
    return (
        ", ".join(printable(name, most=100) for name in names[:3]) + ", ..." * (len(names) > 3)
        or "nothing more"
    )


def read(path: Path) -> checkpoint.Checkpoint:
    """Reads weights: of a .safetensors file, a checkpoint with its state, a run, a published model. Raises BadInput."""
    if not (inside := _checkpoint_in(path)):
        return checkpoint.Checkpoint(path, 0, {"model": _tensors(path)}, {})
    try:
        saved = checkpoint.load_model(inside)
        contents.parsed(saved.state, contents.Names)
    except checkpoint.DamagedCheckpoint as damage:
        raise BadInput(
            f"The weights {inside} are damaged ({damage}). Download or copy them again."
        ) from None
    return saved


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        from lib.machine import published

        try:
            return published.read(published.find_model(str(path)))
        except BadInput as error:
            advice = "Give a .safetensors file, a checkpoint, the folder of a run, or one with published weights."
            raise BadInput(
                f"There are no weights in {path} that can be taken. {error} {advice}"
            ) from None
    if path.suffix != ".safetensors":
        why = "Pickled weights (.pt, .pth, .bin) can run code, and are never opened here"
        raise BadInput(
            f"{path} is no .safetensors file. {why}: convert them once with safetensors.torch.save_file."
        )
    try:
        size_of(path)  # a pipe would be waited for
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(
            f"The weights {path} cannot be read: {error}. Download or copy them again."
        ) from None


def _checkpoint_in(path: Path) -> Path | None:
    """Returns a checkpoint itself, or the best or newest one of a run; None where there is none."""
    for folder in (path, path / "best", path / "checkpoints"):
        if steps := checkpoint.steps(folder):
            return checkpoint.path_of(folder, steps[-1])
    if (path / checkpoint.MANIFEST).is_file():
        return path
    return None
