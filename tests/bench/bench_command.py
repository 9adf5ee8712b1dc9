"""What `trainbook run` costs a script of a minute; figures go to records/command.json.

    python -m tests.bench.bench_command [--sleeping] [--seconds 60] [--pairs 5]

The script multiplies matrices, prints a line ten times a second, and saves 4 MB every five seconds; it is run alone and
under the command, in turns. Its work is fixed, so that a busy machine slows both. Processor time is that of all
processes, which a neighbour disturbs less than the time on the wall. With --sleeping the script sleeps between lines
instead: the difference is then the command's own time alone, on a machine that others use too.
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
lines, rounds = int(sys.argv[1]), int(sys.argv[2])
Path("checkpoints").mkdir(exist_ok=True)
matrix = np.random.default_rng(0).normal(size=(300, 300))
for number in range(lines):
    for _ in range(rounds):
        matrix = np.tanh(matrix @ matrix.T / 300)
    if not rounds:
        time.sleep(0.1)
    print(f"step={number} loss={matrix.mean():.4f}", flush=True)
    if number % 50 == 0:
        Path("checkpoints/last.pkl").write_bytes(pickle.dumps(np.zeros(500_000)))
"""


def command(lines: int, rounds: int) -> list[str]:
    return [sys.executable, "script.py", str(lines), str(rounds)]


def under(lines: int, rounds: int) -> list[str]:
    own = [sys.executable, "-m", "trainbook", "run", "--keep", "checkpoints"]
    metrics = ["--metric", r"step=(\d+)", "--metric", r"loss=(\S+)"]
    return [*own, *metrics, "--", *command(lines, rounds)]


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


def rounds_of(base: Path) -> int:
    """Returns how many rounds take a tenth of a second of processor time."""
    _, short = seconds(command(10, 1), base / "short")
    _, long = seconds(command(10, 41), base / "long")
    return max(1, round(0.1 * 400 / (long - short)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--sleeping", action="store_true")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    times: dict[str, list[tuple[float, float]]] = {"alone": [], "command": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        rounds = 0 if options.sleeping else rounds_of(base)
        size = (int(10 * options.seconds), rounds)
        for pair in range(options.pairs):
            kinds = [("alone", command(*size)), ("command", under(*size))]
            for kind, words in kinds[:: 1 if pair % 2 else -1]:
                times[kind].append(seconds(words, base / f"{kind}-{pair}"))
            print(json.dumps({kind: each[-1] for kind, each in times.items()}), flush=True)
    record = {
        **head("numpy", "psutil"),
        "load_average_before": load,
        "goal": GOAL,
        "script": f"{options.seconds:g} s, {'sleeping' if options.sleeping else 'computing'}",
    }
    for clock, name in enumerate(("wall", "processor")):
        pairs = zip(times["command"], times["alone"], strict=True)
        extra = sorted(whole[clock] - alone[clock] for whole, alone in pairs)
        length = statistics.median(wall for wall, _ in times["alone"])
        record[name] = {
            "ratio": round(1 + statistics.median(extra) / length, 4),
            "extra_seconds": [round(each, 3) for each in extra],
        }
    publish("command", record)


if __name__ == "__main__":
    main()
