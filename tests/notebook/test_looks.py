"""What a notebook shows of images, and the submission, after a real training of the example."""

import csv
import shutil

import pytest
import torch
from PIL import Image

from lib import launch
from lib.errors import BadInput
from lib.launch import ensemble
from lib.notebook import looks
from lib.task import load_config
from tests.conftest import ROOT
from trainbook.new import made
from trainbook.new.made import SHAPES as DRAWN

EXAMPLES = ROOT / "trainbook" / "new" / "examples"
SMALL = {
    "training.max_steps": 12, "training.epochs": 0, "training.evaluate_every_epochs": 0, "data.num_workers": 0,
    "training.effective_batch": 8, "training.evaluate_every_steps": 6, "output_dir": "runs",
    "workload.classes": [], "workload.size": 16, "workload.width": 2,
}  # fmt: skip


@pytest.fixture
def images(tmp_path, quick):
    """The example of images, trained on its data."""
    for ending in ("py", "yaml"):
        shutil.copyfile(EXAMPLES / f"images.{ending}", tmp_path / f"images.{ending}")
    made.images(tmp_path / "images", number=60)
    prepared = launch.prepare(load_config("images.yaml", SMALL))
    assert launch.train(prepared).reason == "completed"
    return prepared


@pytest.fixture
def drawn(monkeypatch):
    """The images and titles of each drawing."""
    calls, draw = [], looks._drawn
    monkeypatch.setattr(looks, "_drawn", lambda *given: calls.append(given) or draw(*given))
    return calls


def shares_of(run, images):
    _, (model,) = ensemble.load(run.folder, run.config.task)
    with torch.no_grad():
        return model(images).softmax(-1)


def test_a_batch_and_the_worst_of_the_test_are_shown_with_their_classes(images, drawn):
    pictures = [looks.batch(images), looks.worst(images)]
    assert all(Image.open(picture).size[0] > 300 for picture in pictures)
    (batch, names), (worst, titles) = drawn
    assert batch.shape == (16, 3, 16, 16) and len(names) == 16 and {*names} == {*DRAWN}, "those of the folders"
    test = images.task.datasets()["test"]
    whole = images.task.collate([test[k] for k in range(len(test))], torch.Generator())
    shares = shares_of(images, whole["pixel_values"])
    order = shares[torch.arange(len(test)), whole["labels"]].argsort()[:12]
    assert torch.equal(worst, whole["pixel_values"][order]) and len(titles) == min(12, len(test))


def test_a_folder_is_predicted_into_the_form_of_a_sample_submission_also_with_mirrored_images(images, tmp_path):
    new = tmp_path / "new"
    for number, path in enumerate(sorted((tmp_path / "images").rglob("*.png"))[:5]):
        (new / "test").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new / "test" / f"a{number}.png")
    (new / "sample.csv").write_text("Id,Shape\na3,?\na1.png,?\ntest/a0,?\n")
    looks.predict(images, str(new), str(new / "sample.csv"))
    with (tmp_path / "runs" / "predictions.csv").open() as file:
        answers = {row["sample"]: row for row in csv.DictReader(file)}
    ids, order = ("a3", "a1.png", "test/a0"), ("test/a3.png", "test/a1.png", "test/a0.png")
    expected = [["Id", "Shape"], *([i, answers[n]["prediction"]] for i, n in zip(ids, order, strict=True))]
    assert [*csv.reader((tmp_path / "runs" / "submission.csv").open())] == expected
    batch = images.task.labelled([(new / name, 0) for name in answers])["pixel_values"]
    plain, both = shares_of(images, batch), (shares_of(images, batch) + shares_of(images, batch.flip(-1))) / 2
    assert (plain - both).abs().max() > 1e-3
    for tta, shares in ((False, plain), (True, both)):
        looks.predict(images, str(new), tta=tta)
        with (tmp_path / "runs" / "predictions.csv").open() as file:
            said = [float(row["probability"]) for row in csv.DictReader(file)]
        assert said == pytest.approx(shares.max(-1).values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        ("id,label\nb.png,0\n", "1 of 1 ids in .*such as b.png.* or of two"),
        ("id,cat,dog\na,0,1\n", "has the columns id, cat, dog. A submission is written of two"),
    ],
)
def test_a_sample_submission_whose_ids_are_no_files_is_refused(tmp_path, sample, sentence):
    (tmp_path / "sample.csv").write_text(sample)
    answers = {"x/a.png": {"prediction": "cat"}, "x/b.png": {"prediction": "dog"}, "y/b.png": {"prediction": "cat"}}
    with pytest.raises(BadInput, match=sentence):
        looks.submission(answers, tmp_path / "sample.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
