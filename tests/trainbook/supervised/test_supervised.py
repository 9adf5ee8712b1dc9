"""What follows from model, read, batch and example: counts, losses, metrics, baseline, description, fingerprint."""

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import nn
from torch.nn import functional as F

from lib import planner
from lib.errors import BadInput
from lib.task import find_task
from lib.training import identity
from lib.training.order import weights_of
from tests.conftest import ROOT
from trainbook import Supervised, launch
from trainbook.supervised import kinds
from trainbook.supervised.samples import prepared

TASKS = ROOT / "tests" / "trainbook" / "supervised" / "tasks.py"


def batch_of(task, part="train", number=8, first=0):
    samples = task.datasets()[part]
    return task.collate(
        [samples[i] for i in range(len(samples))[first : first + number]], torch.Generator()
    )


class Loader(list):
    """Batches, and the data set that they are of."""

    def __init__(self, task, part, size=4):
        self.dataset = task.datasets()[part]
        super().__init__(
            batch_of(task, part, size, first) for first in range(0, len(self.dataset), size)
        )


@pytest.mark.parametrize("name", ["Words", "Heights", "Tags", "Following"])
def test_a_task_trains_and_its_table_has_each_metric_beside_the_baseline(
    configured, words, name, capsys, quick
):
    task = find_task(f"{TASKS}:{name}")
    summary = launch.train(configured(name, {"data.dir": str(words)} if name == "Words" else {}))
    metrics = {"Words": ["macro_f1", "accuracy"], "Heights": ["rmse", "r2"]}.get(name, ["accuracy"])
    assert summary.reason == "completed"
    assert list(summary.metrics) == list(summary.baseline) == metrics
    assert task.selection == (metrics[0], "min" if name == "Heights" else "max")
    assert summary.best["metric"] == metrics[0]
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == [metrics[0]]]
    assert float(rows[0][1]) == pytest.approx(summary.baseline[metrics[0]], abs=1e-3)
    assert float(rows[0][2]) == pytest.approx(summary.metrics[metrics[0]], abs=1e-3)


