"""What tests of the examples share: their configurations in small, with data that is made."""

import shutil

import pytest

from lib.task import load_config
from tests.conftest import ROOT
from trainbook.new import made

EXAMPLES = ROOT / "trainbook" / "new" / "examples"
SMALL = {
    "images": {"workload.size": 16, "workload.width": 2},
    "text": {"workload.hidden": 8, "workload.length": 8, "workload.words": 64},
    "segmentation": {"workload.size": 16, "workload.width": 2},
    "tokens": {"workload.width": 8, "workload.length": 8, "workload.ids": 64},
    "chat": {
        "workload.answer": 4,
        "workload.lora.rank": 1,
        "workload.validation_rows": 4,
        "workload.test_rows": 4,
    },
    "tabular": {"workload.width": 4, "workload.members": 2},
    "series": {
        "workload.width": 4,
        "workload.history": 8,
        "workload.horizon": 3,
        "workload.season": 4,
    },
    "sequence": {"workload.hidden": 8},
    "gpt": {
        "workload.vocabulary": 300,
        "workload.length": 16,
        "workload.layers": 2,
        "workload.heads": 1,
        "workload.written": 4,
    },
    "audio": {"workload.bands": 8, "workload.seconds": 0.5},
}
STEPS = {
    "training.max_steps": 5, "training.epochs": 0, "training.evaluate_every_epochs": 0, "training.effective_batch": 8,
    "training.evaluate_every_steps": 4, "checkpoint.every_steps": 2, "training.log_every_steps": 1,
    "data.num_workers": 0,
}  # fmt: skip
MADE = {"images": {"number": 30, "size": 16}, "text": {"documents": 20, "lines": 3}, "chat": {"number": 40},
        "tabular": {"number": 60}, "segmentation": {"number": 30, "size": 16}, "tokens": {"number": 40},
        "audio": {"number": 30}, "series": {"number": 3, "length": 80},
        "sequence": {"number": 40}, "gpt": {"number": 20, "sentences": 4}}  # fmt: skip


@pytest.fixture
def example(tmp_path):
    """example(name, **overrides) -> the configuration of an example in small, its data made."""

    def make(name, **overrides):
        for ending in ("py", "yaml"):
            shutil.copyfile(EXAMPLES / f"{name}.{ending}", tmp_path / f"{name}.{ending}")
        if not (tmp_path / name).is_dir():
            getattr(made, name)(tmp_path / name, **MADE[name])
        return load_config(f"{name}.yaml", {**STEPS, **SMALL[name], **overrides})

    return make
