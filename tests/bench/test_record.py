"""The records of measurements, and how benches pool runs."""

import datetime
import json

import numpy as np
import pytest

from tests.bench import bench_legal
from tests.bench import record as records
from tests.bench.peers import Peer
from tests.bench.record import MEASURED, RECORDS, head, outdated
from workloads.legal import BOTH, COUNTS, PRODUCT, SHIFTED_COUNTS


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_says_when_where_and_with_which_versions_it_was_measured(path):
    record = json.loads(path.read_text("utf-8"))
    assert list(record)[:3] == ["date", "machine", "versions"], "and it has figures"
    assert len(record) > 3, "and it has figures"
    assert datetime.date.fromisoformat(record["date"])
    assert record["machine"]
    assert record["versions"]


def test_every_record_has_something_that_it_measures():
    stems = {path.stem.partition("_nvidia_")[0] for path in RECORDS.glob("*.json")}
    assert stems <= MEASURED.keys() <= stems | {"gpu"}, "gpu comes with the first session on a card"
    assert all(
        (RECORDS.parents[2] / name).exists()
        for names in MEASURED.values()
        for name in names.split()
    )


def test_a_record_that_is_older_than_what_it_measures_is_listed(tmp_path, monkeypatch):
    folder = tmp_path / "tests" / "bench" / "records"
    folder.mkdir(parents=True)
    monkeypatch.setattr(records, "RECORDS", folder)
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm"]

    def commit(text):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / "report").write_text(text)
        records.git("add", "-A", str(tmp_path)), records.git(*name, text)

    records.git("init", "-q", str(tmp_path))
    commit("first")
    (folder / "overhead.json").write_text(json.dumps(head()))
    assert len(head()["commit"]) == 40
    assert outdated() == []
    commit("second")
    assert outdated() == ["overhead.json is older than lib/training lib/report: 1 commits since."]
    (tmp_path / "lib" / "report").write_text("third")
    assert head()["commit"].endswith(" and changes")


def test_a_peer_that_lacks_a_package_of_another_is_not_installed():
    assert Peer("torch", ("torch",), None).is_installed
    assert not Peer("torch", ("torch", "no_such_package"), None).is_installed


def test_a_row_that_the_record_has_is_not_measured_again(tmp_path, monkeypatch):
    measured = []
    path = tmp_path / "some.json"

    def again(*options):
        arguments = [
            "--rows",
            "easy,not drawn",
            "--seeds",
            "0,4",
            "--scratch",
            str(tmp_path / "scratch"),
            *options,
        ]
        monkeypatch.setattr("sys.argv", ["bench", *arguments])

        def run(row, seed, place):
            measured.append((row, seed, place.is_dir()))
            return {"exact": 0.5}

        records.measure(path, ("easy", "not drawn"), "0", run, len, "Rows.")
        return len(measured)

    assert again() == 4
    assert measured[2:] == [("not drawn", 0, True), ("not drawn", 4, True)]
    left = tmp_path / "scratch" / "some" / "easy-seed-4"
    (left / "checkpoint").touch()
    assert again() == 4
    assert records.runs_of(path)["easy, seed 4"] == {"exact": 0.5}
    assert (left / "checkpoint").exists()
    assert again("--again") == 8
    assert not (left / "checkpoint").exists()


def run(right):
    """A fold of four documents, of each of which a method takes `right` of ten sentences for what they are."""
    counts = {
        method: {f"{n}": [[share, 10 - share], [10 - share, share]] for n in range(4)}
        for method, share in right
    }
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
    methods = [(SHIFTED_COUNTS, 5), (PRODUCT, 6), (BOTH, 8)]
    runs = folds(
        {
            f"single, partition 0, seed {seed}, fold {fold}": run(methods)
            for seed in (0, 1)
            for fold in (0, 1)
        }
    )
    tables = bench_legal.summed_up(runs)
    table = tables["single, partition 0, seed 0"]
    assert {*table["strongest counting by"].values()} == {SHIFTED_COUNTS}
    assert table["folds"] == 2
    assert table[BOTH]["gain in macro_f1"] == "+0.3000 [+0.3000, +0.3000]"
    assert np.isclose(tables["means of seeds"]["single, partition 0"][BOTH]["macro_f1"], 0.8)


def test_the_gain_of_several_seeds_is_their_mean_and_a_seed_that_is_not_whole_does_not_count():
    methods = [[(SHIFTED_COUNTS, 5), (BOTH, 6 + seed)] for seed in (0, 1, 2)]
    names = [(seed, fold) for seed in (0, 1, 2) for fold in (0, 1)][:-1]
    runs = folds(
        {
            f"single, partition 1, seed {seed}, fold {fold}": run(methods[seed])
            for seed, fold in names
        }
    )
    table = bench_legal.summed_up(runs)["means of seeds"]["single, partition 1"]
    assert table["seeds"] == 2
    assert table["folds"] == 2
    assert table[BOTH]["gain in accuracy"] == "+0.1500 [+0.1500, +0.1500]"


def test_gains_are_over_the_counting_that_is_best_by_each_metric():
    rare = [[18, 0], [2, 0]]  # of ten in a hundred; never named
    found = [[12, 6], [0, 2]]
    runs = {
        f"single, partition 0, seed 0, fold {fold}": {
            "confusions": {
                COUNTS: {f"{fold}": rare},
                SHIFTED_COUNTS: {f"{fold}": found},
                BOTH: {f"{fold}": found},
            }
        }
        for fold in range(5)
    }
    table = bench_legal.summed_up(runs)["single, partition 0, seed 0"]
    assert table["strongest counting by"]["macro_f1"] == SHIFTED_COUNTS
    assert table["strongest counting by"]["accuracy"] == COUNTS
    assert table[BOTH]["gain in macro_f1"].startswith("+0.0000")
    assert table[BOTH]["gain in accuracy"].startswith("-0.2000")
