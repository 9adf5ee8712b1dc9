"""What small configurations and examples reach in fp16 and fp32; figures go to records/fp16.json, or fp16_<card>.json.

    python -m tests.bench.bench_fp16                                    all rows that the record has left out
    python -m tests.bench.bench_fp16 --rows graphmer_small --seeds 0,1  some of them
    python -m tests.bench.bench_fp16 --rows graphmer_small --again      once more

A row and seed is a run in each precision, in fresh processes: minutes in fp32, and up to 20 times as long in fp16 on
a CPU. One that was killed resumes in --scratch.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lib.report.metrics import read
from tests.bench.record import RECORDS, head, measure, of_card, rounded, train
from trainbook import new

RECORD = (
    of_card("fp16", torch.cuda.get_device_name())
    if torch.cuda.is_available()
    else RECORDS / "fp16.json"
)
ROWS = ("graphmer_small", "legal_small", "vqa_small", "glacier_pretrain_small", *new.KINDS)
PRECISIONS = ("fp32", "fp16")
_SETTLED = 100  # steps after which the loss scale has come down from 65,536


def measured(row: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Trains a row in both precisions, or resumes what was killed; returns scores, speeds, loss scale."""
    run: dict[str, Any] = head("torch")
    config = f"configs/{row}.yaml"
    data = {"data.dir": "" if row.startswith("graphmer") else "embedded"}
    if row in new.KINDS:
        config = scratch / "my.yaml"
        data = {}
        if not config.exists():
            new.write("my", row, scratch)
    for precision in PRECISIONS:
        begin = time.perf_counter()
        train(config, {
            "output_dir": scratch, "run.name": precision, "seed": seed, "training.precision": precision,
            "training.log_every_steps": 1, **data,
        })  # fmt: skip
        folder = scratch / precision
        summary = json.loads((folder / "summary.json").read_text())
        run[precision] = {
            "seconds": round(time.perf_counter() - begin, 1),
            "steps": summary["step"],
            "metric": summary["best"]["metric"],
            "metrics": rounded(
                {key: value for key, value in summary["metrics"].items() if value is not None}
            ),
        }
        if precision == "fp16":
            run[precision] |= scaled(folder)
    return run


def scaled(folder: Path) -> dict[str, Any]:
    """Returns the smallest loss scale and the skipped steps of a run, once its scale has settled."""
    rows = [row for row in read(folder / "metrics.csv") if row.get("split") == "train"]
    skipped = {int(row["step"]): int(row["skipped_steps"]) for row in rows}
    begin = min(_SETTLED, max(skipped))
    later = [float(row["loss_scale"]) for row in rows if int(row["step"]) >= begin]
    share = (skipped[max(skipped)] - skipped[begin]) / max(1, max(skipped) - begin)
    return {
        "smallest scale": min(later),
        "skipped": skipped[max(skipped)],
        "skipped later, share": round(share, 4),
    }


def summed_up(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns for each row its scores over seeds in both precisions, and the worst of the loss scale."""
    tables: dict[str, Any] = {}
    for row in dict.fromkeys(name.partition(", seed ")[0] for name in runs):
        seeds = [run for name, run in runs.items() if name.startswith(f"{row}, seed ")]
        metric = seeds[0]["fp32"]["metric"]
        scores = {p: [run[p]["metrics"][metric] for run in seeds] for p in PRECISIONS}
        tables[row] = {
            "metric": metric, **scores,
            "smallest scale": min(run["fp16"]["smallest scale"] for run in seeds),
            "skipped later, share": max(run["fp16"]["skipped later, share"] for run in seeds),
        }  # fmt: skip
    return tables


if __name__ == "__main__":
    measure(RECORD, ROWS, "0", measured, summed_up, __doc__)
