"""A callback for Trainer of transformers, TRL and unsloth: stops in time, and finds what to resume from."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trainbook.keep import EXIT_DEADLINE, own_session
from trainbook.run.restoring import newest_whole


class Finish(TrainerCallback):
    """Saves and ends a Trainer at the session's end, after SIGTERM or Ctrl-C; on all ranks together.

        finish = Finish()
        trainer = Trainer(..., callbacks=[finish])
        trainer.train(resume_from_checkpoint=finish.newest(trainer.args.output_dir))

    The process ends with exit code 75 once the checkpoint is on the disk: run it again to resume.
    """

    def __init__(self, session_minutes: float = 0.0, margin_seconds: float = 60.0):
        self._session = own_session(session_minutes, margin_seconds)
        self._stops = False

    def newest(self, folder: str | Path) -> str | None:
        """Returns the newest whole checkpoint in a folder; None where there is none, or all are torn."""
        entry = newest_whole(Path(folder), "checkpoint-*")
        return str(Path(folder) / entry) if entry else None

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        stop, _ = self._session.decide(evaluates_next=False, save=False, last=False)
        is_over = state.global_step >= state.max_steps
        if stop and not is_over:
            self._stops = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if not self._stops:
            return
        print(
            f"Stopped after step {state.global_step:,}: everything is saved in {args.output_dir}. "
            "Run the same command again.",
            flush=True,
        )
        raise SystemExit(EXIT_DEADLINE)
