"""Each sample is held out once, folds are alike, and what belongs together stays together."""

import json

import numpy as np
import pytest

from lib.errors import BadInput
from lib.task import load_config, load_task
from trainbook.supervised import prediction, series, splits
from trainbook.supervised.samples import reading

TASK = """
import json

from trainbook import Supervised, split


class Dealt(Supervised):
    def read(self, source):
        rows = [tuple(row) for row in json.loads((source / "rows.json").read_text())]
        return split(rows)

    def learn(self, samples):
        return {}


class Grouped(Dealt):
    def group(self, sample):
        return sample[0] // 7


class Numbers(Dealt):
    kind = "numbers"


class Parts(Dealt):
    def read(self, source):
        rows = [tuple(row) for row in json.loads((source / "rows.json").read_text())]
        return {"train": rows[:60], "validation": rows[60:80], "test": rows[80:]}


class Lazy(Dealt):
    def read(self, source):
        return {"train": range(10), "validation": range(5), "test": range(5)}
"""


@pytest.fixture
def parts(tmp_path):
    """parts("Dealt", rows, fold, ...) -> the samples of each part, their numbers, and the notes."""
    (tmp_path / "dealing.py").write_text(TASK)
    (tmp_path / "my.yaml").write_text(
        "task: dealing.py:Dealt\ndata: {dir: data}\ntraining: {max_steps: 1, effective_batch: 2}\n"
    )
    (tmp_path / "data").mkdir()

    def read(name, rows, fold=0, number=5, nested=False):
        (tmp_path / "data" / "rows.json").write_text(json.dumps(rows))
        options = {"folds.number": number, "folds.fold": fold, "folds.nested": nested}
        options |= {"task": f"{tmp_path}/dealing.py:{name}", "data.dir": str(tmp_path / "data")}
        task = load_task(load_config(tmp_path / "my.yaml", options))
        samples = {part: list(each.samples) for part, each in task.parts.items()}
        return samples, list(task.parts["test"].numbers), task._notes

    return read


def classed(number=100):
    """(number, class) rows, a tenth of which are rare."""
    return [[k, "rare" if k % 10 == 3 else "usual"] for k in range(number)]


def test_every_sample_is_held_out_once_and_each_fold_has_its_share_of_a_class(parts):
    held = []
    for fold in range(5):
        samples, numbers, notes = parts("Dealt", classed(), fold)
        assert samples["validation"] == samples["test"]
        assert {*samples["train"]}.isdisjoint(samples["test"])
        assert len(samples["train"]) == 80
        assert sum(name == "rare" for _, name in samples["test"]) == 2
        assert [classed()[number][0] for number in numbers] == [k for k, _ in samples["test"]]
        assert any("The same samples choose the step" in note for note in notes)
        assert not any("Samples" in note for note in notes), "a fold is no copy of itself"
        held += samples["test"]
    assert sorted(held) == sorted(map(tuple, classed()))
    shuffled = [classed()[place] for place in np.random.default_rng(0).permutation(100)]
    again, _, _ = parts("Dealt", shuffled, 4)
    assert sorted(again["test"]) == sorted(held[-20:]), "whatever the order of the rows"


def test_numbers_are_dealt_by_their_size_and_groups_as_a_whole(parts):
    values = np.random.default_rng(1).lognormal(0, 2, 200)
    rows = [[k, float(value)] for k, value in enumerate(values)]
    means = [
        np.mean([value for _, value in parts("Numbers", rows, k)[0]["test"]]) for k in range(4)
    ]
    by_chance = [np.mean(values[k::5]) for k in range(4)]
    assert np.std(means) < np.std(by_chance)
    groups = []
    for fold in range(5):
        samples, *_ = parts("Grouped", classed(), fold)
        of_part = {part: {k // 7 for k, _ in rows} for part, rows in samples.items()}
        assert of_part["train"].isdisjoint(of_part["test"])
        groups += of_part["test"]
    assert sorted(groups) == [*range(15)]
    with pytest.raises(BadInput, match="folds is 20, and there are 15 groups"):
        parts("Grouped", classed(), 0, 20)


def test_copies_of_an_input_are_on_one_side(parts):
    rows = [[k % 40, "a" if k % 2 else "b"] for k in range(80)]
    for fold in range(4):
        samples, *_ = parts("Dealt", rows, fold, 4)
        inputs = {part: {k for k, _ in each} for part, each in samples.items()}
        assert inputs["train"].isdisjoint(inputs["test"])


def test_nested_folds_choose_the_step_on_an_inner_part(parts):
    samples, _, notes = parts("Dealt", classed(), 1, nested=True)
    sets = [{*samples[part]} for part in ("train", "validation", "test")]
    assert [len(each) for each in sets] == [64, 16, 20]
    assert len(set.union(*sets)) == 100
    assert any("An inner part of the others chooses the step" in note for note in notes)
    assert parts("Dealt", classed(), 1)[0]["test"] == samples["test"]


def test_parts_of_a_task_are_dealt_anew_without_their_test_and_what_is_lazy_is_refused(parts):
    held = []
    for fold in range(5):
        samples, _, notes = parts("Parts", classed(), fold)
        held += samples["test"]
        assert any("The test, 20 samples, is in no fold" in note for note in notes)
    assert sorted(k for k, _ in held) == [*range(80)]
    with pytest.raises(
        BadInput, match="folds needs lists of samples, and Lazy.read returned a range"
    ):
        parts("Lazy", [])


@pytest.mark.parametrize("nested", [False, True])
def test_series_are_cut_by_time(nested, tmp_path):
    from lib.config import Folds
    from trainbook.supervised.folds import Folding

    values = {"a": np.arange(200.0), "b": np.arange(50.0)}
    ends = []
    for fold in range(3):
        folding = Folding(Folds(3, fold, nested), None, None, None)
        with reading(None, folding=folding):
            parts = series.windows(values, 5, 2)
        of_a = {
            part: [step for key, step, *_ in rows if key == "a"] for part, rows in parts.items()
        }
        assert max(of_a["train"]) + 2 <= min(of_a["validation"]) <= min(of_a["test"])
        assert (parts["validation"] is parts["test"]) is not nested
        ends.append((min(of_a["test"]), max(of_a["test"]) + 2))
        numbers = folding.numbers_of(parts["test"])
        assert len({*numbers}) == len(parts["test"])
    assert ends == [(140, 160), (160, 180), (180, 200)]


def test_models_are_averaged_by_ranks_and_keep_their_probabilities():
    draw = np.random.default_rng(0)
    one = draw.random((50, 1))
    shares = np.stack([np.hstack([1 - p, p]) for p in (one, one**2 / 9, 1 - one)])
    ordered = prediction.in_order_of_ranks(shares)
    assert np.argsort(ordered[:, 1]).tolist() == np.argsort(one[:, 0]).tolist(), (
        "two of three say so"
    )
    assert np.sort(ordered[:, 1]) == pytest.approx(np.sort(shares.mean(0)[:, 1]))
    assert ordered.sum(1) == pytest.approx(1)


def test_blocks_are_a_pure_function_of_hashes_and_strata():
    hashes = [int(value) for value in np.random.default_rng(0).integers(0, 16**12, 90)]
    strata = ["ab"[k % 2] for k in range(90)]
    first = splits.in_blocks(hashes, strata, 3)
    assert np.bincount(first).tolist() == [30, 30, 30]
    backwards = splits.in_blocks(hashes[::-1], strata[::-1], 3)
    assert first.tolist() == backwards[::-1].tolist()
