"""Tasks by name and by file, what such a file imports, and what a task returns."""

import gzip
import os
import pickle
import shutil
import sys

import pytest
import torch
from torch.utils.data import IterableDataset

from lib.errors import BadInput
from lib.task import Task, find_task, load_config, load_task, locate_data
from lib.task.contract import fingerprint
from lib.task.files import own_files
from tests.conftest import ROOT
from tests.machine.conftest import kaggle
from trainbook import launch

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from lib.config.reader import option
from tests.toy import Settings as ToySettings, Toy
{more}

@dataclass(frozen=True)
class Settings(ToySettings):
    width: int | None = option(4, "Width.")

class Own(Toy):
    Settings = Settings
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """own(lines) -> the configuration of a task file of one's own, with these lines in its class or before it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body="", more="", **overrides):
        (tmp_path / "own.py").write_text(OWN.format(more=more) + body)
        text = "task: own.py:Own\ntraining: {max_steps: 2, effective_batch: 8}\ndata: {num_workers: 0}\n"
        (tmp_path / "own.yaml").write_text(text)
        return load_config("own.yaml", overrides)

    return write


def test_tasks_are_found_by_name_and_by_file(
    own,
):
    assert find_task("graphmer").__name__ == "Graphmer"
    assert own().workload.width == 4
    cls = find_task("own.py:Own")
    assert find_task("own.py:Own") is cls
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert own("    changed = True\n")
    assert find_task("own.py:Own").changed
    for name, sentence in {
        "nothing": "There is no task 'nothing'. Known tasks: .*graphmer",
        "nowhere.py:Task": "The task file nowhere.py does not exist",
        f"{ROOT / 'tests' / 'toy.py'}:Nothing": "has no class Nothing that derives from lib.task.Task",
    }.items():
        with pytest.raises(BadInput, match=sentence):
            find_task(name)


def test_a_task_imports_files_beside_it_before_installed_namesakes(own, tmp_path, tmp_path_factory):
    """As for a script: on a machine that has such a package the task would else be another one."""
    installed = tmp_path_factory.mktemp("site-packages", numbered=False)
    for folder, value in ((installed, 1), (tmp_path, 2)):
        (folder / "namesake_own.py").write_text(f"VALUE = {value}\n")
    (tmp_path / "beside_own.py").write_text("VALUE = 3\n")
    for name in ("json", "lib", "colorsys"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong one')\n")
    sys.path.append(str(installed))
    own(
        "".join(
            f"    import {line}\n"
            for line in ("colorsys, json, lib.task", "namesake_own", "beside_own")
        )
    )
    cls = find_task("own.py:Own")
    assert cls.namesake_own.VALUE == 2
    assert cls.beside_own.VALUE == 3


def test_a_task_file_that_fails_is_named_with_its_line(own, tmp_path):
    (tmp_path / "beside.py").write_text("\nmissing\n")
    for body, where, what in (
        ("x = 1 / 0", "own.py:14", "ZeroDivisionError: division by zero"), ("x = (", "own.py, line 14", "SyntaxError"),
        ("import beside", "beside.py:2", "NameError: name 'missing' is not defined"),
    ):  # fmt: skip
        with pytest.raises(BadInput) as error:
            own(f"    {body}\n")
        assert what in str(error.value)
        assert where in str(error.value)
    os.mkfifo("pipe.py")
    with pytest.raises(BadInput, match="The task file"):
        find_task("pipe.py:Own")


ENDLESS = type("Endless", (), {"__getitem__": lambda self, index: index})
STREAM = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(range(9))})
WRONG = [
    ("datasets", {"train": STREAM()}, ".* a Stream as 'train'. Return one with"),
    ("datasets", {"validation": ENDLESS()}, ".* a Endless as 'validation'. Return one with"),
    ("datasets", {"test": []}, r".*: test has no samples \(train \d+, validation \d+, test 0\)"),
    ("datasets", 3, ".* returns a int. It must return"),
    ("selection", ("iou", "max"), r" is .*evaluate returns \(loss, rmse\)"),
    ("evaluate", None, " returned None instead of metrics"),
    ("evaluate", {"loss": "low"}, " returned a metric that is no number"),
    ("term_weights", {"cubed": 1.0}, " weighs 'cubed', which is no loss term"),
    ("count", {"squared": 2, "cubed": 2}, ".* targets of the term 'cubed', and Own.loss returned"),
]


def test_what_a_task_returns_wrongly_is_said_with_class_and_method(own, monkeypatch):
    config = own()
    task = find_task("own.py:Own")
    sets = {"train": range(9), "validation": range(3), "test": range(3)}
    for name, value, sentence in WRONG:
        if name == "datasets" and isinstance(value, dict):
            returned = {**sets, **value}
        else:
            returned = value
        with monkeypatch.context() as patch, pytest.raises(BadInput, match=f"Own.{name}{sentence}"):
            patch.setattr(
                task,
                name,
                value if name == "selection" else lambda self, *_, returned=returned: returned,
            )
            launch.train(config)


def test_a_named_data_set_is_entered_to_where_its_archive_was_unpacked(
    monkeypatch, tmp_path, capsys
):
    kaggle(monkeypatch, tmp_path, ["datasets/ada/graphs", "datasets/ada/other"])
    mount, other = (tmp_path / "input" / "datasets" / "ada" / name for name in ("graphs", "other"))
    inner = mount / "data" / "v1"
    sentinels = ("entities.jsonl",)
    inner.mkdir(parents=True)
    (mount / "data.jsonl").unlink()
    (mount / "README.md").touch()
    assert (
        locate_data("graphs", ()) == mount / "data" == locate_data(str(mount / "data"), ())
    )  # without sentinels
    (mount / "more.csv").touch()
    assert locate_data("graphs", ()) == mount
    assert locate_data("", sentinels) is None
    (inner / "entities.jsonl").touch()
    for name in ("graphs", "ada/graphs"):
        assert locate_data(name, sentinels) == inner == locate_data("", sentinels)
        assert locate_data(name, ("nothing.txt",)) == mount
    (mount / "entities.jsonl").touch()
    assert locate_data("graphs", sentinels) == mount  # the shallow one first
    (other / "entities.jsonl").touch()
    assert locate_data("", sentinels) == mount
    assert f"{mount} is taken, not {other}. data.dir names another" in capsys.readouterr().out


def test_a_list_of_folders_is_for_tasks_that_take_several(toy, tmp_path, monkeypatch):
    kaggle(monkeypatch, tmp_path, ["datasets/ada/graphs", "datasets/ada/other"])
    here = tmp_path / "here"
    mount = tmp_path / "input" / "datasets" / "ada" / "graphs"
    here.mkdir()
    config = toy({"data.dir": [str(here), "ada/graphs"]})
    single = toy({"data.dir": [str(here)]})
    with pytest.raises(
        BadInput, match="lists 2 folders, and Toy reads one. Name one, or their parent"
    ):
        load_task(config)
    assert load_task(single).sources == (here,)
    monkeypatch.setattr(
        "lib.task.loading.find_task", lambda name: type("Several", (Task,), {"several": True})
    )
    task = load_task(config)
    assert task.source == here
    assert task.sources == (here, mount)
    (here / "x.txt").write_text("a")
    both = task.fingerprint()
    alone = load_task(single).fingerprint()
    assert alone != both == load_task(config).fingerprint()
    (mount / "x.txt").write_text("c")
    assert load_task(config).fingerprint() != both


SHORT = """
import torch
from torch import nn
from lib.task import Task

