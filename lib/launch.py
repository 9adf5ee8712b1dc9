"""A run from its configuration to its archive: data, resume, training, test, plot, summary."""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import (
    checkpoint,
    data,
    files,
    identity,
    machine,
    memory,
    metrics,
    outputs,
    platform,
    profiles,
    ranks,
    torchrun,
    trainer,
    weights,
)
from lib import config as configs
from lib import progress as progresses
from lib import session as sessions
from lib import state as states
from lib import task as tasks
from lib.config import Config
from lib.errors import BadInput
from lib.planner import Plan, apply
from lib.planner.search import Option
from lib.session import Session
from lib.task import Task

EXIT_CODES = {"completed": 0, "deadline": 75, "interrupted": 130, "failed": 1}
_OPTIMIZER_IS_LOST = "The checkpoint is lightweight: the optimizer starts anew, so the run goes on, not bit for bit."


@dataclass(frozen=True)
class Run:
    """A configuration with its data: lengths in steps, and the folder that everything goes to."""

    config: Config
    task: Task
    folder: Path
    lengths: list[str]  # what a profile and the plan changed and how epochs became steps, for printing
    plan: Plan | None = None  # for this machine's GPU, if there is one

    @property
    def output_dir(self) -> Path:
        return self.folder.parent

    @property
    def predicted(self) -> Option | None:
        """What was predicted for the run as it is configured."""
        layers = self.config.training.gradient_checkpointing
        if not self.plan:
            return None
        return self.plan.option_of(self.config.training.micro_batch, self.plan.layers if layers == "all" else layers)


@ranks.together()
def prepare(config: Config) -> Run:
    """Works in memory profile and plan, locates and validates the data, turns lengths into steps; writes nothing.

    Raises BadInput.
    """
    machine.refuse_tpu()
    ranks.start(config.device)
    count = torchrun.processes(config)  # what cannot be dealt is refused here
    config, changes = profiles.apply(config, memory.device().type != "cpu")
    memory.precision(config.training.precision, memory.device())  # refused before the data takes its time
    config, plan, planned = apply.worked_in(config, max(count, ranks.world()))
    task = tasks.load(config)
    train_set = data.subset(task.datasets()["train"], config.data.subset_ratio, config.seed)
    config, lengths = configs.resolve_lengths(config, len(train_set))
    task.config = config  # lengths of its own, the ramp of a loss say, are in steps now
    return Run(config, task, output_dir(config) / config.run.name, [*changes, *planned, *lengths], plan)


def output_dir(config: Config) -> Path:
    return Path(config.output_dir) if config.output_dir else platform.detect().output_dir


def train(config: Config | Run) -> dict[str, Any]:
    """Trains, or goes on with, the run that a configuration names; returns its summary, which is on disk too.

    With several GPUs the run takes place in a process for each, below this one. A run that was completed before is left
    as it is. Raises BadInput before anything is written.
    """
    run = config if isinstance(config, Run) else prepare(config)
    earlier = ranks.from_first(outputs.read_summary(run.folder) or {})
    if earlier.get("reason") == "completed" and earlier["step"] >= run.config.training.max_steps:
        print(f"{run.folder} was completed at step {earlier['step']:,}. A larger training.max_steps goes on.")
        return earlier
    session = sessions.start(run.config.session.minutes, run.config.session.margin_seconds)
    number = int(os.environ.get("TRAINBOOK_SESSION", 0)) or earlier.get("session", 0) + 1
    if (count := torchrun.processes(run.config)) > 1:
        return _train_below(run, count, number)
    found = None
    with ranks.together():
        if ranks.is_first():
            found, number = _begin(run, number)
    try:
        outcome = trainer.train(run.task, run.config, run.folder, session, progresses.choose(), found)
    except BaseException as error:
        if ranks.is_first():
            _write_failure(run, error, number)
        raise
    return _finish(run, outcome, session, number)


