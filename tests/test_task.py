"""Tasks by name and by file."""



import pytest

from lib.errors import BadInput
from lib.task import find_task, locate_data
from tests.conftest import ROOT
from tests.machine.conftest import kaggle


def test_tasks_are_found_by_name_and_by_file():
    assert find_task("graphmer").__name__ == "Graphmer"
    assert find_task(f"{ROOT / 'tests' / 'toy.py'}:Toy").__name__ == "Toy"


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("nothing", "There is no task 'nothing'. Known tasks: .*graphmer"),
        ("nowhere.py:Task", "The task file nowhere.py does not exist"),
        (f"{ROOT / 'tests' / 'toy.py'}:Nothing", "has no class Nothing that derives from lib.task.Task"),
    ],
)
def test_a_task_that_is_not_there_is_said(name, sentence):
    with pytest.raises(BadInput, match=sentence):
        find_task(name)


LAYOUTS = {"new": "datasets/ada/graphs", "old": "graphs"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["graphs", "ada/graphs"])
def test_a_named_data_set_is_entered_to_where_its_archive_was_unpacked(monkeypatch, tmp_path, layout, name):
    kaggle(monkeypatch, tmp_path, [LAYOUTS[layout], "datasets/ada/other"])
    inner = tmp_path / "input" / LAYOUTS[layout] / "data" / "v1"
    inner.mkdir(parents=True)
    (inner / "entities.jsonl").touch()
    assert locate_data(name, ("entities.jsonl",)) == inner
    (tmp_path / "input" / LAYOUTS[layout] / "entities.jsonl").touch()
    assert locate_data(name, ("entities.jsonl",)) == tmp_path / "input" / LAYOUTS[layout]  # the shallow one first
    assert locate_data(name, ("nothing.txt",)) == tmp_path / "input" / LAYOUTS[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_name_the_sentinel_is_searched_and_a_choice_is_said(monkeypatch, tmp_path, capsys, layout):
    kaggle(monkeypatch, tmp_path, [LAYOUTS[layout], "datasets/bob/more"])
    assert locate_data("", ("entities.jsonl",)) is None
    for mount in (LAYOUTS[layout], "datasets/bob/more"):
        (tmp_path / "input" / mount / "entities.jsonl").touch()
    first, second = sorted(tmp_path / "input" / mount for mount in (LAYOUTS[layout], "datasets/bob/more"))
    assert locate_data("", ("entities.jsonl",)) == first
    assert f"{first} is taken, not {second}. data.dir names another" in capsys.readouterr().out


def test_a_folder_of_ones_own_is_taken_as_it_is_and_not_searched(tmp_path):
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "entities.jsonl").touch()
    assert locate_data(str(tmp_path / "tree"), ("entities.jsonl",)) == tmp_path / "tree"
