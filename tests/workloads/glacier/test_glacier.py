"""The task: exact resume, every pixel counted once; its baseline, gains over it with intervals, and votes."""

import csv
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import matthews_corrcoef
from torch import nn

from lib import checkpoint
from lib.errors import BadInput
from lib.report.progress import Plain
from lib.task import load_task
from lib.training import loop
from lib.training.evaluation import EvaluationLoader
from lib.training.session import Session
from tests.workloads.glacier.files import scene, write_bands
from trainbook import IGNORED
from trainbook.supervised.scoring import tallied_classes
from workloads.glacier import baselines
from workloads.glacier.baselines import compared, fit, sample, scored
from workloads.glacier.judging import scores_of
from workloads.glacier.settings import IGNORE, Settings, Source


def train(config, folder, resume=None):
    folder.mkdir(parents=True, exist_ok=True)
    return loop.train(load_task(config), config, folder, Session(None, 0, 0), Plain(), resume)


CROPS = {
    "workload.tiles.size": 64, "workload.tiles.stride": 0, "workload.sampling.crop": 32, "workload.prior": True,
    "workload.sampling.centred": "{lake: 0.5}", "workload.indices": "[[red, nir]]",
}  # fmt: skip


def test_a_resumed_run_of_crops_ends_in_the_same_bytes_with_a_worker_too(tiny, tmp_path):
    train(tiny(CROPS), tmp_path / "whole")
    train(tiny({**CROPS, "training.max_steps": 2}), tmp_path / "cut")
    whole, _ = checkpoint.load_newest(tmp_path / "whole" / "checkpoints")
    begun, _ = checkpoint.load_newest(tmp_path / "cut" / "checkpoints")
    assert begun.step == 2
    train(tiny({**CROPS, "data.num_workers": 1}), tmp_path / "cut", begun)
    end, _ = checkpoint.load_newest(tmp_path / "cut" / "checkpoints")
    assert whole.step == end.step == 6
    for group, named in whole.tensors.items():
        for name, value in named.items():
            assert torch.equal(value, end.tensors[group][name])
    assert whole.state["plateau"] == end.state["plateau"]


