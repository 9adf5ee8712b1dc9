"""The small GraphMER run as `make train` does it, in fresh processes; figures go to records/graphmer.json.

    python -m tests.bench.bench_graphmer

Measured: seconds of the whole run with an empty cache, seconds from the start of the process to the first step with a
filled one, the figures of the test, and the size and build time of the notebooks.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.record import head

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("records") / "graphmer.json"
CONFIG = "configs/graphmer_small.yaml"


def timed(*command: str, cache: str) -> float:
    """Seconds of a command run from the root of the repository."""
    begin = time.perf_counter()
    environment = {**os.environ, "TRAINBOOK_CACHE": cache}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - begin, 2)


def first_step_seconds(cache: str, folder: str) -> float:
    """From the start of the process to the end of the first step, by the first row of metrics.csv."""
    options = ["training.max_steps=1", "workload.evaluation.test_triples=1", "workload.evaluation.validation_triples=1"]
    options += ["workload.evaluation.structural_test_triples=0", f"output_dir={folder}"]
    environment = {**os.environ, "TRAINBOOK_CACHE": cache}
    command = [sys.executable, "-m", "lib", "train", CONFIG, *(x for o in options for x in ("--set", o))]
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    rows = Path(folder) / "graphmer_small" / "metrics.csv"
    while not (rows.is_file() and rows.read_text().count("\n") >= 2):
        if process.poll() is not None and not rows.is_file():
            raise RuntimeError(f"The run ended with exit code {process.returncode} before its first step.")
        time.sleep(0.01)
    seconds = time.perf_counter() - begin
    process.wait()
    return round(seconds, 2)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        cache, out = f"{temporary}/cache", f"{temporary}/runs"
        whole = timed("-m", "lib", "train", CONFIG, "--set", f"output_dir={out}", cache=cache)
        summary = json.loads((Path(out) / "graphmer_small" / "summary.json").read_text())
        table = (Path(out) / "graphmer_small" / "evaluation.csv").read_text().splitlines()
        first = first_step_seconds(cache, f"{temporary}/first")
        notebooks = timed("build_notebooks.py", cache=cache)
    record = {
        **head("torch"),
        "run_seconds_with_empty_cache": whole,
        "first_step_seconds_with_cache": first,
        "steps": summary["step"],
        "steps_per_second": summary["steps_per_second"],
        "metrics": summary["metrics"],
        "strongest_trivial": summary["baseline"],
        "evaluation_csv": table,
        "build_notebooks_seconds": notebooks,
        "notebook_bytes": {p.name: p.stat().st_size for p in sorted((ROOT / "notebooks").glob("*.ipynb"))},
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k != "evaluation_csv"}, indent=1))


if __name__ == "__main__":
    main()
