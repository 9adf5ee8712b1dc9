"""The example tasks: short, trained, killed, resumed to the same bytes, planned, and predicted from their archive."""

import csv
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from lib import checkpoint, planner
from lib.errors import BadInput
from lib.report.metrics import read
from lib.task import find_task, load_config, load_task
from lib.training import loop
from tests.conftest import ROOT, VOLATILE_COLUMNS
from tests.trainbook.new.conftest import EXAMPLES, SMALL, STEPS
from tests.trainbook.published import wheel
from trainbook import launch
from trainbook.commands import main
from trainbook.new import made
from trainbook.supervised import pictured
from trainbook.supervised.task import RETIRED

pytestmark = pytest.mark.usefixtures("quick")

TASKS = {"images": "Images", "segmentation": "Segmentation", "tabular": "Tabular", "text": "Text", "tokens": "Tokens",
         "audio": "Audio", "sequence": "Sequence", "gpt": "Texts", "series": "Series", "chat": "Answers"}  # fmt: skip
ANSWERS = {
    "images": 30,
    "segmentation": 30,
    "tabular": 60,
    "text": 60,
    "tokens": 40,
    "audio": 30,
    "sequence": 40,
    "gpt": 20,
    "series": 3,
    "chat": 40,
}
START = "training.start_from_baseline"
started = pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in TASKS), ("tabular", {START: False})]
)


def test_the_examples_are_short_as_they_are_formatted():
    # a U-Net goes down, and up again; words are seen by their letters, or by an encoder
    most = dict.fromkeys(TASKS, 60) | {"segmentation": 70, "tokens": 75}
    most |= dict.fromkeys(("audio", "gpt", "sequence", "series"), 50)
    files = [EXAMPLES / f"{name}.py" for name in TASKS]
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "--quiet", *files], check=True
    )
    for file in files:
        code = re.sub(r'^ *""".*"""$|^ *#.*$', "", file.read_text(), flags=re.MULTILINE)
        assert sum(bool(line.strip()) for line in code.splitlines()) <= most[file.stem], file


def test_no_method_of_an_example_is_taken_for_one_of_an_earlier_version():
    for path in EXAMPLES.glob("*.py"):
        methods = re.findall(r"def (\w+)\(self", path.read_text("utf-8"))
        assert RETIRED.isdisjoint(methods), path.name


@pytest.mark.parametrize("name", TASKS)
def test_an_example_is_planned_where_there_is_no_data(example, name, tmp_path):
    is_written = name in ("chat", "gpt", "sequence")
    config = example(name, **({} if is_written else {START: True}))
    if name == "chat":  # whose sizes a plan takes from the base beside the data
        (tmp_path / "chat" / "calls.jsonl").unlink()
    else:
        shutil.rmtree(tmp_path / name)
    assert planner.make(config, planner.find_card("t4"), 2).chosen.prediction.fits


class Killed(BaseException):
    """Ends a process at once; nothing of this program catches it to save."""


