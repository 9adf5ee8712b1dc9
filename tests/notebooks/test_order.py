"""What the cells of a notebook print and leave, in their order, are the figures of an evaluation by itself."""

import csv
import dataclasses

import pytest

from lib.task import load_config
from lib.training.evaluation import known_baseline
from lib.training.summary import Summary
from tests.trainbook.supervised.conftest import CONFIG as SUPERVISED
from tests.workloads.chat.conftest import CONFIG as CHAT
from tests.workloads.chat.conftest import write_base
from tests.workloads.glacier.conftest import TINY
from tests.workloads.glacier.files import write_scenes
from tests.workloads.graphmer.conftest import CONFIG as GRAPHMER
from tests.workloads.graphmer.conftest import write_tree
from tests.workloads.legal.conftest import CONFIG as LEGAL
from tests.workloads.vqa.conftest import CONFIG as VQA
from trainbook import launch, notebook
from trainbook.launch import resume, smoke

WORKLOADS = {
    "graphmer": GRAPHMER,
    "glacier": TINY,
    "legal": LEGAL,
    "vqa": VQA,
    "chat": CHAT,
    "own": SUPERVISED,
}
SMALL = {"training.max_steps": 2, "training.evaluate_every_steps": 1, "training.smoke_steps": 1}


def configured(name, home):
    """The configuration of a workload on tiny data, of more than two batches."""
    (home / f"{name}.yaml").write_text(WORKLOADS[name].replace("NAME", "Heights"))
    places = {"graphmer": home / "tree", "glacier": home / "scenes"}
    if name == "graphmer":
        write_tree(home)
    if name == "glacier":
        write_scenes(places[name], 8)
    given = {"data.dir": str(places[name])} if name in places else {}
    if name == "chat":
        given = {"workload.base": str(write_base(home / "base"))}
    return load_config(home / f"{name}.yaml", {**SMALL, **given, "output_dir": str(home / "runs")})


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_smoke_test_before_training_changes_no_figure(name, tmp_path):
    run = launch.prepare(configured(name, tmp_path))
    smoke.test(run)
    resume.announce(run)
    drawn = known_baseline(run.task)
    summary = launch.train(run)
    table = run.folder / "evaluation.csv"
    printed = notebook.compare(summary)
    written = table.read_bytes() if table.exists() else b""
    if name == "graphmer":
        _check_table(summary, table)
    # A task of its own evaluates the same weights, for a run whose test failed
    table.unlink(missing_ok=True)
    untested = dataclasses.replace(
        summary, metrics={}, baseline={}, report="", missing={"test": "it failed"}
    )
    untested.write(run.folder)
    alone = launch.train(launch.prepare(run.config))
    assert drawn == summary.baseline == alone.baseline
    assert summary.metrics == alone.metrics == Summary.read(run.folder).metrics
    assert printed == notebook.compare(alone)
    assert written == (table.read_bytes() if table.exists() else b"")


def _check_table(summary, table):
    """Holds the figures of a summary to graphmer's table of the same test."""
    with table.open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    for figures, method in (
        (summary.baseline, "counts combined"),
        (summary.metrics, "counts + encoder"),
    ):
        assert figures == pytest.approx(
            {name: float(rows[method][name]) for name in figures}, abs=1e-6
        )
