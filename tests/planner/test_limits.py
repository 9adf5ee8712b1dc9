"""Loops that wait for a value end with their line, and every value that was made up is said."""

import re
import sys

import pytest
import torch
from torch import nn

from lib.errors import NotTraceable
from lib.planner import predict, tracker


def linear():
    return nn.Linear(4, 4)


def out(net):
    return net(torch.ones(2, 4, device="cuda"))


def test_a_loop_that_waits_for_a_value_is_refused_with_its_line_by_a_bound_on_a_stretch_of_a_step(monkeypatch):
    monkeypatch.setattr(tracker, "MOST_OPERATORS", 700)
    lines = []

    def waiting(net):
        error = out(net).sum()
        lines.append(sys._getframe().f_lineno)
        while error.item() > 1e-3:
            error = error * 0.5
        return error

    with pytest.raises(NotTraceable, match="a fixed number of turns") as caught:
        predict(linear, waiting)
    line = rf"line ({lines[0] + 1}|{lines[0] + 2})\)"
    assert re.search(rf"more than 700 operators and goes on .*test_limits.py, {line}", str(caught.value))

    def counted(net):  # some 1,900 in two steps, forward and backward
        y = out(net)
        for _ in range(300):
            y = y * 0.5
        return y.sum()

    assert predict(linear, counted).fits


def test_the_branch_that_was_followed_is_said_with_its_line():
    lines = []

    def step(net):
        y = out(net)
        lines.append(sys._getframe().f_lineno)
        if y.sum() > 0:
            return (y.repeat(100_000, 1) ** 2).mean()
        return y.mean() * y.max().item()

    text = "\n".join(predict(linear, step).unseen)
    for offset, value in ((1, "False"), (3, "1.0")):
        assert f"({__file__}, line {lines[0] + offset}) was taken as {value} (2 times)" in text
    assert "another value may need more memory" in text and "upper bound" not in text
