"""What is drawn of a run while it trains, beside the rows that it writes."""

from lib.config.reader import flat
from lib.launch.run import Run
from lib.machine import memory
from lib.report.live import Watched, progress_of
from lib.report.metrics import METRICS
from lib.report.progress import Progress
from lib.report.summary import Summary
from lib.report.tracking import Tracked
from lib.training.evaluation import known_baseline


def progress(run: Run) -> Progress:
    """Returns the form in which this process shows a run."""
    return progress_of(watched(run))


def tracked(run: Run, is_resumed: bool) -> Tracked:
    """Returns what hands a run's rows to the trackers that its configuration names."""
    return Tracked(run.folder, run.config.tracking, run.config.run.name, flat(run.config), is_resumed)


def watched(run: Run) -> Watched:
    """Returns what the figure of a run shows; the baseline where the smoke test or an earlier session computed it."""
    earlier = Summary.read(run.folder)
    return Watched(
        run.folder / METRICS,
        run.config.run.name,
        run.config.training.max_steps,
        run.task.shown,
        run.task.selection,
        known_baseline(run.task) or (earlier.baseline if earlier else {}),
        memory.card_bytes(),
        run.predicted.prediction.peak_bytes if run.predicted else None,
    )
