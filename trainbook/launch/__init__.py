"""Runs a configuration to its archive: data, resume, training, test, plot, summary."""

import contextlib
import dataclasses
import platform as python_platform
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lib import checkpoint, ranks
from lib.checkpoint import weights
from lib.checkpoint.saver import Retention
from lib.config import Config, to_yaml
from lib.config.reader import flat
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import disk, hardware, memory, platform
from lib.prepared import Run
from lib.report.metrics import METRICS
from lib.report.progress import choose_progress
from lib.text import amount
from lib.training import learned, loop, precision
from lib.training.evaluation import baseline_of, evaluate
from lib.training.session import Session, handling_signals, start_session
from lib.training.state import State, checkpoint_from_first, first_state
from lib.training.summary import FILE as SUMMARY
from lib.training.summary import Reason, Summary
from trainbook.launch import resume
from trainbook.launch.resume import announce, bring_along, check_completed, how_to_continue
from trainbook.launch.run import keep_code, prepare, progress, summary_of
from trainbook.outputs import packing
from trainbook.outputs.figure import draw_metrics
from trainbook.outputs.summary import (
    CARD,
    Card,
    Predicted,
    read_card,
    results,
    with_all,
)

CONFIG = "config.yaml"
EXPORT = "export"  # in a run's folder: the tested model in a form of the task's own, such as a folder of transformers
PICTURE = Path("plots") / "metrics.png"
EXIT_CODES = {"completed": 0, "deadline": 75, "interrupted": 130, "failed": 1}


def train(config: Config | Run) -> Summary:
    """Trains, or resumes, a run in a process for each GPU; returns its summary. Raises BadInput before it writes."""
    run = config if isinstance(config, Run) else prepare(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone(run.folder, run.config.run.on_change == "new"))
        if not ranks.under_torchrun():  # then SIGTERM, too, leaves a summary
            stack.enter_context(handling_signals(signal.default_int_handler))
        return _train(run)


def _train(run: Run) -> Summary:
    summary = ranks.from_first(Summary.read(run.folder))
    config = run.config
    earlier = summary if summary and summary.is_done(config.training) else None
    if earlier and not _is_resumed_to_be_tested(run, earlier):
        return _completed(run, earlier)
    session = start_session(config.session.minutes, config.session.margin_seconds)
    if earlier:
        number = earlier.session
    else:
        number = ranks.from_first(1 + resume.newest_summary(run).session)
    count = run.processes()
    with ranks.together():
        begins = count == 1 and ranks.is_first() and (run.has_checkpoint or not earlier)
        saved = _begin(run) if begins else None
    option = run.predicted
    if option and not ranks.under_torchrun():  # before the first step: no rank has a plan
        peak = option.prediction.peak_bytes
        predicted = Predicted(option.micro_batch, peak, [*option.step_seconds])
        with contextlib.suppress(OSError):  # a full disk is met by what matters more
            Card(predicted=predicted).write(run.folder)
    try:
        if count > 1:
            from trainbook.launch import several  # which a run in one process does without

            return several.train(config, run.folder, count, progress(run))
        with contextlib.ExitStack() as stack:
            end_tracking = _track(run, saved is not None)
            stack.callback(end_tracking, False, {})  # for a failure; a second end does nothing
            if earlier:
                outcome = _again(run, session, saved, earlier)
            else:
                outcome = resume.train(run, session, saved)
            ended = _end(run, outcome, number)
            end_tracking(ended.reason == "completed", ended.metrics)
    except BaseException as error:
        if not ranks.is_watched() and (ranks.is_first() or isinstance(error, OutOfMemory)):
            _write_failure(run, error, number)
        raise
    if ranks.is_first():
        _tidy(run.folder)
        if config.checkpoint.keep_last:
            best = [kept["step"] for kept in outcome.state.kept_best]
            Retention(run.folder, config.checkpoint).after_checkpoint(outcome.state.step, best)
        with session.measured("package"):
            _pack(run.output_dir)
    return ended