def _train_below(run: Run, count: int, number: int) -> dict[str, Any]:
    """Trains in `count` processes of their own; the first of them writes the summary."""
    files.check_writable(run.folder)
    try:
        torchrun.train(run.config, run.folder, count, number)
    except BaseException as error:
        _write_failure(run, error, number)
        raise
    summary = (outputs.read_summary(run.folder) or {}) | _predictions(run)  # only this process has planned
    outputs.write_summary(run.folder, summary)
    return summary


def _predictions(run: Run) -> dict[str, Any]:
    """What the plan says of the run as it is configured; None where there was nothing to plan for."""
    option = run.predicted
    return {
        "predicted_steps_per_second": option and round(1 / option.expected_seconds, 4),
        "predicted_peak_bytes": option and option.prediction.peak_bytes,
    }


def _begin(run: Run, number: int) -> tuple[checkpoint.Checkpoint | None, int]:
    """Looks for what to go on with and readies the folder; the number of the session may follow from what is found."""
    found = find_checkpoint(run)
    print(describe_resume(run, found))
    if not run.config.checkpoint.keep_last:
        print(_resuming_is_lost(run.config.checkpoint.keep_best))
    files.check_writable(run.folder)
    for kind in ("checkpoints", "best"):
        checkpoint.tidy(run.folder / kind)
    if found and (earlier := _bring_along(run, found)):
        number = earlier.get("session", 0) + 1
    (run.folder / "config.yaml").write_text(configs.dump(run.config), "utf-8")
    return found, number


def _write_failure(run: Run, error: BaseException, number: int) -> None:
    step = max(checkpoint.steps(run.folder / "checkpoints"), default=0)
    with contextlib.suppress(OSError):  # on a full disk the error itself is what must be seen
        outputs.write_summary(run.folder, {"reason": "failed", "error": str(error), "step": step, "session": number})


def _resuming_is_lost(keep_best: int) -> str:
    kept = "only the best weights are kept" if keep_best else "nothing is saved on the way"
    return f"checkpoint.keep_last is 0, so {kept}: a session that ends early cannot be resumed."


def _finish(run: Run, outcome: trainer.Outcome, session: Session, number: int) -> dict[str, Any]:
    """Tests a completed run, draws, writes the summary and packs the archive."""
    scores: dict[str, float] = {}
    baseline: dict[str, float] = {}
    if outcome.reason == "completed":
        scores, baseline = test(run, outcome.state)
    if not ranks.is_first():
        return {"reason": outcome.reason, "step": outcome.state.step}
    plot(run, baseline)
    summary = {
        "run": run.config.run.name,
        "task": run.config.task,
        "reason": outcome.reason,
        "step": outcome.state.step,
        "max_steps": run.config.training.max_steps,
        "metrics": {name: scores[name] for name in baseline},
        "baseline": baseline,
        "test_loss": scores.get("loss"),
        "best": outcome.state.best,
        "steps_per_second": round(outcome.steps_per_second, 4),
        **_predictions(run),
        "peak_memory_bytes": outcome.peak_bytes,
        "micro_batch": outcome.state.micro_batch,
        "precision": outcome.state.precision,
        "skipped_steps": outcome.state.skipped_steps,
        "world_size": ranks.world(),
        "samples_seen": outcome.samples_seen,
        "session": number,
    }
    outputs.write_summary(run.folder, summary)
    with session.measured("package"):
        outputs.package(run.output_dir)
    return summary


def test(run: Run, state: states.State) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of the best weights on the test set, and the trivial baseline's; the task writes its tables."""
    best = states.from_first(best_weights(run, state) if ranks.is_first() else None)
    if best:
        weights.put_back(state.model, best.tensors["model"])
        state.ema = None  # the best weights are averages already
    print(f"Testing the weights of step {best.step if best else state.step:,} on held-out data.", flush=True)
    progress = progresses.choose()
    scores = trainer.evaluate(state, run.task, run.config, run.task.datasets()["test"], progress)
    progress.close()
    if not ranks.is_first():
        return scores, {}
    baseline = run.task.baseline()
    print(run.task.report(scores, run.folder), flush=True)
    return scores, baseline


