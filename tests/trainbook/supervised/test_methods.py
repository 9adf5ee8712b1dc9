"""Groups and baselines beside the network: the strongest, gains over draws, evaluation.csv."""

import csv
from string import ascii_letters

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Heights, Pixels, PixelsLast, Tags, Topics, Words
from tests.trainbook.supervised.test_supervised import Loader, batch_of
from trainbook import Judged, records, split
from trainbook.supervised import kinds
from trainbook.supervised.intervals import resampled
from trainbook.supervised.scoring import of_classes


class Pages(Words):
    """Words of which each two in a row are from one page, beside rules that know nearly all."""

    unit = "page"
    constant = "commonest"

    def read(self, source):
        return split(((row["word"], row["class"]) for row in records(source, "*.jsonl")), test=0.5)

    def group(self, sample):
        return f"page {int(sample[0].strip(ascii_letters)) // 2:02}"

    def baselines(self):
        true = self.targets("test")
        return {
            "wrong": 1 - true,
            "nearly right": np.where(np.arange(len(true)) % 5, true, 1 - true),
        }


@pytest.fixture
def pages(configured, words):
    return lambda: Pages(configured("Words"), words)


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def evaluated(task):
    torch.manual_seed(0)
    model = task.model().eval()
    return model, task.evaluate(model, Loader(task, "test"))


def test_a_group_is_dealt_to_one_part_and_refused_in_two(pages, monkeypatch):
    task = pages()
    parts = {
        part: {task.group(sample) for sample in task.parts[part].samples}
        for part in task.datasets()
    }
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 30
    rows = {
        "train": [("a0", "vowel")],
        "validation": [("b2", "consonant")],
        "test": [("c1", "consonant")],
    }
    monkeypatch.setattr(Pages, "read", lambda self, source: rows)
    with pytest.raises(
        BadInput, match="The page page 00 is in train and in test.*deal each page to one part"
    ):
        pages().datasets()


def test_a_sample_without_a_group_is_a_group_of_its_own(pages, monkeypatch):
    monkeypatch.setattr(Pages, "group", lambda self, sample: None)
    task = pages()
    parts = task.datasets()
    assert all(len(set(task._groups(part))) == len(samples) for part, samples in parts.items())


@pytest.mark.parametrize("copies", [False, True], ids=["one list", "equal lists"])
def test_a_group_may_be_in_validation_and_test_where_these_are_the_same_samples(
    pages, monkeypatch, tmp_path, copies
):
    held = [(f"{'ab'[k % 2]}x{k}", ("vowel", "consonant")[k % 2]) for k in range(8)]
    again = held[::-1] if copies else held
    rows = {"train": [("a20", "vowel"), ("b22", "consonant")], "validation": held, "test": again}
    monkeypatch.setattr(Pages, "read", lambda self, source: rows)
    monkeypatch.setattr(Pages, "baselines", lambda self: {})
    task = pages()
    assert task.datasets()
    assert task.repeats_validation
    evaluated(task)
    text = task.report({}, tmp_path)
    assert "draws of the 4 pages of the test" in text
    assert "the same samples chose the step" in text
    rows["test"] = held[:6]
    with pytest.raises(BadInput, match="The page page 00 is in validation and in test"):
        pages().datasets()


def test_answers_of_any_number_of_classes_have_their_names_and_probabilities(
    configured, few, tmp_path
):
    task = Topics(configured("Topics"))
    model, _ = evaluated(task)
    task.report({}, tmp_path)
    rows = rows_of(tmp_path / "answers.csv")
    batch = batch_of(task, "test", 10)
    assert [*rows[0]][:2] == ["sample", "target"]
    assert [*rows[0]][-3:] == [
        "network",
        "long",
        "vowel",
    ]
    targets = ["; ".join(sorted(sample[1])) for sample in task.parts["test"].samples]
    by_number = {int(row["sample"]): row for row in rows}
    assert [by_number[number]["target"] for number in range(10)] == targets
    shares = model(batch["x"]).sigmoid().tolist()
    written = [
        [float(by_number[number][name]) for name in ("long", "vowel")] for number in range(10)
    ]
    assert written == [pytest.approx(row, abs=1e-6) for row in shares]


def test_the_strongest_baseline_is_judged_and_each_method_has_a_row_with_its_paired_gain(
    pages, tmp_path
):
    task = pages()
    _, scores = evaluated(task)
    true = task.targets("test")
    nearly = task._guesses["nearly right"]
    assert task.baseline()["macro_f1"] == reference.f1_score(true, nearly, average="macro")
    text = task.report({}, tmp_path)
    rows = {row["method"]: row for row in rows_of(tmp_path / "evaluation.csv")}
    assert [*rows] == [
        "commonest",
        "wrong",
        "nearly right",
        "network",
    ]
    assert "'network' is surely below the strongest" in text
    network = {name: float(cell) for name, cell in rows["network"].items() if name != "method"}
    assert (
        network["accuracy_low"] < network["accuracy"] == pytest.approx(scores["accuracy"], abs=1e-6)
    )
    gain = scores["accuracy"] - reference.accuracy_score(true, nearly)
    assert network["gain_accuracy"] == pytest.approx(gain, abs=1e-6)
    assert float(rows["nearly right"]["gain_macro_f1_high"]) == 0
    assert "f1_vowel" in rows["network"]
    answers = rows_of(tmp_path / "answers.csv")
    assert [*answers[0]][:-4] == ["page", "sample", "target", *rows]
    assert len(answers) == len(true)
    assert [*answers[0]][-4:] == ["consonant", "vowel", "2", "3"], (
        "the probabilities of four outputs"
    )
    for row in answers:
        shares = [float(row[name]) for name in [*row][-4:]]
        assert float(row[row["network"]]) == max(shares)
        is_wrong = int(row["sample"]) % 5 == 0
        assert is_wrong or row["target"] == row["nearly right"]


