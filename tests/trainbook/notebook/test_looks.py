"""What a notebook shows of images, and the submission, after a real training of the example."""

import csv
import shutil

import pytest
import torch
from PIL import Image

from lib.task import load_config
from tests.conftest import ROOT
from trainbook import launch
from trainbook.launch import ensemble
from trainbook.new import made
from trainbook.new.made import SHAPES as DRAWN
from trainbook.notebook import looks
from trainbook.supervised import calibration

EXAMPLES = ROOT / "trainbook" / "new" / "examples"
SMALL = {
    "training.max_steps": 12, "training.epochs": 0, "training.evaluate_every_epochs": 0, "data.num_workers": 0,
    "training.effective_batch": 8, "training.evaluate_every_steps": 6, "output_dir": "runs",
    "workload.classes": [], "workload.size": 16, "workload.width": 2,
}  # fmt: skip


@pytest.fixture
def train(tmp_path, quick):
    """train(key=value, ...) trains the example of images on its data."""
    for ending in ("py", "yaml"):
        shutil.copyfile(EXAMPLES / f"images.{ending}", tmp_path / f"images.{ending}")
    made.images(tmp_path / "images", number=60)

    def train(**keys):
        prepared = launch.prepare(load_config("images.yaml", {**SMALL, **keys}))
        assert launch.train(prepared).reason == "completed"
        return prepared

    return train


@pytest.fixture
def images(train):
    """A network alone, without a simple method in its answers."""
    return train(**{"training.start_from_baseline": False, "training.max_steps": 60})


@pytest.fixture
def drawn(monkeypatch):
    """The images and titles of each drawing."""
    calls = []
    draw = looks._drawn
    monkeypatch.setattr(looks, "_drawn", lambda *given: calls.append(given) or draw(*given))
    return calls


def shares_of(run, images):
    _, (model,) = ensemble.load(run.folder, run.config.task)
    with torch.no_grad():
        power = model.probability_powers[calibration.ANSWERS.index("network")]
        return (power * model(images)).softmax(-1)


def test_a_batch_and_the_worst_of_the_test_are_shown_with_their_classes(images, drawn):
    pictures = [looks.batch(images), looks.worst(images)]
    assert all(Image.open(picture).size[0] > 300 for picture in pictures)
    (batch, names), (worst, titles) = drawn
    assert batch.shape == (16, 3, 16, 16), "those of the folders"
    assert len(names) == 16, "those of the folders"
    assert {*names} == {*DRAWN}, "those of the folders"
    test = images.task.datasets()["test"]
    whole = images.task.collate([test[k] for k in range(len(test))], torch.Generator())
    shares = shares_of(images, whole["pixel_values"])
    order = shares[torch.arange(len(test)), whole["labels"]].argsort()[:12]
    assert torch.equal(worst, whole["pixel_values"][order])
    assert len(titles) == min(12, len(test))


def test_the_worst_of_a_test_are_those_of_the_answer_which_may_be_the_simple_method_s(
    train, drawn, tmp_path
):
    run = train()
    looks.worst(run)
    looks.predict(run, str(tmp_path / "images"))
    with (tmp_path / "runs" / "predictions.csv").open() as file:
        shares = sorted(float(row["probability"]) for row in csv.DictReader(file))
    ((_, titles),) = drawn
    shown = [float(title.rpartition(": ")[2].rstrip("%")) / 100 for title in titles]
    assert all(min(abs(share - each) for each in shares) < 0.006 for share in shown)


def test_a_folder_is_predicted_into_the_form_of_a_sample_submission_also_with_mirrored_images(
    images, tmp_path
):
    new = tmp_path / "new"
    for number, path in enumerate(sorted((tmp_path / "images").rglob("*.png"))[:5]):
        (new / "test").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new / "test" / f"a{number}.png")
    (new / "sample.csv").write_text("Id,Shape\na3,?\na1.png,?\ntest/a0,?\n")
    looks.predict(images, str(new), str(new / "sample.csv"))
    with (tmp_path / "runs" / "predictions.csv").open() as file:
        answers = {row["sample"]: row for row in csv.DictReader(file)}
    ids = ("a3", "a1.png", "test/a0")
    order = ("test/a3.png", "test/a1.png", "test/a0.png")
    expected = [
        ["Id", "Shape"],
        *([i, answers[n]["prediction"]] for i, n in zip(ids, order, strict=True)),
    ]
    assert [*csv.reader((tmp_path / "runs" / "submission.csv").open())] == expected
    batch = images.task.labelled([(new / name, 0) for name in answers])["pixel_values"]
    plain = shares_of(images, batch)
    both = (shares_of(images, batch) + shares_of(images, batch.flip(-1))) / 2
    assert (plain - both).abs().max() > 1e-4
    for tta, shares in ((False, plain), (True, both)):
        looks.predict(images, str(new), tta=tta)
        with (tmp_path / "runs" / "predictions.csv").open() as file:
            said = [float(row["probability"]) for row in csv.DictReader(file)]
        assert said == pytest.approx(shares.max(-1).values.tolist(), abs=1e-5)


def test_a_refused_submission_or_prediction_is_printed_and_what_follows_still_runs(
    images, tmp_path
):
    new = tmp_path / "new"
    new.mkdir()
    shutil.copyfile(next((tmp_path / "images").rglob("*.png")), new / "a.png")
    (new / "sample.csv").write_text("id,label\nb,0\n")
    text = looks.predict(images, str(new), str(new / "sample.csv"))
    assert "1 predictions: " in text
    assert "No submission was written. 1 of 1 ids in" in text
    assert (tmp_path / "runs" / "predictions.csv").is_file()
    assert not (tmp_path / "runs" / "submission.csv").exists()
    assert looks.predict(images, str(tmp_path / "nowhere")).startswith(
        "Nothing was predicted. There is no input"
    )


def test_probabilities_of_all_classes_are_predicted_and_fill_the_columns_of_a_sample(
    images, tmp_path
):
    new = tmp_path / "new"
    new.mkdir()
    for number, path in enumerate(sorted((tmp_path / "images").rglob("*.png"))[:4]):
        shutil.copyfile(path, new / f"{number}.png")
    (new / "sample.csv").write_text("id,triangle,circle,square\n2,0,0,0\n0,0,0,0\n")
    text = looks.predict(images, str(new), str(new / "sample.csv"))
    assert "2 of 4 answers have no id in the sample" in text
    batch = images.task.labelled([(new / f"{number}.png", 0) for number in (2, 0)])["pixel_values"]
    shares = shares_of(images, batch)[:, [2, 0, 1]]
    with (tmp_path / "runs" / "submission.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["id", "triangle", "circle", "square"]
    assert [row[0] for row in rows] == ["2", "0"]
    assert [[*map(float, row[1:])] for row in rows] == [
        pytest.approx(row, abs=1e-6) for row in shares.tolist()
    ]
