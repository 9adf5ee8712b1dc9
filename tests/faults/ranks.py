"""Ranks that are killed, stopped or short of memory, and two machines imitated on one: `make faults`, or

    python -m tests.faults.ranks [PART ...]

Each part is a run of the toy task with steps of 50 ms under the launcher or under torchrun; its end must have the bytes
of the undisturbed run. Figures go to tests/bench/records/ranks.json. It takes about fifteen minutes.
"""

import argparse
import contextlib
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

from lib import checkpoint
from tests import several
from tests.bench.record import RECORDS, head, write
from tests.conftest import ROOT, TOY

RECORD = RECORDS / "ranks.json"
SLOW = {
    "task": f"{several.__file__}:Slow", "run.name": "slow", "training.micro_batch_slots": 2,
    "training.evaluate_every_steps": 0, "checkpoint.every_steps": 2,
}  # fmt: skip
GOAL_SECONDS = 15
HANG_GOAL_SECONDS = 180


class Run:
    """One run of the toy task in a folder of its own, from `trainbook train` on."""

    def __init__(self, folder: Path, steps: int, begin: bool = True, **overrides: object):
        self.folder = folder
        self.steps = steps
        self.changes = overrides
        below = {"device.processes": 2} if begin else {}  # otherwise torchrun starts them
        self.overrides = {**SLOW, "training.max_steps": steps, **below, **overrides}
        self.saved = folder / "runs" / "slow" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "toy.yaml").write_text(TOY)
        if begin:
            self.process = self.start()

    def start(self, *launcher: str) -> subprocess.Popen:
        pairs = [f"--set={key}={value}" for key, value in self.overrides.items()]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with (self.folder / "log.txt").open("ab") as log:
            command = [
                sys.executable,
                *(launcher or ["-m", "trainbook"]),
                "train",
                "toy.yaml",
                *pairs,
            ]
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def newest(self) -> int:
        return max(checkpoint.steps(self.saved), default=0)

    def next_save(self, seconds: float = 120) -> float:
        """Waits for a checkpoint of a later step; the seconds that it took."""
        before = self.newest()
        begin = time.perf_counter()
        wait(lambda: self.newest() > before, seconds, self)
        return time.perf_counter() - begin

    def ranks(self) -> dict[int, psutil.Process]:
        with contextlib.suppress(psutil.Error, KeyError, ValueError):
            return {
                int(child.environ()["RANK"]): child
                for child in psutil.Process(self.process.pid).children()
            }
        return {}

    def log(self) -> str:
        return (self.folder / "log.txt").read_text("utf-8", "replace")

    def end(self, expected: int = 0) -> None:
        code = self.process.wait(timeout=600)
        assert code == expected, f"ended with {code}:\n{self.log()[-3000:]}"

    def check_bytes(self) -> None:
        """Compares with one process that nobody disturbed, and whose steps take no time."""
        quick = {**SLOW, "task": f"{ROOT / 'tests' / 'toy.py'}:Toy"}
        config = {**quick, **self.changes, "training.max_steps": self.steps}
        with contextlib.redirect_stdout(io.StringIO()):
            several.here(self.folder / "whole", [{"config": config}])
        names = ("model.safetensors", "optimizer.safetensors")
        place = checkpoint.path_of(Path("checkpoints"), self.steps)
        whole = self.folder / "whole" / "runs" / "slow" / place
        ours = self.folder / "runs" / "slow" / place
        assert all((whole / name).read_bytes() == (ours / name).read_bytes() for name in names), (
            "another end"
        )


def wait(condition: Callable[[], object], seconds: float, run: Run) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s in vain:\n{run.log()[-3000:]}"
        time.sleep(0.01)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def deaths(base: Path, count: int = 20, **overrides: object) -> dict:
    """Kills one rank or the other at random moments; the time until a checkpoint of a later step is on the disk."""
    draw = random.Random(0)
    run = Run(base / "deaths", steps=20 * count, **overrides)
    run.next_save()
    seconds = []
    for _ in range(count):
        time.sleep(draw.uniform(0, 0.5))
        victim = run.ranks()[draw.randrange(2)]
        before = run.newest()
        begin = time.perf_counter()
        victim.kill()
        wait(lambda: is_gone(victim), 5, run)  # noqa: B023  called at once
        launches = run.log().count("Resuming")
        wait(lambda: run.log().count("Resuming") > launches and run.newest() > before, 120, run)  # noqa: B023
        seconds.append(time.perf_counter() - begin)
    run.end()
    run.check_bytes()
    within = sum(each <= GOAL_SECONDS for each in seconds)
    return {
        "deaths": count, "ended in the bytes of the undisturbed run": True, "goal_seconds": GOAL_SECONDS,
        "within the goal": within, "seconds to a newer checkpoint": _spread(seconds),
    }  # fmt: skip