def test_metrics_are_scikit_learns_over_all_valid_pixels_and_do_not_depend_on_the_batch(tiny):
    task = load_task(tiny())
    assert task.model().deviation.eq(1).all(), "without data nothing is normalised"
    part = task.datasets()["test"]
    torch.manual_seed(0)
    model = task.model().eval()
    assert model.mean.flatten().tolist() == pytest.approx([100, 100], rel=0.02), "with the weights"
    one, three = (EvaluationLoader(task, part, size, torch.device("cpu")) for size in (1, 3))
    with torch.inference_mode():
        alone = task.evaluate(model, one)
        scores = task.evaluate(model, three)
        predicted = torch.cat([model(batch["image"]).argmax(1).flatten() for batch in three])
    truth = torch.cat([batch["labels"].flatten() for batch in three])
    valid = truth != IGNORED
    mcc = matthews_corrcoef(truth[valid], predicted[valid])
    assert scores["mcc"] == pytest.approx(mcc, abs=1e-12)
    assert scores["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_labels_of_pixels_without_data_are_no_targets(tiny, tmp_path):
    image, classes = scene(0)
    image[:, 10:20, 5:9] = np.nan
    write_bands(tmp_path / "scenes", "img000", image, classes)
    task = load_task(tiny({"workload.tiles.size": 64, "workload.tiles.stride": 0}))
    parts = task.datasets()
    for part in parts.values():
        batch = task.collate([*part], torch.Generator())
        ignored = batch["labels"] == IGNORED
        assert torch.equal(ignored, batch["image"].isnan().any(1))
        assert batch["labels"][~ignored].unique().tolist() == [0, 1, 2, 3]


def test_a_test_that_repeats_the_validation_is_the_same_samples(tiny):
    options = {"workload.split.test": 0, "workload.split.folds": 3}
    repeated = load_task(tiny(options))
    repeated.datasets()
    assert repeated.repeats_validation
    assert not load_task(tiny()).repeats_validation


def test_a_start_from_the_simple_method_is_refused(tiny):
    with pytest.raises(BadInput, match="start_from_baseline is not for Glacier"):
        load_task(tiny({"training.start_from_baseline": True}))


REFUSED = [
    ({"tiles.size": 40}, "40 is not a multiple of 32. Write 32"),
    ({"source.channels": "[1, 2, 3]"}, "2 bands, but channels names 3"),
    ({"sampling.target_shares": "[0.5, 0.4, 0.0, 0.0]"}, "add up to 0.9"),
    ({"split.folds": 5, "split.fold": 5}, "fold 5 of 5 folds does not exist"),
    ({"sampling.centred": "{lake: 0.2}"}, "centred is given without crop"),
    ({"sampling.crop": 32, "sampling.centred": "{pond: 0.2}"}, "centred names pond, and the"),
    ({"loss": "{focal: 0, dice: 0, mcc: 0, boundary: 0}"}, "Every term of the loss has the weight"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_settings_that_do_not_go_together_are_refused(tiny, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        tiny({f"workload.{key}": value for key, value in change.items()})


class Fixed(nn.Module):
    """A model that answers one class, surely."""

    def __init__(self, answer):
        super().__init__()
        self.bias = nn.Parameter(20 * torch.eye(4)[answer])

    def forward(self, image):
        return self.bias.view(1, 4, 1, 1).expand(len(image), 4, *image.shape[-2:])


def test_a_vote_says_what_each_reaches(tiny, tmp_path, without_figures):
    task = load_task(tiny())
    task.members = ["fold0", "fold1"]
    scores, text = task.vote([Fixed(1), Fixed(2)], tmp_path)
    assert scores["recall_glacier"] + scores["recall_debris"] == 1
    assert scores["recall_background"] == 0
    methods = [row["method"] for row in csv.DictReader((tmp_path / "evaluation.csv").open())]
    assert methods == [*baselines.METHODS, "fold0", "fold1", "the vote"]
    assert (tmp_path / "scenes.csv").is_file()
    assert re.search("'the vote' (is|and) .*the strongest baseline", text)


@pytest.mark.usefixtures("without_figures", "without_baseline")
def test_a_vote_without_a_test_of_its_own_warns(tiny, tmp_path):
    task = load_task(tiny({"workload.split.test": 0, "workload.split.folds": 3}))
    task.members = ["fold0", "fold1"]
    _, text = task.vote([Fixed(1), Fixed(2)], tmp_path)
    assert text.startswith("Warning: the vote has no test of its own")


class Tiles:
    """Tiles whose class is written in their bands, under noise; notes which ones are read."""

    def __init__(self, count):
        self.count = count
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        rng = np.random.default_rng(index)
        mask = rng.choice(3, (24, 24)).astype(np.uint8)
        bands = np.stack([mask == k for k in range(3)]) + 0.4 * rng.standard_normal((3, 24, 24))
        mask[:3] = IGNORE
        return bands.astype(np.float32), mask


def boosted(train, test, classes=3, indices=(), pixels=1500, rounds=10):
    """(3, classes) right, true and predicted pixels of the first method: boosting of pixels."""
    methods = fit(train, 0, indices, pixels, rounds)
    judged = compared(methods, test, classes, 0, indices)["boosting of pixels"]
    return tallied_classes(judged, np.zeros(len(judged.true), int), 1, classes)[0]


def test_it_finds_what_a_single_pixel_shows_and_scores_every_valid_pixel_alone():
    train = [Tiles(8)[i] for i in range(5)]
    test = [Tiles(8)[i] for i in (6, 7)]
    counts = boosted(train, test)
    scores = scores_of(counts, "abc")
    assert counts[1].sum() == 2 * 21 * 24
    assert scores["mcc"] > 0.75
    # the Bayes rule of this noise, the largest of the bands, is the most that one pixel can give
    most = np.mean([bands.argmax(0)[3:] == mask[3:] for bands, mask in test])
    assert scores["accuracy"] < most + 0.01


def ratio_tile(seed):
    """Two bands of random light whose ratio tells two classes apart."""
    rng = np.random.default_rng(seed)
    mask = rng.choice(2, (24, 24)).astype(np.uint8)
    light = rng.uniform(1, 1000, (24, 24))
    other = light * np.where(mask, 1.02, 0.98)
    return np.stack([light, other]).astype(np.float32), mask


def test_indices_of_bands_tell_classes_that_differ_in_a_ratio_alone():
    train = [ratio_tile(0)]
    test = [ratio_tile(1)]
    without = boosted(train, test, 2, (), 500, 5)
    with_index = boosted(train, test, 2, [(0, 1)], 500, 5)
    assert with_index[0].sum() == 24 * 24 > 1.05 * without[0].sum()


def test_usual_indices_are_those_whose_bands_are_there():
    five = Settings(source=Source(bands=("blue", "green", "red", "swir1", "thermal")))
    assert five.boosted_places == ((1, 3), (0, 2), (2, 3))


def test_a_bounded_sample_is_fitted_and_an_even_share_is_scored(
    monkeypatch,
):
    values, labels, places = sample(Tiles(3), 0, 10**6)
    assert len(labels) == 3 * 21 * 24
    tile, pixel = places[-1]
    assert (values[-1] == baselines.features(Tiles(3)[tile][0])[pixel]).all()
    assert IGNORE not in labels
    monkeypatch.setattr(baselines, "_MOST_TILES", 4)
    monkeypatch.setattr(baselines, "_MOST_PIXELS", 1200)
    many = Tiles(50)
    values, labels, places = sample(many, 0, 1000)
    assert places.shape == (1000, 2)
    assert values.shape == (1000, 9)
    assert labels.shape == (1000,)
    assert values.dtype == np.float32
    assert len(many.read) == len(set(many.read)) == 4
    assert scored(Tiles(10)).tolist() == [0, 3, 6, 9]
    assert len(scored(Tiles(3))) == 3
