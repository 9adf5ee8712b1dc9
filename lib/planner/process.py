"""Plans a run in this process if it has no GPU, else in a child that sees none."""

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
from lib.config import Config, profiles, to_yaml, with_changes
from lib.errors import BadInput, NotTraceable, TrainingFailed
from lib.machine.memory import GIB
from lib.machine.platform import in_notebook
from lib.planner.card import Target, card_of_gpu, find_card
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
    # All is imported here: 2 seconds, and 12 in a child
    if cancelled is None and not torch.cuda.is_available():
        return _made(config, target, count)
    # A child does not know which values were overrides
    config, changed = profiles.apply(config, has_gpu=True)
    return dataclasses.replace(
        plan_in_child(config, target, count, cancelled), changed=tuple(changed)
    )


def plan_in_child(
    config: Config, target: Target, count: int = 0, cancelled: threading.Event | None = None
) -> Plan:
    """Plans as `plan` does, with the profile applied, in a process that sees no GPU and takes no memory of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{config.run.name}.yaml")
        request = Path(folder, "request")
        answer = Path(folder, "answer")
        path.write_text(to_yaml(config), "utf-8")
        request.write_bytes(pickle.dumps((str(path), target, count)))
        # -P, and the working folder last: a user's folder lib in it must not be imported instead
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "lib.planner", str(request), str(answer)],
            env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
        error = _wait(child, cancelled)
        if child.returncode == 0:
            return pickle.loads(answer.read_bytes())
    if kind := {2: BadInput, 3: NotTraceable}.get(child.returncode):
        raise kind(error)
    if not error:
        error = (
            f"Planning {config.run.name} failed: its process ended with exit code"
            f" {child.returncode} and left no error."
        )
    raise TrainingFailed(error)


def planned_here(config: Config, count: int) -> tuple[Config, Plan | None, list[str]]:
    """Plans for `count` of this machine's GPUs; returns configuration, plan, lines. Raises BadInput."""
    try:
        plan = plan_in_child(config, card_of_gpu(0), count)
    except (NotTraceable, TrainingFailed) as error:
        if isinstance(error, TrainingFailed) and not in_notebook():
            raise
        reason = str(error).splitlines()[-1]
        line = f"{reason} Nothing is planned: slots are halved if memory runs out."
        return config, None, [line]
    if config.training.micro_batch:
        return config, plan, []
    peak = plan.chosen.prediction.peak_bytes / GIB
    usable = plan.usable_bytes / GIB
    lines = [
        f"Planned: {key} = {value} (predicted peak {peak:.2f} of {usable:.2f} GiB)."
        for key, value in plan.overrides.items()
    ]
    return with_changes(config, plan.overrides), plan, lines


def _environment() -> dict[str, str]:
    """Returns the environment of a child: no GPU, and this library first on its path."""
    root = str(Path(lib.__file__).resolve().parent.parent)
    folders = [root, os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return environment


def _made(config: Config, target: Target, count: int) -> Plan:
    try:
        return make(config, target, count)
    except BadInput:
        raise
    except Exception as error:
        run = config.run.name
        if not place_of(error):
            raise TrainingFailed(
                f"Planning {run} failed: {type(error).__name__}: {error}"
            ) from error
        why = explained("The step that is planned", error)
        raise TrainingFailed(f"Planning {run} failed in the task's own code:\n{why}") from error


def _wait(child: subprocess.Popen, cancelled: threading.Event | None) -> str:
    """Waits for a child and returns its error output; kills it when cancelled or interrupted."""
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
    """Writes the plan and returns 0; prints the error and returns 1 (task failed), 2 or 3 (refused)."""
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
