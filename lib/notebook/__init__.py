"""What every training notebook does with its parameters, its plan and its result."""

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
from lib.text import aligned

Parameters = Mapping[str, Any]  # the names of the parameters cell

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
    """Returns the configuration that the parameters cell asks for; prints its file and what is overridden.

    A plan that the memory panel left in the output folder applies where the parameters say nothing else. `home` is the
    folder with `configs/`. Raises BadInput.
    """
    return load_config(*_file_and_overrides(workload, home, parameters))


def configure_queue(workload: str, home: Path, parameters: Parameters) -> list[queue.Entry]:
    """Returns the runs of the queue that the parameters cell asks for; prints the same, and the earlier runs there are.

    Raises BadInput.
    """
    return queue.entries(*_file_and_overrides(workload, home, parameters))


def _file_and_overrides(workload: str, home: Path, parameters: Parameters) -> tuple[Path, dict[str, Any]]:
    """Returns the configuration file and the overrides by dotted key, those of a plan included; prints them."""
    if parameters["CONFIG"]:
        path = Path(parameters["CONFIG"])
        path = path if path.exists() else home / path
    else:
        has_gpu = torch.cuda.is_available()
        path = home / "configs" / (f"{workload}.yaml" if has_gpu else f"{workload}_small.yaml")
        why = "a GPU is there" if has_gpu else "there is no GPU, so this is the small size for a laptop"
        print(f"CONFIG is empty: taking configs/{path.name}, because {why}.")
    overrides = {key: parameters[name] for name, key in _KEYS.items() if parameters[name]} | parameters["OVERRIDES"]
    for key, value in overrides.items():
        print(f"Override: {key} = {value!r}")
    saved = file.find(platform.output_dir(load_config(path, overrides)), path.stem)
    if saved is None:
        return path, overrides
    try:
        load_config(path, {**saved.overrides, **overrides})
    except BadInput as error:
        print(f"{saved.path} is ignored, because it does not fit this configuration:\n{error}")
        return path, overrides
    for key, value in saved.overrides.items():
        but = ", but it is overridden" if key in overrides else ""
        print(f"Plan for {saved.cards} x {saved.card} ({saved.path}): {key} = {value!r}{but}")
    return path, {**saved.overrides, **overrides}


def plan(run: launch.Run) -> planner.Plan | None:
    """Returns the plan for this machine's GPU, or without a GPU that for Kaggle's T4s, to judge a run beforehand.

    Prints why where there is none: the run trains all the same.
    """
    if run.plan:
        return run.plan
    if torch.cuda.is_available():
        print("There is no plan; the lines under Data say why.")
        return None
    try:
        kaggle_plan = planner.plan(run.config, "t4")
    except BadInput as error:
        print(f"There is no GPU here to plan for. On Kaggle's T4s: {error}")
        return None
    print("There is no GPU here to plan for. On Kaggle's T4s this run would be:\n")
    return kaggle_plan


def compare(summary: Summary) -> str:
    """Returns a table of each test metric beside the strongest trivial baseline, or why there is none yet."""
    if summary.reason != "completed":
        left = summary.max_steps - summary.step
        return f"The run stopped ({summary.reason}) with {left:,} steps left; the test comes when it is completed."
    if summary.missing and not summary.metrics:
        why = "; ".join(f"{name} failed ({error})" for name, error in summary.missing.items())
        return f"The run is completed, but {why}. Correct it and run again: only what is missing is made."
    rows = [("metric", "trivial", "model", "difference")]
    for name, value in summary.metrics.items():
        trivial = summary.baseline[name]
        rows.append((name, f"{trivial:.3f}", f"{value:.3f}", f"{value - trivial:+.3f}"))
    return aligned(rows)
