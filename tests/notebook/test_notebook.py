"""The parameters cell, the memory panel of a training notebook, and the comparison at its end."""


import builtins

import torch

from lib import notebook
from lib.machine import memory, platform
from lib.notebook import widgets
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


def test_the_memory_panel_prints_where_there_is_no_live_kernel(capsys):
    assert widgets.memory_panel() is None
    assert "RAM: " in capsys.readouterr().out


def test_the_memory_panel_measures_again_when_its_buttons_are_pressed(monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    readings = iter(["before", "checked", "cleared"])
    monkeypatch.setattr(memory, "check_memory", lambda: next(readings))
    panel = widgets.memory_panel()
    (check, clear), text = panel.children[0].children, panel.children[1]
    assert capsys.readouterr().out == "before\n" and text.layout.display == "none"
    check.click()
    assert text.value == "checked" and text.layout.display == ""
    clear.click()
    assert text.value == "cleared"


def test_the_memory_panel_prints_where_widgets_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert widgets.memory_panel() is None
    assert "RAM: " in capsys.readouterr().out


def test_an_unfinished_run_says_what_is_left_and_a_finished_one_compares():
    text = notebook.compare(Summary("toy", "toy", "deadline", 40, 100))
    assert "60 steps left" in text
    text = notebook.compare(Summary("toy", "toy", "completed", metrics={"mrr": 0.5}, baseline={"mrr": 0.25}))
    assert "0.250     0.500  +0.250" in text
