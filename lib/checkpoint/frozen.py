"""Names trained and frozen weights in a checkpoint, which omits frozen ones of a published file: it has their hash."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lib.checkpoint import Checkpoint, weights
from lib.errors import BadInput, printable

_FLOATS = {
    str(kind).removeprefix("torch."): kind for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


def trained(model: nn.Module) -> dict[str, str]:
    """Returns type and shape of every parameter that is trained, by name: "float32 (4, 3)"."""
    return {weights.plain(name): _described(p) for name, p in model.named_parameters() if p.requires_grad}


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are not trained, by the names that they have in a checkpoint."""
    frozen = {weights.plain(name): p for name, p in model.named_parameters() if not p.requires_grad}
    return {name: frozen[name] for name in weights.of(model) if name in frozen}


def _described(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def seal(value: Tensor, like: str = "") -> str:
    """Returns type, shape and sha256 of a tensor's values; in the type of another seal where one is given."""
    whole = value.detach().cpu()
    if (kind := _FLOATS.get(like.partition(" ")[0])) and whole.is_floating_point():
        whole = whole.to(kind)
    flat = whole.contiguous().reshape(-1)
    content = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return f"{_described(whole)} {hashlib.sha256(content).hexdigest()}"


def seal_of_all(named: Mapping[str, Tensor]) -> str:
    """Returns one sha256 for the names, types, shapes and values of tensors."""
    lines = (f"{name} {seal(value)}\n" for name, value in sorted(named.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def unsaved(model: nn.Module) -> tuple[str, list[str]]:
    """Returns one hash of the buffers that no checkpoint has, "" for none, and their names."""
    in_checkpoints = model.state_dict().keys()
    buffers = {weights.plain(name): b for name, b in model.named_buffers() if name not in in_checkpoints}
    return seal_of_all(buffers) if buffers else "", list(buffers)


def with_own(model: nn.Module, found: Checkpoint) -> dict[str, Tensor]:
    """Returns the weights of a checkpoint with those of this model that it omits. Raises BadInput if these differ."""
    named, here = found.tensors["model"], weights.of(model)
    left_out = {n: known for n, known in found.state.get("frozen", {}).items() if n in here and n not in named}
    own = {name: here[name].cpu() for name in left_out}
    if wrong := [name for name, known in left_out.items() if seal(own[name], known) != known]:
        what = f"The initial weights {printable(found.path)} lack {len(wrong)} frozen tensors ({_listed(wrong)})"
        advice = "Let model() load the same weights, with the same training.frozen_precision"
        raise BadInput(f"{what}, and this model has others. {advice}, or train that run with checkpoint.frozen: save.")
    return {**named, **own}


def put_back(model: nn.Module, saved: Checkpoint) -> None:
    """Copies a checkpoint's weights into a model; frozen ones that it omits stay. Raises BadInput if any differ."""
    left_out = saved.state.get("frozen", {})
    _check_trained(model, saved)
    weights.put_back(model, saved.tensors["model"], left_out)
    here = weights.of(model) if left_out else {}
    if wrong := [name for name, hashed in left_out.items() if name not in here or seal(here[name], hashed) != hashed]:
        files = saved.state.get("published", {})
        published = [printable(name, most=100) for name, taken in files.items() if "config" in taken]
        source = f"published as {', '.join(published)}" if published else "loaded by model()"
        what = f"of {len(left_out)} that it omits, {len(wrong)} have another hash now ({_listed(wrong)})"
        where = f"The frozen weights are not those of {printable(saved.path)}"
        raise BadInput(f"{where}: {what}. They were {source}: mount exactly these.")
    with torch.no_grad():
        for name, hashed in left_out.items():
            here[name].copy_(here[name].to(_FLOATS.get(hashed.partition(" ")[0], here[name].dtype)))


def _check_trained(model: nn.Module, saved: Checkpoint) -> None:
    """Raises BadInput if the saved run trained other parameters."""
    before, now = saved.state.get("trained"), trained(model)
    if before is None or before == now:  # best weights name none
        return
    then = [f"{name} {kind}" for name, kind in before.items() if now.get(name) != kind]
    since = [f"{name} {kind}" for name, kind in now.items() if before.get(name) != kind]
    what = f"What is trained differs from {printable(saved.path)}: then {_listed(then)}; now {_listed(since)}"
    why = "loaded adapters come back frozen unless asked to be trainable, and a model wrapped twice has other names"
    raise BadInput(f"{what}. model() must return the same model each time: {why}.")


def _listed(names: list[str]) -> str:
    return ", ".join(printable(name, most=100) for name in names[:3]) + ", ..." * (len(names) > 3) or "nothing more"