def hang(base: Path) -> dict:
    """Stops a rank (SIGSTOP), as one that waits for ever looks to the other."""
    run = Run(base / "hang", steps=60)
    run.next_save()
    run.ranks()[1].suspend()
    begin = time.perf_counter()
    wait(lambda: "Rank 1 hung" in run.log(), 300, run)
    found = time.perf_counter() - begin
    back = found + run.next_save()
    run.end()
    run.check_bytes()
    assert found < HANG_GOAL_SECONDS
    return {"found after seconds": round(found, 1), "newer checkpoint after seconds": round(back, 1),
            "goal_seconds": HANG_GOAL_SECONDS}  # fmt: skip


def killed_worker(base: Path) -> dict:
    """Kills a loader worker of a rank: the rank replaces it, or loads its data itself, and ends in the same bytes."""
    run = Run(base / "killed_worker", steps=60, **{"data.num_workers": 1})
    run.next_save()
    below = run.ranks()[1].children(recursive=True)
    next(process for process in below if process.name() == "pt_data_worker").kill()
    begin = time.perf_counter()
    run.end()
    run.check_bytes()
    assert "starting again" not in run.log(), "the ranks were not launched anew"
    return {
        "seconds to the end": round(time.perf_counter() - begin, 1),
        "relaunched": False,
        "completed": True,
    }


def orphans(base: Path) -> dict:
    """kill -9 of the launcher; every process below must be gone, loaders included."""
    run = Run(base / "orphans", steps=60, **{"data.num_workers": 1})
    counts = []
    seconds = []
    for number in range(5):
        run.process = run.process if not number else run.start()
        run.next_save()
        below = psutil.Process(run.process.pid).children(recursive=True)
        begin = time.perf_counter()
        run.process.kill()
        run.process.wait()
        wait(lambda: all(map(is_gone, below)), 30, run)  # noqa: B023
        seconds.append(time.perf_counter() - begin)
        counts.append(len(below))
    run.process = run.start()
    run.end()
    run.check_bytes()
    return {"launchers killed": len(counts), "processes below": min(counts), "left over": 0,
            "seconds until all were gone": _spread(seconds)}  # fmt: skip


def interrupt(base: Path) -> dict:
    """SIGINT to the launcher, as Jupyter sends it: every rank saves and ends."""
    run = Run(base / "interrupt", steps=100)
    run.next_save()
    below = psutil.Process(run.process.pid).children(recursive=True)
    begin = time.perf_counter()
    run.process.send_signal(signal.SIGINT)
    run.end(130)
    seconds = time.perf_counter() - begin
    assert all(map(is_gone, below))
    summary = json.loads((run.folder / "runs" / "slow" / "summary.json").read_text())
    assert summary["reason"] == "interrupted", f"{summary}\n{run.log()[-3000:]}"
    assert summary["step"] == run.newest(), f"{summary}\n{run.log()[-3000:]}"
    return {"seconds to the end": round(seconds, 1), "saved at the step it stopped at": True}


CELL = """
from trainbook import launch
from lib.task import load_config
summary = launch.train(load_config("toy.yaml", {overrides}))
print("reason:", summary.reason, "ranks:", summary.world_size)
"""