@contextlib.contextmanager
def _alone(folder: Path, takes_free_name: bool = False) -> Iterator[None]:
    """Holds a run's folder against a second process. Below a launcher, which holds it already, it does nothing."""
    advice = "Wait for its end, stop it, or choose another run.name."
    if takes_free_name:
        advice = "Run again once that one has saved a checkpoint: this one then gets a free name (run.on_change: new)."
    busy = f"Another process is training in {folder}. {advice}"
    with contextlib.ExitStack() as stack:
        with ranks.together(), disk.needed(folder, "Nothing was trained yet."):
            if ranks.is_first() and not ranks.is_watched():
                try:
                    stack.enter_context(disk.lock(folder, busy))
                except OSError:  # a passing one, or the folder cannot be used: the check raises
                    disk.check_writable(folder)
                    stack.enter_context(disk.lock(folder, busy))
        yield


def _begin(run: Run) -> checkpoint.Checkpoint | None:
    """Finds the checkpoint to resume from, and makes the folder; returns the checkpoint."""
    saved = announce(run)
    if not run.config.checkpoint.keep_last:
        print("checkpoint.keep_last is 0: a session that ends early cannot be resumed.")
    disk.check_writable(run.folder)
    _tidy(run.folder)
    if saved:
        bring_along(run, saved)
    with disk.needed(run.folder / CONFIG, "Nothing was trained yet."):
        disk.twice(lambda: _write_config(run))
    return saved


def _write_config(run: Run) -> None:
    """Writes the configuration, with the code of the task, into a run's folder."""
    config = keep_code(run.folder, run.config)
    disk.write_text(run.folder / CONFIG, to_yaml(config))


def _track(run: Run, is_resumed: bool) -> Callable[[bool, dict[str, float]], None]:
    """Starts a run's trackers, if it has any; returns what ends them."""
    options = run.config.tracking
    if not (ranks.is_first() and (options.tensorboard or options.wandb)):
        return lambda is_completed, metrics: None
    from trainbook.outputs.tracking import Tracked  # which no other run needs

    return Tracked(run.folder, options, run.config.run.name, flat(run.config), is_resumed).end


def _tidy(folder: Path) -> None:
    """Removes what killed saves and deletions left."""
    for kind in ("checkpoints", "best"):
        checkpoint.tidy(folder / kind)


def _end(run: Run, outcome: loop.Outcome, number: int) -> Summary:
    """Tests a completed run, draws, writes and prints the summary, and lets the task export its model."""
    state = outcome.state
    is_completed = outcome.reason == "completed"
    tested = _tested(run, state) if is_completed else {}
    if not ranks.is_first():
        return summary_of(run, outcome.reason, state.step, number)
    with _noting(missing := tested.setdefault("missing", {}), "plot"):
        plot(run, tested.get("baseline", {}))
    learned.store(run.task, run.folder)  # again: the disk may have been full when the run began
    ended = _ended(run, outcome, number, tested)
    _write(run.folder, ended)
    _write_card(run.folder, ended, state)
    _print_result(ended)
    if is_completed and hasattr(run.task, "export"):
        with _noting(missing, "export", alone=True), state.averaged():
            if (run.folder / EXPORT).is_dir():
                disk.discard(run.folder / EXPORT)
            with disk.whole(run.folder / EXPORT) as aside:
                aside.mkdir()
                run.task.export(state.model.eval(), aside)
        _write(run.folder, ended)  # with what failed
    if is_completed:
        print(_about_memory(run, outcome.peak_bytes), flush=True)
    return ended


def _ended(run: Run, outcome: loop.Outcome, number: int, tested: dict[str, Any]) -> Summary:
    """Returns the summary of a session that ended as it should."""
    state = outcome.state
    summary = summary_of(run, outcome.reason, state.step, number, **tested)
    return dataclasses.replace(
        summary,
        identity=run.identity,
        best=state.best,
        steps_per_second=round(outcome.steps_per_second, 4),
        peak_memory_bytes=outcome.peak_bytes,
        micro_batch=state.micro_batch,
        precision=state.precision,
        stopped_early=state.stopping.early(state.step, run.config.training.max_steps),
        skipped_steps=state.skipped_steps,
        world_size=ranks.world(),
    )


