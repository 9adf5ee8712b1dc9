"""A callback for ultralytics' trainer, which resumes whole epochs: stops before one that does not fit."""

import time
from typing import Any, ClassVar

from trainbook.finishing import Finishing

_FACTOR = 1.1  # an epoch may take longer than the one before it


class Finish(Finishing):
    """Ends a YOLO's training at the session's end, after SIGTERM or Ctrl-C, and finds its newest whole file.

        finish = Finish("runs/detect/train/weights")
        model = finish.watch(YOLO(finish.newest() or "yolo11n.pt"))
        model.train(data="my.yaml", epochs=50, resume=finish.newest() or False)

    The process ends with exit code 75: run it again. With `device=[0, 1]` ultralytics starts
    processes that take no callbacks over; there `trainbook run` alone looks after it.
    """

    pattern: ClassVar[str] = "*.pt"
    unit: ClassVar[str] = "epoch"
    _began = 0.0

    def watch(self, model: Any) -> Any:
        """Adds the callback to a model, and returns the model."""
        model.add_callback("on_train_epoch_start", self._begin)
        model.add_callback("on_train_batch_end", self._end_batch)
        model.add_callback("on_fit_epoch_end", self._end_epoch)
        model.add_callback("on_train_end", self._end)
        return model

    def _begin(self, trainer: Any) -> None:
        self._began = time.monotonic()

    def _end_batch(self, trainer: Any) -> None:
        if self.must_stop():
            self.leave(trainer.epoch)

    def _end_epoch(self, trainer: Any) -> None:
        seconds = time.monotonic() - self._began
        if not trainer.stop and self.must_stop(_FACTOR * seconds):
            self.leave(trainer.epoch + 1)

    def _end(self, trainer: Any) -> None:
        self.sum_up("completed", trainer.epoch + 1)
