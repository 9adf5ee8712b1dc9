"""How long an estimate and a plan take on this machine, in how much memory, and how near published readings they come.

    python -m tests.bench.bench_planner

Each is a fresh process, imports included. Figures go to records/planner.json.
"""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.record import head, publish
from tests.planner.test_readings import errors

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 5
COMMANDS = {
    # one trace: the whole slot fits
    "estimate": ["configs/graphmer.yaml", "--gpu", "t4"],
    # micro-batch and recomputation are searched on a card that is too small for a slot
    "plan": [
        "configs/graphmer.yaml",
        "--gpu",
        "4 GiB, capability 7.5",
        "--set",
        "training.micro_batch=0",
    ],
}


def timed(arguments: list[str]) -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "trainbook", "plan", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    seconds = {
        name: [round(timed(arguments), 2) for _ in range(REPEATS)]
        for name, arguments in COMMANDS.items()
    }
    readings = errors()
    record = {
        **head("torch"),
        "seconds": {
            name: {"median": statistics.median(all_), "worst": max(all_)}
            for name, all_ in seconds.items()
        },
        "largest_process_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "published_readings": {
            "mean_error": round(statistics.mean(map(abs, readings.values())), 4),
            "errors": {name: round(error, 4) for name, error in readings.items()},
        },
    }
    publish("planner", record)


if __name__ == "__main__":
    main()
