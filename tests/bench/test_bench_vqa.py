"""How the bench of vqa changes pictures and sums runs up."""

import pytest

from tests.bench import bench_vqa
from tests.workloads.vqa.files import record


def test_every_question_is_asked_about_another_picture_and_those_of_one_about_the_same():
    asked = [record(n, picture=n // 2) for n in range(10)]
    found = bench_vqa.shuffled(asked)
    for one, other in zip(asked, found, strict=True):
        assert one.picture != other.picture and one.question == other.question
    assert [found[n].picture for n in range(0, 10, 2)] == [found[n].picture for n in range(1, 10, 2)]
    assert len({one.image for one in found}) == 5


def run(exact, **more):
    return {"metrics": {"exact": exact, "exact_low": 0.0, "exact_high": 1.0, "gain_low": exact - 0.6, **more}}


def test_a_row_has_its_mean_and_least_over_seeds():
    runs = {f"easy, seed {n}": run(0.9 + n / 100, exact_COUNTING=0.5 + n / 10) for n in range(4)}
    row = bench_vqa.summed_up(runs)["easy"]
    assert row == {"seeds": 4, "exact, mean": 0.915, "exact, least": 0.9, "least of a type": 0.5,
                   "least lower end of the gain": pytest.approx(0.3)}  # fmt: skip


def test_a_row_that_the_record_has_is_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_vqa, "RECORD", tmp_path / "vqa.json")
    measured = []
    monkeypatch.setattr(bench_vqa, "measured", lambda row, seed, scratch: measured.append((row, seed)) or run(0.5))
    arguments = ["--rows", "easy,drawn", "--seeds", "0,4", "--scratch", str(tmp_path / "scratch")]
    bench_vqa.main(arguments)
    assert measured == [("easy", 0), ("easy", 4), ("drawn", 0), ("drawn", 4)]
    bench_vqa.main(arguments)
    assert len(measured) == 4 and bench_vqa.runs_of(bench_vqa.RECORD)["easy, seed 4"] == run(0.5)
    bench_vqa.main([*arguments, "--again"])
    assert len(measured) == 8