def results(folder):
    last = checkpoint.path_of(folder / "checkpoints", 5)
    table = read(folder / "metrics.csv")
    for row in table:
        for column in VOLATILE_COLUMNS:
            row.pop(column, None)
    files = [(last / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")]
    return [*files, table, (folder / "summary.json").is_file()]


@started
def test_an_example_is_trained_killed_and_resumed_to_the_same_bytes_and_predicts(
    example, name, more, tmp_path, monkeypatch
):
    summary = launch.train(example(name, **{"output_dir": "whole"}, **more))
    assert summary.reason == "completed"
    assert not summary.missing
    assert set(summary.baseline) <= set(summary.metrics)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "optimizer_step", mock.Mock(wraps=loop.optimizer_step))
        for steps, newest in ((3, 2), (2, 4)):  # those of a session before it is killed
            loop.optimizer_step.side_effect = [*[mock.DEFAULT] * steps, Killed]
            with pytest.raises(Killed):
                launch.train(example(name, **more))
            assert checkpoint.steps(Path("runs", name, "checkpoints"))[-1] == newest
    resumed = launch.train(example(name, **more))
    assert results(Path("runs", name)) == results(Path("whole", name))
    assert resumed.metrics == summary.metrics
    assert resumed.test_loss == summary.test_loss
    predict(name, tmp_path, monkeypatch)


def predict(name, tmp_path, monkeypatch):
    """Predicts the training data, without its targets, with nothing but the archive and the task's file at hand."""
    empty = tmp_path / "empty"
    new = tmp_path / "empty" / "new"
    empty.mkdir()
    for source, target in (("runs/outputs.tar.gz", empty), (f"{name}.py", empty), (name, new)):
        shutil.move(source, target)
    if name in ("images", "audio"):
        for path in new.glob("*/*.*"):
            path.rename(new / path.name)
    for path in new.glob("flats.csv"):
        lines = [line.rpartition(",")[0] for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines))
    for path in new.glob("*.tsv"):
        lines = [line.split("\t")[0] for line in path.read_text().splitlines()]
        path.write_text("\n".join([*lines, ""]))
    shutil.rmtree(new / "masks", ignore_errors=True)
    monkeypatch.chdir(empty)
    assert (
        main(["predict", "outputs.tar.gz", "new", "out", "--task", f"{name}.py:{TASKS[name]}"]) == 0
    )
    with Path("out/predictions.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == ANSWERS[name]
    column = "prediction_1" if name == "series" else "prediction"
    assert all(answer[column] is not None for answer in answers)


def test_the_commands_of_the_page_on_chat_work_in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "chat", partial(made.chat, number=40))
    sets = [f"--set={key}={value}" for key, value in {**STEPS, **SMALL["chat"]}.items()]
    block = (
        (ROOT / "docs" / "chat.md").read_text("utf-8").partition("```sh\n")[2].partition("```")[0]
    )
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program != "trainbook":
            subprocess.run(line, shell=True, check=True)
        elif arguments[0] != "doctor":  # it takes half a minute
            assert main([*arguments, *(sets if arguments[0] == "train" else [])]) == 0, line
    assert len(Path("answers/predictions.csv").read_text("utf-8").splitlines()) == 2


def test_a_table_s_column_of_words_is_learned_by_the_class_of_the_same_example(example):
    given = {
        "task": "tabular.py:Classes",
        "workload.target": "rooms",
        "workload.features": ["area", "age"],
        "workload.words": [],
    }
    summary = launch.train(example("tabular", **given))
    assert summary.reason == "completed"
    assert not summary.missing
    assert {"macro_f1", "accuracy"} <= set(summary.metrics)
    assert main(["predict", "runs/tabular", "tabular", "out", "--task", "tabular.py:Classes"]) == 0
    with Path("out/predictions.csv").open() as file:
        assert {row["prediction"] for row in csv.DictReader(file)} <= set("123456")


