"""The small GraphMER run as `make train` does it, in fresh processes; figures go to records/graphmer.json.

    python -m tests.bench.bench_graphmer                          every run below, about 5 minutes each on 2 idle cores
    python -m tests.bench.bench_graphmer "seed 1" "no namesakes"   some of them; the record keeps what it has of others

Measured of each run: seconds and CPU seconds of the whole run with an empty cache, seconds to its first printed figure,
the figures of the test beside those of the counts, and the gain with its interval. Of seeds the record has the mean. An
ablation is one run with a part switched off, all else as in seed 0.
"""

import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.record import head

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("records") / "graphmer.json"
CONFIG = "configs/graphmer_small.yaml"
SEEDS = ("seed 0", "seed 1", "seed 2")
ENDS = ("", "_low", "_high")  # of a column with its interval
ABLATIONS = {
    "no namesakes": ["workload.objective.same_name_weight=0"],
    "no own vectors": ["workload.model.own_vectors=0"],
    "no dropped pieces": ["workload.model.token_dropout=0"],
    "no decay": ["workload.model.decay=1"],
}


def measured(options: list[str]) -> dict:
    """Trains in a fresh process with an empty cache; returns times and figures."""
    with tempfile.TemporaryDirectory() as temporary:
        options = [*options, f"output_dir={temporary}/runs"]
        environment = {
            **os.environ,
            "TRAINBOOK_CACHE": f"{temporary}/cache",
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-m", "trainbook", "train", CONFIG]
        command += [*(part for o in options for part in ("--set", o))]
        begin = time.perf_counter()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        folder = Path(temporary, "runs", "graphmer_small")
        first = None
        for line in process.stdout:
            if first is None and "loss" in line:
                first = round(time.perf_counter() - begin, 1)
        if process.wait():
            raise RuntimeError(f"The run ended with exit code {process.returncode}.")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = json.loads((folder / "summary.json").read_text())
        with (folder / "evaluation.csv").open() as file:
            table = list(csv.DictReader(file))
    return {
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, 1),
        "seconds_to_first_figure": first,
        "steps": summary["step"],
        "metrics": {name: round(value, 4) for name, value in summary["metrics"].items()},
        "counts_combined": {name: round(value, 4) for name, value in summary["baseline"].items()},
        "gains": gains(table),
        "table": {
            row.pop("method"): {name: round(float(value), 4) for name, value in row.items()}
            for row in table
        },
    }


def gains(table: list[dict[str, str]]) -> dict[str, list[float]]:
    """Returns the encoder's gain over the counts and its bounds, by metric."""
    (row,) = (row for row in table if row["method"] == "counts + encoder")
    names = [
        name.removeprefix("gain_")
        for name in row
        if name.startswith("gain_") and not name.endswith(ENDS[1:])
    ]
    return {name: [round(float(row[f"gain_{name}{end}"]), 4) for end in ENDS] for name in names}


def main(wanted: list[str]) -> None:
    runs = {name: [f"seed={name.split()[1]}"] for name in SEEDS} | ABLATIONS
    if unknown := set(wanted) - runs.keys():
        raise SystemExit(f"There are no runs {sorted(unknown)}. Known are {list(runs)}.")
    for name in wanted or runs:
        run = {**head("torch"), **measured(runs[name])}
        record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        found = {**record.get("runs", {}), name: run}
        seeds = [found[seed]["metrics"] for seed in SEEDS if seed in found]
        if seeds:
            mean = {key: round(sum(one[key] for one in seeds) / len(seeds), 4) for key in seeds[0]}
        else:
            mean = {}
        record = {**head("torch"), "mean_of_seeds": mean, "seeds": len(seeds), "runs": found}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        print(name, json.dumps({k: v for k, v in found[name].items() if k != "table"}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
