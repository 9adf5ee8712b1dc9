"""New data without targets: read as the training data, or by what a person writes, answered into predictions.csv."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lib.errors import BadInput
from tests.trainbook.supervised.tasks import Heights
from trainbook import Supervised
from trainbook.supervised import prediction
from trainbook.supervised.notes import note


class Files(Supervised):
    """Samples are files with a number in each, and the name of their folder."""

    def read(self, source):
        return [(path, path.parent.name) for path in source.glob("*/*.num")]

    def example(self):
        return "1", "one"

    def batch(self, samples, training):
        values = [float(text if isinstance(text, str) else text.read_text()) for text, _ in samples]
        return {
            "x": torch.tensor(values)[:, None],
            "labels": torch.tensor([label for _, label in samples]),
        }


class Noting:
    """A member that notes the same of new data as each other one."""

    def read_new(self, source):
        note("a line of the new data")
        return ["a sample"]


def test_what_all_members_note_of_new_data_is_printed_once(tmp_path, capsys):
    members = [(Noting(), []) for _ in range(3)]
    assert prediction._read_by_all(members, tmp_path) == [("a sample",) * 3]
    assert capsys.readouterr().out == "a line of the new data\n"


@pytest.fixture
def files(configured, tmp_path):
    """A task whose data are 12 files in two folders, and which took what it learned from them."""
    for k in range(12):
        path = tmp_path / "data" / ("one" if k % 2 else "zero") / f"{k}.num"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(k % 2))
    task = Files(configured("Heights"))
    task.take_learned(Files(configured("Heights"), tmp_path / "data").learned())
    return task


def model(weight):
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(
            torch.tensor([[weight], [-weight]])
        )  # for "one" and "zero", in the order of the alphabet
        net.bias.copy_(torch.tensor([-weight / 2, weight / 2]))
    return net


def rows(folder):
    with (folder / "predictions.csv").open() as file:
        return list(csv.reader(file))


def write(folder, **texts):
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.num").write_text(text)
    return folder


def test_files_without_folders_of_classes_are_found_by_their_ending_and_named(files, tmp_path):
    new = write(tmp_path / "new", a="0", c="1")
    out = tmp_path / "out"
    write(new / "deeper" / "still", b="1")
    (new / "readme.txt").write_text("no number")
    answers = files.predict([model(20.0)], new, out)
    assert [row[:3] for row in rows(out)] == [
        ["sample", "prediction", "probability"],
        ["a.num", "zero", "1.0"], ["c.num", "one", "1.0"], ["deeper/still/b.num", "one", "1.0"],
    ]  # fmt: skip
    assert rows(out)[0][3:] == ["one", "zero"], "a column for each class"
    assert [float(row[4]) for row in rows(out)[1:]] == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    assert answers["a.num"]["prediction"] == "zero"
    assert list(answers) == [
        "a.num",
        "c.num",
        "deeper/still/b.num",
    ]
    assert list(files.predict([model(20.0)], new / "c.num", None)) == ["c.num"]


def test_several_models_answer_by_their_mean_and_batches_are_halved_where_memory_runs_out(
    files, tmp_path, monkeypatch
):
    folder = write(tmp_path / "new", **{f"f{k:02}": str(k % 2) for k in range(11)})
    shares = [files.predict([model(w)], folder, None)["f01.num"]["probability"] for w in (0.5, 4.0)]
    whole = files.predict([model(0.5), model(4.0)], folder, None)
    assert whole["f01.num"]["probability"] == pytest.approx(sum(shares) / 2, abs=1e-5)
    answers = Files.answers
    sizes = []

    def short(self, models, samples):
        sizes.append(len(samples))
        if len(samples) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return answers(self, models, samples)

    monkeypatch.setattr(Files, "answers", short)
    assert files.predict([model(0.5), model(4.0)], folder, None) == whole
    assert len(whole) == 11
    assert sizes == [11, 5, 2, 2, 2, 2, 2, 1]


def test_rows_without_targets_are_read_in_their_order_and_answered_by_the_kind_of_a_task(
    task, tmp_path, monkeypatch
):
    words, heights, tags, following = map(task, ("Words", "Heights", "Tags", "Following"))
    words.take_learned({"classes": ["consonant", "vowel"]})
    new = tmp_path / "new.jsonl"
    out = tmp_path / "out"
    new.write_text("\n".join(json.dumps({"word": f"w{k}"}) for k in range(70)))
    torch.manual_seed(0)
    net = words.model().eval()
    answers = words.predict([net], new, out)
    assert list(answers) == [str(k) for k in range(70)]
    assert len(rows(out)) == 71
    shares = net(words.labelled([(f"w{k}", 0) for k in range(70)])["x"]).softmax(1).amax(1).tolist()
    assert [row["probability"] for row in answers.values()] == pytest.approx(shares, abs=1e-5)
    assert {row["prediction"] for row in answers.values()} <= {"consonant", "vowel", "2", "3"}
    monkeypatch.setattr(type(heights), "read_new", lambda self, source: [((1.0, 2.0), None)])
    monkeypatch.setattr(type(tags), "read_new", lambda self, source: [([1, 0, 2], ""), ([3], "")])
    line = heights.model()
    same = nn.Embedding.from_pretrained(torch.eye(6))
    height = heights.predict([line], tmp_path, None)["0"]["prediction"]
    assert height == pytest.approx(line(torch.tensor([1.0, 2.0])).item())
    assert [row["prediction"] for row in tags.predict([same], tmp_path, None).values()] == [
        "1 2",
        "3",
    ]
    with pytest.raises(BadInput, match=r"Write answers\(models, samples\) in Following"):
        following.predict([same], tmp_path, None)
    monkeypatch.setattr(type(following), "answers", lambda self, models, samples: ["one"])
    with pytest.raises(BadInput, match="answers returned 1 rows for 2 samples"):
        following.predict([same], tmp_path, None)


def test_new_rows_keep_their_order_and_a_target_that_they_lack_takes_no_feature_with_it(
    task, tmp_path, monkeypatch
):
    heights = task("Heights")
    seen = []
    rows = [((k / 10, 0.0), 1.0) for k in range(6)]
    parts = {"train": rows[3:], "validation": rows[:2], "test": rows[2:3]}
    monkeypatch.setattr(type(heights), "read", lambda self, source=None: parts)
    with pytest.raises(
        BadInput, match="Heights.read returns the new data in 3 parts.*Write read_new"
    ):
        heights.predict([heights.model()], tmp_path, None)
    parts = {"train": [], "validation": None, "test": rows}
    assert len(heights.predict([heights.model()], tmp_path, None)) == 6
    monkeypatch.setattr(type(heights), "batch", lambda self, samples, training: seen.extend(samples) or {
        "x": torch.zeros(len(samples), 2), "labels": torch.zeros(len(samples))})  # fmt: skip

    def predicted(example, sample):
        seen.clear()
        monkeypatch.setattr(type(heights), "example", lambda self: example)
        monkeypatch.setattr(type(heights), "read_new", lambda self, source: [sample])
        heights.predict([heights.model()], tmp_path, None)
        return seen

    assert predicted((1, 2, 9.0), (5, 6)) == [(5, 6, 9.0)] == predicted((1, 2, 9.0), (5, 6, None))
    assert predicted({"a": 1, "b": 2, "y": 9.0}, {"y": None, "a": 5, "b": 6}) == [
        {"a": 5, "b": 6, "y": 9.0}
    ]
    with pytest.raises(BadInput, match=r"is \(5,\), and Heights.example\(\) is \(1, 2, 9.0\)"):
        predicted((1, 2, 9.0), (5,))


def test_masks_stay_in_their_folder_whatever_the_samples_are_called(tmp_path):
    """A sample from elsewhere has its number as its name: a list of anybody's may name any picture."""
    data = tmp_path / "data"
    data.mkdir()
    listed = [
        "images/a.png",
        "images/../b.png",
        f"{'../' * 30}{tmp_path}/home/photo.png",
        "../c.png",
    ]
    names = prediction._names([(data / name, None) for name in listed], data)
    assert names == ["images/a.png", "b.png", "2", "3"]
    prediction._write(
        {name: {"prediction": np.zeros((2, 2), np.uint8)} for name in names}, tmp_path / "out"
    )
    assert not (tmp_path / "home").exists()
    assert (tmp_path / "out" / "predictions" / "2.png").is_file()


