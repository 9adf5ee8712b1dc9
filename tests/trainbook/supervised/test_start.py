"""The simple method beside the network, and answers that start from it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Following, Heights, Words
from tests.trainbook.supervised.test_methods import Pages, rows_of
from trainbook import Supervised, launch
from trainbook.supervised import scoring
from trainbook.supervised.scoring import Judged
from trainbook.supervised.simple import _fitted, _scored, fit
from trainbook.supervised.stored import simple_of

pytestmark = pytest.mark.usefixtures("quick", "few")
STARTS = {"training.start_from_baseline": True}


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
    (tables, "numbers", "r2", "boosting of numbers", 0.8),
    (tags, "tokens", "accuracy", "linear model of neighbours", 0.99),
])  # fmt: skip
def test_each_form_of_data_has_a_strong_simple_method_on_samples_it_did_not_see(
    configured, rows, kind, metric, name, least
):
    """No constant is above .55 in any of them."""
    members = {
        "rows": [*rows(torch.Generator().manual_seed(0))],
        "kind": kind,
        "metrics": (metric,),
    }
    task = type("Given", (Given,), members)(configured("Words"))
    simple = fit(task)
    batch = task.labelled(task.parts["test"].samples)
    assert simple.name.endswith(name)
    scores = simple.scores(task, batch)
    guess = scores if kind == "numbers" else scores.argmax(-1)
    judged = Judged(
        *(task._kind.judged(batch["labels"], values).numpy() for values in (batch["labels"], guess))
    )
    assert scoring.scores((metric,), judged)[metric] >= least
    again = simple_of(task, json.loads(json.dumps(simple.as_json())))
    assert torch.allclose(again.scores(task, batch), simple.scores(task, batch), atol=1e-3)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_trees_of_boosting_say_here_what_they_say_in_scikit_learn(configured, classes):
    draw = np.random.default_rng(0)
    values = draw.normal(size=(300, 4)).astype(np.float32)
    target = values[:, 0] * values[:, 1] + draw.normal(size=300) / 9
    options = {"max_leaf_nodes": 15, "max_depth": 6, "early_stopping": False, "random_state": 0}
    if not classes:
        task = Heights(configured("Heights"))
        shape = target[:, None]
        right = (
            HistGradientBoostingRegressor(max_iter=100, **options)
            .fit(values, target)
            .predict(values)[:, None]
        )
    else:
        task = Words(configured("Words"))
        shape = np.digitize(target, [0.0, 0.7][: classes - 1])
        model = HistGradientBoostingClassifier(max_iter=100, **options).fit(values, shape)
        right = model.decision_function(values).reshape(300, -1)
    scores = _scored(values, *_fitted(task, values, shape, max(classes, 1), 0))
    assert (scores[:, 1:] if classes == 2 else scores) == pytest.approx(right, abs=1e-6)


def test_the_samples_of_a_group_share_a_fold(configured, words):
    task = Pages(configured("Words"), words)
    part = task.parts["train"]
    folds = [part.fold(index) for index in range(len(part))]
    pages = [task.group(sample) for sample in part.samples]
    assert len({*zip(pages, folds, strict=True)}) == len({*pages})
    assert len({*folds}) > 1


def test_a_run_that_starts_from_the_simple_method_says_which_answers_and_learns_as_it_does_without(
    configured, words
):
    options = {"data.dir": str(words), "training.max_steps": 4}
    without = launch.train(configured("Words", {**options, "run.name": "without"}))
    alone = launch.train(configured("Words", {**options, **STARTS, "run.name": "alone"}))
    assert "The gate is " in alone.report
    assert "'answer'" in alone.report
    assert "gate" not in without.report
    plain, started = (
        load_file(Path("runs", name, "checkpoints/step-00000004/model.safetensors"))
        for name in ("without", "alone")
    )
    powers = [tensors.pop("probability_powers") for tensors in (plain, started)]
    assert powers[0][1] == powers[1][1], "of the network"
    assert plain
    assert all(torch.equal(started[name], tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("name", ["Heights", "Tags", "Topics"])
def test_every_other_kind_starts_and_has_the_simple_method_beside_the_answer(configured, name):
    summary = launch.train(configured(name, STARTS))
    rows = {row["method"]: row for row in rows_of(Path("runs/small/evaluation.csv"))}
    _, simple, network, answer = rows
    assert network == "network"
    assert answer == "answer"
    assert not summary.missing
    shut = [value for key, value in rows[simple].items() if key != "method" and "gain" not in key]
    assert "The gate is open" in summary.report or shut == [
        value for key, value in rows[answer].items() if key != "method" and "gain" not in key
    ]


def test_what_cannot_start_from_a_simple_method_is_refused_with_the_reason(configured):
    class Own(Words):
        def combined(self, model, outputs, part):
            return {}

    for make, why in (
        (lambda: Own(configured("Words", STARTS)), "not for Own, which has its own `combined`"),
        (
            lambda: Following(configured("Following", STARTS)),
            "not for Following, whose kind is 'next_tokens'",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            make()
