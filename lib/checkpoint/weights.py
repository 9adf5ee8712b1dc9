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

# Buffers that earlier versions did not save: without them a model says what it said then
_LATER = ("network_lead", "probability_powers")
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
        address = id(value) if value.is_meta else value.data_ptr()  # none on `meta`
        key = (address, value.shape)
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
    saved = {plain(name): value for name, value in tensors.items()}
    # a run trains a wholly trained model of 16 bits in fp32, and saves it so
    halves = [name for name, value in of(model).items() if value.dtype in _HALVES]
    wider = any(saved[name].dtype is torch.float32 for name in halves if name in saved)
    if wider and all(parameter.requires_grad for parameter in model.parameters()):
        widen(model)
    named = of(model)
    expected = {
        name: value
        for name, value in named.items()
        if name in saved or (name not in left_out and name not in _LATER)
    }
    wrong = _misfits(expected, saved)
    extra = sorted(set(saved) - set(expected))
    if wrong or extra:
        raise BadInput(
            f"The saved weights do not fit the model: {len(wrong)} of {len(expected)} tensors are missing or of "
            f"another shape ({', '.join(wrong[:3])}), {len(extra)} are unknown ({', '.join(extra[:3])}). Compare the "
            "workload settings with config.yaml of the saved run."
        )
    _copy(expected, saved)


def _misfits(expected: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> list[str]:
    """Returns the names that `source` lacks or has in another shape."""
    return [n for n, value in expected.items() if n not in source or source[n].shape != value.shape]


def transfer(model: nn.Module, tensors: Mapping[str, Tensor], least_share: float) -> str:
    """Copies another model's tensors of same name and shape; returns the counts. Raises BadInput if too few match."""
    expected = of(model)
    source = {plain(name): value for name, value in tensors.items()}
    misfits = _misfits(expected, source)
    absent = [name for name in misfits if name not in source]
    reshaped = [name for name in misfits if name in source]
    matched = {name: value for name, value in expected.items() if name not in misfits}
    counts = (
        f"{len(matched)} of {len(expected)} tensors match; {len(reshaped)} have another shape ({_first(reshaped)}), "
        f"{len(absent)} are not there ({_first(absent)})"
    )
    if len(matched) < least_share * len(expected):
        raise BadInput(
            f"The initial weights hardly fit the model: {counts}. That is less than {least_share:.0%} "
            "(run.initial_weights_share). Give other weights, or lower it."
        )
    _copy(matched, source)
    return f"Initial weights: {counts}."


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) or "none"


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
    """Returns type, shape and sha256 of a tensor's values, in the float type of the seal `like` if it has one."""
    whole = value.detach().cpu()
    kind = _float_of(like)
    if kind and whole.is_floating_point():
        whole = whole.to(kind)
    content: Any = whole.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{_described(whole)} {hashlib.sha256(content).hexdigest()}"


def _float_of(seal: str) -> torch.dtype | None:
    return _FLOATS.get(seal.partition(" ")[0])


def seal_of_all(named: Mapping[str, Tensor]) -> str:
    """Returns one sha256 for the names, types, shapes and values of tensors."""
    lines = (f"{name} {seal(value)}\n" for name, value in sorted(named.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def unsaved(model: nn.Module) -> tuple[str, list[str]]:
    """Returns one hash of the buffers that checkpoints omit, or "", and their names."""
    in_checkpoints = model.state_dict().keys()
    buffers = {plain(name): b for name, b in model.named_buffers() if name not in in_checkpoints}
    return seal_of_all(buffers) if buffers else "", list(buffers)


def with_own(model: nn.Module, found: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """Adds the model's frozen weights to a checkpoint that omits them. Raises BadInput if their hashes differ."""
    named = found.tensors["model"]
    here = of(model)
    seals = found.state.get("frozen", {})
    omitted = {name: here[name].cpu() for name in seals if name in here and name not in named}
    wrong = [name for name, value in omitted.items() if seal(value, seals[name]) != seals[name]]
    if wrong:
        raise BadInput(
            f"The initial weights {printable(found.path)} lack {len(wrong)} frozen tensors ({_listed(wrong)}), and "
            "this model has others. Let model() load the same weights, with the same training.frozen_precision, or "
            "train that run with checkpoint.frozen: save."
        )
    return {**named, **omitted}


def restore(model: nn.Module, saved: checkpoint.Checkpoint) -> None:
    """Copies a checkpoint's weights into a model; frozen ones that it omits stay. Raises BadInput if any differ."""
    seals = saved.state.get("frozen", {})
    _check_trained(model, saved)
    put_back(model, saved.tensors["model"], seals)
    if not seals:
        return
    here = of(model)
    wrong = [
        name
        for name, expected in seals.items()
        if name not in here or seal(here[name], expected) != expected
    ]
    if wrong:
        source = "loaded by model()"
        names = published_names(saved.state.get("published", {}))
        if names:
            source = f"published as {', '.join(printable(name, most=100) for name in names)}"
        raise BadInput(
            f"The frozen weights are not those of {printable(saved.path)}: of {len(seals)} that it omits, {len(wrong)} "
            f"have another hash now ({_listed(wrong)}). They were {source}: mount exactly these."
        )
    with torch.no_grad():
        for name, hashed in seals.items():
            value = here[name]
            value.copy_(value.to(_float_of(hashed) or value.dtype))


def published_names(published: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the names of published weights that `Task.pretrained` has loaded."""
    return [name for name, facts in published.items() if "config" in facts]


def _check_trained(model: nn.Module, saved: checkpoint.Checkpoint) -> None:
    """Raises BadInput if the saved run trained other parameters."""
    before = saved.state.get("trained")
    now = trained(model)
    if before is None or before == now:  # missing in best weights
        return
    then = [f"{name} {kind}" for name, kind in sorted(before.items() - now.items())]
    since = [f"{name} {kind}" for name, kind in sorted(now.items() - before.items())]
    raise BadInput(
        f"What is trained differs from {printable(saved.path)}: then {_listed(then)}; now {_listed(since)}. model() "
        "must return the same model each time: loaded adapters come back frozen unless asked to be trainable, and a "
        "model wrapped twice has other names."
    )


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing more"
    shown = [printable(name, most=100) for name in names[:3]]
    if len(names) > 3:
        shown.append("...")
    return ", ".join(shown)


def read(path: Path) -> checkpoint.Checkpoint:
    """Reads weights from a .safetensors file, a checkpoint, a run, or a published model. Raises BadInput."""
    inside = _checkpoint_in(path)
    if not inside:
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
            raise BadInput(
                f"There are no weights in {path} that can be taken. {error} Give a .safetensors file, a checkpoint, "
                "the folder of a run, or one with published weights."
            ) from None
    if path.suffix != ".safetensors":
        raise BadInput(
            f"{path} is no .safetensors file. Pickled weights (.pt, .pth, .bin) can run code, and are never opened "
            "here: convert them once with safetensors.torch.save_file."
        )
    try:
        size_of(path)  # a pipe would be waited for
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(
            f"The weights {path} cannot be read: {error}. Download or copy them again."
        ) from None


def _checkpoint_in(path: Path) -> Path | None:
    """Returns the checkpoint at `path`, the best or newest one of a run, or None."""
    for folder in (path, path / "best", path / "checkpoints"):
        if steps := checkpoint.steps(folder):
            return checkpoint.path_of(folder, steps[-1])
    if (path / checkpoint.MANIFEST).is_file():
        return path
    return None
