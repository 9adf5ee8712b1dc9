"""How the bench of legal pools runs."""

import numpy as np

from lib.tasks.legal.evaluation import BOTH, PRODUCT, STRONGEST
from tests.bench import bench_legal


def run(right):
    """A fold of four documents, of each of which a method takes `right` of ten sentences for what they are."""
    counts = {method: {f"{n}": [[share, 10 - share], [10 - share, share]] for n in range(4)} for method, share in right}
    return {"confusions": counts}


def test_answers_are_counted_by_document_and_method(monkeypatch):
    monkeypatch.setattr(bench_legal, "classes", lambda: ("A", "B"))
    rows = [("one", "1", "A", "B"), ("one", "2", "A", "A"), ("two", "1", "B", "B")]
    answers = [dict(zip(("document", "sentence", "role", "words"), row, strict=True)) for row in rows]
    assert bench_legal.confusions(answers) == {"words": {"one": [[1, 1], [0, 0]], "two": [[0, 0], [0, 1]]}}


def test_folds_are_pooled_by_variant_partition_and_seed_with_paired_gains():
    methods = [(STRONGEST, 5), (PRODUCT, 6), (BOTH, 8)]
    runs = {f"single, partition 0, seed {seed}, fold {fold}": run(methods) for seed in (0, 1) for fold in (0, 1)}
    tables = bench_legal.summed_up(runs)
    table = tables["single, partition 0, seed 0"]
    assert table["folds"] == 2 and table[BOTH]["gain in macro_f1"] == "+0.3000 [+0.3000, +0.3000]"
    assert np.isclose(tables["macro F1, mean of seeds"][f"single, partition 0, {BOTH}"], 0.8)
