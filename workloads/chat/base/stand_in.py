"""A small base for a notebook that has none: it is made in a minute, and shows every step."""

import shutil
import tempfile
from pathlib import Path

from lib.config import Config, with_changes
from lib.errors import BadInput, printable
from lib.machine import disk, inputs, platform, published
from lib.task import load_config
from lib.training.order import put_back
from trainbook import HOME, launch
from workloads.chat.base import task

_FOLDER = "chat-base"  # in the output folder
_RECIPE = HOME / "configs" / "chat_base_small.yaml"


def with_base(config: Config) -> Config:
    """Returns a configuration whose base is at hand: its own, or a small one that is made in the output folder."""
    base = config.workload.base
    if _is_there(base):
        return config
    folder = platform.output_dir(config.output_dir) / _FOLDER
    changes: dict[str, object] = {"workload.base": str(folder), "checkpoint.frozen": "save"}
    # As configs/chat_small.yaml trains a base of this size
    changes |= {"workload.nf4": False, "optimizer.lr": 3.0e-3}
    config = with_changes(config, changes)
    runs = inputs.run_folders(config.run.name, config.output_dir, config.run.resume_from)
    is_resumed = str(folder) in inputs.saved_facts("published", *runs)
    if is_resumed or (folder / published.WHOLE).is_file():
        print(f"Without a base {printable(base)}, the small one of the earlier session is used.")
        return config
    print(
        f"There is no base {printable(base)}. A small one is made in a minute: it shows every step, and its answers "
        "are poor. For a real one: Add Input > Models > Qwen 2.5, framework Transformers, variation 1.5b-instruct, "
        'and BASE = "qwen-lm/qwen2.5/transformers/1.5b-instruct" in the parameters.',
        flush=True,
    )
    _make(folder)
    return config


def _is_there(base: str) -> bool:
    """Returns whether a base is a path, a mounted input, or a name that the hub gives."""
    try:
        inputs.find_input(base, platform.detect())
        return True
    except BadInput:
        return base.count("/") == 1 and published.located(base) is not None


def _make(folder: Path) -> None:
    """Trains the small base, and keeps its export alone."""
    disk.make_folders(folder.parent)
    with tempfile.TemporaryDirectory() as place, put_back():
        changes = {"task": f"{task.__file__}:{task.Base.__name__}", "output_dir": place}
        config = load_config(_RECIPE, changes)
        launch.train(config)
        with disk.whole(folder) as aside:
            shutil.copytree(Path(place) / config.run.name / launch.EXPORT / task.FOLDER, aside)
