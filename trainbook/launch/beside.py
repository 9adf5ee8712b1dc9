"""Trains the runs of a queue side by side: one on each card, in a process of its own that dies with this one."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch

from lib.config import Config, environment, to_yaml
from lib.machine.clock import handed_down
from lib.ranks import boot
from lib.training.session import handling_signals

_MODULE = "trainbook.command"
_POLL_SECONDS = 0.25
_LIBRARY = Path(__file__).resolve().parents[2]


def cards() -> list[str]:
    """Lists this machine's GPUs, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not count:
        return [str(number) for number in range(count)]
    return [name.strip() for name in chosen.split(",")][:count]


def train(
    configs: Sequence[Config], places: Sequence[str], may_begin: Callable[[], bool]
) -> dict[str, int]:
    """Trains runs, one on each of the cards `places` at a time; returns the exit codes of those that began, by name.

    None begins once `may_begin` is False, or after a signal, which the runs get too.
    """
    with tempfile.TemporaryDirectory(prefix="trainbook-runs-") as folder:
        beside = _Beside(Path(folder), configs, places, may_begin)
        with handling_signals(beside.on_signal):
            beside.run()
    return beside.codes


class _Beside:
    """Processes by the card that they train on."""

    def __init__(
        self,
        folder: Path,
        configs: Sequence[Config],
        places: Sequence[str],
        may_begin: Callable[[], bool],
    ):
        self.folder = folder
        self.waiting = deque(configs)
        self.free = deque(places)
        self.may_begin = may_begin
        self.codes: dict[str, int] = {}
        self._processes: dict[str, tuple[str, subprocess.Popen[bytes], threading.Thread]] = {}
        self._signals = 0
        self._printing = threading.Lock()

    def run(self) -> None:
        while True:
            while self.waiting and self.free and not self._signals and self.may_begin():
                self._start(self.waiting.popleft(), self.free.popleft())
            if not self._processes:
                return
            time.sleep(_POLL_SECONDS)
            self._collect()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes the first SIGINT or SIGTERM on to the runs, which save and end; the second kills them."""
        self._signals += 1
        if self._signals > 1:
            raise KeyboardInterrupt
        for _, process, _ in self._processes.values():
            process.send_signal(signal.SIGINT)

    def _start(self, config: Config, card: str) -> None:
        name = config.run.name
        file = self.folder / name / "config.yaml"  # in a folder of its name: it is no queue
        file.parent.mkdir()
        file.write_text(to_yaml(config), "utf-8")
        paths = [str(_LIBRARY), os.environ.get("PYTHONPATH", "")]
        variables = {
            "CUDA_VISIBLE_DEVICES": card,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            environment.SESSION_START: handed_down(),
        }
        module = ["-m", _MODULE, "train", str(file)]
        process = subprocess.Popen(
            [sys.executable, boot.__file__, str(os.getpid()), *module],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # interrupts of kernel and terminal come here first
        )
        output: Any = process.stdout
        shown = threading.Thread(target=self._show, args=(name, output), daemon=True)
        shown.start()
        self._processes[card] = (name, process, shown)
        print(f"--- {name} on card {card}", flush=True)

    def _show(self, name: str, output: IO[bytes]) -> None:
        """Prints the lines of a run behind its name."""
        for line in output:
            text = line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
            with self._printing:
                print(f"{name}: {text}", flush=True)

    def _collect(self) -> None:
        for card, (name, process, shown) in [*self._processes.items()]:
            code = process.poll()
            if code is not None:
                shown.join(timeout=5)
                del self._processes[card]
                self.free.append(card)
                self.codes[name] = code
