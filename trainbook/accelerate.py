"""For loops with accelerate: `save_state` in time, and the newest whole state with its place in the epoch."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from lib.machine import disk
from trainbook.finishing import Finishing
from trainbook.keep import agreed, random_state, restore_random
from trainbook.run.groups import numbers


class Finish(Finishing):
    """Saves with `save_state` when due, at the session's end and after a signal; on all ranks together.

        finish = Finish("checkpoints", accelerator)  # after `prepare`: it loads the newest whole state
        for epoch in finish.epochs(20):
            for batch in finish.batches(loader):
                ...

    The samples of a resumed epoch come in the order that they had. The process ends with exit code
    75: run it again.
    """

    pattern: ClassVar[str] = "step-*"

    def __init__(
        self,
        folder: str | Path,
        accelerator: Any,
        *,
        every_minutes: float = 10.0,
        keep_last: int = 2,
        **session: float,
    ):
        super().__init__(folder, **session)
        self.accelerator = accelerator
        self.step = self.epoch = self.batch = 0
        self._every_seconds, self._keep_last = 60 * every_minutes, keep_last
        self._saved_at = time.monotonic()
        self._order: Any = None  # the generator of the loader's sampler
        self._begin: dict[str, Any] = {}  # random numbers at the begin of the epoch's batches
        self._loaded: dict[str, Any] = {}
        accelerator.register_for_checkpointing(self)
        if newest := self.newest():
            accelerator.load_state(newest)
            print(f"Resumed {newest} at step {self.step:,}.", flush=True)

    def state_dict(self) -> dict[str, Any]:
        place = [self.step, self.epoch, self.batch]
        return {"place": place, "begin": self._begin, "now": self._random()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state
        self.step, self.epoch, self.batch = state["place"]

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left of `total`."""
        while self.epoch < total:
            yield self.epoch
            self.epoch, self.batch = self.epoch + 1, 0
            self._check(is_last=self.epoch == total)
        self.sum_up("completed", self.step)

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yields the remaining batches of an epoch, from a loader prepared by accelerate."""
        self._order = getattr(loader, "synchronized_generator", None)
        now = self._loaded.get("now", {})
        if now:
            self._restore(self._loaded["begin"] if self.batch else now)
        self._begin = self._random()
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        left: Iterable[Any] = loader
        if self.batch:
            left = self.accelerator.skip_first_batches(loader, self.batch)
        for number, batch in enumerate(left):
            if number == 0 and now and self.batch:
                restore_random(now)
            self._loaded = {}
            yield batch
            self.batch += 1
            self.step += 1
            self._check()

    def save(self) -> None:
        """Saves the state into a folder of this step; the newest `keep_last` stay."""
        begin = time.perf_counter()
        self.accelerator.save_state(str(self.folder / f"step-{self.step}"))
        self._saved_at = time.monotonic()
        self._session.record("save", time.perf_counter() - begin)
        found = sorted(self.folder.glob(self.pattern), key=lambda path: numbers(path.name))
        if self.accelerator.is_main_process:
            for old in found[: -self._keep_last]:
                disk.discard(old)

    def _check(self, is_last: bool = False) -> None:
        stops = not is_last and self.must_stop()
        is_due = is_last or time.monotonic() - self._saved_at >= self._every_seconds
        (saves,) = agreed(stops or is_due)
        if saves:
            self.save()
        if stops:
            self.leave(self.step)

    def _random(self) -> dict[str, Any]:
        order = self._order.get_state() if self._order is not None else None
        return {**random_state(), "order": order}

    def _restore(self, state: dict[str, Any]) -> None:
        restore_random(state)
        if self._order is not None:
            self._order.set_state(state["order"])
