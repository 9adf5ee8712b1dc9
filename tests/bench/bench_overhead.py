"""What the loop costs on top of a bare PyTorch loop on torch's own DataLoader; figures go to records/overhead.json.

    python -m tests.bench.bench_overhead

Everything is switched on as in a default run (sampler, metrics.csv every 50 steps, progress, the session's clock); no
save and no validation falls into the timed part. All loops run in one process, in turns; a ratio is that to the bare
loop of the same turn, and the median over the turns is what counts. Beside the time on the wall stands the processor
time of the process, all its threads included, which a neighbour on the machine disturbs less.

Other training tools (peers.py) are timed in the same turns where they are installed, best in an environment apart:

    pip install torch==2.13.0 -r requirements.txt accelerate transformers lightning pytorch-ignite
"""

import contextlib
import gc
import io
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lib.config import Checkpoint, Config, Data, Run, Training
from lib.config.reader import option
from lib.report.progress import Plain
from lib.task import Task
from lib.training import optimization
from lib.training.loop import train
from lib.training.session import Session
from lib.training.state import new_state
from tests.bench.peers import PEERS, loader_of
from tests.bench.record import head, publish

WARM_UP = 20  # steps before the clock starts
LOG_EVERY = 50  # as in configs/graphmer_small.yaml; a row takes about 0.2 ms
GOALS = {"0.4 ms": 1.02, "50 ms": 1.01}
# width, layers, batch, timed steps and turns for steps of 0.4 and 50 ms on one core
SIZES = {"0.4 ms": (64, 1, 32, 1000, 21), "50 ms": (1024, 4, 160, 30, 11)}


@dataclass(frozen=True)
class Settings:
    width: int = option(64, "Width of every layer.")
    layers: int = option(2, "Layers.")


class Timed(Task):
    """A stack of linear layers; `stamps` are the moments (wall, processor) at which the loop asked for a loss."""

    Settings = Settings

    def __init__(self, config, source=None):
        super().__init__(config, source)
        self.table = torch.randn(
            1024, config.workload.width, generator=torch.Generator().manual_seed(0)
        )
        self.stamps: list[tuple[float, float]] = []

    def model(self):
        width = self.config.workload.width
        layers = [
            part
            for _ in range(self.config.workload.layers)
            for part in (nn.Linear(width, width), nn.GELU())
        ]
        self.trained = nn.Sequential(*layers, nn.Linear(width, 1))
        return self.trained

    def fingerprint(self):
        return "timed"

    def datasets(self):
        return {"train": range(1024), "validation": range(1), "test": range(1)}

    def collate(self, samples, generator):
        return {"x": self.table[samples]}

    def count(self, batch):
        return {"squared": len(batch["x"])}

    def loss(self, model, batch):
        self.stamps.append((time.perf_counter(), time.process_time()))
        return {"squared": model(batch["x"]).square().sum()}, {}

    def evaluate(self, model, loader):
        return {"loss": 0.0}


def whole_loop(task: Timed, config: Config) -> None:
    """The loop as it ships, with a deadline that it has to look at."""
    session = Session(720, 180, time.time())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        train(task, config, Path(folder), session, Plain())


def bare_loop(task: Timed, config: Config) -> None:
    """What anybody writes by hand: the learning rate, forward, backward, clipping, the optimizer."""
    state = new_state(task, config)
    model = state.model.train()
    optimizer = state.optimizer
    batch_size = config.training.effective_batch
    for step, batch in enumerate(loader_of(task, config)):
        optimization.set_learning_rate(optimizer, optimization.learning_rate(config, step))
        sums, _ = task.loss(model, batch)
        (sums["squared"] / batch_size).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()


LOOPS = {"bare": bare_loop, "whole": whole_loop} | {
    name: peer for name, peer in PEERS.items() if peer.is_installed
}


def config_of(name: str, steps: int) -> Config:
    width, layers, batch, *_ = SIZES[name]
    return Config(
        task="bench",
        training=Training(max_steps=steps, effective_batch=batch, log_every_steps=LOG_EVERY),
        checkpoint=Checkpoint(keep_last=0, keep_best=0),
        run=Run(name="bench"),
        data=Data(num_workers=0),
        workload=Settings(width, layers),
    )


def check_same_training() -> None:
    """Every loop must end with the weights of the bare one, or it does something else in the time."""
    config = config_of("0.4 ms", 2 * LOG_EVERY)
    ends = {}
    for name, loop in LOOPS.items():
        task = Timed(config)
        loop(task, config)
        ends[name] = nn.utils.parameters_to_vector(task.trained.parameters()).detach()
    for name, end in ends.items():
        torch.testing.assert_close(end, ends["bare"], msg=lambda text, name=name: f"{name}: {text}")


def seconds_a_step(loop, config: Config) -> tuple[float, ...]:
    """Returns those on the wall, and of the processor."""
    task = Timed(config)
    gc.collect()  # what the run before left behind is not for this one to clear away
    loop(task, config)
    steps = len(task.stamps) - 1 - WARM_UP
    return tuple(
        (last - first) / steps
        for first, last in zip(task.stamps[WARM_UP], task.stamps[-1], strict=True)
    )


def measure(name: str) -> dict:
    """Each turn begins with another loop, and every second one goes backwards."""
    *_, steps, turns = SIZES[name]
    config = config_of(name, steps + WARM_UP)
    times: dict[str, list[tuple[float, ...]]] = {loop: [] for loop in LOOPS}
    for turn in range(turns):
        first = turn // 2 % len(LOOPS)
        names = [*LOOPS][first:] + [*LOOPS][:first]
        for loop in names[:: 1 if turn % 2 else -1]:
            times[loop].append(seconds_a_step(LOOPS[loop], config))
    bare = times.pop("bare")
    compared = {
        loop: {"wall": _compared(of, bare, 0), "processor": _compared(of, bare, 1)}
        for loop, of in times.items()
    }
    return {"goal": GOALS[name], **compared.pop("whole"), "peers": compared}


def _compared(whole: list[tuple[float, ...]], bare: list[tuple[float, ...]], clock: int) -> dict:
    ratios = sorted(w[clock] / b[clock] for w, b in zip(whole, bare, strict=True))
    return {
        "ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(quartile, 3) for quartile in statistics.quantiles(ratios)[::2]],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "bare_ms": round(1e3 * statistics.median(b[clock] for b in bare), 4),
        "whole_ms": round(1e3 * statistics.median(w[clock] for w in whole), 4),
    }


def main() -> None:
    torch.set_num_threads(1)  # what runs beside disturbs one thread less than two
    load = round(os.getloadavg()[0], 2)
    missing = [name for name in PEERS if name not in LOOPS]
    if missing:
        print(f"Not installed, so not timed: {', '.join(missing)}.")
    check_same_training()
    record = {
        **head("torch"),
        "peers": {name: peer.version for name, peer in PEERS.items() if peer.is_installed},
        "peers_missing": missing,
        "load_average_before": load,
        "steps": {name: measure(name) for name in SIZES},
    }
    publish("overhead", record)


if __name__ == "__main__":
    main()
