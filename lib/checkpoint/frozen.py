"""What of a model is trained and what is frozen: kept by name in a checkpoint, and compared when it is put back.

Frozen weights need not be in every checkpoint. Those that a task's `model()` makes again are kept as a hash, and the
others once, in the folder FOLDER of the run.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lib import checkpoint
from lib.checkpoint import Checkpoint, contents, weights
from lib.errors import BadInput, printable
from lib.ranks import sharding

FOLDER = "frozen"
_FLOATS = {
    str(kind).removeprefix("torch."): kind for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
_SHOWN = 3  # names in a sentence


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
    whole = sharding.whole(value.detach()).cpu()
    if (kind := _FLOATS.get(like.partition(" ")[0])) and whole.is_floating_point():
        whole = whole.to(kind)
    flat = whole.contiguous().reshape(-1)
    content = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return f"{_described(whole)} {hashlib.sha256(content).hexdigest()}"


def seal_of_all(named: Mapping[str, Tensor]) -> str:
    """Returns one sha256 for the names, types, shapes and values of tensors."""
    lines = (f"{name} {seal(value)}\n" for name, value in sorted(named.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def completed(found: Checkpoint | None) -> Checkpoint | None:
    """Returns a checkpoint with the frozen weights that its run keeps once; what is damaged there is left out."""
    left_out = found.state.get("frozen", {}) if found else {}
    if not found or not left_out:
        return found
    try:
        kept = checkpoint.load_model(checkpoint.path_of(found.path.parent.parent / FOLDER, 0)).tensors["model"]
    except checkpoint.DamagedCheckpoint:  # or there are none; whether they are needed shows their hash
        return found
    more = {name: value for name, value in kept.items() if name in left_out}
    return dataclasses.replace(found, tensors={**found.tensors, "model": {**more, **found.tensors["model"]}})


def source(path: Path) -> Checkpoint:
    """Reads what `weights.read` does, with the frozen weights that a run keeps once. Raises BadInput.

    The state has the seals of those that are nowhere, because `model()` makes them.
    """
    inside = weights.checkpoint_in(path)
    if inside is None:
        return Checkpoint(path, 0, {"model": weights.read(path)}, {})
    found = weights.load(inside)
    try:
        contents.check_names(found.state)
    except checkpoint.DamagedCheckpoint as damage:
        raise weights.damaged(inside, damage) from None
    return completed(found) or found


def with_own(model: nn.Module, found: Checkpoint) -> dict[str, Tensor]:
    """Returns the weights of another run's checkpoint, with those of this model that it leaves out because it has them.

    Raises BadInput where the model has others under their names. All ranks must call this.
    """
    named, here = found.tensors["model"], weights.of(model)
    left_out = {n: known for n, known in found.state.get("frozen", {}).items() if n in here and n not in named}
    own = {name: sharding.whole(here[name]).cpu() for name in left_out}
    if wrong := [name for name, known in left_out.items() if seal(own[name], known) != known]:
        raise BadInput(
            f"The initial weights {printable(found.path)} lack {len(wrong)} frozen tensors ({_listed(wrong)}), which "
            "model() made in their run, and this model has others under these names. Let model() load the same "
            "weights, with the same training.frozen_precision, or train that run with checkpoint.frozen: save."
        )
    return {**named, **own}


def put_back(model: nn.Module, found: Checkpoint) -> None:
    """Copies the weights of a checkpoint into a model whose frozen ones, if left out, `model()` has made again.

    Raises BadInput where the weights, what is trained, or the hash of what is frozen are not those of the checkpoint.
    """
    left_out = found.state.get("frozen", {})
    _check_trained(model, found)
    weights.put_back(model, found.tensors["model"], left_out)
    _check_frozen(model, left_out, found)


def _check_frozen(model: nn.Module, left_out: Mapping[str, str], found: Checkpoint) -> None:
    """Gives the frozen weights the precision in which they were trained with. Raises BadInput where they are others."""
    here = weights.of(model) if left_out else {}
    wrong = [name for name, saved in left_out.items() if name not in here or seal(here[name], saved) != saved]
    if not wrong:
        with torch.no_grad():
            for name, saved in left_out.items():
                kind = _FLOATS.get(saved.partition(" ")[0], here[name].dtype)
                if kind != here[name].dtype:
                    here[name].copy_(here[name].to(kind))
        return
    published = [
        printable(name, most=100) for name, taken in found.state.get("published", {}).items() if "config" in taken
    ]
    source = (
        "Mount, or download again, the weights that model() loads, in the version that the run began with. Where it "
        f"draws them, take the version of torch that the run began with (now {torch.__version__})"
    )
    if published:
        source = f"They were published as {', '.join(published)}: mount exactly these"
    raise BadInput(
        f"The frozen weights are not those of {printable(found.path)}: of {len(left_out)} that it leaves out because "
        f"model() makes them, {len(wrong)} have another hash now ({_listed(wrong)}). {source}."
    )


def _check_trained(model: nn.Module, found: Checkpoint) -> None:
    """Raises BadInput where other parameters are trained than in the run that saved a checkpoint."""
    saved, now = found.state.get("trained"), trained(model)
    if saved is None:  # of an earlier version, or best weights
        return
    saved = {name: _as_trained_now(name, described, found) for name, described in saved.items()}
    if saved == now:
        return
    here = {weights.plain(name) for name, _ in model.named_parameters()}
    differences = {
        "trained then and frozen now": [name for name in saved if name in here and name not in now],
        "trained now and frozen then": [name for name in now if name not in saved and name in _frozen_in(found)],
        "trained then and not in the model now": [name for name in saved if name not in here],
        "trained now and not in the model then": [
            name for name in now if name not in saved and name not in _frozen_in(found)
        ],
        "of another type or shape now": [name for name in now if name in saved and saved[name] != now[name]],
    }
    counts = "; ".join(f"{len(names)} {what} ({_listed(names)})" for what, names in differences.items() if names)
    raise BadInput(
        f"What is trained differs from {printable(found.path)}, which has {len(saved)} trained tensors: {counts}. "
        "model() must return the same model each time: adapters that are loaded come back frozen unless they are asked "
        "to be trainable, and a model that is wrapped twice has other names. If the workload settings differ from "
        "those of the saved run, compare with config.yaml in its folder."
    )


def _as_trained_now(name: str, described: str, found: Checkpoint) -> str:
    """Returns type and shape of what an earlier version trained in 16 bits, as it is trained now: in fp32."""
    kind, _, shape = described.partition(" ")
    value = found.tensors["model"].get(name)
    is_half = _FLOATS.get(kind) in (torch.float16, torch.bfloat16)
    return f"float32 {shape}" if is_half and value is not None and value.dtype is _FLOATS[kind] else described


def _frozen_in(found: Checkpoint) -> set[str]:
    return {*found.tensors["model"], *found.state.get("frozen", {})} - found.state["trained"].keys()


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(printable(name, most=100) for name in names[:_SHOWN]) + more
