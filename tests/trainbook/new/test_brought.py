"""The examples of pictures on what people bring: broken files, tables beside flat folders, masks of any coding."""

import csv
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from lib.errors import BadInput
from lib.task import load_task
from tests.trainbook.new.conftest import SMALL, STEPS
from tests.trainbook.supervised import drawn
from trainbook import launch
from trainbook.commands import main
from trainbook.new import made

pytestmark = pytest.mark.usefixtures("quick")


FEW = [f"--set={key}={value}" for key, value in (STEPS | SMALL["segmentation"]).items()]


@pytest.mark.parametrize("command", ["doctor", "train"])
@pytest.mark.parametrize("folder", ["images", "masks"])
def test_broken_files_are_named_before_a_step_wherever_they_lie(
    example, tmp_path, capsys, command, folder
):
    example("segmentation")
    paths = sorted((tmp_path / "segmentation" / folder).glob("*.png"))[3:5]
    for path in paths:
        path.write_bytes(path.read_bytes()[:60])
    assert main([command, "segmentation.yaml", *FEW]) == 2
    printed = "".join(capsys.readouterr())
    assert all(path.name in printed for path in paths)
    assert "pictures cannot be used: 2" in printed
    assert "cannot be decoded" in printed
    assert not (tmp_path / "runs").exists()


def test_as_many_broken_files_as_the_settings_allow_are_left_out_and_counted(example, tmp_path):
    example("segmentation")
    broken, mask = (
        sorted((tmp_path / "segmentation" / name).glob("*.png")) for name in ("images", "masks")
    )
    broken[3].write_bytes(b"")
    drawn.cut(mask[7])
    limited = {"workload.bad_input_limit": 2}
    task = load_task(example("segmentation", **limited))
    assert sum(map(len, task.datasets().values())) == 28
    assert "Samples whose pictures cannot be used, and are left out: 2" in task.describe_data()
    assert broken[3].name in task.describe_data()
    assert mask[7].name in task.describe_data()
    with pytest.raises(
        BadInput, match=r"pictures cannot be used: 2; workload.bad_input_limit allows 1"
    ):
        load_task(example("segmentation", **{"workload.bad_input_limit": 1})).datasets()
    assert launch.train(example("segmentation", **limited)).reason == "completed"


def test_a_run_resumes_where_pictures_were_replaced_and_says_how_many(example, tmp_path, capsys):
    short = {"training.max_steps": 2}
    launch.train(example("segmentation", **short))
    image, mask = (
        sorted((tmp_path / "segmentation" / name).glob("*.png")) for name in ("images", "masks")
    )
    Image.new("RGB", (16, 16), (9, 9, 9)).save(image[4])
    (tmp_path / "segmentation" / "images" / ".DS_Store").write_bytes(b"of a system")
    assert launch.train(example("segmentation")).reason == "completed"
    printed = capsys.readouterr().out
    line = "at least 1 of the samples' 30 files. Samples, targets and splits are the same."
    assert printed.count(line) == 1
    Image.new("L", (16, 16), 1).save(mask[4])
    with pytest.raises(BadInput, match="data fingerprint"):  # a mask is a target
        launch.train(example("segmentation", **{"training.max_steps": 9}))


@pytest.mark.parametrize("change", ["a picture more", "another class", "another file"])
def test_a_run_does_not_resume_on_other_samples_targets_or_files(example, tmp_path, change):
    launch.train(example("images", **{"training.max_steps": 2}))
    (picture,) = list((tmp_path / "images" / "circle").glob("0003.png"))
    if change == "a picture more":
        shutil.copyfile(picture, picture.with_name("9.png"))
    elif change == "another class":
        picture.rename(tmp_path / "images" / "square" / picture.name)
    else:
        (tmp_path / "images" / "words.txt").write_text("what read() may look at")
    with pytest.raises(BadInput, match="data fingerprint"):
        launch.train(example("images"))


