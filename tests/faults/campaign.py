"""The campaign against checkpoints: `make faults`, or `python -m tests.faults.campaign [--fast]`.

The whole of it takes some minutes and keeps its figures in tests/bench/records/faults.json; --fast takes a sample in
seconds, prints its figures and keeps nothing.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from tests.bench.record import head
from tests.faults import flips, power, runs

RECORD = Path(__file__).parents[1] / "bench" / "records" / "faults.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a sample, in seconds")
    fast = parser.parse_args().fast
    torch.set_num_threads(1)  # threads of a parent do not live on in forked runs
    record = head("torch", "safetensors")
    for part in (operations, kills, bits, losses):
        begin = time.perf_counter()
        # In memory, where a sync takes no time, faults are met sooner; on a disk more kills fall into a save.
        place = None if part is kills or not Path("/dev/shm").is_dir() else "/dev/shm"
        with tempfile.TemporaryDirectory(dir=place) as temporary:
            figures = part(Path(temporary, part.__name__), fast)
        seconds = round(time.perf_counter() - begin, 1)
        record |= {name: {**counts, "seconds": seconds} for name, counts in figures.items()}
        print(json.dumps(figures), flush=True)
    if not fast:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def operations(base: Path, fast: bool) -> dict:
    return runs.every_operation(base, stride=41 if fast else 1, first=3 if fast else 1)


def kills(base: Path, fast: bool) -> dict:
    """Without loader processes in the sample: their server imports for seconds in each run."""
    return runs.random_kills(base, *((3, 0, 20, 0) if fast else (20, 0, 100, 2)))


def bits(base: Path, fast: bool) -> dict:
    return flips.bit_flips(base, stride=37 if fast else 1)


def losses(base: Path, fast: bool) -> dict:
    """Also without the syncs, as a control: a simulation that finds nothing there would prove nothing here."""
    counts = power.power_losses(base, limit=8 if fast else 400)
    assert not counts["wrong"] and not counts["lost"], counts
    control = power.power_losses(base / "control", limit=8, honours_sync=False)
    assert control["lost"], control
    return {"power losses": {**counts, "control without file syncs": control}}


if __name__ == "__main__":
    main()