class Short(Task):
    def model(self):
        return nn.Linear(2, 3)

    def datasets(self):
        rows = [{"x": [k / 9, 1.0], "labels": k % 3 if k else -100} for k in range(9)]
        return {"train": rows, "validation": rows, "test": rows}

    def loss(self, model, batch):
        return {"loss": nn.functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="sum")}, {}

    def example_batch(self, size, device):
        return {"x": torch.ones(size, 2), "labels": torch.zeros(size).long()}
"""


def test_a_task_of_four_methods_trains_and_is_tested(tmp_path, quick):
    (tmp_path / "short.py").write_text(SHORT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    (tmp_path / "short.yaml").write_text(
        "task: short.py:Short\ntraining: {max_steps: 2, effective_batch: 9}\ndata: {num_workers: 0, dir: data}\n"
    )
    run = launch.prepare(load_config("short.yaml", {"output_dir": str(tmp_path / "runs")}))
    summary = launch.train(run)
    assert summary.metrics == {}
    assert summary.baseline == {}
    assert summary.missing == {}
    assert summary.test_loss > 0
    batch = run.task.collate(run.task.datasets()["train"], torch.Generator())
    assert run.task.count(batch) == {"loss": 8}
    assert run.task.count({"x": batch["x"]}) == {"loss": 9}
    first = run.task.fingerprint()
    (tmp_path / "data" / "a.txt").write_text("b")
    assert run.task.fingerprint() == first  # every save asks for it
    assert launch.prepare(load_config("short.yaml")).task.fingerprint() != first


@pytest.fixture
def archives(tmp_path):
    """A folder with archives, and one with what Kaggle makes of it."""
    packed = tmp_path / "packed"
    mounted = tmp_path / "mounted"
    (mounted / "more" / "deep").mkdir(parents=True)
    packed.mkdir()
    for name, text in {
        "x.csv": "a,b\n1,2\n",
        "more/y.csv": "c\n",
        "more/deep/z.txt": "z" * 3_000_000,
    }.items():
        (mounted / name).write_text(text)
    (packed / "x.csv.gz").write_bytes(gzip.compress((mounted / "x.csv").read_bytes()))
    shutil.make_archive(str(packed / "more"), "zip", mounted / "more")
    return packed, mounted


def test_archives_that_kaggle_unpacks_are_the_same_data_and_a_run_resumes_on_them(
    archives, tmp_path, quick, capsys
):
    packed, mounted = archives
    assert fingerprint(packed) == fingerprint(mounted)
    (tmp_path / "short.py").write_text(SHORT)
    text = "task: short.py:Short\ntraining: {max_steps: 2, effective_batch: 4}\ndata: {num_workers: 0}\n"
    (tmp_path / "short.yaml").write_text(text)
    launch.train(load_config("short.yaml", {"data.dir": str(packed)}))
    assert (
        launch.train(
            load_config("short.yaml", {"data.dir": str(mounted), "training.max_steps": 4})
        ).step
        == 4
    )
    assert "Resuming short from" in capsys.readouterr().out
    (mounted / "more" / "y.csv").write_text("d\n")
    assert fingerprint(packed) != fingerprint(mounted)


@pytest.mark.parametrize("name", ["x.csv.gz", "more.zip"])
def test_an_archive_that_is_none_counts_by_its_bytes(archives, name):
    packed, _ = archives
    (packed / name).write_bytes(b"no archive")
    first = fingerprint(packed)
    (packed / name).write_bytes(b"another")
    assert fingerprint(packed) != first


def test_the_evaluation_is_the_mean_of_each_term_by_default(own):
    task = Task(own())
    task.count = lambda batch: {"a": 4, "b": 2, "none": 0}
    task.loss = lambda model, batch: ({"a": torch.tensor(batch), "b": torch.tensor(1.0)}, {})
    assert Task.evaluate(task, None, [2.0, 6.0]) == {"a": 1.0, "b": 0.5, "loss": 1.5}
    with pytest.raises(
        BadInput, match=r"Bare has no loss\(.*Write it in the class Bare: it returns"
    ):
        type("Bare", (Task,), {})(own()).loss(None, {})


# --- what its file imports --------------------------------------------------------------------------------------------
TASK = """
import json, torch, datasets
import net
from pack import inner
try:
    import wandb
    import helper
