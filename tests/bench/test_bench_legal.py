"""How the bench of legal pools runs."""

import numpy as np

from tests.bench import bench_legal
from workloads.legal import BOTH, PRODUCT, STRONGEST


def run(right):
    """A fold of four documents, of each of which a method takes `right` of ten sentences for what they are."""
    counts = {method: {f"{n}": [[share, 10 - share], [10 - share, share]] for n in range(4)} for method, share in right}
    return {"confusions": counts}


def folds(runs):
    """Names the documents of each run apart, as those of several folds are."""
    for name, own in runs.items():
        fold = name[-1]
        own["confusions"] = {
            method: {f"{fold} {number}": one for number, one in counts.items()}
            for method, counts in own["confusions"].items()
        }
    return runs


def test_folds_are_pooled_by_variant_partition_and_seed_with_paired_gains():
    methods = [(STRONGEST, 5), (PRODUCT, 6), (BOTH, 8)]
    runs = folds({f"single, partition 0, seed {seed}, fold {fold}": run(methods) for seed in (0, 1) for fold in (0, 1)})
    tables = bench_legal.summed_up(runs)
    table = tables["single, partition 0, seed 0"]
    assert table["folds"] == 2 and table[BOTH]["gain in macro_f1"] == "+0.3000 [+0.3000, +0.3000]"
    assert np.isclose(tables["means of seeds"]["single, partition 0"][BOTH]["macro_f1"], 0.8)


def test_the_gain_of_several_seeds_is_their_mean_and_a_seed_that_is_not_whole_does_not_count():
    methods = [[(STRONGEST, 5), (BOTH, 6 + seed)] for seed in (0, 1, 2)]
    names = [(seed, fold) for seed in (0, 1, 2) for fold in (0, 1)][:-1]
    runs = folds({f"single, partition 1, seed {seed}, fold {fold}": run(methods[seed]) for seed, fold in names})
    table = bench_legal.summed_up(runs)["means of seeds"]["single, partition 1"]
    assert (table["seeds"], table["folds"]) == (2, 2)
    assert table[BOTH]["gain in accuracy"] == "+0.1500 [+0.1500, +0.1500]"
