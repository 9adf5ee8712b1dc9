"""Tasks by name and by file."""



import pytest

from lib.errors import BadInput
from lib.task import find_task
from tests.conftest import ROOT


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
