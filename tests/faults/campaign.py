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

from lib import checkpoint
from tests.bench.record import RECORDS, head, write
from tests.faults import power, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a sample, in seconds")
    fast = parser.parse_args().fast
    torch.set_num_threads(1)  # threads of a parent do not live on in forked runs
    record = head("torch", "safetensors")
    for part in (kills, bits, losses):
        begin = time.perf_counter()
        # In memory, where a sync takes no time, faults are met sooner; on a disk more kills fall into a save.
        place = None if part is kills or not Path("/dev/shm").is_dir() else "/dev/shm"
        with tempfile.TemporaryDirectory(dir=place) as temporary:
            figures = part(Path(temporary, part.__name__), fast)
        seconds = round(time.perf_counter() - begin, 1)
        record |= {name: {**counts, "seconds": seconds} for name, counts in figures.items()}
        print(json.dumps(figures), flush=True)
    if not fast:
        write(RECORDS / "faults.json", record)


def kills(base: Path, fast: bool) -> dict:
    """Without loader processes in the sample: their server imports for seconds in each run."""
    count, steps, workers = (3, 20, 0) if fast else (20, 100, 2)
    return runs.random_kills(
        base, count, **{"training.max_steps": steps, "data.num_workers": workers}
    )


def bits(base: Path, fast: bool) -> dict:
    """Flips every bit of a checkpoint, one at a time; loading must notice each."""
    tensors = {
        "model": {
            "weight": torch.arange(6.0).reshape(2, 3),
            "bias": torch.ones(2, dtype=torch.float16),
        },
        "optimizer": {"exp_avg/weight": torch.rand(2, 3), "step/weight": torch.tensor(7.0)},
    }
    path = checkpoint.save(base, 1, tensors, {"kept_best": [], "scaler": {}, "micro_batch": 8})
    checkpoint.load(path)
    tried = noticed = size = 0
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        size += len(whole)
        for bit in range(0, 8 * len(whole), 37 if fast else 1):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            tried += 1
            try:
                checkpoint.load(path)
            except checkpoint.DamagedCheckpoint:
                noticed += 1
        file.write_bytes(whole)
    checkpoint.load(path)
    assert noticed == tried, f"{tried - noticed} of {tried} flips were not found"
    return {"bit flips": {"bytes": size, "tried": tried, "found": noticed}}


def losses(base: Path, fast: bool) -> dict:
    """Also without the syncs, as a control: a simulation that finds nothing there would prove nothing here."""
    counts = power.power_losses(base, limit=8 if fast else 400)
    assert not counts["wrong"], counts
    assert not counts["lost"], counts
    control = power.power_losses(base / "control", limit=8, honours_sync=False)
    assert control["lost"], control
    return {"power losses": {**counts, "control without file syncs": control}}


if __name__ == "__main__":
    main()
