"""The gate: trees as scikit-learn walks them, opened by a sure gain alone; and which runs vote together."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch

from lib.machine import platform
from lib.task import Task, load_task
from lib.training.evaluation import EvaluationLoader
from lib.training.summary import Summary
from tests.conftest import ROOT
from trainbook import IGNORED, launch
from trainbook.launch import ensemble
from workloads.glacier import baselines, maps, voting
from workloads.glacier.baselines import EVERYWHERE, HELD, Boosted
from workloads.glacier.judging import WEIGHTS, Gate, least_gain, mcc, sums_of

GATED = {"workload.baseline.gate": True}


@pytest.mark.parametrize("present", [(0, 1, 2), (1, 2)])
def test_trees_in_the_network_answer_as_scikit_learn_does(present):
    draw = np.random.default_rng(0)
    bands = draw.normal(size=(2, 3, 16, 16)).astype(np.float32)
    bands[draw.random(bands.shape) < 0.05] = np.nan
    image = torch.from_numpy(bands)
    values = np.concatenate([baselines.features(tile) for tile in bands])
    labels = np.array(present)[draw.integers(0, len(present), len(values))]
    widths = (3, 9)
    fitted = [baselines.fitted(values[:, :width], labels, 0, 6, False) for width in widths]
    boosted = Boosted(3, 6, ())
    boosted.take(fitted)
    places = slice(2, None, 3), slice(1, 9)
    for method, width in enumerate(widths):
        expected = np.zeros((len(values), 3))
        expected[:, list(present)] = fitted[method].predict_proba(values[:, :width])
        p = boosted.log_p(image, method).exp().movedim(1, -1)
        assert p.reshape(-1, 3).numpy() == pytest.approx(expected, abs=2e-6)
        some = boosted.log_p(image, method, places).exp().movedim(1, -1)
        assert torch.equal(some, p[:, *places])


def test_trees_of_a_damaged_or_hostile_archive_end_and_read_no_memory_of_others():
    boosted = Boosted(3, 6, ())
    draw = torch.Generator().manual_seed(0)
    boosted.nodes.uniform_(-100, 100, generator=draw)
    hostile = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1, 61, 0, 0.5, 60])
    boosted.nodes[0, :9] = hostile[:, None, None]
    boosted.nodes[1, 0, :, 2:4] = 0  # children that are their own parents
    boosted.nodes[..., 5] = 1
    for method in range(2):
        image = torch.randn(1, 3, 8, 8, generator=draw)
        assert boosted.log_p(image, method).shape == (1, 3, 8, 8)


def opened(better, tiles=8, groups=None, side=8):
    """Lets a gate choose between boosting and a network that is right in so much larger shares of some tiles.

    Returns the gate and the sums of the answer.
    """
    draw = np.random.default_rng(1)
    boosted = Boosted(2, 1, ())
    target = torch.from_numpy(draw.integers(0, 2, (tiles, side, side)).astype(np.int16))

    def scores(share):
        chance = torch.as_tensor(share).view(-1, 1, 1)
        is_right = torch.from_numpy(draw.random(target.shape)) < chance
        classes = [(target == k) == is_right for k in (0, 1)]
        return 4.0 * torch.stack(classes, 1).float()

    answers = scores(np.full(tiles, 0.6)).log_softmax(1)
    boosted.log_p = lambda image, method, places=EVERYWHERE: answers[..., *places]
    gate = Gate(boosted, groups or [str(tile) for tile in range(tiles)], {})
    target[:, 0] = IGNORED
    network = scores(0.6 + np.asarray(better))
    gate.add({"image": target, "labels": target}, network)
    return gate, gate.choose()


@pytest.mark.parametrize(
    ("better", "groups", "is_open"),
    [
        pytest.param([0.35] * 8, None, True, id="surely better"),
        pytest.param([-0.2] * 8, None, False, id="worse"),
        pytest.param([0.0] * 8, None, False, id="alike"),
        pytest.param([0.4] + [-0.05] * 7, None, False, id="better in one scene"),
        pytest.param([0.35] * 8, ["a"] * 8, False, id="one scene alone"),
    ],
)
def test_the_gate_opens_where_the_network_surely_gains_over_groups(better, groups, is_open):
    gate, sums = opened(better, groups=groups, side=24)
    weight = float(gate.boosted.weight)
    assert (weight > 0) == is_open
    assert weight in [pytest.approx(w) for w in WEIGHTS]
    assert int(gate.boosted.method) == 0
    assert sums[1].sum() == 8 * 23 * 24, "each valid pixel counts once"


def balanced(shares):
    """(scenes, 3, 2) sums of scenes with as many pixels of both classes; of them MCC is a mean."""
    counts = [[[share, 1 - share], [1 - share, share]] for share in shares]
    return sums_of((1000 * np.array(counts)).round().astype(int))


def test_the_interval_is_that_of_students_t_for_a_metric_that_is_a_mean():
    from scipy import stats

    new = balanced([0.9, 0.8, 0.85, 0.7])
    old = balanced([0.8, 0.75, 0.8, 0.68])
    gains = mcc(new) - mcc(old)
    low, _ = stats.t.interval(0.95, 3, gains.mean(), stats.sem(gains))
    assert least_gain(new, old) == pytest.approx(low, abs=1e-6)


@pytest.fixture
def gated(tiny, without_figures):
    """gated(**overrides) -> the folder of a tiny run with a gate."""

    def run(**options):
        config = tiny({**GATED, **options})
        launch.train(config)
        return platform.output_dir(config.output_dir) / config.run.name

    return run


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_shut_gate_answers_as_boosting_in_the_test_and_from_the_archive(gated, tiny, capsys):
    folder = gated()
    mccs = {row["method"]: row["mcc"] for row in rows_of(folder / "evaluation.csv")}
    assert [*mccs] == [*baselines.METHODS, "network alone", "answer"]
    assert mccs["answer"] != mccs["network alone"]
    assert mccs["answer"] in {mccs[method] for method in HELD}
    assert "The gate is shut" in capsys.readouterr().out
    logged = [row for row in rows_of(folder / "metrics.csv") if row["split"] == "validation"]
    assert logged[-1]["network_weight"] == "0.0"
    assert all(row["network_mcc"] != row["mcc"] for row in logged)

    _, (model,) = ensemble.load(folder)
    image = torch.from_numpy(load_task(tiny()).datasets()["test"][0].sample.image)[None]
    boosting = model.boosted.log_p(image, int(model.boosted.method))
    assert torch.allclose(maps.probabilities([model], image), boosting.exp(), atol=1e-6)
    model.boosted.weight.fill_(0.5)
    views = (model(image.rot90(k, (-2, -1))).softmax(1).rot90(-k, (-2, -1)) for k in range(4))
    network = sum(views) / 4
    expected = (0.5 * boosting + 0.5 * network.log()).softmax(1).detach()
    assert torch.allclose(maps.probabilities([model], image, views=4), expected, atol=1e-5)


def test_boosting_answers_validation_once_for_each_model(tiny, monkeypatch):
    calls = []
    log_p = Boosted.log_p
    monkeypatch.setattr(Boosted, "log_p", lambda *given: calls.append(0) or log_p(*given))
    task = load_task(tiny(GATED))
    part = task.datasets()["validation"]
    loader = EvaluationLoader(task, part, 8, torch.device("cpu"))
    model = task.model().eval()
    with torch.inference_mode():
        first = task.evaluate(model, loader)
        number = len(calls)
        assert task.evaluate(model, loader) == first
        assert len(calls) == number > 0
        task.evaluate(task.model().eval(), loader)
    assert len(calls) == 2 * number


def test_folds_whose_boosting_differs_vote_together(tiny, tmp_path, without_figures):
    tasks = []
    for fold in (0, 1):
        options = {**GATED, "workload.split.folds": 3, "workload.split.fold": fold}
        tasks.append(load_task(tiny(options)))
        tasks[-1].datasets()
    models = [task.model().eval() for task in tasks]
    assert not torch.equal(models[0].boosted.nodes, models[1].boosted.nodes)
    tasks[0].members = ["fold0", "fold1"]
    scores, text = tasks[0].vote(models, tmp_path)
    assert np.isfinite(scores["mcc"])
    assert "'the vote' and the strongest baseline" in text


def test_weights_of_another_run_bring_no_boosting_and_no_gate(tiny):
    task, later = (load_task(tiny({**GATED, "seed": seed})) for seed in (0, 1))
    task.datasets()
    later.datasets()
    given = {**task.model().state_dict(), "boosted.weight": torch.ones(())}
    model = later.model()
    assert not torch.equal(given["boosted.nodes"], model.boosted.nodes)
    carried, _ = later.adapt(given, model)
    assert carried["boosted.weight"] == 0
    assert torch.equal(carried["boosted.nodes"], model.boosted.nodes)


def test_a_member_whose_test_failed_votes(toy, tmp_path, monkeypatch, quick):
    run = launch.prepare(toy())
    launch.train(run)
    summary = Summary.read(run.folder)
    failed = dataclasses.replace(summary, metrics={}, missing={"test": "ValueError"})
    failed.write(run.folder)
    answer = {"rmse": 0.25, "loss": 1.0}, "Voted."
    monkeypatch.setattr(Task, "vote", lambda *_: answer, raising=False)
    voted, text = voting.vote([run.folder], tmp_path / "vote", f"{ROOT / 'tests' / 'toy.py'}:Toy")
    assert voted.metrics == {"rmse": 0.25}
    assert text == "Voted."
