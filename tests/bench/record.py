"""How every record under tests/bench/records begins, and how it is written."""

import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path

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
