"""The parameters cell of a training notebook, and the comparison at its end."""

import pytest
import torch

from lib import notebook
from lib.errors import BadInput
from lib.report.summary import Summary
from tests.conftest import ROOT

EMPTY = {
    "CONFIG": "", "DATA_DIR": "", "OUTPUT_DIR": "", "SMOKE_STEPS": 0, "MAX_STEPS": 0, "SESSION_MINUTES": 0,
    "OVERRIDES": {}, "RESUME_FROM": "",
}  # fmt: skip


def test_empty_parameters_take_the_size_that_fits_and_say_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert notebook.configure("graphmer", ROOT, EMPTY).run.name == "graphmer_small"
    assert "there is no GPU, so this is the small size" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert notebook.configure("graphmer", ROOT, EMPTY).run.name == "graphmer"


def test_every_parameter_reaches_the_configuration(tmp_path):
    given = {
        "CONFIG": "configs/graphmer_small.yaml", "DATA_DIR": "a", "OUTPUT_DIR": "b", "SMOKE_STEPS": 3, "MAX_STEPS": 4,
        "SESSION_MINUTES": 5.5, "OVERRIDES": {"optimizer.lr": 0.5}, "RESUME_FROM": "c",
    }  # fmt: skip
    config = notebook.configure("graphmer", ROOT, given)
    assert (config.data.dir, config.output_dir, config.run.resume_from) == ("a", "b", "c")
    assert (config.training.smoke_steps, config.training.max_steps, config.session.minutes) == (3, 4, 5.5)
    assert config.optimizer.lr == 0.5


def test_a_queue_in_the_notebook_of_one_run_is_refused_with_the_command():
    given = {**EMPTY, "CONFIG": "configs/graphmer_small.yaml", "OVERRIDES": {"queue.seeds": [1, 2]}}
    with pytest.raises(BadInput, match=r"trains one run[\s\S]*-m lib train .*graphmer_small.yaml '--set=queue.seeds="):
        notebook.configure("graphmer", ROOT, given)


def test_an_unfinished_run_says_what_is_left_and_a_finished_one_compares():
    text = notebook.compare(Summary("toy", "toy", "deadline", 40, 100))
    assert "60 steps left" in text
    text = notebook.compare(Summary("toy", "toy", "completed", metrics={"mrr": 0.5}, baseline={"mrr": 0.25}))
    assert text.splitlines()[1].split() == ["mrr", "0.250", "0.500", "+0.250"]
