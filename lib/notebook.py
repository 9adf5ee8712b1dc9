"""What every training notebook does with its parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lib import launch, memory, platform
from lib import queue as queues
from lib import task as tasks
from lib.config import Config

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
    return tasks.load_config(*_asked(workload, home, parameters))


def configure_queue(workload: str, home: Path, parameters: Parameters) -> list[queues.Entry]:
    """The runs of the queue that the parameters cell asks for; says the same, and which earlier runs were found.

    Raises BadInput.
    """
    return queues.entries(*_asked(workload, home, parameters))


def _asked(workload: str, home: Path, parameters: Parameters) -> tuple[Path, dict[str, object]]:
    """The configuration file, and overrides by dotted key; says both."""
    path = _config_path(workload, home, str(parameters["CONFIG"]))
    overrides = {key: parameters[name] for name, key in _KEYS.items() if parameters[name]}
    overrides |= parameters["OVERRIDES"]  # type: ignore[arg-type]
    for key, value in overrides.items():
        print(f"Override: {key} = {value!r}")
    return path, overrides


def _config_path(workload: str, home: Path, asked: str) -> Path:
    if asked:
        given = Path(asked)
        return given if given.exists() else home / given
    has_gpu = torch.cuda.is_available()
    name = workload if has_gpu else f"{workload}_small"
    why = "a GPU is there" if has_gpu else "there is no GPU, so this is the small size for a laptop"
    print(f"CONFIG is empty: taking configs/{name}.yaml, because {why}.")
    return home / "configs" / f"{name}.yaml"


def describe_machine() -> str:
    """Platform and GPUs in a few lines, with what to do where there is none."""
    here = platform.detect()
    limit = f"{here.session_minutes:.0f} minutes a session" if here.session_minutes else "no session limit"
    lines = [f"Platform: {here.name}{' (batch run)' if here.batch else ''}, {limit}, output to {here.output_dir}"]
    lines.append(f"PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        size = properties.total_memory / memory.GIB
        precision = memory.precision("auto", torch.device("cuda", index))
        lines.append(f"GPU {index}: {properties.name}, capability {capability}, {size:.2f} GiB, trains in {precision}")
    if not torch.cuda.is_available():
        where = "on Kaggle choose Settings > Accelerator > GPU T4 x2, on Colab Runtime > Change runtime type"
        lines.append(f"No GPU: {where}.")
    return "\n".join(lines)


def describe_plan(run: launch.Run) -> str:
    """Parameters, the memory of their states, and how the effective batch is worked off."""
    config = run.config
    count = sum(p.numel() for p in run.task.model().parameters())
    training = config.training
    slot = training.effective_batch // training.micro_batch_slots
    micro = min(training.micro_batch or slot, slot)
    passes = training.micro_batch_slots * -(-slot // micro)
    # fp32 weights, gradients and AdamW's two moments; autocast halves activations, never these.
    states = 16 * count / memory.GIB
    return (
        f"{count / 1e6:.1f} M parameters: weights, gradients and optimizer take {states:.2f} GiB; activations come on "
        "top, and the smoke test measures them.\n"
        f"Effective batch {training.effective_batch} = {passes} micro-batches of at most {micro}; "
        f"{training.max_steps:,} steps."
    )


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
