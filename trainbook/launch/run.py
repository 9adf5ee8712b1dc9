"""Which run a configuration is: the one of its name, or an edit with a number; and the files of its code."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lib import prepared, ranks
from lib.config import Config, with_changes
from lib.machine import disk
from lib.machine.inputs import made_names, run_folders, saved_facts
from lib.prepared import Run
from lib.report.metrics import METRICS
from lib.report.progress import Progress, choose_progress
from lib.task.files import file_of, label, named_files, own_files
from lib.training import identity
from lib.training.evaluation import known_baseline
from lib.training.summary import Reason, Summary
from trainbook.outputs import figure

CODE = "code"  # in a run's folder: the files of a user's task


@ranks.together()
def prepare(config: Config) -> Run:
    """Prepares the run of a configuration; with `run.on_change: new` its edit of a free name. Raises BadInput."""
    options = config.run
    # a rank trains the run that its launcher chose, and a named earlier output holds one run
    is_named = options.on_change == "stop" or options.resume_from or ranks.is_watched()
    earlier = [] if is_named or not ranks.is_first() else [*earlier_runs(config)]
    run = prepared.prepare(config)
    if is_named:
        return run
    now = run.identity if earlier else {}
    name, differs = identity.name_of(options.name, earlier, now, options.accept_changes)
    name, differs = ranks.from_first((name, differs))
    if name == options.name:
        return run
    run = prepared.prepare(with_changes(config, {"run.name": name}))
    line = (
        f"{options.name} is a run of another configuration ({differs}). This one is the run {name}."
    )
    return dataclasses.replace(run, lengths=[line, *run.lengths], base_name=options.name)


def summary_of(run: Run, reason: Reason, step: int, session: int, **facts: Any) -> Summary:
    name = run.config.run.name
    steps = run.config.training.max_steps
    return Summary(name, run.config.task, reason, step, steps, session, **facts)


def has_queue(path: Path, config: Config) -> bool:
    """Returns whether a configuration has a queue of runs; a run's own config.yaml names only that run."""
    queue = config.queue
    is_of_a_run = path.name == "config.yaml" and path.absolute().parent.name == config.run.name
    if is_of_a_run:
        return False
    folds = config.folds.number if config.folds.fold < 0 else 0
    return any([folds, queue.seeds, queue.grid, queue.before, queue.start_from])


def earlier_runs(config: Config) -> Iterator[identity.Earlier]:
    """Yields the run of a configuration's name and its edits that have an identity, in order."""
    for name in made_names(config.run.name, config.output_dir):
        for folder in run_folders(name, config.output_dir):
            summary = Summary.read(folder)
            done_until = summary.done_until(config.training) if summary else -1
            has_failed = summary is not None and summary.has_failed
            facts = summary.identity if summary and done_until >= 0 else {}
            facts = facts or saved_facts("identity", folder)
            if facts:
                yield identity.Earlier(name, facts, done_until, has_failed)
                break


def accepted_changes(is_accepted: bool, folder: Path) -> str | None:
    """Returns `identity.accepted_keys` for the run in a folder."""
    summary = Summary.read(folder)
    return identity.accepted_keys(is_accepted, summary is not None and summary.has_failed)


def progress(run: Run) -> Progress:
    """Returns the form in which this process shows a run, with the baseline if it is known already."""
    earlier = Summary.read(run.folder)
    baseline = known_baseline(run.task) or (earlier.baseline if earlier else {})
    table = run.folder / METRICS
    metrics = [name for name in run.task.shown if name != "loss"]
    return choose_progress(partial(figure.curves, table, run.config.run.name, baseline, metrics))


def keep_code(run: Path, config: Config) -> Config:
    """Copies the files of a task and of its settings into its run; returns the configuration with their paths."""
    if (file := file_of(config.task)) is None:
        return config
    own = own_files(file)
    folder = run / CODE
    contents = {folder / path.relative_to(own.folder): path.read_bytes() for path in own.files}
    for old in (path for path in folder.rglob("*") if path.is_file() and path not in contents):
        old.unlink()
    places = {}
    for key, original in named_files(config).items():
        place = Path("named") / key / original.name
        places[key] = place.as_posix()
        contents[run / place] = original.read_bytes()
    for path, content in contents.items():
        if not (path.is_file() and path.read_bytes() == content):
            disk.make_folders(path.parent)
            with disk.whole(path) as aside:
                aside.write_bytes(content)
    return with_changes(config, {**places, "task": f"{CODE}/{label(config.task)}"})
