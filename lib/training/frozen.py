"""Selects frozen weights that checkpoints omit; sets dtypes."""

from collections.abc import Callable

import torch
from torch import nn

from lib import checkpoint, ranks
from lib.checkpoint import frozen, weights
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.errors import BadInput
from lib.machine import published
from lib.ranks import sharding
from lib.task import Task
from lib.text import amount
from lib.training.precision import Precision

_LARGE = 2**28  # bytes of frozen weights
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def set_types(model: nn.Module, config: Config, precision: Precision) -> str:
    """Gives frozen matrices the type of `training.frozen_precision`, and makes fp32 what is trained.

    Frozen vectors (biases, norms), which take no memory, stay as they are. Returns a sentence on what was made fp32,
    empty where nothing was. Raises BadInput where the run computes in fp32, which takes no frozen matrix of another
    type, or where the weights are divided among ranks.
    """
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    trained = [p for p in parameters if p.requires_grad]
    asked = config.training.frozen_precision if len(trained) < len(parameters) else ""
    if asked and precision == "fp32":
        raise BadInput(
            f"training.frozen_precision is {asked}, but this run computes in fp32, which takes no weights of another "
            "type. Leave it empty here, or write training.precision: bf16 or fp16 where the processor has it."
        )
    if asked and config.training.fully_shard and ranks.world() > 1:
        raise BadInput(
            f"training.frozen_precision is {asked} with training.fully_shard, which divides weights of one type alone. "
            "Leave one of them out."
        )
    for parameter in parameters:
        if asked and not parameter.requires_grad and parameter.dim() >= 2:
            parameter.data = parameter.data.to(_HALVES[asked])
    halves = [p for p in trained if p.dtype in _HALVES.values()]
    for module in model.modules() if halves else ():
        if all(p.requires_grad for p in module.parameters()) and any(True for _ in module.parameters()):
            weights.widen(module)  # with its buffers, which its layers compute with
    for parameter in halves:
        parameter.data = parameter.data.float()
    if not halves:
        return ""
    return (
        f"model() returns {len(halves)} of {len(trained)} trained tensors in 16 bits. They are trained in fp32, since "
        "most updates are too small for so few digits; training.precision decides what is computed in 16 bits."
    )


def seals(model: nn.Module, task: Task, config: Config) -> tuple[dict[str, str], frozenset[str]]:
    """Returns hashes of the frozen weights that checkpoints omit, and the names that the run's folder holds instead.

    `model()` loads the weights of a published file again, so their hash is enough. All ranks must call this.
    """
    options = config.checkpoint
    parameters = frozen.parameters(model)
    if options.frozen == "save" or not parameters or not (options.keep_last or options.keep_best):
        return {}, frozenset()
    sealed = {name: frozen.seal(value) for name, value in parameters.items()}
    files = _published(task, {text.partition(" ")[0] for text in sealed.values()}) if ranks.is_first() else set()
    return sealed, frozenset(ranks.from_first([name for name, text in sealed.items() if text not in files]))


def _published(task: Task, kinds: set[str]) -> set[str]:
    """Returns hashes of the tensors in the published files that `Task.pretrained` took, in each of the types."""
    places = [published.located(name, download=False) for name, taken in task.published.items() if "config" in taken]
    folders = [place[1] for place in places if place]
    return {frozen.seal(v, kind) for folder in folders for v in published.read(folder).values() for kind in kinds}


def unsaved(model: nn.Module, saved: checkpoint.Checkpoint | None, note: Callable[[str], None]) -> str:
    """Returns one hash of the buffers that no checkpoint has; "" for none. Notes where `saved` names another hash.

    Nothing is refused: what is computed may differ in the last digit on another machine.
    """
    in_checkpoints = model.state_dict().keys()
    buffers = {weights.plain(name): b for name, b in model.named_buffers() if name not in in_checkpoints}
    now = frozen.seal_of_all(buffers) if buffers else ""
    if saved and saved.state.get("unsaved", now) != now:
        note(
            f"The run resumes, but not bit for bit: its buffers with persistent=False ({', '.join(buffers)}) are not "
            "those of the checkpoint. If model() reads them from a file, put the file of before in its place."
        )
    return now


def keep_once(model: nn.Module, names: frozenset[str], saver: Saver) -> bool:
    """Writes frozen weights into the run's folder before its first checkpoint; returns whether they are there.

    All ranks must call this.
    """
    tensors = sharding.on_first({n: value for n, value in frozen.parameters(model).items() if n in names})
    is_kept = True
    if ranks.is_first():
        parcel = checkpoint.pack(0, {"model": tensors}, checkpoint.to_json({"step": 0}))
        if parcel.size > _LARGE:
            print(
                f"{amount(parcel.size)} of frozen weights go into the run's folder and its archive. Load them by "
                "self.pretrained(...) in model(): weights of a published file stay out of both.",
                flush=True,
            )
        try:
            saver.write_now(frozen.FOLDER, parcel)
        except checkpoint.CheckpointNotSaved as error:
            print(f"Warning: {error} The frozen weights are in every checkpoint instead.", flush=True)
            is_kept = False
    return ranks.from_first(is_kept)