except ImportError:
    wandb = None
def predict():
    from sklearn.metrics import f1_score
    import importlib
    importlib.import_module("late")
"""


def test_own_files_are_imports_beside_the_task_and_packages_needed_imports(
    tmp_path,
):
    """A folder of data with a package's name is no package of one's own; what a try catches may be missing."""
    for name, text in {
        "task.py": TASK, "net.py": "import numpy as np\nimport task\n", "helper.py": "", "late.py": "import PIL.Image",
        "pack/__init__.py": "", "pack/inner.py": "from . import sibling", "pack/sibling.py": "import json\n",
        "pack/unused.py": "import nothing", "unused.py": "", "json.py": "", "datasets/train.csv": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = own_files(tmp_path / "task.py")
    names = [file.relative_to(own.folder).as_posix() for file in own.files]
    inner = ["pack/__init__.py", "pack/inner.py", "pack/sibling.py"]
    assert names == ["task.py", "helper.py", "late.py", "net.py", *inner]
    assert own.packages == ("PIL", "datasets", "numpy", "sklearn", "torch")


@pytest.mark.parametrize("line", ["from lib.helper import X", "from lib import helper"])
def test_a_task_that_wants_a_folder_lib_of_its_own_is_told_to_rename_it(own, tmp_path, line):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("X = 1")
    with pytest.raises(BadInput, match="rename the folder lib beside the task"):
        own(more=line)


def test_a_name_that_trainbooks_own_lib_lacks_is_no_folder_of_the_user(own):
    with pytest.raises(BadInput, match=r"No module named 'lib.helper'.*Correct it there"):
        own(more="from lib.helper import X")
