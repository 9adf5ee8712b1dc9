"""A network beside a simple method trains, is chosen, stops and slows down as it does alone."""

import csv
import json
from pathlib import Path

import pytest

from lib.task import load_config
from trainbook import launch, new

pytestmark = pytest.mark.usefixtures("quick", "few")
STARTS = {"training.start_from_baseline": True}


SIZES = {
    "training.max_steps": 160,
    "checkpoint.every_steps": 160,
    "training.effective_batch": 32,
    "training.evaluate_every_steps": 10,
    "optimizer.lr": 0.01,
}


def trained(configured, name, options):
    """Trains Digits; returns its summary, the answers of the network on the test, and the folder."""
    config = configured("Digits", {**SIZES, "run.name": name, **options})
    summary = launch.train(config)
    folder = Path(config.output_dir, name)
    with (folder / "answers.csv").open() as file:
        guesses = [row["network"] for row in csv.DictReader(file)]
    return summary, guesses, folder


OPTIONS = {
    "training.stop_after_evaluations": 4,
    "scheduler.name": "plateau",
    "scheduler.patience": 1,
}


def test_the_row_of_the_network_is_that_of_a_run_without_the_simple_method(configured):
    alone, without, _ = trained(configured, "alone", OPTIONS)
    started, beside, folder = trained(configured, "started", {**OPTIONS, **STARTS})
    assert beside == without
    assert started.best["metric"] == "network_accuracy"
    assert (started.best["step"], started.best["value"]) == (
        alone.best["step"],
        alone.best["value"],
    )
    assert started.best["step"] > 10, "the first validation is not the best one for good"
    assert started.step == alone.step
    assert started.stopped_early.get("evaluations") == alone.stopped_early.get("evaluations")
    with (folder / "evaluation.csv").open() as file:
        rows = {row["method"]: float(row["accuracy"]) for row in csv.DictReader(file)}
    assert "The gate is shut" in started.report, "so the answer of all validations is the same"
    assert rows["answer"] in [score for name, score in rows.items() if name != "answer"]
    assert started.metrics["network_accuracy"] == pytest.approx(rows["network"], abs=1e-6)
    state = json.loads(next(folder.glob("best/*/state.json")).read_text())
    assert state["best"]["metric"] == "network_accuracy"


def test_simple_methods_answer_alike_whether_a_run_starts_from_them_or_not(tmp_path, monkeypatch):
    """Columns of the example follow what was learned, whose order a checkpoint does not keep."""
    monkeypatch.chdir(tmp_path)
    new.write("flats", "tabular", tmp_path)
    rows = []
    for starts in (True, False):
        name = f"starts{starts}"
        keys = {"run.name": name, "training.start_from_baseline": starts, "training.epochs": 0}
        sizes = {
            "training.max_steps": 4,
            "training.evaluate_every_epochs": 0,
            "data.num_workers": 0,
        }
        steps = {"training.evaluate_every_steps": 2, "workload.width": 4}
        launch.train(load_config("flats.yaml", {**keys, **sizes, **steps}))
        with Path("runs", name, "evaluation.csv").open() as file:
            rows.append({row["method"]: row["rmse"] for row in csv.DictReader(file)})
    started, alone = rows
    methods = [name for name in started if " of " in name]
    assert len(methods) == 3
    assert {name: started[name] for name in methods} == {name: alone[name] for name in methods}
