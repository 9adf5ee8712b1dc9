"""All that needs a GPU, one part after another: `make gpu`, or `python -m tests.gpu [PART ...]`.

Each part is a process of its own, so that what one leaves on the card is gone for the next, and the next runs although
one failed. Records go to tests/bench/records. Exit code 2 without a GPU, 1 where a part failed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from lib.text import aligned, duration
from tests.conftest import ROOT

PARTS = {
    "tests": [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/gpu/test_gpu.py"],
    "memory": [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/gpu/test_memory.py"],
    "plans": [sys.executable, "-m", "tests.gpu.bench_plans"],
    "graphmer": [sys.executable, "-m", "tests.gpu.bench_graphmer"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args(arguments).parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        print(f"There is no part {unknown[0]!r}. Write {', '.join(PARTS)}, or nothing for all.", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print(
            "There is no GPU that PyTorch can use here, so nothing was measured. Run this on a machine with one; "
            "trainbook doctor says what is missing.", file=sys.stderr,
        )  # fmt: skip
        return 2
    return run({part: PARTS[part] for part in chosen})


def run(parts: dict[str, list[str]]) -> int:
    rows, failed = [["part", "took", "ended"]], False
    for part, command in parts.items():
        print(f"{part}: {' '.join(command[1:])}", flush=True)
        begin = time.monotonic()
        code = subprocess.run(command, cwd=ROOT).returncode
        failed |= code != 0
        rows.append([part, duration(time.monotonic() - begin), "well" if code == 0 else f"with exit code {code}"])
    print(aligned(rows, left=(0, 2)), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
