"""The cells with buttons of a training notebook: its memory panel and its plan."""

import sys
from unittest import mock

import pytest
import torch

from lib.machine import memory, platform
from lib.notebook import panel, widgets
from tests.conftest import ROOT

GRAPHMER = ROOT / "configs" / "graphmer.yaml"


def test_the_memory_panel_prints_without_a_live_kernel_or_widgets_and_measures_again_at_its_buttons(
    monkeypatch, capsys
):
    assert widgets.memory_panel() is None and "RAM: " in capsys.readouterr().out
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ipywidgets", None)
        assert widgets.memory_panel() is None and "RAM: " in capsys.readouterr().out
    monkeypatch.setattr(memory, "check_memory", mock.Mock(side_effect=["before", "checked", "cleared"]))
    (check, clear), text = (panel := widgets.memory_panel()).children[0].children, panel.children[1]
    assert capsys.readouterr().out == "before\n" and text.layout.display == "none"
    check.click()
    assert text.value == "checked" and text.layout.display == ""
    clear.click()
    assert text.value == "cleared"


def test_a_training_notebook_s_button_fills_overrides_in_place(planned, monkeypatch):
    made = []
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(widgets, "show_live", lambda widget, otherwise: made.append(widget))
    overrides = {"optimizer.lr": 1e-4}
    plan = panel.Choice(GRAPHMER, {}, "t4").plan()
    widgets.plan_panel(plan, overrides)
    button, said = made[0].children
    button.click()
    assert overrides == {"optimizer.lr": 1e-4, "training.micro_batch": 16, "training.gradient_checkpointing": 0}
    assert "Run the cells below" in said.value and "training.micro_batch" in said.value


def test_a_plan_for_another_machine_is_shown_without_a_button(planned, monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(widgets, "show_live", lambda widget, otherwise: pytest.fail("it offers a plan for no card"))
    for run_type in ("", "Batch"):
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", run_type)
        widgets.plan_panel(panel.Choice(GRAPHMER, {}, "t4").plan(), {})
        assert capsys.readouterr().out.count("At the peak, GiB") == 1
    widgets.plan_panel(None, {})
    assert capsys.readouterr().out == ""
