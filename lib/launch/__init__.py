"""A run from its configuration to its archive: data, resume, training, test, plot, summary."""

import contextlib
import os
from pathlib import Path
from typing import Any

from lib import checkpoint, ranks
from lib.checkpoint import weights
from lib.config import Config, environment, to_yaml
from lib.errors import TrainingFailed
from lib.launch import torchrun
from lib.launch.resume import announce, bring_along
from lib.launch.run import Run, prepare
from lib.machine import disk, platform
from lib.report import outputs
from lib.report.plot import draw_metrics
from lib.report.progress import choose_progress, working
from lib.report.summary import Reason, Summary, comparison
from lib.training import loop
from lib.training.evaluation import evaluate
from lib.training.session import Session, start_session
from lib.training.state import State, checkpoint_from_first

EXIT_CODES = {"completed": 0, "deadline": 75, "interrupted": 130, "failed": 1}


def train(config: Config | Run) -> Summary:
    """Trains, or resumes, the run that a configuration names; returns its summary, which is on disk too.

    With several GPUs the run takes place in a process for each, below this one. A run that was completed before is left
    as it is. Raises BadInput before anything is written.
    """
    run = config if isinstance(config, Run) else prepare(config)
    earlier = ranks.from_first(Summary.read(run.folder))
    if earlier and earlier.reason == "completed" and earlier.step >= run.config.training.max_steps:
        print(f"{run.folder} was completed at step {earlier.step:,}. A larger training.max_steps continues it.")
        return earlier
    session = start_session(run.config.session.minutes, run.config.session.margin_seconds)
    number = int(os.environ.get(environment.SESSION, 0)) or (earlier.session if earlier else 0) + 1
    if (count := torchrun.processes(run.config)) > 1:
        return _train_below(run, count, number)
    found = None
    with ranks.together():
        if ranks.is_first():
            found, number = _begin(run, number)
    try:
        outcome = loop.train(run.task, run.config, run.folder, session, choose_progress(), found)
    except BaseException as error:
        if ranks.is_first():
            _write_failure(run, error, number)
        raise
    return _finish(run, outcome, session, number)


def _train_below(run: Run, count: int, number: int) -> Summary:
    """Trains in `count` processes of their own; the first of them writes the summary."""
    disk.check_writable(run.folder)
    try:
        torchrun.train(run.config, run.folder, count, number, _predictions(run))
        written = Summary.read(run.folder)
        if written is None:
            raise TrainingFailed(f"The ranks ended without a summary in {run.folder}. Run again: it resumes.")
        return written
    except BaseException as error:
        _write_failure(run, error, number)
        raise


def _predictions(run: Run) -> dict[str, Any]:
    """Returns what the plan predicts for the run as it is configured; None where there was nothing to plan for."""
    if torchrun.is_watched():
        return torchrun.summary_of_parent()
    option = run.predicted
    return {
        "predicted_steps_per_second": option and round(1 / option.expected_seconds, 4),
        "predicted_peak_bytes": option and option.prediction.peak_bytes,
    }


def _begin(run: Run, number: int) -> tuple[checkpoint.Checkpoint | None, int]:
    """Finds the checkpoint to resume from, and makes the folder; returns it with the number of the session."""
    found = announce(run)
    if not run.config.checkpoint.keep_last:
        kept = "only the best weights are kept" if run.config.checkpoint.keep_best else "nothing is saved on the way"
        print(f"checkpoint.keep_last is 0, so {kept}: a session that ends early cannot be resumed.")
    disk.check_writable(run.folder)
    for kind in ("checkpoints", "best"):
        checkpoint.tidy(run.folder / kind)
    if found and (earlier := bring_along(run, found)):
        number = earlier.session + 1
    (run.folder / "config.yaml").write_text(to_yaml(run.config), "utf-8")
    return found, number


def _write_failure(run: Run, error: BaseException, number: int) -> None:
    step = max(checkpoint.steps(run.folder / "checkpoints"), default=0)
    with contextlib.suppress(OSError):  # on a full disk the error itself is what must be seen
        _summary(run, "failed", step, number, error=str(error)).write(run.folder)


def _summary(run: Run, reason: Reason, step: int, number: int, **more: Any) -> Summary:
    config = run.config
    return Summary(config.run.name, config.task, reason, step, config.training.max_steps, number, **more)


def _finish(run: Run, outcome: loop.Outcome, session: Session, number: int) -> Summary:
    """Tests a completed run, draws, writes the summary and packs the archive."""
    scores: dict[str, float] = {}
    baseline: dict[str, float] = {}
    report = ""
    if outcome.reason == "completed":
        scores, baseline, report = test(run, outcome.state)
    if not ranks.is_first():
        return _summary(run, outcome.reason, outcome.state.step, number)
    plot(run, baseline)
    state = outcome.state
    ended = _summary(
        run,
        outcome.reason,
        state.step,
        number,
        metrics={name: scores[name] for name in baseline},
        baseline=baseline,
        test_loss=scores.get("loss"),
        report=report,
        best=state.best,
        steps_per_second=round(outcome.steps_per_second, 4),
        **_predictions(run),
        peak_memory_bytes=outcome.peak_bytes,
        micro_batch=state.micro_batch,
        precision=state.precision,
        skipped_steps=state.skipped_steps,
        world_size=ranks.world(),
        samples_seen=outcome.samples_seen,
    )
    ended.write(run.folder)
    if baseline and not platform.in_notebook():  # there a cell of its own shows it, at every "run all"
        print(comparison(ended.metrics, baseline), report, sep="\n\n", flush=True)
    with session.measured("package"):
        outputs.bundle(run.output_dir, platform.detect())
        outputs.package(run.output_dir)
    return ended


def test(run: Run, state: State) -> tuple[dict[str, float], dict[str, float], str]:
    """Returns metrics of the best weights on the test set, the trivial baseline's, and the task's report on them.

    The task writes its tables and figures.
    """
    best = checkpoint_from_first(best_weights(run, state) if ranks.is_first() else None)
    if best:
        weights.put_back(state.model, best.tensors["model"])
        state.ema = None  # the best weights are averages already
    print(f"Testing the weights of step {best.step if best else state.step:,} on held-out data.", flush=True)
    progress = choose_progress()
    scores = evaluate(state, run.task, run.config, run.task.datasets()["test"], progress)
    progress.close()
    if not ranks.is_first():
        return scores, {}, ""
    with working("Scoring the trivial baseline"):
        baseline = run.task.baseline()
    return scores, baseline, run.task.report(scores, run.folder)


def best_weights(run: Run, state: State) -> checkpoint.Checkpoint | None:
    """Returns the best weights that can be read; prints which are passed over."""
    for best in state.kept_best:
        path = checkpoint.path_of(run.folder / "best", best["step"])
        try:
            return checkpoint.load(path)
        except checkpoint.DamagedCheckpoint as damage:
            print(f"The best weights {path} are skipped ({damage}).")
    return None


def plot(run: Run, baseline: dict[str, float]) -> Path:
    """Draws metrics.csv into plots/metrics.png."""
    out = run.folder / "plots" / "metrics.png"
    return draw_metrics(run.folder / "metrics.csv", out, run.config.run.name, baseline, run.task.shown)
