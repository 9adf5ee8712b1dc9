"""What every training notebook does with its parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lib import launch, planner
from lib import task as tasks
from lib.config import Config
from lib.errors import BadInput

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

    `home` holds `configs/`. Raises BadInput.
    """
    path = _config_path(workload, home, str(parameters["CONFIG"]))
    overrides = {key: parameters[name] for name, key in _KEYS.items() if parameters[name]}
    overrides |= parameters["OVERRIDES"]  # type: ignore[arg-type]
    config = tasks.load_config(path, overrides)
    for key, value in overrides.items():
        print(f"Override: {key} = {value!r}")
    return config


def _config_path(workload: str, home: Path, asked: str) -> Path:
    if asked:
        given = Path(asked)
        return given if given.exists() else home / given
    has_gpu = torch.cuda.is_available()
    name = workload if has_gpu else f"{workload}_small"
    why = "a GPU is there" if has_gpu else "there is no GPU, so this is the small size for a laptop"
    print(f"CONFIG is empty: taking configs/{name}.yaml, because {why}.")
    return home / "configs" / f"{name}.yaml"


def describe_plan(run: launch.Run) -> str:
    """The plan for this machine's GPU; without one, that for a T4, so that the run can be judged before it moves there.

    A step that cannot be traced, or that no T4 holds, is said: here it trains all the same.
    """
    if run.plan:
        return planner.of_plan(run.plan)
    if torch.cuda.is_available():
        return "No plan: the lines above say why."
    try:
        plan = planner.plan(run.config, "t4")
    except BadInput as error:
        return f"There is no GPU here. On Kaggle's T4s: {error}"
    return f"There is no GPU here to plan for. On Kaggle's T4s this run would be:\n\n{planner.of_plan(plan)}"


def compare(summary: Mapping[str, Any]) -> str:
    """Each test metric beside the strongest trivial baseline; what to do where the run is not finished."""
    if summary["reason"] != "completed":
        left = summary["max_steps"] - summary["step"]
        return f"The run stopped ({summary['reason']}) with {left:,} steps left; the test comes when it is completed."
    lines = [f"{'metric':>20}  {'trivial':>8}  {'model':>8}  difference"]
    for name, value in summary["metrics"].items():
        trivial = summary["baseline"][name]
        lines.append(f"{name:>20}  {trivial:8.3f}  {value:8.3f}  {value - trivial:+.3f}")
    return "\n".join(lines)