def best_weights(run: Run, state: states.State) -> checkpoint.Checkpoint | None:
    """The best weights that were saved and can be read; says which are passed over."""
    for best in state.kept_best:
        path = checkpoint.path_of(run.folder / "best", best["step"])
        try:
            return checkpoint.load(path)
        except checkpoint.DamagedCheckpoint as damage:
            print(f"The best weights {path} are passed over ({damage}).")
    return None


def plot(run: Run, baseline: dict[str, float]) -> Path:
    """Draws metrics.csv into plots/metrics.png."""
    out = run.folder / "plots" / "metrics.png"
    return metrics.plot(run.folder / "metrics.csv", out, run.config.run.name, baseline, run.task.shown)


def find_checkpoint(run: Run) -> checkpoint.Checkpoint | None:
    """The newest valid checkpoint of this run: from `run.resume_from`, the output folder, or a mounted earlier output.

    A damaged one is passed over and said; in the run's own folder it is renamed. Raises BadInput where all are damaged,
    where another configuration or a later version made the one found, or where `run.resume_from` holds none.
    """
    found, sentences = look_for_checkpoint(run, quarantine=True)
    print("".join(f"{sentence}\n" for sentence in sentences), end="")
    return found


def look_for_checkpoint(run: Run, quarantine: bool = False) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    """As `find_checkpoint`, with what is to be said about it; without `quarantine` nothing is renamed."""
    damaged: list[str] = []
    for folder in resume_folders(run):
        own = folder.resolve() == (run.folder / "checkpoints").resolve()
        found, sentences = checkpoint.load_newest(folder, quarantine=own and quarantine)
        damaged += sentences
        if found:
            now = identity.facts(run.config, run.task)
            try:
                warning = identity.check(found.state["identity"], now, found.path.parent.parent)
            except BadInput as refused:
                raise BadInput("\n".join([*damaged, str(refused)])) from None
            warnings = [warning] if warning else []
            if "optimizer" not in found.tensors:
                warnings.append(_OPTIMIZER_IS_LOST)
            return found, damaged + warnings
    if damaged:
        raise BadInput(
            "\n".join(damaged) + f"\nNo checkpoint of {run.config.run.name} is whole, and nothing was deleted. "
            "To start afresh, delete these folders or choose another run.name."
        )
    if run.config.run.resume_from:
        raise BadInput(
            f"run.resume_from is {run.config.run.resume_from}, where no checkpoint of {run.config.run.name} lies. Give "
            "the output folder of the earlier session, the folder of the run in it, or leave it empty."
        )
    return None, []


def resume_folders(run: Run) -> list[Path]:
    """Where checkpoints of this run may lie, in the order in which they are tried."""
    name = run.config.run.name
    if run.config.run.resume_from:
        base = platform.find_input(run.config.run.resume_from, platform.detect())
        return [base / "checkpoints", base / name / "checkpoints"]
    mounts = platform.mounted(platform.detect())
    return [run.folder / "checkpoints", *(mount / name / "checkpoints" for mount in mounts)]


def describe_resume(run: Run, found: checkpoint.Checkpoint | None) -> str:
    """One sentence: which checkpoint was found, its step, and how many steps are left."""
    total = run.config.training.max_steps
    if found is None:
        return f"No earlier checkpoint of {run.config.run.name}: training starts at step 0 of {total:,}."
    left = max(0, total - found.step)
    return f"Resuming {run.config.run.name} from {found.path}, step {found.step:,}: {left:,} of {total:,} steps left."


def _bring_along(run: Run, found: checkpoint.Checkpoint) -> dict[str, Any] | None:
    """Copies history and best weights of a run that is resumed from elsewhere; returns that run's summary."""
    origin = found.path.parent.parent
    if origin.resolve() == run.folder.resolve():
        return None
    if (origin / "metrics.csv").is_file():
        shutil.copyfile(origin / "metrics.csv", run.folder / "metrics.csv")
    for step in checkpoint.steps(origin / "best"):
        with contextlib.suppress(checkpoint.DamagedCheckpoint, checkpoint.CheckpointNotSaved):  # then the next best
            best = checkpoint.load(checkpoint.path_of(origin / "best", step))
            checkpoint.save(run.folder / "best", step, best.tensors, best.state)
    return outputs.read_summary(origin)
