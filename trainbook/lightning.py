"""A callback for Lightning's Trainer: stops in time, and resumes inside an epoch with the same random numbers."""

from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback

from lib import private
from trainbook.finishing import Finishing
from trainbook.keep import random_state, restore_random


class Finish(Finishing, Callback):  # type: ignore[misc]  # it may be absent
    """Saves and ends a Trainer at the session's end, after SIGTERM or Ctrl-C; on all ranks together.

        finish = Finish("out")
        trainer = Trainer(..., callbacks=[ModelCheckpoint("out", save_last=True), finish])
        trainer.fit(model, data, ckpt_path=finish.newest())

    Every checkpoint of the Trainer gets the random numbers and the place in the epoch: a resumed run
    sees the batches that it would have seen. The process ends with exit code 75: run it again.
    """

    pattern: ClassVar[str] = "*.ckpt"
    _loaded: dict[str, Any] | None = None
    _epoch_begin: dict[str, Any] | None = None
    _batches = 0  # of this epoch that are trained

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["trainbook"] = {
            "random": random_state(),
            "epoch_begin": self._epoch_begin,
            "batches": 0 if trainer.is_last_batch else self._batches,
        }

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint.get("trainbook")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self._loaded is None:
            return
        if self._loaded["batches"]:
            self._read_again(trainer, self._loaded["batches"], self._loaded["epoch_begin"])
        restore_random(self._loaded["random"])

    def _read_again(self, trainer: Any, batches: int, epoch_begin: dict[str, Any]) -> None:
        print(f"Reading {batches:,} batches of the begun epoch again.", flush=True)
        is_first = trainer.current_epoch == 0  # whose loader is begun before `on_train_epoch_start`
        fetcher = private.begin_again(trainer) if is_first else None
        restore_random(epoch_begin)
        private.skip(fetcher or private.begin_again(trainer), batches)
        self._epoch_begin, self._batches = epoch_begin, batches

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._epoch_begin, self._batches = random_state(), 0
        if (
            trainer.current_epoch and trainer.fit_loop.is_resuming
        ):  # Lightning began before our state
            private.begin_again(trainer)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int
    ) -> None:
        self._batches = number + 1
        is_step = self._batches % trainer.accumulate_grad_batches == 0
        if is_step and not trainer.is_last_batch and self.must_stop():
            step = trainer.global_step
            trainer.save_checkpoint(Path(self.folder, f"stopped-step={step}.ckpt"))
            self.leave(step)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.sum_up("completed", trainer.global_step)
