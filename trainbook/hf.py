"""A callback for Trainer of transformers, TRL and unsloth: stops in time, and finds what to resume from."""

from pathlib import Path
from typing import Any, ClassVar

from transformers import TrainerCallback

from trainbook.finishing import Finishing


class Finish(Finishing, TrainerCallback):
    """Saves and ends a Trainer at the session's end, after SIGTERM or Ctrl-C; on all ranks together.

        finish = Finish()
        trainer = Trainer(..., callbacks=[finish])
        trainer.train(resume_from_checkpoint=finish.newest(trainer.args.output_dir))

    The process ends with exit code 75 once the checkpoint is on the disk: run it again to resume.
    """

    pattern: ClassVar[str] = "checkpoint-*"
    _stops = False

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        is_over = state.global_step >= state.max_steps
        if not is_over and self.must_stop():
            self._stops = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self._stops:
            self.folder = Path(args.output_dir)
            self.leave(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.folder = Path(args.output_dir)
        self.sum_up("completed", state.global_step)