def test_sums_and_counts_are_those_of_torch(task):
    words, heights, tags, following = map(task, ("Words", "Heights", "Tags", "Following"))
    for each in (words, heights, following):
        torch.manual_seed(0)
        model = each.model().eval()
        batch = batch_of(each)
        out = model(batch["ids" if each is following else "x"])
        labels = batch["labels"]
        if each is heights:
            targets = torch.tensor([y for _, y in heights.read()["train"]])
            right = F.mse_loss(out[:, 0], labels, reduction="sum") / targets.var(correction=0)
        elif each is words:
            right = F.cross_entropy(out, labels, reduction="sum")
        else:
            right = F.cross_entropy(
                out[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
            )
        assert each.loss(model, batch)[0]["loss"].item() == pytest.approx(right.item(), rel=1e-6)
        assert each is following or each.count(batch) == {"loss": 8}
    assert following.count({"labels": labels}) == {"loss": int((labels[:, 1:] != -100).sum())}
    model = heights.model()
    batch = batch_of(heights)
    batch["labels"][:3] = math.nan  # an unknown number is no target and has no gradient
    assert heights.count(batch) == {"loss": 5}
    heights.loss(model, batch)[0]["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    scores = heights.evaluate(model, [batch])
    assert scores["loss"] == pytest.approx(
        scores["rmse"] ** 2 / heights.targets("train").var(), rel=1e-5
    )
    # balanced classes weigh as much as each other, and the count stays
    model = tags.model()
    batch = batch_of(tags)
    train = tags.targets("train")
    counts = np.bincount(train, minlength=6)
    weights = torch.from_numpy(
        np.where(counts > 0, len(train) / (len(set(train)) * counts.clip(1)), 1.0)
    )
    out = model(batch["ids"]).flatten(0, 1).double()
    labels = batch["labels"].flatten()
    right = F.cross_entropy(out, labels, weights, reduction="sum").item()
    assert tags.loss(model, batch)[0]["loss"].item() == pytest.approx(right, rel=1e-5)
    assert tags.count(batch) == {"loss": int((labels != -100).sum())}


def test_a_plan_has_the_classes_of_data_that_is_there_and_needs_none_for_anything_else(
    configured, words, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Supervised, "parts", property(lambda self: pytest.fail("it read data")))
        for name in ("Words", "Tags"):  # which balances its classes
            assert planner.make(configured(name), planner.find_card("t4")).chosen.prediction.fits
    outputs = []

    def model(self):
        outputs.append(len(self.names))
        return nn.Linear(2, len(self.names))

    monkeypatch.setattr(find_task(configured("Words").task), "model", model)
    plan = planner.make(configured("Words", {"data.dir": str(words)}), planner.find_card("t4"))
    assert plan.chosen.prediction.fits
    assert set(outputs) == {2}
    with pytest.raises(
        BadInput,
        match="The names of the classes of Words come from .*give the classes in a setting",
    ):
        planner.make(configured("Words", {"data.dir": "nowhere"}), planner.find_card("t4"))


def test_names_of_classes_come_from_the_training_data_and_others_are_listed(task, monkeypatch):
    words = task("Words")
    assert words.names == ["consonant", "vowel"]
    assert "Classes: consonant, vowel." in words.describe_data()
    assert {item.sample[1] for item in (words.parts["train"][i] for i in range(9))} <= {0, 1}
    rows = {part: list(words.parts[part].samples) for part in words.parts}
    words.parts["test"].samples[0] = ("x", "other")
    with pytest.raises(BadInput, match="no class 'other'. Name it in the setting"):
        words.parts["test"][0]
    rows["test"] += [("x", "rare"), ("y", "rare")]
    monkeypatch.setattr(type(words), "read", lambda self, source: rows)
    with pytest.raises(
        BadInput, match=r"in no training sample and in no setting `classes`.*: 'rare' \(2\)"
    ):
        task("Words").datasets()
    monkeypatch.setattr(type(words), "classes", ("consonant", "vowel", "rare"), raising=False)
    assert len(task("Words").datasets()["test"]) == len(rows["test"])


def test_metrics_are_those_of_the_whole_set_and_a_constant_is_the_commonest_class_or_the_mean(
    task, monkeypatch
):
    monkeypatch.setattr(
        Supervised, "baselines", lambda self: {}
    )  # which a constant is the only one beside
    words = task("Words")
    heights = task("Heights")
    tags = task("Tags")
    model = words.model().eval()
    scores = words.evaluate(model, Loader(words, "test", 3))
    whole = batch_of(words, "test", 99)
    true = whole["labels"].numpy()
    guess = model(whole["x"]).argmax(1).numpy()
    assert scores["macro_f1"] == reference.f1_score(true, guess, average="macro", zero_division=0)
    assert scores["loss"] == pytest.approx(
        F.cross_entropy(model(whole["x"]), whole["labels"]).item(), rel=1e-5
    )
    guess = np.full_like(true, np.bincount(words.targets("train")).argmax())
    assert words.baseline()["accuracy"] == (words.targets("test") == guess).mean()
    far = heights.targets("test") - heights.targets("train").mean()
    assert heights.baseline()["rmse"] == pytest.approx(float(np.sqrt((far**2).mean())), rel=1e-5)
    tokens = np.array([token for ids, _ in tags.read()["test"] for token in ids if token])
    assert tags.baseline()["accuracy"] == pytest.approx(
        (tokens == np.bincount(tokens).argmax()).mean()
    )


def test_the_fingerprint_is_that_of_the_files_and_of_what_is_in_which_part(
    task, words, monkeypatch
):
    heights = task("Heights")
    first = task("Words")
    before = heights.fingerprint()
    rows = heights.read()
    assert task("Heights").fingerprint() == before
    monkeypatch.setattr(
        type(heights), "read", lambda self, source=None: {**rows, "test": rows["test"][1:]}
    )
    assert task("Heights").fingerprint() != before
    moved = {part: [*first.parts[part].samples] for part in first.parts}
    moved["test"].append(moved["train"].pop())
    with monkeypatch.context() as patch:
        patch.setattr(type(first), "read", lambda self, source: moved)
        now = task("Words").fingerprint()
    assert now != first.fingerprint()
    assert now.split()[0] == first.fingerprint().split()[0] == first._files_hash
    with pytest.raises(BadInput, match="data fingerprint"):
        identity.check(
            {"data fingerprint": first.fingerprint()}, {"data fingerprint": now}, Path("runs")
        )
    (words / "words.jsonl").write_text((words / "words.jsonl").read_text() + "\n\n")
    assert task("Words").fingerprint() != first.fingerprint()


def test_tokens_are_scored_by_how_often_each_pair_came_and_to_the_same_numbers(task, monkeypatch):
    def misses(true, guess):
        return float((true != guess).sum())

    tags = task("Tags")
    monkeypatch.setattr(
        type(tags), "metrics", ("accuracy", "macro_f1", "mcc", "kappa", "balanced_accuracy")
    )
    torch.manual_seed(0)
    model = tags.model().eval()
    loader = Loader(tags, "test")
    weighed = tags.evaluate(model, loader)
    true, guess, counts, _, sample = tags._tested["network"]
    pairs = {*zip(sample.tolist(), true.tolist(), guess.tolist(), strict=True)}
    assert counts.sum() > len(counts) == len(pairs)
    trivial = tags.baseline()
    monkeypatch.setattr(type(tags), "metrics", (*tags.metrics, misses))
    plain = tags.evaluate(model, loader)
    assert tags._tested["network"].counts is None
    assert plain.pop("misses") == counts[true != guess].sum()
    assert plain == pytest.approx(weighed, rel=1e-12)
    assert {name: tags.baseline()[name] for name in trivial} == pytest.approx(trivial, rel=1e-12)


@pytest.fixture
def topics(task, monkeypatch):
    """A task of any number of classes a sample, beside a constant alone."""
    monkeypatch.setattr(Supervised, "baselines", lambda self: {})
    return task("Topics")


@pytest.mark.usefixtures("quick", "few", "topics")
def test_any_number_of_classes_trains_by_each_metric(configured):
    summary = launch.train(configured("Topics"))
    assert summary.reason == "completed"
    assert list(summary.metrics) == ["macro_f1", "accuracy", "roc_auc"]


def test_names_of_any_number_of_classes_become_marks(topics):
    assert topics.names == ["long", "vowel"]
    assert prepared(topics, ("x", ["vowel"])) == ("x", [0.0, 1.0])
    with pytest.raises(BadInput):
        prepared(topics, ("x", ["wide"]))


def test_marks_are_scored_as_by_torch_and_scikit_learn(topics):
    model = topics.model().eval()
    batch = batch_of(topics, "test", 10)
    out = model(batch["x"]).detach()
    guess = out.numpy() > 0
    true = batch["labels"].numpy().astype(int)
    scores = topics.evaluate(model, Loader(topics, "test"))
    loss = F.binary_cross_entropy_with_logits(out, batch["labels"]).item()
    assert scores["loss"] == pytest.approx(loss, rel=1e-5)
    macro_f1 = reference.f1_score(true, guess, average="macro", zero_division=0)
    assert scores["macro_f1"] == pytest.approx(macro_f1)
    assert scores["accuracy"] == reference.accuracy_score(true, guess)
    area = reference.roc_auc_score(true, out.sigmoid().numpy())
    assert scores["roc_auc"] == pytest.approx(area)
    often = topics.targets("train").mean(0) > 0.5
    assert topics.baseline()["accuracy"] == (true == often).all(1).mean()


def test_an_unknown_mark_is_no_target_and_its_sample_is_not_judged(topics):
    model = topics.model()
    batch = batch_of(topics, "test", 10)
    labels = batch["labels"]
    labels[0, 0] = math.nan
    assert topics.count(batch) == {"loss": 19}
    assert kinds.of("labels").judged(labels, labels).shape == (9, 2)
    topics.loss(model, batch)[0]["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("bias", "answer"),
    [
        ([-1.0, 1.0], ("vowel", "0.731059", 0.2689414, 0.7310586)),
        ([-1.0, -1.0], ("", "", 0.2689414, 0.2689414)),
    ],
)
def test_an_answer_names_the_classes_above_a_half(topics, bias, answer, monkeypatch, capsys):
    model = topics.model().eval()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor(bias))
    monkeypatch.setattr(type(topics), "read_new", lambda self, source: [("word", None)])
    row = topics.predict([model], Path(), None)["0"]
    assert row == dict(zip(("prediction", "probability", "long", "vowel"), answer, strict=True))
    is_noted = "1 of 1 samples have no class with a probability above 0.5"
    assert (is_noted in capsys.readouterr().out) == (not answer[0])


def test_loader_workers_are_sent_no_samples_twice_and_draw_in_training_alone(task, monkeypatch):
    words = task("Words")
    draws = []
    assert b"apple" in pickle.dumps(words.datasets())
    assert b"apple" not in pickle.dumps(words)
    assert "parts" not in vars(copy.copy(words))
    back = pickle.loads(pickle.dumps(words.datasets()["train"]))
    assert back[0] == words.parts["train"][0]
    assert len(back) == len(words.parts["train"])
    monkeypatch.setattr(type(words), "batch", lambda self, samples, training: draws.append(training) or {
        "labels": torch.tensor([label for _, label in samples])})  # fmt: skip
    for part in ("train", "validation", "test"):
        batch_of(words, part)
    words.example_batch(2, torch.device("cpu"))
    assert draws == [True, False, False, False]


def test_outputs_are_by_name_where_forward_has_the_names_and_else_in_order(task):
    def outputs(forward):
        model = type("Model", (nn.Module,), {"forward": forward})()
        batch = {"a": torch.ones(2, 3), "b": torch.zeros(2, 3), "labels": torch.zeros(2).long()}
        return task("Words").outputs(model, batch)

    named = outputs(lambda self, b, a: type("Output", (), {"logits": a - b})())
    assert torch.equal(named, torch.ones(2, 3))
    assert torch.equal(outputs(lambda self, x, y: x - y), torch.ones(2, 3))
    with pytest.raises(BadInput, match="returned a tuple without `logits`"):
        outputs(lambda self, **more: (1, 2))


def test_order_and_weights_of_samples_are_the_parts_and_lazy_sequences_stay_lazy(task, monkeypatch):
    class Rows(list):
        weights = [5.0] + [0.0] * 27

        def order(self, seed, epoch):
            return [3, 1]

    class Lazy:
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return {"x": [0.5, 0.5], "y": float(index % 2)}

    parts = task("Heights").read()

    def reading(rows):
        monkeypatch.setattr(find_task(f"{TASKS}:Heights"), "read", lambda self, source=None: rows)
        return task("Heights")

    heights = reading({**parts, "train": Rows(parts["train"])})
    train = copy.copy(heights.datasets()["train"])
    assert weights_of(train).tolist() == Rows.weights
    assert train.order(0, 0) == [3, 1]
    assert not hasattr(heights.datasets()["test"], "weights")
    with pytest.raises(
        BadInput,
        match="read returned one list with `weights`, which belongs to the training samples",
    ):
        reading(Rows(parts["train"])).datasets()
    heights = reading(dict.fromkeys(parts, Lazy()))
    assert "1,000,000,000 train" in heights.describe_data()
    assert heights.datasets()["train"][10**9 - 1].sample["y"] == 1.0


def test_the_class_is_refused_where_its_kind_or_the_direction_of_its_metric_is_unclear():
    def bias(true, guess):
        return float((guess - true).mean())

    def mine(bases=Supervised, **members):
        return type("Mine", (bases,), members)

    heights = find_task(f"{TASKS}:Heights")
    for bases, members, sentence in (
        (
            heights,
            {"metrics": bias},
            "metric 'bias' is better cannot be seen.*selection = ..bias., .min.. or",
        ),
        (
            Supervised,
            {"kind": "words"},
            "Mine.kind is 'words'. It is one of: classes, numbers, tokens, next_tokens",
        ),
        (
            Supervised,
            {"kind": "labels", "balanced": True},
            "Mine.balanced is for classes and tokens",
        ),
    ):
        with pytest.raises(BadInput, match=sentence):
            mine(bases, **members)
    assert mine(heights, metrics=bias, selection=("bias", "min")).selection[1] == "min"
    assert mine(heights, metrics=()).selection == ("loss", "min")


def labels_of_ones(task, samples, training):
    return {"labels": torch.ones(8)}


def labels_of_another_class(task, samples, training):
    return {"x": torch.ones(len(samples), 2), "labels": torch.full((len(samples),), 4)}


def one_output(task, model, batch):
    return model(batch["x"])[:, :1]


def two_numbers(task, model, batch):
    return model(batch["x"]).expand(-1, 2)


def opens(task, source):
    return (source / "train.csv").open()


def looks_up(task, source):
    return {}["sentence"]


MISTAKES = [
    ("Words", "batch", lambda *_: {"x": torch.ones(8)}, 'batch returned no tensor "labels"'),
    ("Words", "batch", labels_of_ones, "Classes are whole numbers"),
    ("Words", "batch", labels_of_another_class, "go from 4 to 4, and the model"),
    ("Words", "outputs", one_output, "one dimension more"),
    ("Heights", "outputs", two_numbers, "Return a number for each label"),
    ("Words", "metrics", ("f2",), "There is no metric 'f2'"),
    ("Words", "read", lambda *_: [("a", None)], "1 samples whose target is None"),
    ("Words", "read", lambda *_: [], "read found no samples in .*words, which has files: 1 .jsonl"),
    ("Words", "read", opens, "raises FileNotFoundError: .*train.csv"),
    ("Words", "read", looks_up, "raises KeyError: 'sentence' .*test_supervised.py:"),
    ("Words", "learn", lambda *_: {"mean": np.ones(2)}, "JSON of what Words.learn returns raises"),
]


@pytest.mark.parametrize(("name", "member", "value", "sentence"), MISTAKES)
def test_an_ordinary_mistake_is_named(task, monkeypatch, name, member, value, sentence):
    mistaken = task(name)
    monkeypatch.setattr(type(mistaken), member, value)
    with pytest.raises(BadInput, match=sentence):
        batch = batch_of(mistaken)
        mistaken.count(batch)
        mistaken.loss(mistaken.model(), batch)


@pytest.mark.parametrize("method", ["model", "read", "batch", "example"])
def test_what_is_not_written_is_named(configured, tmp_path, method):
    bare = Supervised(configured("Heights"), tmp_path)
    calls = {
        "model": bare.model,
        "read": bare.datasets,
        "batch": lambda: bare.batch([], False),
        "example": bare.example,
    }
    sentence = rf"Supervised has no {method}\(.*Write it in the class Supervised"
    with pytest.raises(BadInput, match=sentence):
        calls[method]()


def test_a_task_without_data_names_the_key(configured):
    sentence = "data.dir is empty, and there is no mounted input. Give the folder"
    with pytest.raises(BadInput, match=sentence):
        find_task(f"{TASKS}:Words")(configured("Words")).datasets()
