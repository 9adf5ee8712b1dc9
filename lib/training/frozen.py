"""Which frozen weights a run leaves out of its checkpoints, and the number formats of what is frozen and trained."""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import nn

from lib import checkpoint, ranks
from lib.checkpoint import frozen, weights
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.errors import BadInput
from lib.ranks import sharding
from lib.task import Task
from lib.training import learned
from lib.training.order import INITIALISE, mix
from lib.training.precision import Precision

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
    """Returns the seals of what a new run leaves out of its checkpoints, and the names of what it keeps once of it.

    What `model()` of another task like this one gives under another seed too comes from a file, or is a constant: its
    seal is enough. Anything else is kept once, since no seed gives the same bits on every machine. All ranks must call
    this.
    """
    options = config.checkpoint
    parameters = frozen.parameters(model)
    if options.frozen == "save" or not parameters or not (options.keep_last or options.keep_best):
        return {}, frozenset()
    sealed = {name: frozen.seal(value) for name, value in parameters.items()}
    again = _made_again(model, task, config) if ranks.is_first() else {}
    once = [n for n, known in sealed.items() if n not in again or frozen.seal(again[n], known) != known]
    return sealed, frozenset(ranks.from_first(once))


def _made_again(model: nn.Module, task: Task, config: Config) -> Mapping[str, nn.Parameter]:
    """Returns the frozen parameters of a second model, made under another seed; none where it cannot be made.

    Another task makes it, so that what `model()` keeps on the run's own task (a teacher) stays that of the first model.
    Parameters that both models share, because the code keeps them, say nothing on where they come from.
    """
    with _other_seed(config):
        try:
            other = type(task)(config, task.source)
            other.step, other.published = task.step, task.published
            if values := learned.of(task):
                other.take_learned(values)
            again = frozen.parameters(other.model())
        except Exception:  # it needs what datasets() leaves on the task, say
            return {}
    shared = {id(parameter) for parameter in model.parameters()}
    return {name: parameter for name, parameter in again.items() if id(parameter) not in shared}


@contextlib.contextmanager
def _other_seed(config: Config) -> Iterator[None]:
    """Seeds everything that a model may be drawn from in another way than the run does, and puts it back afterwards."""
    states = random.getstate(), np.random.get_state()
    seed = mix(INITIALISE, config.seed, 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


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
        text = checkpoint.to_json({"step": 0})
        try:
            saver.write_now(frozen.FOLDER, checkpoint.pack(0, {"model": tensors}, text))
        except checkpoint.CheckpointNotSaved as error:
            print(f"Warning: {error} The frozen weights are in every checkpoint instead.", flush=True)
            is_kept = False
    return ranks.from_first(is_kept)