def _tested(run: Run, state: State) -> dict[str, Any]:
    """Tests the best weights; returns the summary's metrics, baseline, report and `missing`. All ranks call it."""
    missing: dict[str, str] = {}
    scores = {}
    baseline = {}
    report = ""
    with _noting(missing, "test"):
        best = None
        if ranks.is_first():
            best = _best_weights(run.folder / "best", state.kept_best)
        best = checkpoint_from_first(best)
        if best:
            weights.restore(state.model, best)
            state.ema = None  # the best weights are averages already
        on = "held-out data"
        if getattr(run.task, "repeats_validation", False):
            on = "the validation data: the same samples chose the step"
        step = best.step if best else state.step
        print(f"Testing the weights of step {step:,} on {on}.", flush=True)
        shown = choose_progress()
        scores = evaluate(state, run.task, run.config, run.task.datasets()["test"], shown)
        shown.close()
    if ranks.is_first():
        with _noting(missing, "baseline"):
            baseline = baseline_of(run.task)
        with _noting(missing, "report"):
            report = str(run.task.report(scores, run.folder)) if scores else ""
    return {
        "missing": missing, "metrics": with_all(scores, baseline), "baseline": baseline,
        "test_loss": scores.get("loss"), "report": report,
    }  # fmt: skip


def _best_weights(folder: Path, kept: Sequence[dict[str, Any]]) -> checkpoint.Checkpoint | None:
    for best in kept:
        path = checkpoint.path_of(folder, best["step"])
        try:
            return checkpoint.load_model(path)
        except checkpoint.DamagedCheckpoint as damage:
            print(f"The best weights {path} are skipped ({damage}).")
    return None


def _write(folder: Path, summary: Summary) -> None:
    with disk.needed(folder / SUMMARY, "The training itself is saved, and is not repeated."):
        disk.twice(lambda: summary.write(folder))


def _write_card(folder: Path, ended: Summary, state: State) -> None:
    """Writes a session's measurements on a GPU beside the prediction."""
    gpus = hardware.gpus()
    if not gpus or not ended.steps_per_second:
        return
    driver = hardware.driver()
    predicted = Predicted()
    with contextlib.suppress(BadInput):
        predicted = read_card(folder / CARD).predicted
    versions = {
        "Python": python_platform.python_version(),
        "torch": torch.__version__,
        "CUDA": f"{torch.version.cuda}",
    }
    measured = Card(
        gpu=str(gpus[0]),
        driver=driver.version if driver else "",
        versions=versions,
        clocks=hardware.clocks(),
        run=ended.run,
        world_size=ended.world_size,
        precision=ended.precision,
        micro_batch=ended.micro_batch,
        steps=ended.step,
        peak_bytes=ended.peak_memory_bytes,
        step_seconds=1 / ended.steps_per_second,
        loss_scale=state.scaler.get_scale() if state.scaler.is_enabled() else 0.0,
        skipped_steps=ended.skipped_steps,
        predicted=predicted,
    )
    with contextlib.suppress(OSError):
        measured.write(folder)


def _write_failure(run: Run, error: BaseException, number: int) -> None:
    """Writes the summary of a failed run: below a launcher only that does, and any rank may know of a smaller size."""
    step = checkpoint.newest_step(run.folder / "checkpoints")
    reason: Reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    earlier = Summary.read(run.folder)
    limit = earlier.limit if earlier else {}
    size = getattr(error, "micro_batch", 0)
    if size:
        limit = {"samples": size, **run.config.training.sizes}
    with contextlib.suppress(OSError):  # on a full disk the error itself is what must be seen
        failed = summary_of(run, reason, step, number, error=str(error), limit=limit)
        failed.write(run.folder)


def _print_result(summary: Summary) -> None:
    if platform.in_notebook():  # a cell shows it at every "run all"
        return
    text = results(summary)
    if text:
        print(text, flush=True)


