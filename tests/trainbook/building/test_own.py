"""The notebook of a configuration of one's own: what it carries, says and needs."""

import json
import random
import sys

import pytest

from lib.errors import BadInput
from tests import own as project
from tests.conftest import ROOT
from tests.trainbook.launch.test_code import named
from trainbook.building import own
from trainbook.commands import main
from trainbook.kaggle import carried

LARGE = f"X = '{random.Random(0).randbytes(800_000).hex()}'"
OWN = {f"configs/{name}" for name in ("my.yaml", "mine.py", "layers.py", "waves.py", "late.py")}


@pytest.fixture
def config(tmp_path):
    return project.write(tmp_path / "project")


def built(config):
    return json.loads(own.text(own.read(config)))


def files_of(made, below="configs/"):
    return {name for name in carried.carried_files(made) if name.startswith(below)}


def code_of(made, tag):
    return "".join(carried.tagged(made, tag)[0]["source"])


def text_of(made):
    packed = carried.tagged(made, "carrier")
    return "\n".join("".join(cell["source"]) for cell in made["cells"] if cell not in packed)


def unpack(made, folder):
    for name, text in carried.carried_files(made).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_it_carries_the_task_with_what_it_imports_beside_it_and_lib_alone(config):
    made = built(config)
    assert files_of(made) == OWN
    houses = files_of(made, "lib/") | files_of(made, "trainbook/")
    assert houses >= {"lib/task/contract.py", "lib/planner/__main__.py"}
    assert houses >= {"trainbook/__init__.py", "trainbook/launch/run.py", "trainbook/command.py"}
    assert (
        not files_of(made, "workloads/")
        | files_of(made, "trainbook/kaggle")
        | files_of(made, "trainbook/new")
    )
    assert carried.carried_files(made)["configs/mine.py"] == project.TASK
    shipped = built(ROOT / "configs" / "graphmer.yaml")
    names = {"configs/graphmer.yaml", "workloads/graphmer/__init__.py"}
    assert names <= files_of(shipped, "")
    assert "OWN" not in code_of(shipped, "dependencies")


def test_a_text_that_a_setting_names_goes_along_and_what_does_not_is_said(tmp_path, capsys):
    config = named(tmp_path / "project")
    read = own.read(config)
    assert read.files["configs/words.txt"] == "a\nb"
    assert "configs/deep/more.bin" not in read.files
    (note,) = read.notes
    assert "workload.more names" in note
    assert "more.bin is not UTF-8 text" in note
    assert main(["notebook", str(config)]) == 0
    assert note in capsys.readouterr().out


def test_the_same_files_give_the_same_bytes_and_a_changed_one_others(config, tmp_path, capsys):
    assert (
        main(["notebook", str(config), "--out", "a.ipynb"]) == main(["notebook", str(config)]) == 0
    )
    assert "Built a.ipynb" in capsys.readouterr().out
    first = (tmp_path / "a.ipynb").read_bytes()
    assert (tmp_path / "my.ipynb").read_bytes() == first
    with config.with_name("late.py").open("a") as file:
        file.write("def later():\n    import bitsandbytes\n    import nobody_knows_this\n")
    assert main(["notebook", str(config)]) == 0
    assert (tmp_path / "my.ipynb").read_bytes() != first
    assert (
        "Kaggle's image is not known to have bitsandbytes, nobody_knows_this"
        in capsys.readouterr().out
    )
    assert json.loads((tmp_path / "my.ipynb").read_text())["metadata"]["kaggle"][
        "isInternetEnabled"
    ]


def test_title_and_packages_come_from_the_task_and_sections_from_every_notebook(
    config,
):
    made = built(config)
    text = text_of(made)
    assert text.startswith("# Sums of sines from three waves\n\nThey are made from their index.\n")
    assert 'OWN = ["scipy", "torch"]' in code_of(made, "dependencies"), (
        "a caught import may be missing"
    )
    assert '(HOME / "configs/mine.py").read_text()' in text
    assert "@" not in text
    built_there = json.loads((ROOT / "notebooks" / "02_glacier_pretrain.ipynb").read_text("utf-8"))
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    headings.remove("## New data, and a submission")
    assert headings == [line for line in text_of(built_there).split("\n") if line.startswith("## ")]
    assert list(carried.parameters(made)) == list(carried.parameters(built_there))


def test_a_queue_is_trained_run_by_run_and_its_members_predict_together(config):
    one = text_of(built(config))
    assert "looks.predict(run, NEW_DATA, SAMPLE, TTA, ID_COLUMN)" in one
    assert "run_queue" not in one
    config.write_text(project.CONFIG + "queue: {seeds: [1, 2]}\n")
    made = built(config)
    text = text_of(made)
    assert "looks.predict_together(runs, NEW_DATA, SAMPLE, TTA, ID_COLUMN)" in text
    assert 'runs = notebook.configure_queue("my", HOME, globals())' in text
    assert "queue.run_queue(runs)" in text
    assert "launch.train(" not in text
    assert "@" not in text
    assert carried.workload(made) == ("my", True)
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    assert headings == [line for line in one.split("\n") if line.startswith("## ")]


def test_a_task_in_another_folder_keeps_its_place_beside_the_configuration(config):
    folder = config.parent
    (folder / "conf").mkdir()
    moved = config.rename(folder / "conf" / "my.yaml")
    moved.write_text(project.CONFIG.replace("mine.py:", "../mine.py:"))
    made = built(moved)
    assert files_of(made) == OWN - {"configs/my.yaml"} | {"configs/conf/my.yaml"}
    assert 'notebook.configure("conf/my", HOME' in text_of(made)
    assert carried.workload(made) == (
        "conf/my",
        False,
    )


REFUSED = [
    (
        lambda c: c.write_text(project.CONFIG + "queue: {before: [a.yaml]}\n"),
        "names other configurations in queue.before",
    ),
    (
        lambda c: c.write_text(project.CONFIG.replace("mine.py", str(c.parent / "mine.py"))),
        "task: mine.py:Mine",
    ),
    (
        lambda c: c.with_name("late.py").write_text("x = (\n"),
        r"late\.py:1: Python 3\.\S+ cannot read this",
    ),
    (
        lambda c: c.with_name("late.py").write_text(LARGE),
        "The largest carried files: configs/late.py",
    ),
]


def test_what_no_notebook_can_carry_and_a_python_without_jupytext_are_sentences(
    config, monkeypatch, capsys
):
    for change, sentence in REFUSED:
        change(project.write(config.parent))
        with pytest.raises(BadInput, match=sentence):
            built(config)
    project.write(config.parent)
    assert (
        main(["notebook", str(config), "--out", "my.txt"])
        == main(["notebook", "nothing.yaml"])
        == 2
    )
    monkeypatch.setitem(sys.modules, "jupytext", None)
    assert main(["notebook", str(config)]) == 2
    assert "needs jupytext" in capsys.readouterr().err
