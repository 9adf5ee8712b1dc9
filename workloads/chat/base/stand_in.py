"""A small base for a notebook that has none: it is made in a minute, and shows every step."""

from pathlib import Path

import torch

from lib.config import Config, with_changes
from lib.errors import BadInput, printable
from lib.machine import disk, inputs, platform, published
from lib.training.order import put_back
from workloads.chat.base.make import make, options_of

_FOLDER = "chat-base"  # in the output folder
_MINUTES = 0.7  # of one core, after 10 seconds of reading docstrings


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
    threads = torch.get_num_threads()
    disk.make_folders(folder.parent)
    with disk.whole(folder) as aside, put_back():
        make(options_of([str(aside), "--minutes", str(_MINUTES)]), tried=0)
    torch.set_num_threads(threads)
