"""The trained model in a form of the task's own, such as a folder of transformers or peft, for the archive."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from torch import nn

from lib import ranks
from lib.checkpoint import weights
from lib.launch.run import Run
from lib.machine import disk
from lib.ranks import sharding
from lib.training.state import State

FOLDER = "export"  # in the folder of the run


def is_lacking(run: Run) -> bool:
    """Says whether a task exports, and the folder of a completed run has no export yet."""
    return _exports(run) and not (run.folder / FOLDER).is_dir()


def _exports(run: Run) -> bool:
    return hasattr(run.task, "export") and getattr(run.task, "exports", True)


def model_of(run: Run, state: State) -> Callable[[], AbstractContextManager[nn.Module]] | None:
    """Returns what gives the tested model, on the first rank alone; None where the task exports nothing.

    All ranks must call this: shards are gathered.
    """
    if not _exports(run):
        return None
    whole: dict = {}
    if state.sharded:
        with state.averaged():
            whole = sharding.on_first(weights.of(state.model))
    return partial(_tested_model, run, state, whole)


@contextlib.contextmanager
def _tested_model(run: Run, state: State, whole: dict) -> Iterator[nn.Module]:
    """Gives the model in evaluation mode, with its averaged weights where the best are not there."""
    if whole:  # in one piece again
        model = run.task.model()
        weights.put_back(model, whole)
        yield model.eval()
        return
    with state.averaged():
        yield state.model.eval()


def write(run: Run, model: Callable[[], AbstractContextManager[nn.Module]]) -> Path:
    """Lets the task write into a folder beside the final one, which replaces it; returns that. First rank alone."""
    assert ranks.is_first()
    final = run.folder / FOLDER
    if final.is_dir():
        disk.discard(final)
    with model() as tested, disk.whole(final) as aside:
        aside.mkdir()
        run.task.export(tested, aside)  # type: ignore[attr-defined]
    return final
