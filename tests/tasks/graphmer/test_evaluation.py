"""Ranks by the encoder, and the files of an evaluation."""

import csv

import numpy as np

from lib.tasks.graphmer import tokens
from lib.tasks.graphmer.evaluation import leaf_scores
from lib.tasks.graphmer.ranking import Ranked


def test_a_leafs_score_is_the_sum_over_its_pieces_without_padding():
    log_probabilities = np.arange(16, dtype=np.float32).reshape(2, 8)
    leaves = np.array([[6, 7], [7, tokens.PAD]])
    assert leaf_scores(log_probabilities, leaves).tolist() == [6 + 15, 7]


def test_the_encoders_ranks_stand_beside_the_baselines(graphmer, tmp_path):
    task = graphmer()
    queries = task.datasets()["test"]
    text = task.evaluator.report([Ranked(q.triple, q.condition, 1.0) for q in queries], queries, tmp_path)
    with (tmp_path / "evaluation.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["tails"], row["relations"]) == ("all", "non-structural")]
    assert {row["method"] for row in rows} == {"frequency", "trivial", "encoder"}
    assert all(float(row["mrr"]) == 1.0 for row in rows if row["method"] == "encoder")
    assert "triples of held-out files" in text
