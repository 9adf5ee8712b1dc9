"""Which frozen weights a run leaves out of its checkpoints, and the number formats of what is frozen and trained."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from lib import checkpoint, ranks
from lib.checkpoint import frozen, weights
from lib.checkpoint.saver import Saver
from lib.config import Config
from lib.errors import BadInput
from lib.ranks import sharding
from lib.task import Task
from lib.training.order import INITIALISE, mix
from lib.training.precision import Precision

_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def set_types(model: nn.Module, config: Config, precision: Precision) -> None:
    """Gives frozen matrices the type of `training.frozen_precision`, and makes fp32 what is trained beside them.

    Vectors (biases, norms), which take no memory, stay as they are. Raises BadInput where the run computes in fp32,
    which takes no matrix of another type, or where the weights are divided among ranks.
    """
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    asked = config.training.frozen_precision
    if all(p.requires_grad for p in parameters):
        return
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
        if parameter.requires_grad and parameter.dtype in _HALVES.values():
            parameter.data = parameter.data.float()  # an update is too small for the digits of a half
        elif asked and not parameter.requires_grad and parameter.dim() >= 2:
            parameter.data = parameter.data.to(_HALVES[asked])


def seals(model: nn.Module, task: Task, config: Config) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the seals of what a new run leaves out of its checkpoints, and the names of what it keeps once of it.

    What `model()` gives under another seed too comes from a file, or is a constant: its seal is enough. Anything else
    is kept once, since no seed gives the same bits on every machine. All ranks must call this.
    """
    options = config.checkpoint
    parameters = frozen.parameters(model)
    if options.frozen == "save" or not parameters or not (options.keep_last or options.keep_best):
        return {}, frozenset()
    sealed = {name: frozen.seal(value) for name, value in parameters.items()}
    again: dict[str, Tensor] = {}
    if ranks.is_first():
        with _other_seed(config):
            again = weights.of(task.model())
    once = [n for n, known in sealed.items() if n not in again or frozen.seal(again[n], known) != known]
    return sealed, frozenset(ranks.from_first(once))


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
