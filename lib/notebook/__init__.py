"""What every training notebook does with its parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lib import launch, planner
from lib.config import Config
from lib.errors import BadInput
from lib.launch import queue
from lib.machine import platform
from lib.planner import file
from lib.report.summary import Summary
from lib.task import load_config

Parameters = Mapping[str, object]  # the names of the parameters cell

# Parameter -> the configuration key that it overrides when it is not empty.
_KEYS = {
    "DATA_DIR": "data.dir",
    "OUTPUT_DIR": "output_dir",
    "SMOKE_STEPS": "training.smoke_steps",
    "MAX_STEPS": "training.max_steps",
    "SESSION_MINUTES": "session.minutes",
    "RESUME_FROM": "run.resume_from",
}


def configure(workload: str, home: Path, parameters: Parameters) -> Config:
    """The configuration that the parameters cell asks for; says which file it took and what it overrode.

    A plan that the memory panel left in the output folder stands below the parameters. `home` holds `configs/`.
    Raises BadInput.
    """
    return load_config(*_asked(workload, home, parameters))


def configure_queue(workload: str, home: Path, parameters: Parameters) -> list[queue.Entry]:
    """The runs of the queue that the parameters cell asks for; says the same, and which earlier runs were found.

    Raises BadInput.
    """
    return queue.entries(*_asked(workload, home, parameters))


def _asked(workload: str, home: Path, parameters: Parameters) -> tuple[Path, dict[str, object]]:
    """The configuration file, and overrides by dotted key; says both."""
    path = _config_path(workload, home, str(parameters["CONFIG"]))
    overrides = {key: parameters[name] for name, key in _KEYS.items() if parameters[name]}
    overrides |= parameters["OVERRIDES"]  # type: ignore[arg-type]
    for key, value in overrides.items():
        print(f"Override: {key} = {value!r}")
    return path, {**_kept_plan(path, overrides), **overrides}


def _kept_plan(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What the memory panel left for this configuration in the output folder, to stand below the overrides; says so."""
    kept = file.find(platform.output_dir(load_config(path, overrides)), path.stem)
    if kept is None:
        return {}
    try:
        load_config(path, {**kept.overrides, **overrides})
    except BadInput as error:
        print(f"{kept.path} is ignored, because it does not fit this configuration:\n{error}")
        return {}
    for key, value in kept.overrides.items():
        but = ", but it is overridden" if key in overrides else ""
        print(f"Plan for {kept.cards} x {kept.card} ({kept.path}): {key} = {value!r}{but}")
    return kept.overrides


def _config_path(workload: str, home: Path, asked: str) -> Path:
    if asked:
        given = Path(asked)
        return given if given.exists() else home / given
    has_gpu = torch.cuda.is_available()
    name = workload if has_gpu else f"{workload}_small"
    why = "a GPU is there" if has_gpu else "there is no GPU, so this is the small size for a laptop"
    print(f"CONFIG is empty: taking configs/{name}.yaml, because {why}.")
    return home / "configs" / f"{name}.yaml"


def plan(run: launch.Run) -> planner.Plan | None:
    """The plan for this machine's GPU; without one, that for Kaggle's T4s, so that a run can be judged before it moves.

    Where there is none, it is said why: here the run trains all the same.
    """
    if run.plan:
        return run.plan
    if torch.cuda.is_available():
        print("There is no plan; the lines under Data say why.")
        return None
    try:
        found = planner.plan(run.config, "t4")
    except BadInput as error:
        print(f"There is no GPU here to plan for. On Kaggle's T4s: {error}")
        return None
    print("There is no GPU here to plan for. On Kaggle's T4s this run would be:\n")
    return found


def compare(summary: Summary) -> str:
    """Each test metric beside the strongest trivial baseline; what to do where the run is not finished."""
    if summary.reason != "completed":
        left = summary.max_steps - summary.step
        return f"The run stopped ({summary.reason}) with {left:,} steps left; the test comes when it is completed."
    lines = [f"{'metric':>20}  {'trivial':>8}  {'model':>8}  difference"]
    for name, value in summary.metrics.items():
        trivial = summary.baseline[name]
        lines.append(f"{name:>20}  {trivial:8.3f}  {value:8.3f}  {value - trivial:+.3f}")
    return "\n".join(lines)
