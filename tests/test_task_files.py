"""What a task's file imports from beside it, and which packages it needs."""

import pytest

from lib.errors import BadInput
from lib.task.files import own_files

TASK = """
from __future__ import annotations
import json, os.path
import torch
import net
from pack import inner, deep as other
from pack.deep.words import WORDS
from lib.task import Task
try:
    import wandb
    import helper
except ImportError:
    wandb = None
try:
    import needed_inside_a_try
finally:
    pass
if TYPE_CHECKING:
    import pandas
else:
    import polars
class Mine(Task):
    def predict(self):
        from sklearn.metrics import f1_score
        import importlib
        importlib.import_module("late")
if __name__ == "__main__":
    import click
"""


@pytest.fixture
def task(tmp_path):
    files = {
        "task.py": TASK, "net.py": "import numpy as np\nimport task\n", "helper.py": "", "late.py": "import PIL.Image",
        "pack/__init__.py": "from . import sibling\n", "pack/inner.py": "from .deep import words\nfrom ..pack import x",
        "pack/sibling.py": "import json\n", "pack/deep/words.py": "import regex", "pack/unused.py": "import nothing",
        "unused.py": "", "json.py": "", "torch/data.bin": "", "datasets/train.csv": "", "lib.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "task.py"


def test_what_lies_beside_a_task_and_is_imported_belongs_to_it_and_nothing_else(task):
    own = own_files(task)
    names = [file.relative_to(own.folder).as_posix() for file in own.files]
    inner = ["pack/__init__.py", "pack/deep/words.py", "pack/inner.py", "pack/sibling.py"]
    assert names == ["task.py", "helper.py", "late.py", "net.py", *inner]


def test_packages_are_those_that_must_be_there(task):
    """A folder of data with a package's name is no package of one's own; what a try catches may be missing."""
    task.write_text(TASK + "import datasets\n")
    needed = ("PIL", "datasets", "needed_inside_a_try", "numpy", "polars", "regex", "sklearn", "torch")
    assert own_files(task).packages == needed


def test_a_file_that_is_no_python_is_named_with_its_line(task):
    (task.parent / "pack" / "inner.py").write_text("\nx = (\n")
    with pytest.raises(BadInput, match=r"inner\.py:2: This is no Python"):
        own_files(task)
