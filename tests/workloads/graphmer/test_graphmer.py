"""The task as the trainer sees it."""

import json

import pytest
import torch

from lib.errors import BadInput
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.task import find_task, load_config
from lib.training import loop
from lib.training.evaluation import evaluate
from lib.training.session import Session
from tests.workloads.graphmer.conftest import CONFIG, batch_of
from trainbook.launch import checks


def test_the_model_reads_no_data_and_takes_the_example_batch(tmp_path):
    (tmp_path / "graphmer.yaml").write_text(CONFIG)
    for steps in (0, 5):
        config = load_config(
            tmp_path / "graphmer.yaml", {"data.dir": "", "workload.objective.mlm_steps": steps}
        )
        task = find_task("graphmer")(config)
        batch = task.example_batch(3, torch.device("cpu"))
        sums, _ = task.loss(task.model(), batch)
        assert batch["prior"].shape == (3, 3, 60)
        assert all(torch.isfinite(v) for v in sums.values())
        assert "data" not in vars(task)


def test_the_contract_is_kept(graphmer):
    task = graphmer(
        {
            "workload.objective.mlm_steps": 5,
            "training.micro_batch": 2,
            "training.effective_batch": 4,
        }
    )
    assert checks.examine(task, task.config) == []


def test_masked_text_is_learned_at_the_beginning_where_that_is_asked_for(graphmer):
    task = graphmer({"workload.objective.mlm_steps": 5, "workload.model.token_dropout": 0.5})
    batch = batch_of(task, range(12))
    model = task.model()
    thinned = model.train()._thinned(batch["roots"])
    roots = batch["roots"]
    changed = thinned != roots
    assert torch.equal(model.eval()._thinned(roots), roots)
    assert (thinned[changed] == 1).all()
    assert changed.any()
    for step, terms in ((4, {"mlm"}), (5, {"trust", "likeness", "name"})):
        task.step = step
        assert task.loss(model, batch)[0].keys() == terms
        assert {term for term, count in task.count(batch).items() if count} == terms


def test_what_was_fitted_is_kept_as_json_and_taken_back(graphmer):
    task = graphmer()
    values = task.learned()
    values["counts"] = json.loads(json.dumps(values["counts"]))
    other = graphmer()
    other.take_learned(values)
    want = batch_of(task, range(5))
    got = batch_of(other, range(5))
    assert other.learned() == values
    assert torch.allclose(want["prior"], got["prior"], atol=1e-2)
    values["counts"]["boost"].pop()
    damaged = graphmer()
    damaged.take_learned(values)
    with pytest.raises(BadInput, match="weights of the counts that the run began with raises"):
        batch_of(damaged, [0])


def test_fp16_learns_what_the_text_shows_keeps_its_loss_scale_and_evaluates_as_fp32_does(
    graphmer, tmp_path
):
    """A candidate that no place names has a gradient of up to exp(15) times 0 on its way, which fp16 cannot hold."""
    steps = {"training.max_steps": 45, "training.evaluate_every_steps": 45, "training.effective_batch": 8,
             "training.log_every_steps": 5}  # fmt: skip
    fitted = {
        "optimizer.lr": 5e-3,
        "workload.model.hidden": 16,
        "workload.objective.fitting_steps": 60,
    }
    task = graphmer({**steps, **fitted, "training.precision": "fp16"})
    outcome = loop.train(task, task.config, tmp_path, Session(None, 0, 0), Plain(), None)
    assert outcome.state.scaler.get_scale() >= 4096
    assert outcome.state.skipped_steps <= 4
    losses = [
        float(row["loss"]) for row in read(tmp_path / "metrics.csv") if row["split"] == "train"
    ]
    assert sum(losses[-2:]) < 0.8 * sum(losses[:2]), "lower than the counts alone leave it"
    in_half = evaluate(outcome.state, task, task.config, task.datasets()["test"])
    outcome.state.precision = "fp32"
    wide = evaluate(outcome.state, task, task.config, task.datasets()["test"])
    assert in_half["mrr"] == pytest.approx(wide["mrr"], abs=0.01)
    answers = task.predict([outcome.state.model], tmp_path / "tree", None)
    assert answers
    assert all(0 < row["probability"] <= 1 for row in answers.values())