def notebook(base: Path) -> dict:
    """Trains from a cell of a real kernel: one line that updates; an interrupt saves; kill -9 leaves no process."""
    base.mkdir(exist_ok=True)
    (base / "toy.yaml").write_text(TOY)
    more = {
        "device.processes": 2,
        "training.max_steps": 10_000,
        "training.log_every_steps": 5,
        "output_dir": "runs",
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    manager, client = start_new_kernel(cwd=str(base), env=environment)
    try:
        kernel = psutil.Process(manager.provisioner.process.pid)
        seen: Counter[str] = Counter()
        said = ""
        client.execute(CELL.format(overrides={**SLOW, **more}))
        while "reason:" not in said:
            message = client.get_iopub_msg(timeout=90)
            kind = message["msg_type"]
            assert kind != "error", message["content"]
            seen[kind] += 1
            said += message["content"].get("text", "") if kind == "stream" else ""
            if kind == "update_display_data" and seen[kind] == 3:
                manager.interrupt_kernel()
        assert "reason: interrupted ranks: 2" in said
        assert seen["display_data"] <= 2
        assert not kernel.children(recursive=True)
        client.execute(CELL.format(overrides={**SLOW, **more}))
        while client.get_iopub_msg(timeout=90)["msg_type"] != "update_display_data":
            pass
        below = kernel.children(recursive=True)
        kernel.kill()
        until = time.monotonic() + 30
        while not all(map(is_gone, below)):
            assert time.monotonic() < until, "processes outlived the kernel"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return {"updating lines": seen["display_data"], "interrupted with a save": True,
            "processes below a killed kernel": len(below), "left over": 0}  # fmt: skip


def update(base: Path, task: str = "TightUpdate", **overrides: object) -> dict:
    """Memory runs out on the second of two ranks after it changed its weights: a fresh launch with half the size."""
    run = Run(base / "update", 12, **{"task": f"{several.__file__}:{task}", **overrides})
    run.end()
    place = run.folder / "runs" / "slow"
    assert "oom_relaunch,4,2" in (place / "events.csv").read_text(), run.log()
    summary = json.loads((place / "summary.json").read_text())
    assert summary["reason"] == "completed"
    assert summary["micro_batch"] == 2
    assert "Traceback" not in run.log()
    return {"launches": 2, "micro_batch": [4, 2], "completed": True}


class Agents:
    """Two torchrun agents on one machine, which meet at a port as two machines would."""

    def __init__(self, run: Run):
        self.run, self.port = run, several.free_port()
        self.agents = [self.start(), self.start()]

    def start(self) -> subprocess.Popen:
        # Without it torch 2.13 keeps the address of the first round, and a machine that comes back asks for it in vain.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return self.run.start(
            "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-id=toy",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--local-addr=127.0.0.1", "-m",
            "trainbook",
        )  # fmt: skip

    def is_host(self, agent: subprocess.Popen) -> bool:
        """Whether this agent keeps the place where all meet, without which nobody meets again."""
        connections = psutil.Process(agent.pid).net_connections("tcp")
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == self.port
            for each in connections
        )


def two_machines(base: Path) -> dict:
    """Kills the second agent with its rank, brings it back, and again; the first one never ends in between."""
    count = 3
    run = Run(base / "two_machines", 40 + 40 * count, begin=False)
    agents = Agents(run)
    first, second = agents.agents
    try:
        run.next_save()
        if agents.is_host(second):
            first, second = second, first
        seconds = []
        for _ in range(count):
            rank = psutil.Process(second.pid).children()[0]
            second.kill()
            second.wait()
            wait(lambda: is_gone(rank), 5, run)  # noqa: B023
            begin = time.perf_counter()
            time.sleep(1)
            second = agents.start()
            run.next_save()
            seconds.append(time.perf_counter() - begin)
        codes = [first.wait(timeout=300), second.wait(timeout=300)]
        assert codes == [0, 0], f"{codes}\n{run.log()[-3000:]}"
    finally:
        for agent in (first, second):
            agent.kill()
    run.check_bytes()
    summary = json.loads((run.folder / "runs" / "slow" / "summary.json").read_text())
    assert summary["reason"] == "completed"
    assert summary["world_size"] == 2
    return {"agents killed and brought back": count, "seconds to a newer checkpoint": _spread(seconds),
            "ended in the bytes of the undisturbed run": True}  # fmt: skip


def _spread(seconds: list[float]) -> dict:
    each = [round(value, 1) for value in seconds]
    return {"median": round(statistics.median(each), 1), "longest": max(each), "each": each}


PARTS = (deaths, two_machines, orphans, interrupt, notebook, update, killed_worker, hang)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", help="some parts only; the others keep their figures in the record"
    )
    chosen = parser.parse_args().parts
    record = {**head("torch"), "load_average_before": round(os.getloadavg()[0], 2)}
    if chosen and RECORD.exists():
        record = {**json.loads(RECORD.read_text("utf-8")), **record}
    for part in PARTS:
        if not chosen or part.__name__ in chosen:
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                record[part.__name__] = {
                    **part(Path(folder)),
                    "seconds": round(time.perf_counter() - begin, 1),
                }
            print(json.dumps({part.__name__: record[part.__name__]}), flush=True)
            write(
                RECORD, record
            )  # after each part, so that one that fails costs no other's figures


if __name__ == "__main__":
    main()
