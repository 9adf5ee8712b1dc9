"""How every record under tests/bench/records begins, and how it is written."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"


def head(*packages: str, **machine: object) -> dict:
    """Returns date, machine and versions; `packages` beside Python's own, `machine` what else tells it from others."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cpus": os.cpu_count(), "processor": platform.machine(), "platform": platform.system(), **machine,
        },
        "versions": {"python": platform.python_version(), **versions},
    }  # fmt: skip


def write(path: Path, record: dict) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def runs_of(path: Path) -> dict[str, Any]:
    """Returns the runs that a record has, by their names."""
    return json.loads(path.read_text("utf-8"))["runs"] if path.is_file() else {}


def add_run(path: Path, name: str, run: Mapping[str, Any], summed_up: Callable[..., Any], *packages: str) -> Any:
    """Adds a run to a record, and the tables that `summed_up` makes of all of its runs; returns the tables.

    A run is a line: it has the answers of each question or document, which nobody reads.
    """
    runs = {**runs_of(path), name: run}
    tables = summed_up(runs)
    text = json.dumps({**head(*packages), "tables": tables, "runs": dict.fromkeys(runs)}, indent=1)
    for one, own in runs.items():
        text = text.replace(f"{json.dumps(one)}: null", f"{json.dumps(one)}: {json.dumps(own)}")
    path.write_text(text + "\n", "utf-8")
    return tables
