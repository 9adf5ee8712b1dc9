"""The cells with buttons of a training notebook: its memory panel and its plan."""

import torch

from lib.machine import platform
from lib.notebook import panel, widgets
from tests.conftest import ROOT

GRAPHMER = ROOT / "configs" / "graphmer.yaml"


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
