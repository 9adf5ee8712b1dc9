"""Ranks for tests: runs of the toy task in processes that are joined once for many of them.

    python -m tests.several FOLDER

reads FOLDER/scenarios.json and does one after the other; tests/ranks/test_ranks.py starts as many as there are ranks.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import torch

from lib import checkpoint, ranks
from lib.errors import BadInput, TrainingFailed
from lib.task import load_config
from lib.training.session import Session
from tests.conftest import ROOT, TOY
from tests.toy import Toy
from trainbook import launch


class Slow(Toy):
    """A step takes a moment, so that there is time to disturb it."""

    def loss(self, model, batch):
        time.sleep(0.05)
        return super().loss(model, batch)


class Held(Toy):
    """Waits in a step while there is a file `hold` and a checkpoint of the step that it names, or of a later one."""

    def loss(self, model, batch):
        while self.is_held():
            time.sleep(0.01)
        return super().loss(model, batch)

    def is_held(self):
        saved = Path("runs") / self.config.run.name / "checkpoints"
        with contextlib.suppress(FileNotFoundError, ValueError):
            return max(checkpoint.steps(saved), default=0) >= int(Path("hold").read_text())
        return False


class Branching(Toy):
    """A layer that only some micro-batches use: here the first of an effective batch, never the second."""

    def model(self):
        model = super().model()
        model.register_parameter("seldom", torch.nn.Parameter(torch.ones(1)))
        model.register_parameter("never", torch.nn.Parameter(torch.ones(1)))
        return model

    def collate(self, samples, generator):
        batch = super().collate(samples, generator)
        first = generator.initial_seed() % 2 == 0  # any property of a slot that its seed decides
        return {**batch, "branch": torch.full_like(batch["id"], float(first))}

    def loss(self, model, batch):
        sums, logs = super().loss(model, batch)
        if bool(batch["branch"][0]):
            sums["squared"] = sums["squared"] * model.seldom.squeeze()
        return sums, logs


class Figured(Toy):
    """Logs figures of each micro-batch, one from the device and one of Python's."""

    def loss(self, model, batch):
        sums, _ = super().loss(model, batch)
        return sums, {
            "error": sums["squared"].detach() / 3,
            "third": len(batch["x"]) / 3 + float(batch["id"][0]) / 7,
        }


class Frozen(Toy):
    """The first layer is trained from step 4 to step 8 alone, the last one at twice the rate."""

    def parameter_groups(self, model):
        first = {"names": "blocks.0.*", "from_step": 4, "until_step": 9}
        return [first, {"names": "blocks.3.*", "lr": 2.0}]


class Tight(Toy):
    """Memory runs out on the second rank alone when more than two samples are on it at once."""

    def loss(self, model, batch):
        if ranks.rank() == 1 and len(batch["x"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return super().loss(model, batch)


class TightUpdate(Toy):
    """Memory runs out on the second rank in the update of the weights, once, where micro-batches have four samples."""

    def loss(self, model, batch):
        update = torch.optim.AdamW.step
        if (
            ranks.rank() == 1
            and len(next(iter(batch.values()))) == 4
            and update.__name__ != "tight"
        ):
            calls = []

            def tight(optimizer, closure=None):
                calls.append(optimizer)
                update(optimizer, closure)
                if len(calls) == 5:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

            torch.optim.AdamW.step = tight
        return super().loss(model, batch)


class Missing(Toy):
    """The second rank has no data."""

    def datasets(self):
        if ranks.rank() == 1:
            raise BadInput("There is no graph in /data.")
        return super().datasets()


class Undecided(Toy):
    """Draws its weights in a way that the seed does not reach."""

    def model(self):
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
        return super().model()


class Cut(Session):
    """Ends after some steps, on one rank alone or on all."""

    steps = 0
    on = None

    def stop_reason(self, evaluates_next=False):
        self.steps -= 1
        mine = self.on is None or self.on == ranks.rank()
        if self.steps == 0 and mine:
            return "deadline"
        return None


def scenario(
    folder: Path, config: dict, task: str = "", cut: int = 0, on: int | None = None
) -> dict:
    """What is done on each rank: one call of `launch.train`, which may be cut after some steps."""

    def start(*_):
        session = Cut(None, 0, 0)
        session.steps = cut
        session.on = on
        return session

    overrides = {"output_dir": str(folder / "runs"), **config}
    if task:
        overrides["task"] = f"{__file__}:{task}"
    try:
        with (
            mock.patch.multiple(launch, plot=mock.DEFAULT),
            mock.patch.object(launch, "start_session", start),
        ):
            return asdict(launch.train(load_config(folder / "toy.yaml", overrides)))
    except (BadInput, TrainingFailed) as error:
        return {"error": str(error), "kind": type(error).__name__}


def here(folder: Path, scenarios: Iterable[dict]) -> list[dict]:
    """Does them in this process, as the one rank there is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(TOY)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a rank has: another number adds up in another order
    try:
        return [scenario(folder, **each) for each in scenarios]
    finally:
        torch.set_num_threads(threads)


def on_ranks(
    folder: Path, scenarios: list[dict], count: int = 2, seconds: float = 900
) -> list[list[dict]]:
    """Does them on `count` ranks; what each of those returned. When one fails, the others may still say why."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "scenarios.json").write_text(json.dumps(scenarios))
    started = [
        start_rank(folder, number, count, free_port() if not number else None)
        for number in range(count)
    ]
    until = time.monotonic() + seconds
    while any(process.poll() is None for process in started) and time.monotonic() < until:
        if any(process.returncode for process in started):
            until = min(until, time.monotonic() + 30)
        time.sleep(0.05)
    for process in (each for each in started if each.poll() is None):
        process.kill()
        process.wait()
    assert all(process.returncode == 0 for process in started), "\n\n".join(
        f"Rank {number}, {process.returncode}:\n{(folder / f'rank-{number}.txt').read_text('utf-8', 'replace')[-5000:]}"
        for number, process in enumerate(started)
    )
    return [json.loads((folder / f"results-{number}.json").read_text()) for number in range(count)]


_port = 0


def start_rank(folder: Path, number: int, count: int, port: int | None = None) -> subprocess.Popen:
    global _port
    _port = port or _port
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _port,
        "OMP_NUM_THREADS": 1,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environment = {
        **os.environ,
        **{k: str(v) for k, v in (place | meeting).items()},
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.several", str(folder)]
    with (folder / f"rank-{number}.txt").open(
        "wb"
    ) as out:  # no pipe, which would fill up while another rank is read
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    folder = Path(sys.argv[1])
    results = [
        scenario(folder, **each) for each in json.loads((folder / "scenarios.json").read_text())
    ]
    (folder / f"results-{ranks.rank()}.json").write_text(json.dumps(results))
    ranks.end()


if __name__ == "__main__":
    main()