def test_the_recipes_of_the_page_on_own_models_work_in_the_image_example():
    """Each method that docs/own.md shows, in a subclass: the loss is torch's, the groups name parameters."""
    blocks = re.findall(
        r"^```python\n(def .*?)^```$", (ROOT / "docs" / "own.md").read_text("utf-8"), re.M | re.S
    )
    methods: dict = {"F": torch.nn.functional}
    for block in blocks:
        exec(block, methods)
    config = load_config(EXAMPLES / "images.yaml")
    recipes = {name: methods[name] for name in ("summed_loss", "parameter_groups")}
    task = type("Recipes", (find_task(config.task),), recipes)(config)
    outputs = torch.randn(6, 3, generator=torch.manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    mean = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(outputs, labels)
    torch.testing.assert_close(task.summed_loss(outputs, labels), 6 * mean)
    names = [name for name, _ in task.model().named_parameters()]
    (group,) = task.parameter_groups(None)
    assert all(any(fnmatch(name, glob) for name in names) for glob in group["names"])


ENCODER = "linear model of the encoder's features"


@pytest.fixture
def lite0(monkeypatch, tmp_path):
    """The path of a stand-in for the published wheel."""
    wheel.shrink(monkeypatch)
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    return wheel.write(tmp_path / "wheels", monkeypatch)


def test_the_classifier_of_images_begins_with_the_answer_of_a_frozen_encoder_and_is_not_below_it(
    example, lite0, capsys, monkeypatch
):
    chosen = {"workload.encoder": str(lite0.parent), "workload.size": 0}
    config = example("images", **chosen)
    with torch.device("meta"):
        assert load_task(config).model().head.out_features == 3, "planned"
    task = load_task(config)
    about, data, *_ = task.describe_data().splitlines()
    assert about.startswith(
        f"Encoder: EfficientNet-Lite0, trained on ImageNet, from the wheel {lite0}"
    )
    assert data.startswith("Data: ")
    (method,) = (each for each in task._simples if each.name == ENCODER)
    batch = task.labelled([item.sample for item in task.parts["validation"]])
    network = task.model().eval()
    scores = network(batch["pixel_values"]).log_softmax(-1)
    assert torch.allclose(scores, method.scores(task, batch), atol=0.05), (
        "features are kept in fp16"
    )
    assert batch["pixel_values"].shape[-1] == wheel.SIDE
    summary = launch.train(config)
    assert summary.reason == "completed"
    assert ENCODER in Path("runs/images/evaluation.csv").read_text()
    shutil.rmtree(lite0.parent)
    shutil.rmtree("cache")
    resumed = load_task(config)
    resumed.take_learned(task.learned())
    with pytest.raises(BadInput, match="began with the encoder EfficientNet-Lite0.*not at hand"):
        resumed.describe_data()
    arguments = ["predict", "runs/images", "images", "out", "--task", "images.py:Images"]
    assert main(arguments) == 2
    assert "Mount or install exactly this one" in capsys.readouterr().err
    site = lite0.parent.with_name("site")  # as if the package were installed
    monkeypatch.syspath_prepend(str(site))
    with zipfile.ZipFile(wheel.write(lite0.parent)) as made:
        made.extractall(site)
    shutil.rmtree(lite0.parent)
    assert main(arguments) == 0


def test_a_run_from_scratch_stays_one_and_says_what_an_encoder_would_give(
    example, lite0, monkeypatch, tmp_path
):
    scratch = load_task(example("images"))
    assert "install trainbook[images]" in scratch.describe_data().splitlines()[0]
    values = scratch.learned()
    with zipfile.ZipFile(lite0) as made:
        made.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert load_task(example("images")).encoder() is not None
    resumed = load_task(example("images"))
    resumed.take_learned(values)
    assert resumed.encoder() is None, "it came to hand meanwhile"
    assert resumed.encoded(resumed.example_batch(1, torch.device("cpu"))) is None
    none = load_task(example("images", **{"workload.encoder": "none"}))
    assert none.encoder() is None
    assert none.describe_data().startswith("No encoder (workload.encoder: none)")


def test_an_encoder_is_not_needed_again_if_no_answer_starts_from_it(example, lite0):
    chosen = {"workload.encoder": str(lite0.parent), "workload.size": 0, START: False}
    launch.train(example("images", **{**chosen, "training.max_steps": 2}))
    shutil.rmtree(lite0.parent)  # a later session has its weights in the checkpoint
    summary = launch.train(example("images", **chosen))
    assert summary.reason == "completed"
    assert summary.step == 5
    assert main(["predict", "runs/images", "images", "out", "--task", "images.py:Images"]) == 0
    with pytest.raises(BadInput, match="There is no"):
        load_task(example("images", **{**chosen, "run.name": "other"})).model()


def test_the_network_of_masks_has_the_maps_of_an_encoder_and_its_scale_is_looked_at(
    example, lite0, capsys
):
    chosen = {"workload.encoder": str(lite0.parent), "workload.size": 0}
    task = load_task(example("segmentation", **chosen))
    network = task.model()
    batch = task.example_batch(2, torch.device("cpu"))
    losses, _ = task.loss(network, batch)
    losses["loss"].backward()
    assert network.encoder.network._conv_stem.weight.grad.abs().sum() > 0
    group, *_ = task.parameter_groups(network)
    assert group["names"] == "encoder.*"

    class Standardised(type(task)):
        def batch(self, samples, training):
            batch = super().batch(samples, training)
            return {**batch, "x": (batch["x"] - 0.45) / 0.22}

    pictured.check_scale(Standardised(task.config, task.source))
    assert "and the encoder takes them from 0 to 1" in capsys.readouterr().out
    with pytest.raises(BadInput, match="returns no pictures of that name"):
        pictured.of_batch(task, {"labels": batch["labels"]})
