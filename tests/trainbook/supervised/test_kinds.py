"""The kinds of targets: six by name, one of a user's own, and the names that a task has in public."""

import csv

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from lib.errors import BadInput
from lib.task import Task, load_config
from tests.trainbook.supervised import ordered
from tests.trainbook.supervised.ordered import Essays, Grades
from tests.trainbook.supervised.tasks import Words
from tests.trainbook.supervised.test_supervised import Loader, batch_of
from trainbook import Classes, Labels, NextTokens, Numbers, Supervised, Text, Tokens, launch
from trainbook.launch import checks
from trainbook.launch.ensemble import load_members
from trainbook.supervised import kinds
from trainbook.supervised.simple import fit

# 30 before published encoders: encoded, encoder, pictures, side, with_head, with_decoder came in
MOST_NAMES = 36
CONFIG = f"""
task: {ordered.__file__}:Essays
run: {{name: essays}}
data: {{num_workers: 0}}
training: {{max_steps: 6, effective_batch: 8, evaluate_every_steps: 3}}
optimizer: {{lr: 0.1}}
"""


@pytest.fixture
def essays(tmp_path):
    """essays(**overrides) -> the configuration of a task whose kind is its own."""

    def make(**overrides):
        path = tmp_path / "essays.yaml"
        path.write_text(CONFIG)
        return load_config(path, {"output_dir": str(tmp_path / "runs"), **overrides})

    return make


def test_a_method_that_an_earlier_version_called_is_named(essays):
    class Old(Essays):
        def prepared(self, sample):
            return sample

    assert "Old.prepared: an earlier version" in Old(essays()).describe_data()
    assert "earlier version" not in Essays(essays()).describe_data()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("classes", Classes),
        ("numbers", Numbers),
        ("labels", Labels),
        ("tokens", Tokens),
        ("next_tokens", NextTokens),
        ("text", Text),
    ],
)
def test_a_short_name_stands_for_a_class(name, kind):
    assert type(kinds.of(name)) is kind
    assert kinds.of(kind).name == name
    assert kinds.name_of(type("Named", (Supervised,), {"kind": name})) == name
    assert kinds.name_of(type("Given", (Supervised,), {"kind": kind})) == name


def test_a_kind_without_a_short_name_has_that_of_its_class():
    assert kinds.of(type("Boxes", (kinds.Kind,), {})).name == "Boxes"
    assert kinds.of(Grades).name == "classes"


@pytest.mark.parametrize("kind", ["clases", Words, 5])
def test_another_kind_is_refused(kind):
    with pytest.raises(BadInput, match="kind is .* It is one of: classes, numbers"):
        type("Other", (Supervised,), {"kind": kind})


def test_a_task_has_few_public_names():
    names = {name for name in dir(Supervised) if not name.startswith("_")} - {*dir(Task)}
    assert len(names) <= MOST_NAMES, sorted(names)


def test_metrics_and_loss_are_those_of_the_users_kind(essays):
    task = Essays(essays())
    assert task.metrics == task.shown == ("quadratic_kappa", "accuracy")
    assert task.selection == ("quadratic_kappa", "max")
    torch.manual_seed(0)
    model = task.model().eval()
    batch = batch_of(task, number=8)
    shares = model(batch["x"]).softmax(-1).detach().numpy()
    true = np.eye(4)[batch["labels"].numpy()]
    distance = np.cumsum(shares, 1) - np.cumsum(true, 1)
    assert task.loss(model, batch)[0]["loss"].item() == pytest.approx((distance**2).sum(), rel=1e-5)


def test_scores_are_by_the_guess_of_the_users_kind(essays):
    task = Essays(essays())
    torch.manual_seed(0)
    model = task.model().eval()
    batch = batch_of(task, "test", 99)
    shares = model(batch["x"]).softmax(-1).detach().numpy()
    medians = [int(np.searchsorted(row, 0.5)) for row in np.cumsum(shares, 1)]
    assert medians != shares.argmax(1).tolist(), "a median is not the likeliest class"
    kappa = reference.cohen_kappa_score(batch["labels"].numpy(), medians, weights="quadratic")
    assert task.evaluate(model, Loader(task, "test"))["quadratic_kappa"] == pytest.approx(kappa)


@pytest.mark.parametrize("starts", [False, True])
def test_the_users_kind_trains_is_scored_and_predicts(essays, starts, tmp_path, quick, few):
    config = essays(**{"training.start_from_baseline": starts})
    assert checks.examine(Essays(config), config) == []
    summary = launch.train(config)
    assert summary.reason == "completed"
    assert list(summary.metrics)[:2] == ["quadratic_kappa", "accuracy"]
    assert not summary.missing
    folder = tmp_path / "runs" / "essays"
    with (folder / "evaluation.csv").open() as file:
        methods = [row["method"] for row in csv.DictReader(file)]
    assert methods[-1] == ("answer" if starts else "network")
    task, models = load_members([folder], f"{ordered.__file__}:Essays")
    rows = task.answers(models, [((3.9, 0.5), 0), ((0.1, 0.5), 0)])
    assert [*rows[0]] == ["prediction", "probability", *Essays.classes]
    for row in rows:
        cumulative = np.cumsum([row[name] for name in Essays.classes])
        median = Essays.classes[int(np.searchsorted(cumulative, 0.5))]
        assert row["prediction"] == median
        assert row["probability"] == pytest.approx(row[median], abs=1e-6)


def test_the_simple_method_guesses_as_the_users_kind_does(essays):
    task = Essays(essays())
    simple = fit(task)[0]
    batch = task.labelled(task.parts["test"].samples)
    guess = task._kind.guess(simple.scores(task, batch))
    assert (guess - batch["labels"]).abs().float().mean() < 0.5
