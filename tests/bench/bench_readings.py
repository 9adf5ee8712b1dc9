"""How near predictions come to published readings and training speeds of real cards.

    python -m tests.bench.bench_readings

It takes some minutes of one CPU. Figures go to records/readings.json, which tests/planner/test_readings.py holds
against the table, and from which README.md and docs/design.md quote.
"""

import math
import statistics
from collections.abc import Iterable

from tests.bench.record import RECORDS, head, write
from tests.planner import readings, speeds

RECORD = RECORDS / "readings.json"


def memory(rows: Iterable[readings.Reading]) -> dict[str, dict]:
    """Returns of each reading what was measured and predicted, in MiB, and the verdict."""
    found = {}
    for row in rows:
        result = row.prediction()
        predicted = row.predicted(result)
        found[row.name] = {
            "measured_mib": round(row.measured / 2**20, 1),
            "predicted_mib": round(predicted / 2**20, 1),
            "error": round(predicted / row.measured - 1, 4),
            "fits": result.fits,
        }
        if most := row.most(result):
            found[row.name] |= {
                "at_most_mib": round(most / 2**20, 1), "at_most_error": round(most / row.measured - 1, 4)
            }  # fmt: skip
        if getattr(row, "reserved", 0):
            error = round(result.reserved_bytes / row.reserved - 1, 4)
            found[row.name] |= {
                "reserved_mib": round(row.reserved / 2**20, 1),
                "reserved_error": error,
            }
        print(f"{row.name}: {found[row.name]}", flush=True)
    return found


def speed(rows: Iterable[speeds.Speed]) -> dict[str, dict]:
    """Returns of each speed what was published and forecast, in its unit a second."""
    found = {}
    for row in rows:
        slow, fast = row.forecast()
        found[row.name] = {
            "published": list(row.published),
            "forecast": [round(slow, 1), round(fast, 1)],
            "expected_over_published": round(math.sqrt(slow * fast) / row.middle, 3),
        }
        print(f"{row.name}: {found[row.name]}", flush=True)
    return found


def summary(errors: list[float]) -> dict[str, float]:
    sizes = sorted(map(abs, errors))
    return {
        "rows": len(errors), "mean": round(statistics.mean(sizes), 4), "median": round(statistics.median(sizes), 4),
        "lowest": min(errors), "highest": max(errors),
    }  # fmt: skip


def main() -> None:
    xmem = readings.xmem()
    by_set = {
        "xmem": memory(xmem), "others": memory(readings.others()), "adapters": memory(readings.adapters())
    }  # fmt: skip
    fitted = [row.name for row in xmem if not row.ran_out]
    write(RECORD, {
        **head("torch", "transformers"),
        "memory": by_set,
        "summary": {
            "xmem": summary([by_set["xmem"][name]["error"] for name in fitted]),
            **{name: summary([row["error"] for row in by_set[name].values()]) for name in ("others", "adapters")},
            "reserved": summary([r["reserved_error"] for r in by_set["adapters"].values() if "reserved_error" in r]),
        },
        "speed": speed(speeds.every()),
    })  # fmt: skip


if __name__ == "__main__":
    main()