def test_intervals_are_those_of_scikit_learn_on_draws_of_groups(pages):
    task = pages()
    evaluated(task)
    judged = task._tested["network"]
    constant = judged._replace(guess=0 * judged.guess)
    scores, *_ = task._compared({"constant": constant, "network": judged}, "constant")
    groups = np.array([task.group(sample) for sample in task.parts["test"].samples])[judged.sample]
    names = sorted({*groups})
    places = [names.index(group) for group in groups]
    weights = resampled(np.eye(len(names)), task._draws)[:200, places]

    def macro_f1(weight):
        options = {"average": "macro", "zero_division": 0, "sample_weight": weight}
        return reference.f1_score(judged.true, judged.guess, **options)

    def accuracy(weight):
        return reference.accuracy_score(judged.true, judged.guess, sample_weight=weight)

    for interval, score in zip(scores["network"], (macro_f1, accuracy), strict=True):
        bounds = np.percentile([*map(score, weights)], (2.5, 97.5))
        assert (interval.low, interval.high) == pytest.approx(bounds, abs=0.06), "of fewer draws"


def test_metrics_that_follow_from_sums_are_scikit_learns():
    draw = np.random.default_rng(0)
    true, guess = draw.integers(4, size=(2, 60))
    metrics = ("macro_f1", "weighted_f1", "accuracy", "mcc", "kappa")
    judged = Judged(true, guess, sample=np.arange(60))
    sums = kinds.of("classes").tallied(metrics, {"a": judged}, np.zeros(60, int), 1)[:, 0]
    values = kinds.of("classes").measured(metrics, sums)
    sklearn = [
        reference.f1_score(true, guess, average="macro"),
        reference.f1_score(true, guess, average="weighted"),
        reference.accuracy_score(true, guess),
        reference.matthews_corrcoef(true, guess),
    ]
    assert values[0, :4] == pytest.approx(sklearn)
    assert np.isnan(values[0, 4])
    assert of_classes(sums)["mean_iou"] == pytest.approx(
        reference.jaccard_score(true, guess, average="macro")
    )


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [(Heights, ("rmse", "mae", "r2", "mape")), (Tags, ("accuracy", "macro_f1", "kappa"))],
)
def test_numbers_and_tokens_have_intervals_also_of_a_metric_without_sums(
    configured, tmp_path, monkeypatch, few, kind, metrics
):
    monkeypatch.setattr(kind, "metrics", metrics)
    task = kind(configured(kind.__name__))
    _, scores = evaluated(task)
    task.report({}, tmp_path)
    *others, row = rows_of(tmp_path / "evaluation.csv")
    choose = min if metrics[0] == "rmse" else max
    simple = choose(others, key=lambda other: float(other[metrics[0]]))
    network = {name: float(cell) for name, cell in row.items() if cell and name != "method"}
    for metric in metrics:
        assert network[metric] == pytest.approx(scores[metric], rel=1e-4)
        assert network[f"{metric}_low"] <= network[metric] <= network[f"{metric}_high"]
    first = metrics[0]
    gain = network[first] - float(simple[first])
    gain = -gain if first == "rmse" else gain
    assert network[f"gain_{first}"] == pytest.approx(gain, abs=3e-6)


def test_pixels_are_judged_alike_with_classes_second_or_last_and_by_iou_and_dice(configured):
    scores = []
    for kind in (Pixels, PixelsLast):
        task = kind(configured("Pixels"))
        model, found = evaluated(task)
        scores.append(found)
        batch = batch_of(task, "test")
        answers = task.answers([model], task.parts["test"].samples)
        assert [row["prediction"].tolist() for row in answers] == model(batch["x"]).argmax(
            1
        ).tolist()
    assert scores[0] == scores[1]
    guess = model(batch["x"]).argmax(1)
    known = batch["labels"] != -100
    true = batch["labels"][known].numpy()
    guess = guess[known].numpy()
    assert scores[0]["mean_iou"] == pytest.approx(
        reference.jaccard_score(true, guess, average="macro")
    )
    assert scores[0]["mean_dice"] == pytest.approx(reference.f1_score(true, guess, average="macro"))
    iou = reference.jaccard_score(true, guess, average=None, labels=[0, 1, 2])
    columns = task.columns(Judged(true, guess))
    assert [columns[f"iou_{k}"] for k in range(3)] == pytest.approx(iou.tolist())
