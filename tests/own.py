"""A task of one's own as a person has it: three files in a folder, with an import beside it."""

import shutil
from pathlib import Path

TASK = '''
from layers import small
from waves import Settings, Toy


class Mine(Toy):
    """Sums of sines from three waves.

    They are made from their index.
    """

    Settings = Settings
    sentinels = ("waves.csv",)

    def model(self):
        import scipy.special  # a package that lib does not need

        return small()

    def predict(self, models, source, out):
        from late import said  # while it predicts, long after the task was loaded

        out.mkdir()
        (out / "answers.txt").write_text(said(models))
        return {"a": 1}
'''
LAYERS = """
import torch
from waves import Net

try:
    import a_tracker_that_few_have
except ImportError:
    pass


def small():
    return Net(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
"""
CONFIG = """
task: mine.py:Mine
data: {num_workers: 0}
training: {max_steps: 4, effective_batch: 8, smoke_steps: 2, micro_batch_slots: 2, log_every_steps: 2}
"""


def write(folder: Path) -> Path:
    """Writes such a project; returns its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("toy.py"), folder / "waves.py")
    files = {
        "mine.py": TASK,
        "layers.py": LAYERS,
        "late.py": "def said(models):\n    return f'{len(models)} models'\n",
    }
    for name, text in {**files, "my.yaml": CONFIG, "beside.py": "raise SystemExit"}.items():
        (folder / name).write_text(text)
    return folder / "my.yaml"
