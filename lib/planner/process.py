"""Plans a run: without a GPU in this process, else in a child, which sees no GPU and whose end frees its memory."""

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

import lib
from lib.config import Config, profiles, to_yaml
from lib.errors import BadInput, NotTraceable, TrainingFailed
from lib.planner.card import Target, find_card
from lib.planner.search import Plan, make
from lib.task import load_config
from lib.task.place import explained, place_of


class Cancelled(Exception):
    """Ends a plan that is no longer wanted, after its process."""


def plan(
    config: Config,
    card: str | Target = "t4",
    count: int = 0,
    cancelled: threading.Event | None = None,
) -> Plan:
    """Plans a run for `count` cards of a kind (0: as many as a session has). Reads no data and needs no GPU.

    Raises as `make`; TrainingFailed, with the line, if the task's own code fails; Cancelled once `cancelled` is set.
    """
    target = find_card(card) if isinstance(card, str) else card
    config, changed = profiles.apply(
        config, has_gpu=True
    )  # a child does not know what was given as override
    if (
        cancelled is None and not torch.cuda.is_available()
    ):  # all is imported: 2 seconds where a child takes 12
        return dataclasses.replace(_made(config, target, count), changed=tuple(changed))
    with tempfile.TemporaryDirectory() as folder:
        path, request, answer = (
            Path(folder, name) for name in (f"{config.run.name}.yaml", "request", "answer")
        )
        path.write_text(to_yaml(config), "utf-8")
        request.write_bytes(pickle.dumps((str(path), target, count)))
        # -P, and the working folder at the end: a folder lib of one's own in it must not be taken for this one
        root = str(Path(lib.__file__).resolve().parent.parent)
        folders = [root, *filter(None, [os.environ.get("PYTHONPATH")]), str(Path.cwd())]
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "lib.planner", str(request), str(answer)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(folders)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
        )  # fmt: skip
        error = _wait(child, cancelled)
        if child.returncode == 0:
            return dataclasses.replace(pickle.loads(answer.read_bytes()), changed=tuple(changed))
    if kind := {2: BadInput, 3: NotTraceable}.get(child.returncode):
        raise kind(error)
    why = f"its process ended with exit code {child.returncode} and left no error"
    raise TrainingFailed(error or f"Planning {config.run.name} failed: {why}.")


def _made(config: Config, target: Target, count: int) -> Plan:
    try:
        return make(config, target, count)
    except BadInput:
        raise
    except Exception as error:
        what = f"Planning {config.run.name} failed"
        if not place_of(error):
            raise TrainingFailed(f"{what}: {type(error).__name__}: {error}") from error
        why = explained("The step that is planned", error)
        raise TrainingFailed(f"{what} in the task's own code:\n{why}") from error


def _wait(child: subprocess.Popen, cancelled: threading.Event | None) -> str:
    """Waits for a child and returns what it says of its failure; ends it where it is cancelled, or this is left."""
    with child:
        try:
            while True:
                try:
                    return child.communicate(timeout=0.1 if cancelled else None)[1].strip()
                except subprocess.TimeoutExpired:
                    if cancelled and cancelled.is_set():
                        raise Cancelled from None
        except BaseException:
            child.kill()
            raise


def write_plan(request: str, answer: str) -> int:
    """Writes the plan and returns 0; prints a sentence and returns 1 for a task that fails, 2 or 3 for a refusal."""
    path, target, count = pickle.loads(Path(request).read_bytes())
    try:
        plan = _made(load_config(path), target, count)
    except (BadInput, TrainingFailed) as error:
        print(error, file=sys.stderr)
        if isinstance(error, NotTraceable):
            return 3
        return 2 if isinstance(error, BadInput) else 1
    Path(answer).write_bytes(pickle.dumps(plan))
    return 0