def flat(folder):
    """Lays the made images out as competitions do: train_images, test_images and train.csv."""
    rows = []
    for path in sorted(folder.glob("*/*.png")):
        rows.append([path.stem, path.parent.name, "tree"])
        part = folder / "train_images"
        part.mkdir(exist_ok=True)
        path.rename(part / path.name)
    for name in made.SHAPES:
        (folder / name).rmdir()
    shutil.copytree(folder / "train_images", folder / "test_images")
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label", "tree"], *rows])
    with (folder / "sample_submission.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label"], *([row[0], "circle"] for row in rows)])


def test_a_flat_competition_is_trained_by_its_table(example, tmp_path):
    example("images")
    flat(tmp_path / "images")
    with pytest.raises(BadInput, match=r"its other columns are: label, tree.*workload.target"):
        load_task(example("images", **{"workload.classes": []})).datasets()
    config = example("images", **{"workload.classes": [], "workload.target": "label"})
    task = load_task(config)
    assert task.names == ["circle", "square", "triangle"]
    assert sum(map(len, task.datasets().values())) == 30
    described = task.describe_data()
    assert "train.csv lists the samples: 30 pictures in 30 rows" in described
    assert "test_images: 30" in described
    assert launch.train(config).reason == "completed"


CODED = {
    "VOC": (
        lambda mask: np.where(np.arange(16) == 3, 255, mask),
        {"workload.ignored_codes": [255]},
    ),
    "0 and 255": (lambda mask: mask * 255, {"workload.codes": [0, 255]}),
    "16 bits": (lambda mask: mask.astype(np.uint16) * 1000, {"workload.codes": [0, 1000]}),
}


@pytest.mark.parametrize(("coded", "how"), CODED.values(), ids=CODED)
def test_a_mask_of_another_coding_is_refused_until_the_coding_is_given(
    example, tmp_path, coded, how
):
    example("segmentation")
    kind = coded(np.zeros(1, np.uint8)).dtype
    for path in (tmp_path / "segmentation" / "masks").glob("*.png"):
        mask = coded(np.asarray(Image.open(path)))
        Image.fromarray(mask.astype(kind)).save(path)
    with pytest.raises(BadInput, match=r"holds the value.*workload\.(ignored_)?codes"):
        load_task(example("segmentation")).datasets()
    task = load_task(example("segmentation", **how))
    labels = task.labelled(task.datasets()["train"].samples[:8])["labels"]
    assert {*labels.unique().tolist()} <= {-100, 0, 1}
    assert 1 in labels
    assert (-100 in labels) == ("ignored" in str(how))


def test_a_mask_of_another_shape_and_a_class_of_no_mask_are_named(example, tmp_path):
    example("segmentation")
    path = min((tmp_path / "segmentation" / "masks").glob("*.png"))
    Image.new("L", (16, 32)).save(path)
    with pytest.raises(BadInput, match=rf"{path.name} has 16 x 32 pixels, and its picture 16 x 16"):
        load_task(example("segmentation")).datasets()
    path.unlink()
    described = load_task(
        example("segmentation", **{"workload.classes": ["ground", "circle", "lake"]})
    ).describe_data()
    assert "No mask shows the class lake." in described
    assert "Pictures without a mask" in described


def test_masks_are_looked_at_where_no_classes_are_listed(example):
    task = load_task(example("segmentation", **{"workload.classes": []}))
    assert sum(map(len, task.datasets().values())) == 30


def test_files_of_a_task_that_globs_by_itself_are_looked_at_too(example, tmp_path):
    example("images")
    code = (tmp_path / "images.py").read_text()
    reading = re.compile(r"return labelled_pictures\([^)]+\)")
    globbing = "return [(path, path.parent.name) for path in source.glob('*/*.*')]"
    own, replaced = reading.subn(globbing, code)
    assert replaced == 1
    (tmp_path / "own.py").write_text(own)
    config = {"task": "own.py:Images"}
    path = tmp_path / "images" / "circle" / "a.jpg"
    path.write_bytes(b"no picture")
    path.with_suffix(".tif").write_bytes(b"of an own format, perhaps")
    with pytest.raises(BadInput, match=r"pictures cannot be used: 1.*\n.*a\.jpg"):
        load_task(example("images", **config)).datasets()
