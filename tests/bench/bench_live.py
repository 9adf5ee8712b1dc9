"""What the live figure of a notebook costs: seconds of CPU for its charts, and the share of the time between two.

    python -m tests.bench.bench_live

Tables of up to 20,000 rows, which twelve hours rarely reach, with what a GPU adds to them. Figures go to
records/live.json.
"""

import json
import math
import tempfile
import time
from pathlib import Path

from lib.report import live
from lib.report.live import Figure, Watched
from lib.report.metrics import MetricsLog
from tests.bench.record import RECORDS, head, write

FIGURES = 20
MACHINE = {
    "peak_memory_bytes": 9e9, "gpu_use": 0.9, "gpu_memory_bytes": 1e10, "gpu_allocated_bytes": 7e9,
    "gpu_reserved_bytes": 9e9, "ram_share": 0.4, "data_wait_share": 0.1,
}  # fmt: skip


def append(log: MetricsLog, number: int, rows: int) -> None:
    """Appends a row of training, and every 20 steps one of a validation."""
    loss = 2 + 5 * math.exp(-6 * number / rows) + 0.2 * math.sin(number)
    log.append({"step": number, "split": "train", "epoch": number / 100, "loss": loss, **MACHINE})
    if number % 20 == 0:
        scores = {"loss": loss, "mrr": 1 / loss, "hits1": 0.5 / loss}
        log.append({"step": number, "split": "validation", "epoch": number / 100, **scores})


def measured(rows: int) -> dict[str, float]:
    """Returns the cost of figures of a table, each after ten new rows; the first one reads all."""
    steps = rows + 10 * FIGURES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.csv"
        figure = Figure(Watched(path, "bench", steps, ("mrr", "hits1"), ("mrr", "max"), {"mrr": 0.2}, 15 * 2**30))
        seconds = []
        with MetricsLog(path, 0) as log:
            for number in range(1, steps + 1):
                append(log, number, rows)
                if number >= rows and number % 10 == 0:
                    begin = time.process_time()
                    html = figure.charts()
                    seconds.append(time.process_time() - begin)
    each = sorted(seconds[1:])[FIGURES // 2]
    share = each / (each + 1.2 * each / live._SHARE)
    return {"rows": rows, "first_seconds": seconds[0], "seconds": each, "share": share, "bytes": len(html)}


def main() -> None:
    record = {**head("numpy"), "limit": live._SHARE, "figures": [measured(rows) for rows in (100, 2000, 20_000)]}
    assert all(figure["share"] < live._SHARE for figure in record["figures"])
    write(RECORDS / "live.json", record)
    print(json.dumps(record["figures"], indent=1))


if __name__ == "__main__":
    main()
