"""The task as the trainer sees it."""

import subprocess
import sys

import pytest
import torch

from lib.task import find_task, load_config
from lib.tasks.graphmer.settings import CONDITIONS
from lib.training.evaluation import EvaluationLoader
from tests.conftest import ROOT
from tests.tasks.graphmer.conftest import CONFIG, generator


def test_the_model_reads_no_data_and_takes_the_example_batch(tmp_path):
    (tmp_path / "graphmer.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "graphmer.yaml", {"data.dir": ""})
    task = find_task("graphmer")(config)
    batch = task.example_batch(3, torch.device("cpu"))
    sums, _ = task.loss(task.model(), batch)
    assert batch["leaves"].shape == (3, 24, 4) and all(torch.isfinite(v) for v in sums.values())
    assert "data" not in vars(task)


def test_a_finished_evaluation_has_the_keys_of_the_protocol(graphmer, tmp_path):
    task = graphmer()
    model = task.model().eval()
    loader = EvaluationLoader(task, task.datasets()["test"], 7, torch.device("cpu"))
    with torch.inference_mode():
        scores = task.evaluate(model, loader)
    assert scores.keys() - {"loss"} == task.baseline().keys()
    assert {f"mrr_{c}" for c in CONDITIONS} <= scores.keys()
    text = task.report(scores, tmp_path)
    assert "text match" in text and "context words" in text and "head name" in text
    header, *rows = (tmp_path / "evaluation.csv").read_text().splitlines()
    assert header.startswith("condition,relations,tails,method,candidates,triples,mrr")
    assert len(rows) == 3 * 2 * 3 * 3 + 3 * 2 * 3  # and the encoder among all entities


def test_training_learns_what_the_text_shows(graphmer):
    """With every name in the text, a few hundred steps on a toy tree must beat the frequency of tails by far."""
    task = graphmer({"workload.model.hidden": 32, "workload.objective.leaf_ratio": 1.0})
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    windows = list(task.datasets()["train"])
    first = last = None
    for step in range(60):
        batch = task.collate(windows, generator(step))
        sums, _ = task.loss(model, batch)
        loss = sums["mnm"] / task.count(batch)["mnm"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < 0.5 * first


def test_the_weight_of_the_text_is_a_weight_of_a_term(graphmer):
    assert graphmer({"workload.objective.mlm_weight": 0.3}).term_weights(7) == {"mlm": 0.3}


def test_a_report_before_the_evaluation_says_what_to_do(graphmer, tmp_path):
    with pytest.raises(RuntimeError, match="Call `evaluate` on the test set before `report`"):
        graphmer().report({}, tmp_path)


def test_a_plan_of_the_memory_imports_neither_data_nor_evaluation():
    code = "import sys, lib.tasks.graphmer; print(*(m for m in sys.modules if m.startswith('lib.tasks.graphmer.')))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.rpartition(".")[2] for name in out.split()} == {"model", "settings", "tokens"}
