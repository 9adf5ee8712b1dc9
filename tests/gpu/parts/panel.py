"""What the memory panel and the doctor read, beside nvidia-smi."""

import csv
import io
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

from lib.machine import hardware, memory
from trainbook import doctor

ROWS = ("doctor and panel",)
_MIB = 2**20
_NEAR = 128 * _MIB  # that other processes may take between two readings
_QUERY = ("name", "memory.total", "memory.used", "driver_version")


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Reads the card, or without one the RAM, in both ways."""
    findings = [f"{f.name}: {f.value}" for section in doctor.examine().values() for f in section]
    if not torch.cuda.is_available():
        (ram,) = memory.readings()
        total = psutil.virtual_memory().total
        return {
            "ok": 0 < ram.used < ram.total <= total and bool(findings),
            "ram": ram.total,
            "psutil": total,
        }
    ballast = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    reading = memory.readings()[1]
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name, total, used, driver = next(csv.reader(io.StringIO(printed), skipinitialspace=True))
    del ballast
    read_by_nvml = hardware.driver()
    figures = {
        "nvidia_smi": {
            "name": name,
            "total_mib": int(total),
            "used_mib": int(used),
            "driver": driver,
        },
        "panel": {
            "name": reading.name,
            "total_mib": reading.total // _MIB,
            "used_mib": reading.used // _MIB,
        },
        "doctor": [finding for finding in findings if "GPU" in finding],
    }
    near = (
        abs(reading.used - int(used) * _MIB) < _NEAR
        and abs(reading.total - int(total) * _MIB) < 1024 * _MIB
    )
    same_driver = read_by_nvml is not None and read_by_nvml.version == driver
    return {"ok": near and same_driver and name in reading.name, **figures}
