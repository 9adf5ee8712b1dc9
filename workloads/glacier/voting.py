"""Votes by the folds of one queue and the seeds of another on the test of the first."""

from collections.abc import Sequence
from pathlib import Path

from lib.config import to_yaml
from lib.machine import disk, inputs, platform
from lib.report.progress import working
from lib.task import load_task
from lib.training.summary import Summary
from trainbook.launch.ensemble import load_members
from trainbook.launch.queue import Entry, find_completed
from trainbook.outputs.summary import with_all


def members(queue: Sequence[Entry], folds_of: str) -> list[Path]:
    """Returns the folders of completed folds of `folds_of` in this size and, if all are completed, of this queue."""
    last = queue[-1]
    output_dir = platform.output_dir(last.config.output_dir)
    entries = [entry for entry in queue if not entry.is_earlier]
    runs = [find_completed(entry.name, output_dir, entry.config) for entry in entries]
    if not all(runs):
        print("Some runs of the queue are not completed. They vote once all are.")
        return []
    name = folds_of
    if last.kind.endswith("_small"):
        name += "_small"
    places = [output_dir, *inputs.mounted(platform.detect())]
    names = sorted({path.name for place in places for path in place.glob(f"{name}-fold*")})
    folds = [find_completed(fold, output_dir) for fold in names]
    if not any(folds):
        print(f"No fold of {name} was found, here or among the inputs: the seeds vote alone.")
    return [folder for folder in (*folds, *runs) if folder]


def vote(runs: Sequence[Path], folder: Path, own_task: str = "") -> tuple[Summary, str]:
    """Votes by completed runs on the test of the first; writes the summary into `folder`, returns it and a text.

    Raises BadInput if the runs do not fit together.
    """
    first, models = load_members(runs, own_task)
    task = load_task(first.config)
    task.take_learned(first.learned())
    task.members = first.members
    disk.check_writable(folder)
    metrics, text = task.vote(models, folder)  # type: ignore[attr-defined]
    with working("Scoring the baseline"):
        baseline = task.baseline()
    scores = with_all(metrics, baseline)
    names = [run.name for run in runs]
    summary = Summary(
        folder.name,
        first.config.task,
        "completed",
        members=names,
        metrics=scores,
        baseline=baseline,
    )
    (folder / "config.yaml").write_text(to_yaml(first.config), "utf-8")
    summary.write(folder)
    return summary, text
