"""The cell with buttons of a training notebook."""

import sys
from unittest import mock

from lib.machine import memory, platform
from lib.notebook import widgets


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
