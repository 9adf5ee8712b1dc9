"""How many batches of the toy task the loader alone hands over: what a step faster than that waits for.

    python -m tests.bench.bench_loader
"""

import tempfile
import time
from pathlib import Path

from lib.launch.run import resolved
from lib.task import load_config
from lib.training import data
from lib.training.order import Order
from tests.conftest import TOY

STEPS = 3000


def batches_per_second(workers: int) -> float:
    """Returns the mean over all steps but the first, which starts the workers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "toy.yaml")
        path.write_text(TOY)
        task, config, _ = resolved(load_config(path, {"data.num_workers": workers}))
        train_set = task.datasets()["train"]
        batches = data.train_batches(task, train_set, Order.of(train_set, config), range(STEPS), config.data)
        next(batches)
        begin = time.perf_counter()
        count = sum(1 for _ in batches)
        return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    for number in (0, 1, 2):
        print(f"{number} workers: {batches_per_second(number):,.0f} batches a second")