def test_new_data_that_is_none_and_names_of_a_stranger_are_refused(files, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BadInput, match=r"no file ending in .num in .* write read_new\(source\) in Files"
    ):
        files.predict([], tmp_path / "empty", None)
    monkeypatch.setattr(Files, "read_new", lambda self, source: [])
    with pytest.raises(BadInput, match=r"Files.read_new found no samples in .*empty"):
        files.predict([], tmp_path / "empty", None)
    for values in (
        {"classes": 5},
        {"classes": ["a", 1]},
        {"suffixes": {"a": 1}},
    ):  # of an untrusted archive
        with pytest.raises(BadInput, match="of what was learned from data are no names"):
            files.take_learned(values)


def test_own_answers_of_members_are_averaged_where_they_are_numbers(configured, monkeypatch):
    one = Heights(configured("Heights"))
    other = Heights(configured("Heights"))
    models = [nn.Linear(2, 1) for _ in range(3)]
    one._owners = {models[2]: other}
    given = {id(one): {"mean": 1.0, "name": "a"}, id(other): {"mean": 4.0, "name": "a"}}
    monkeypatch.setattr(
        Heights, "answers", lambda self, models, samples: [given[id(self)]] * len(samples)
    )
    monkeypatch.setattr(Heights, "read_new", lambda self, source: [((1.0, 2.0), None)])
    assert one.predict(models, Path(), None)["0"] == {"mean": 2.0, "name": "a"}, (
        "two models and one"
    )
    given[id(other)]["name"] = "b"
    with pytest.raises(BadInput, match="Heights.answers returns a name that is no number"):
        one.predict(models, Path(), None)
    monkeypatch.setattr(
        Heights, "read_new", lambda self, source: [((1.0, 2.0), None)] * (1 + (self is other))
    )
    with pytest.raises(BadInput, match="The members read 1 and 2 samples"):
        one.predict(models, Path(), None)
