"""The simple methods beside the network: strong on each form of data, chosen by the metric that selects, bounded."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction import DictVectorizer
from sklearn.svm import LinearSVC
from torch import nn

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Heights, Words
from trainbook import IGNORED, Supervised, padded
from trainbook.supervised import evaluation, scoring, simple
from trainbook.supervised.scoring import Judged
from trainbook.supervised.simple import estimators, fit, fitting, restored
from trainbook.supervised.simple import rows as collecting
from trainbook.supervised.simple.columns import VIEWS, shape_of
from trainbook.supervised.simple.families import FAMILIES
from trainbook.supervised.simple.models import fitted, scored

HOUR = 3600.0
pytestmark = pytest.mark.usefixtures("quick", "few")


@pytest.fixture
def all_trees(monkeypatch):
    """As many as in a run."""
    monkeypatch.setattr(estimators, "GROWN", 60)
    monkeypatch.setattr(estimators, "ROUNDS", 100)


class Given(Supervised):
    """Samples are tensors with their target; the group of a sample is its number."""

    metrics = ("accuracy",)
    rows = ()
    groups = None

    def read(self, source=None):
        most = len(self.rows) * 3 // 4
        return {"train": self.rows[:most], "validation": self.rows[:8], "test": self.rows[most:]}

    def example(self):
        return self.rows[0]

    def batch(self, samples, training):
        x, labels = zip(*samples, strict=True)
        return {
            "x": nn.utils.rnn.pad_sequence(list(x), True, 0),
            "labels": torch.stack(list(map(torch.as_tensor, labels))),
        }


def pictures(draw):
    """Stripes across or down, in any colour: no colour tells them apart, and no pixel does."""
    for number in range(160):
        place = torch.arange(12) + number
        kind = number % 2
        plane = (place // 2 % 2).float().expand(12, 12)
        yield (plane if kind else plane.T) * torch.rand(3, 1, 1, generator=draw), kind


def pixels(draw):
    """A pixel is 1 where the mean of the five by five around it is high."""
    for _ in range(12):
        x = torch.rand(1, 16, 16, generator=draw)
        yield x, (nn.functional.avg_pool2d(x, 5, 1, 2, count_include_pad=False)[0] > 0.5).long()


def texts(draw):
    """Words of any number, the last of which fill; a class has a word of its own, among many others."""
    for number in range(160):
        words = torch.randint(3, 60, (4 + number % 7,), generator=draw)
        yield (
            torch.cat([words, torch.tensor([61 + number % 3])])[
                torch.randperm(len(words) + 1, generator=draw)
            ],
            number % 3,
        )


def tables(draw):
    """A number that only two columns together tell."""
    for _ in range(400):
        x = torch.rand(3, generator=draw) * 2 - 1
        yield x, float(torch.sign(x[0]) * torch.sign(x[1]))


def tags(draw):
    """A label is the word before."""
    for _ in range(40):
        ids = torch.randint(1, 5, (9,), generator=draw)
        yield ids, torch.cat([torch.tensor([-100]), ids[:-1]])


@pytest.mark.parametrize(("rows", "kind", "metric", "name", "least"), [
    (pictures, "classes", "accuracy", "linear model of pooled pixels", 0.95),
    (pixels, "tokens", "accuracy", "of surroundings", 0.9),
    (texts, "classes", "accuracy", "linear model of words", 0.9),
    (tables, "numbers", "r2", "of numbers", 0.8),
    (tags, "tokens", "accuracy", "linear model of neighbours", 0.99),
])  # fmt: skip
def test_each_form_of_data_has_a_strong_simple_method_on_samples_it_did_not_see(
    configured, all_trees, rows, kind, metric, name, least
):
    """No constant is above .55 in any of them."""
    members = {
        "rows": [*rows(torch.Generator().manual_seed(0))],
        "kind": kind,
        "metrics": (metric,),
    }
    task = type("Given", (Given,), members)(configured("Words"))
    methods = fit(task, HOUR)
    best = methods[0]
    batch = task.labelled(task.parts["test"].samples)
    assert best.name.endswith(name)
    scores = best.scores(task, batch)
    guess = scores if kind == "numbers" else scores.argmax(-1)
    judged = Judged(
        *(task._kind.judged(batch["labels"], values).numpy() for values in (batch["labels"], guess))
    )
    assert scoring.scores((metric,), judged)[metric] >= least
    again = restored(task, json.loads(json.dumps(simple.as_json(methods))))
    for method, other in zip(methods, again, strict=True):
        assert torch.equal(method.scores(task, batch), other.scores(task, batch))


@pytest.mark.parametrize("how", ["boosting", "forest"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_say_here_what_they_say_in_scikit_learn(configured, classes, how):
    draw = np.random.default_rng(0)
    values = draw.normal(size=(300, 4)).astype(np.float32)
    target = values[:, 0] * values[:, 1] + draw.normal(size=300) / 9
    options = {"max_leaf_nodes": 15, "max_depth": 6, "early_stopping": False, "random_state": 0}
    grown = {"n_estimators": estimators.GROWN, "max_leaf_nodes": 500, "min_samples_leaf": 3}
    if not classes:
        task = Heights(configured("Heights"))
        shape = target[:, None]
        model = HistGradientBoostingRegressor(max_iter=estimators.ROUNDS, **options)
        if how == "forest":
            model = RandomForestRegressor(max_features=1 / 3, random_state=0, **grown)
        right = model.fit(values, target).predict(values)[:, None]
    else:
        task = Words(configured("Words"))
        shape = np.digitize(target, [0.0, 0.7][: classes - 1])
        if how == "forest":
            model = RandomForestClassifier(random_state=0, **grown).fit(values, shape)
            right = model.predict_proba(values)
        else:
            model = HistGradientBoostingClassifier(max_iter=estimators.ROUNDS, **options).fit(
                values, shape
            )
            right = model.decision_function(values).reshape(300, -1)
    strength = 3 if how == "forest" else 15
    scores = scored(values, fitted(task, how, strength, False, values, shape, max(classes, 1)))
    is_margin = classes == 2 and how == "boosting"
    assert (scores[:, 1:] if is_margin else scores) == pytest.approx(right, abs=1e-6)


def test_balanced_boosting_names_a_rare_class_as_often_as_it_comes_to_equal_shares(configured):
    """The same columns say nothing: what is left are the shares of the classes, which count alike if balanced."""
    task = Words(configured("Words"))
    values = np.zeros((100, 1), np.float32)
    for target in (np.repeat([0, 1], [90, 10]), np.repeat([0, 1, 2], [70, 20, 10])):
        width = len(np.unique(target))
        plain, alike = (
            scored(values, fitted(task, "boosting", 15, each, values, target, width))[0]
            for each in (False, True)
        )
        shares = np.exp(plain) / np.exp(plain).sum()
        assert shares == pytest.approx(np.bincount(target) / 100, abs=0.01)
        assert alike - alike[0] == pytest.approx(np.zeros(width), abs=0.05)


class Tagged(Supervised):
    """Texts of words, each with a tag; what is seen are the words themselves."""

    kind = "tokens"
    metrics = ("macro_f1", "accuracy")
    classes = ("noun", "name", "verb")
    texts = ()

    def read(self, source=None):
        return {"train": self.texts, "validation": self.texts[:4], "test": self.texts[:8]}

    def example(self):
        return ["word"], [0]

    def features(self, batch):
        return batch["words"]

    def batch(self, samples, training):
        labels = [tags for _, tags in samples]
        return {"words": [words for words, _ in samples], "labels": padded(labels, IGNORED, 9)}


def tagged(configured, texts):
    return type("Tagged", (Tagged,), {"texts": texts})(configured("Words"))


def sentences(number):
    """Words whose capital, ending or predecessor tells their tag; most words come once."""
    draw = np.random.default_rng(0)
    texts = []
    for _ in range(number):
        words, tags = [], []
        for _ in range(draw.integers(3, 7)):
            stem = "".join(draw.choice([*"abcdefgh"], 4))
            tag = int(draw.integers(3))
            words.append([f"{stem}ness", stem.title(), f"{stem}ing"][tag])
            tags.append(tag)
            if draw.random() < 0.3:  # the word before is all that tells it
                words += ["to", f"{stem}ness"]
                tags += [0, 2]
        texts.append((words[:9], tags[:9]))
    return texts


def test_words_by_ending_capital_and_neighbour_beat_their_commonest_tag(configured):
    texts = sentences(60)
    task = tagged(configured, texts[:40])
    methods = fit(task, HOUR)
    assert [method.name for method in methods] == [
        "linear model of neighbours",
        "commonest tag of the word",
    ]
    batch = task.labelled(texts[40:])
    known = batch["labels"] != IGNORED
    right = [
        (method.scores(task, batch).argmax(-1) == batch["labels"])[known].float().mean()
        for method in methods
    ]
    assert right[0] > 0.95
    assert right[1] < 0.8


def properties(words, place):
    """What the documentation says of a word at a place, written anew."""
    table = {}
    for offset in (0, -1, 1, -2, 2):
        if not 0 <= place + offset < len(words):
            table[f"{offset} edge"] = 1
            continue
        word = words[place + offset]
        low = word.lower()
        sizes = (2, 3) if offset else (1, 2, 3, 4)
        table |= {f"{offset} ends {size} {low[-size:]}": 1 for size in sizes if len(low) >= size}
        table |= {f"{offset} low {low}": 1, f"{offset} shape {shape_of(word)}": 1}
        if not offset:
            table |= {f"begins {n} {low[:n]}": 1 for n in (1, 2, 3) if len(low) >= n}
            table[f"word {word}"] = 1
    return table


def test_margins_are_those_of_scikit_learn_by_the_same_properties(configured):
    texts = sentences(40)
    task = tagged(configured, texts)
    tables = [properties(words, place) for words, _ in texts for place in range(len(words))]
    tags = np.array([tag for _, tags in texts for tag in tags])
    table = DictVectorizer().fit_transform(tables)
    table.indices, table.indptr = (each.astype(np.int32) for each in (table.indices, table.indptr))
    model = LinearSVC(C=0.3, tol=0.1, dual=True, random_state=0).fit(table, tags)
    right = model.decision_function(table)
    rows = collecting.collected(task, np.arange(3), collecting.Clock(HOUR))
    batch = task.labelled(texts)
    is_known = (batch["labels"] != IGNORED).flatten().numpy()
    seen = simple.seen.seen(task, batch)[1][is_known]
    view = VIEWS["neighbours"].fit(seen)
    values = view.columns(seen)
    own = scored(values, fitted(task, "margins", 0.3, False, values, tags, 3))
    assert own == pytest.approx(right, abs=0.02)  # smallest weights are left out
    assert len(rows.target) == len(tags)


def test_a_word_has_its_commonest_tag_and_an_unknown_one_the_commonest_of_all(configured):
    draw = np.random.default_rng(0)
    texts = []
    for _ in range(40):
        words = draw.choice(["run", "Run", "house", "Rome"], 6).tolist()
        tags = [int(draw.choice([0, 0, {"run": 2, "Run": 1}.get(word, 0)])) for word in words]
        texts.append((words, tags))
    task = tagged(configured, texts)
    counts = {}
    for words, tags in texts:
        for word, tag in zip(words, tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    view = VIEWS["word"]
    rows = collecting.collected(task, np.arange(3), collecting.Clock(HOUR))
    columns = view.fit(rows.values)
    values = columns.columns(rows.values)
    model = fitted(task, "counts", 1, False, values, rows.target, 3)
    words = [*counts, "never"]
    seen = np.array([[word, None, None, None, None] for word in words], object)
    guess = scored(columns.columns(seen), model).argmax(1).tolist()
    expected = [counts[word].most_common(1)[0][0] for word in counts]
    assert guess == [*expected, sum(counts.values(), Counter()).most_common(1)[0][0]]


def test_the_metric_chooses_the_method_and_not_the_loss(configured):
    """One of ten is of the rare class: balanced accuracy gains where it is named often, and the loss does not."""
    draw = torch.Generator().manual_seed(0)
    rows = []
    for number in range(600):
        kind = int(number % 10 == 0)
        rows.append((torch.randn(2, generator=draw) + 1.0 * kind, kind))
    (linear,) = (each for each in FAMILIES["numbers"] if each.how == "linear")
    scores = {}
    losses = {}
    for metric in ("accuracy", "balanced_accuracy"):
        task = type("Given", (Given,), {"rows": rows, "metrics": (metric,)})(configured("Words"))
        clock = collecting.Clock(HOUR)
        seen = collecting.collected(task, np.arange(2), clock)
        found = fitting._Work(task, seen, 2, clock, []).tried(linear, HOUR)
        batch = task.labelled(rows)
        guess = found.method.scores(task, batch).argmax(-1).numpy()
        scores[metric] = scoring.score("balanced_accuracy", Judged(batch["labels"].numpy(), guess))
        losses[metric] = found.loss
    assert losses["balanced_accuracy"] > losses["accuracy"] + 0.05
    assert scores["balanced_accuracy"] > scores["accuracy"] + 0.05


def test_a_constant_that_wins_is_called_so_and_the_others_keep_their_rows(configured):
    """What a number follows from is the contrary in three of five folds: what is learned is worse than the mean."""
    draw = torch.Generator().manual_seed(0)
    rows = [(torch.randn(1, generator=draw), 0.0) for _ in range(160)]
    members = {"rows": rows, "kind": "numbers", "metrics": ("rmse",)}
    part = type("Given", (Given,), members)(configured("Words")).parts["train"]
    for place in range(len(part)):
        x = rows[place][0]
        rows[place] = (x, float(x if part.fold(place) < 2 else -x))
    task = type("Given", (Given,), members)(configured("Words"))
    task._simples = fit(task, HOUR)
    best, *others = task._simples
    assert best.name == "always the same"
    assert best.is_constant
    assert [*evaluation.simple_rows(task)] == [method.name for method in others]
    assert not any(method.is_constant for method in others)


def test_each_family_of_a_table_has_a_row(configured, all_trees):
    members = {"rows": [*tables(torch.Generator().manual_seed(0))], "kind": "numbers"}
    task = type("Given", (Given,), {**members, "metrics": ("rmse",)})(configured("Words"))
    task._simples = fit(task, HOUR)
    rows = evaluation.simple_rows(task)
    assert {*rows} == {"linear model of numbers", "boosting of numbers", "forest of numbers"}
    errors = {name: scoring.scores(("rmse",), row)["rmse"] for name, row in rows.items()}
    assert errors["linear model of numbers"] > 2 * min(errors.values())
    assert task._simple.name == min(errors, key=errors.get)


def test_words_that_are_fewer_than_the_labels_are_no_simple_method_and_said(configured, capsys):
    task = tagged(configured, [(["one", "word"], [0, 1, 2])] * 20)
    assert fit(task, HOUR) == []
    assert "returned 2 words of a sample whose labels need 3" in capsys.readouterr().out
    with pytest.raises(BadInput, match="Return a word for each position"):
        simple.seen.seen(task, task.labelled(task.texts))


def test_an_error_of_the_tasks_own_batches_is_not_taken_for_one_of_a_fit(configured):
    task = tagged(configured, [(["one", "word"], [0, 1])] * 20)
    task.batch = lambda samples, training: {"labels": torch.tensor([("O",).index("B")])}
    with pytest.raises(ValueError, match="not in tuple"):
        fit(task, HOUR)


def test_what_time_does_not_reach_is_said_with_the_rows_that_it_does(
    configured, monkeypatch, capsys
):
    """Here a second passes between two looks at the clock: 50 rows take 1 s to see, and 1/2 a fit."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(fitting, "_PROBED", 50)
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(collecting.time, "monotonic", lambda: 0.0)
    rows = [(torch.randn(2), float(number)) for number in range(800)]
    members = {"rows": rows, "kind": "numbers", "metrics": ("rmse",)}
    task = type("Given", (Given,), members)(configured("Words"))
    fit(task, seconds=99)
    printed = capsys.readouterr().out
    # 33 s for each of three families: 50 * 33 / (1 + (4 strengths + 1) * 5 folds / 2)
    assert (
        "linear model of numbers was fitted to 122 of 600 rows (simple methods have 99 s)"
        in printed
    )


def test_without_time_no_family_is_tried_and_each_is_named(configured, monkeypatch, capsys):
    members = {"rows": [*tables(torch.Generator().manual_seed(0))], "kind": "numbers"}
    task = type("Given", (Given,), {**members, "metrics": ("rmse",)})(configured("Words"))
    (best,) = fit(task, seconds=0)
    assert best.is_constant
    printed = capsys.readouterr().out
    for family in ("linear model", "boosting", "forest"):
        assert f"There was no time for the {family} of numbers" in printed


def test_methods_that_take_too_many_bytes_are_not_kept_and_said(configured, monkeypatch, capsys):
    task = tagged(configured, sentences(40))
    methods = fit(task, HOUR)
    sizes = [len(method.as_json()["arrays"]) for method in methods]
    monkeypatch.setattr(simple.method, "_MOST_TEXT", max(sizes) - 1)
    kept = simple.as_json(methods)
    assert [each["name"] for each in kept] == [
        method.name for method, size in zip(methods, sizes, strict=True) if size < max(sizes)
    ]
    assert "is not kept with the run: it takes" in capsys.readouterr().out