def _about_memory(run: Run, training: int) -> str:
    """Returns a sentence on the peaks of memory, beside the plan's if the run has one."""
    where = "on the GPU" if torch.cuda.is_available() else "of this process"
    planned = ""
    if option := run.predicted:
        planned = f" (planned {amount(option.prediction.peak_bytes)})"
    whole = max(training, memory.peak_bytes())
    return f"Peak memory {where}: {amount(training)} in training{planned}, {amount(whole)} with test and export."


def _pack(output_dir: Path) -> None:
    with _noting({}, "archive"), disk.lock(output_dir):  # a run beside this one may be packing too
        packing.package(output_dir)


@contextlib.contextmanager
def _noting(missing: dict[str, str], name: str, alone: bool = False) -> Iterator[None]:
    """Notes and prints the block's error: none may cost a run its end, unless all ranks must answer it."""
    try:
        yield
    except Exception as error:
        is_sentence = isinstance(error, BadInput | TrainingFailed | OSError)
        if not is_sentence or isinstance(error, OutOfMemory):
            if ranks.world() > 1 and not alone and isinstance(error, RuntimeError):
                raise
            print(traceback.format_exc(), end="")
        missing[name] = f"{type(error).__name__}: {error}"
        print(
            f"Warning: the {name} failed ({missing[name]}). The run itself is whole. "
            "Correct the cause, or free room on the disk, and run again: only what is missing is made.",
            flush=True,
        )


def _is_resumed_to_be_tested(run: Run, earlier: Summary) -> bool:
    """Prints how a run was completed; returns whether its test is missing and can be made. Raises BadInput."""
    with ranks.together():
        if (
            ranks.is_first() and not ranks.is_watched()
        ):  # otherwise the process above has printed it
            warning = check_completed(run, earlier)
            lines = [
                f"{run.folder} was completed at step {earlier.step:,}. {how_to_continue(earlier)}"
            ]
            if warning:
                lines.append(warning)
            if earlier.missing:
                lines.append(f"It lacks: {', '.join(earlier.missing)}. That is made now.")
            print(*lines, sep="\n")
    is_tested = not earlier.missing.keys() - {"plot"}
    lacks_export = hasattr(run.task, "export") and not (run.folder / EXPORT).is_dir()
    if is_tested and not ranks.from_first(lacks_export):
        return False
    has_weights = run.has_checkpoint
    if not has_weights and earlier.best:
        has_weights = _best_weights(run.folder / "best", [earlier.best]) is not None
    has_weights = ranks.from_first(has_weights)
    if not has_weights:
        print(
            f"{run.folder} keeps no weights of this run, so it cannot be tested. Another run.name trains again."
        )
    return has_weights


def _again(
    run: Run, session: Session, saved: checkpoint.Checkpoint | None, earlier: Summary
) -> loop.Outcome:
    """Returns the outcome of a completed run by its last checkpoint, or by its best weights without one."""
    if ranks.from_first(saved is not None):
        state = resume.train(run, session, saved).state
    else:
        precision.set_determinism(run.config.training)
        learned.take(run.task, None)
        state = first_state(run.task, run.config, None, print)
        state.step = earlier.step
        state.kept_best = [earlier.best]
    return loop.Outcome("completed", state, earlier.steps_per_second, earlier.peak_memory_bytes, {})


def _completed(run: Run, earlier: Summary) -> Summary:
    """Draws and packs the missing outputs of a completed run."""
    if not ranks.is_first():
        return earlier
    _print_result(earlier)
    _tidy(run.folder)
    if "plot" in earlier.missing or not (run.folder / PICTURE).is_file():
        missing = {name: error for name, error in earlier.missing.items() if name != "plot"}
        with _noting(missing, "plot"):
            plot(run, earlier.baseline)
        if missing != earlier.missing:
            earlier = dataclasses.replace(earlier, missing=missing)
            _write(run.folder, earlier)
    if not packing.is_current(run.output_dir):
        _pack(run.output_dir)
    return earlier


def plot(run: Run, baseline: dict[str, float]) -> Path:
    table = run.folder / METRICS
    picture = run.folder / PICTURE
    return draw_metrics(table, picture, run.config.run.name, baseline, run.task.shown)
