"""The memory panel without a browser: its controls are set, its button is pressed, its answers are read."""

import re
import threading
from html import escape
from unittest import mock

import pytest
import torch

from lib import planner
from lib.config.reader import flat
from lib.errors import BadInput, TrainingFailed
from lib.machine import platform
from lib.planner.process import Cancelled
from lib.task import load_config
from tests.conftest import ROOT
from trainbook import notebook
from trainbook.notebook import panel

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
GRAPHMER = ROOT / "configs" / "graphmer.yaml"
SMALL = ROOT / "configs" / "graphmer_small.yaml"
PARAMETERS = {
    "CONFIG": "configs/graphmer.yaml", "DATA_DIR": "", "OUTPUT_DIR": "", "SMOKE_STEPS": 0, "MAX_STEPS": 0,
    "SESSION_MINUTES": 0, "OVERRIDES": {}, "RESUME_FROM": "",
}  # fmt: skip


@pytest.fixture
def shown(monkeypatch, tmp_path, planned):
    """shown(**of the start) -> a panel in a live notebook, with its first answer."""
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def make(path=GRAPHMER, overrides=None):
        made = panel.Panel(CONFIGS, panel.Choice(path, overrides or {}, "t4", 0), tmp_path / "runs")
        made.show()
        return made

    return make


def answer(made, **values):
    """Sets controls of a panel and returns the text of its next answer."""
    for name, value in values.items():
        getattr(made, name).value = value
    made._worker.join(600)
    return text_of(made.answer.value).replace("&#39;", "'")


def text_of(html):
    return re.sub(r"\s+", " ", re.sub("<style.*?</style>|<[^>]+>", " ", html))


def test_the_controls_begin_with_what_the_configuration_says(shown, planned):
    made = shown(overrides={"training.effective_batch": 48, "workload.chain.roots": 100})
    assert made.workload.value == "graphmer"
    assert made.card.value == "t4"
    assert made.batch.value == 48
    assert [(d.description, d.value) for d in made.dials.children] == [("Roots", 100), ("Facts", 8)]
    assert "Roots : " in text_of(made.about.value)
    assert "Facts : " in text_of(made.about.value)
    assert len(planned) == 1, "the micro-batch is what is asked for"
    assert planned[0][0].training.micro_batch == 0, "the micro-batch is what is asked for"
    assert "graphmer fits on 2 x T4" in text_of(made.answer.value)
    assert not made.use.disabled


def test_every_control_reaches_the_plan(shown, planned):
    made = shown()
    values = {
        "batch": (96, "training.effective_batch"),
        "precision": ("fp32", "training.precision"),
    }
    for number, (control, (value, key)) in enumerate(values.items(), 2):
        answer(made, **{control: value})
        assert flat(planned[-1][0])[key] == value
        assert len(planned) == number
    made.dials.children[0].value = 192
    assert "activations 8.00 GiB" in answer(made)
    assert planned[-1][0].workload.chain.roots == 192
    answer(made, card="h200")
    assert "H200" in str(planned[-1][1])


def test_a_mistake_or_a_failure_of_the_child_is_shown_and_the_panel_goes_on(
    shown, planned, monkeypatch
):
    made = shown()
    for batch, error in ((256, BadInput("None.")), (512, TrainingFailed("A <b>"))):
        with monkeypatch.context() as patch:
            patch.setattr(planner, "plan", mock.Mock(side_effect=error))
            answer(made, batch=batch)
        assert escape(str(error)) in made.answer.value
        assert made.use.disabled
    assert "effective batch 128" in answer(made, batch=128)


def test_while_one_answer_is_computed_the_newest_choice_is_kept_and_wins(
    shown, planned, monkeypatch
):
    """A newer choice ends the plan that is being made, and clicks in the meantime are one choice."""
    made = shown()
    begun = threading.Event()
    quick = planner.plan

    def until_cancelled(config, card, count, cancelled):
        if config.training.effective_batch != 128:
            return quick(config, card, count)
        begun.set()
        assert cancelled.wait(600)
        raise Cancelled

    with monkeypatch.context() as patched:
        patched.setattr(planner, "plan", until_cancelled)
        made.batch.value = 128
        assert begun.wait(600)
        assert made.use.disabled
        assert "Planning graphmer" in made.status.value
        made.precision.value = "fp32"
        made.batch.value = 64
        made._worker.join(600)
    config = planned[-1][0]
    assert config.training.effective_batch == 64
    assert config.training.precision == "fp32"
    assert "effective batch 64" in made.answer.value
    assert not made.use.disabled
    assert made.status.value == ""
    assert "effective batch 128" in answer(made, batch=128), (
        "what was cancelled is planned when it is asked for again"
    )


def test_the_button_writes_a_file_that_the_training_notebook_beside_it_takes(
    shown, tmp_path, capsys
):
    made = shown()
    made.dials.children[0].value = 64
    answer(made, batch=32)
    made.use.click()
    file = tmp_path / "runs" / "plan-graphmer.json"
    line = 'OVERRIDES = {"training.effective_batch": 32, "workload.chain.roots": 64, "training.micro_batch": 8, '
    assert escape(line) in made.message.value
    assert str(file) in made.message.value
    capsys.readouterr()
    config = notebook.configure("graphmer", ROOT, PARAMETERS)
    assert config.training.effective_batch == 32
    assert config.workload.chain.roots == 64
    assert config.training.micro_batch == 8
    assert f"Plan {file.relative_to(tmp_path)}: training.micro_batch = 8" in capsys.readouterr().out
    given = {**PARAMETERS, "OVERRIDES": {"training.micro_batch": 2}}
    config = notebook.configure("graphmer", ROOT, given)
    assert config.training.effective_batch == 32
    assert config.training.micro_batch == 2
    assert "training.micro_batch = 8, but it is overridden" in capsys.readouterr().out
    assert notebook.configure(
        "graphmer", ROOT, {**PARAMETERS, "CONFIG": str(SMALL)}
    ) == load_config(SMALL)
