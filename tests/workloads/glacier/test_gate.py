"""The gate: trees as scikit-learn walks them, opened by a sure gain alone; and which runs vote together."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch

from lib.machine import platform
from lib.task import Task, load_task
from tests.conftest import ROOT
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.outputs.summary import Summary
from workloads.glacier import baselines, maps, voting
from workloads.glacier.baselines import EVERYWHERE, HELD, Boosted
from workloads.glacier.judging import WEIGHTS, Gate, least_gain, mcc
from workloads.glacier.settings import IGNORE

GATED = {"workload.baseline.gate": True}


@pytest.mark.parametrize("present", [(0, 1, 2), (1, 2)])
def test_trees_in_the_network_answer_as_scikit_learn_does(present):
    draw = np.random.default_rng(0)
    bands = draw.normal(size=(2, 3, 16, 16)).astype(np.float32)
    bands[draw.random(bands.shape) < 0.05] = np.nan
    values = np.concatenate([baselines.features(tile) for tile in bands])
    labels = np.array(present)[draw.integers(0, len(present), len(values))]
    fitted = [baselines.fitted(values[:, :width], labels, 0, 6, False) for width in (3, 9)]
    boosted = Boosted(3, 6, ())
    boosted.take(fitted)
    for method, (model, width) in enumerate(zip(fitted, (3, 9), strict=True)):
        expected = np.full((len(values), 3), 0.0)
        expected[:, list(present)] = model.predict_proba(values[:, :width])
        p = boosted.log_p(torch.from_numpy(bands), method).exp().movedim(1, -1)
        assert p.reshape(-1, 3).numpy() == pytest.approx(expected, abs=2e-6)
        places = slice(2, None, 3), slice(1, 9)
        some = boosted.log_p(torch.from_numpy(bands), method, places).exp().movedim(1, -1)
        assert torch.equal(some, p[:, *places])


def test_trees_of_a_damaged_or_hostile_archive_end_and_read_no_memory_of_others():
    boosted = Boosted(3, 6, ())
    draw = torch.Generator().manual_seed(0)
    boosted.nodes.uniform_(-100, 100, generator=draw)
    boosted.nodes[0, :9] = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1, 61, 0, 0.5, 60])[
        :, None, None
    ]
    boosted.nodes[1, 0, :, 2:4] = 0  # children that are their own parents
    boosted.nodes[..., 5] = 1
    for method in range(2):
        assert boosted.log_p(torch.randn(1, 3, 8, 8, generator=draw), method).shape == (1, 3, 8, 8)


def opened(better, tiles=8, groups=None, side=8):
    """Lets a gate choose between boosting and a network that is right in so much larger shares of some tiles.

    Returns the gate and the counts of the answer.
    """
    draw = np.random.default_rng(1)
    boosted = Boosted(2, 1, ())
    target = torch.from_numpy(draw.integers(0, 2, (tiles, side, side)).astype(np.uint8))

    def scores(share):
        is_right = torch.from_numpy(draw.random(target.shape)) < torch.as_tensor(share).view(
            -1, 1, 1
        )
        return 4.0 * torch.stack([(target == 0) == is_right, (target == 1) == is_right], 1).float()

    answers = [scores(np.full(tiles, 0.6)).log_softmax(1)] * 2
    boosted.log_p = lambda image, method, places=EVERYWHERE: answers[method][..., *places]
    gate = Gate(boosted, None, groups or [str(tile) for tile in range(tiles)])
    target[:, 0] = IGNORE
    counts = gate.counted(0, {"image": target, "target": target}, scores(0.6 + np.asarray(better)))
    return gate, gate.choose(counts)


@pytest.mark.parametrize(
    ("better", "groups", "is_open"),
    [(np.full(8, 0.35), None, True), (np.full(8, -0.2), None, False), (np.zeros(8), None, False),
     (np.array([0.4, *[-0.05] * 7]), None, False), (np.full(8, 0.35), ["a"] * 8, False)],
    ids=["surely better", "worse", "alike", "better in one scene", "one scene alone"],
)  # fmt: skip
def test_the_gate_opens_where_the_network_surely_gains_over_groups(better, groups, is_open):
    gate, counts = opened(better, groups=groups, side=24)
    weight = float(gate.boosted.weight)
    method = int(gate.boosted.method)
    assert (weight > 0) == is_open
    assert weight in [pytest.approx(w) for w in WEIGHTS]
    assert method == 0
    assert counts.sum() == 8 * 23 * 24, "each valid pixel counts once"


def test_the_interval_is_that_of_students_t_for_a_metric_that_is_a_mean():
    from scipy import stats

    new, old = (
        np.array([[[share, 1 - share], [1 - share, share]] for share in shares]) * 1000
        for shares in ([0.9, 0.8, 0.85, 0.7], [0.8, 0.75, 0.8, 0.68])
    )
    gains = np.array(
        [mcc(a) - mcc(b) for a, b in zip(new, old, strict=True)]
    )  # of balanced scenes alike a mean
    expected = stats.t.interval(0.95, 3, gains.mean(), stats.sem(gains))[0]
    assert least_gain(new.round().astype(int), old.round().astype(int)) == pytest.approx(
        expected, abs=1e-6
    )


@pytest.fixture
def gated(tiny, without_figures):
    """gated(**overrides) -> the folder of a tiny run with a gate."""

    def run(**options):
        config = tiny({**GATED, **options})
        launch.train(config)
        return platform.output_dir(config.output_dir) / config.run.name

    return run


def test_a_shut_gate_answers_as_boosting_in_the_test_and_from_the_archive(gated, tiny, capsys):
    folder = gated()
    rows = {row["method"]: row for row in csv.DictReader((folder / "evaluation.csv").open())}
    assert [*rows] == [*baselines.METHODS, "network alone", "answer"]
    assert rows["answer"]["mcc"] in {rows[method]["mcc"] for method in HELD} - {
        rows["network alone"]["mcc"]
    }
    assert "The gate is shut" in capsys.readouterr().out
    logged = [
        row
        for row in csv.DictReader((folder / "metrics.csv").open())
        if row["split"] == "validation"
    ]
    assert logged[-1]["network_weight"] == "0.0"
    assert all(row["network_mcc"] != row["mcc"] for row in logged)

    _, (model,) = ensemble.load(folder)
    image = torch.from_numpy(load_task(tiny()).datasets()["test"][0].image)[None]
    method = int(model.boosted.method)
    p = maps.probabilities([model], image)
    assert torch.allclose(p, model.boosted.log_p(image, method).exp(), atol=1e-6)
    model.boosted.weight.fill_(0.5)
    views = (model(image.rot90(k, (-2, -1))).softmax(1).rot90(-k, (-2, -1)) for k in range(4))
    network = sum(views) / 4
    expected = (0.5 * model.boosted.log_p(image, method) + 0.5 * network.log()).softmax(1)
    assert torch.allclose(maps.probabilities([model], image, views=4), expected.detach(), atol=1e-5)


def test_folds_whose_boosting_differs_vote_together(tiny, tmp_path, without_figures):
    tasks = [
        load_task(tiny({**GATED, "workload.split.folds": 3, "workload.split.fold": fold}))
        for fold in (0, 1)
    ]
    for task in tasks:
        task.datasets()
    models = [task.model().eval() for task in tasks]
    assert not torch.equal(models[0].boosted.nodes, models[1].boosted.nodes)
    tasks[0].members = ["fold0", "fold1"]
    scores, text = tasks[0].vote(models, tmp_path)
    assert np.isfinite(scores["mcc"])
    assert "'the vote' is " in text


def test_weights_of_another_run_bring_no_boosting_and_no_gate(tiny):
    task, later = (load_task(tiny({**GATED, "seed": seed})) for seed in (0, 1))
    task.datasets(), later.datasets()
    given = {**task.model().state_dict(), "boosted.weight": torch.ones(())}
    model = later.model()
    assert not torch.equal(given["boosted.nodes"], model.boosted.nodes)
    carried, _ = later.adapt(given, model)
    assert carried["boosted.weight"] == 0
    assert torch.equal(carried["boosted.nodes"], model.boosted.nodes)


def test_a_member_whose_test_failed_votes(toy, tmp_path, monkeypatch, quick):
    run = launch.prepare(toy())
    launch.train(run)
    dataclasses.replace(Summary.read(run.folder), metrics={}, missing={"test": "ValueError"}).write(
        run.folder
    )
    monkeypatch.setattr(
        Task, "vote", lambda *_: ({"rmse": 0.25, "loss": 1.0}, "Voted."), raising=False
    )
    voted, text = voting.vote([run.folder], tmp_path / "vote", f"{ROOT / 'tests' / 'toy.py'}:Toy")
    assert voted.metrics == {"rmse": 0.25}
    assert text == "Voted."
