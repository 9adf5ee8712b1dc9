"""What a task's file imports from beside it, and which packages it needs."""

import pytest

from lib.errors import BadInput
from lib.task.files import own_files

TASK = """
from __future__ import annotations
import json, os.path
import torch, datasets
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


def test_what_a_task_imports_from_beside_it_belongs_to_it_and_packages_are_those_that_must_be_there(tmp_path):
    """A folder of data with a package's name is no package of one's own; what a try catches may be missing."""
    for name, text in {
        "task.py": TASK, "net.py": "import numpy as np\nimport task\n", "helper.py": "", "late.py": "import PIL.Image",
        "pack/__init__.py": "from . import sibling\n", "pack/inner.py": "from .deep import words\nfrom ..pack import x",
        "pack/sibling.py": "import json\n", "pack/deep/words.py": "import regex", "pack/unused.py": "import nothing",
        "unused.py": "", "json.py": "", "torch/data.bin": "", "datasets/train.csv": "", "lib.py": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = own_files(tmp_path / "task.py")
    inner = ["pack/__init__.py", "pack/deep/words.py", "pack/inner.py", "pack/sibling.py"]
    names = [file.relative_to(own.folder).as_posix() for file in own.files]
    assert names == ["task.py", "helper.py", "late.py", "net.py", *inner]
    assert own.packages == ("PIL", "datasets", "needed_inside_a_try", "numpy", "polars", "regex", "sklearn", "torch")
    (tmp_path / "pack" / "inner.py").write_text("\nx = (\n")
    with pytest.raises(BadInput, match=r"inner\.py:2: This is no Python"):
        own_files(tmp_path / "task.py")
