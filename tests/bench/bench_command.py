"""What `trainbook run` costs a script that computes for a minute; figures go to records/command.json.

    python -m tests.bench.bench_command [--seconds 60] [--pairs 5]

The script multiplies matrices, prints a line ten times a second, and saves 4 MB every five seconds; it is run alone and
under the command, in turns. Its work is fixed, so that a busy machine slows both. Processor time is that of all
processes, which a neighbour disturbs less than the time on the wall; the goal is for both.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.record import head, publish
from tests.conftest import ROOT

GOAL = 1.01
SCRIPT = """
import pickle, sys, time
import numpy as np
from pathlib import Path
rounds, size = int(sys.argv[1]), 300
Path("checkpoints").mkdir(exist_ok=True)
matrix = np.random.default_rng(0).normal(size=(size, size))
for number in range(rounds):
    matrix = np.tanh(matrix @ matrix.T / size)
    if number % (rounds // 600 or 1) == 0:
        print(f"step={number} loss={matrix.mean():.4f}", flush=True)
    if number % (rounds // 12 or 1) == 0:
        Path("checkpoints/last.pkl").write_bytes(pickle.dumps(np.zeros(500_000)))
"""


def command(rounds: int) -> list[str]:
    return [sys.executable, "script.py", str(rounds)]


def under(rounds: int) -> list[str]:
    own = [sys.executable, "-m", "trainbook", "run", "--keep", "checkpoints"]
    metrics = ["--metric", r"step=(\d+)", "--metric", r"loss=(\S+)"]
    return [*own, *metrics, "--", *command(rounds)]


def seconds(words: list[str], folder: Path) -> tuple[float, float]:
    """Returns the time on the wall and of the processor that a command takes."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before = _processor()
    begin = time.perf_counter()
    subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin, _processor() - before


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rounds_of(target: float, base: Path) -> int:
    """Returns how many rounds take so many seconds of processor time alone."""
    _, short = seconds(command(100), base / "short")
    _, long = seconds(command(1100), base / "long")
    return int(target * 1000 / (long - short))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    times: dict[str, list[tuple[float, float]]] = {"alone": [], "command": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        rounds = rounds_of(options.seconds, base)
        for pair in range(options.pairs):
            kinds = [("alone", command(rounds)), ("command", under(rounds))]
            for kind, words in kinds[:: 1 if pair % 2 else -1]:
                times[kind].append(seconds(words, base / f"{kind}-{pair}"))
            print(json.dumps({kind: each[-1] for kind, each in times.items()}), flush=True)
    record = {
        **head("numpy", "psutil"),
        "load_average_before": load,
        "goal": GOAL,
        "rounds": rounds,
    }
    for clock, name in enumerate(("wall", "processor")):
        pairs = zip(times["command"], times["alone"], strict=True)
        ratios = [whole[clock] / alone[clock] for whole, alone in pairs]
        record[name] = {
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in sorted(ratios)],
            "alone_seconds": round(statistics.median(each[clock] for each in times["alone"]), 2),
        }
    publish("command", record)


if __name__ == "__main__":
    main()
