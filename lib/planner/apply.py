"""Planning as a part of starting a run: for the GPU of this machine, before a step is taken."""

import torch

from lib import config as configs
from lib import torchrun
from lib.config import Config
from lib.memory import GIB
from lib.planner import card as cards
from lib.planner import process
from lib.planner.prediction import NotTraceable
from lib.planner.search import Plan


def worked_in(config: Config, count: int) -> tuple[Config, Plan | None, list[str]]:
    """The configuration with a planned micro-batch where it asks for one (0), the plan, and lines to print.

    `count` GPUs work at it. Without one there is nothing to plan for: no plan, and a slot is one micro-batch. A rank
    below another process follows the plan of that one. Raises BadInput where the card cannot hold even one sample.
    """
    if not torch.cuda.is_available() or torchrun.is_watched():
        return config, None, []
    try:
        plan = process.plan(config, cards.of_gpu(torch.cuda.current_device()), count)
    except NotTraceable as error:
        advice = "So nothing is planned: the run starts with whole slots and halves them where memory runs out."
        return config, None, [f"{error} {advice}"]
    if config.training.micro_batch:
        return config, plan, []
    changed = configs.replace(config, plan.overrides)
    peak = f"{plan.chosen.prediction.peak_bytes / GIB:.2f} of {plan.usable_bytes / GIB:.2f} GiB"
    return changed, plan, [
        f"Planned: {key} = {value} (predicted peak {peak})." for key, value in plan.overrides.items()
    ]
