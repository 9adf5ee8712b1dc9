"""Loops that wait for a value end with their line, and every value that was made up is said."""

import sys

import pytest
import torch
from torch import nn

from lib.planner import limits, predict
from lib.planner.limits import NotTraceable


def here():
    """The line of the caller, as a prediction writes it."""
    return f"{__file__}, line {sys._getframe(1).f_lineno}"


def linear():
    return nn.Linear(4, 4)


def out(net):
    return net(torch.ones(2, 4, device="cuda"))


def test_a_loop_that_waits_for_a_value_is_refused_with_its_line(monkeypatch):
    monkeypatch.setattr(limits, "MOST_READS", 50)
    lines = []

    def step(net):
        error = out(net).sum()
        lines.append(here())
        while error.item() > 1e-3:
            error = error * 0.5
        return error

    with pytest.raises(NotTraceable, match="read more than 50 values into Python at one line") as caught:
        predict(linear, step)
    file, number = lines[0].rsplit(" ", 1)
    assert f"{file} {int(number) + 1}" in str(caught.value) and "a fixed number of turns" in str(caught.value)


@pytest.mark.parametrize(
    "bound, value, sentence",
    [("MOST_OPERATORS", 500, "500 operators"), ("MOST_SECONDS", 0, "0 seconds of a CPU")],
)
def test_a_step_without_an_end_is_refused_by_operators_and_by_seconds(monkeypatch, bound, value, sentence):
    monkeypatch.setattr(limits, bound, value)

    def step(net):
        error = out(net).sum()
        while True:
            error = error * 0.5

    with pytest.raises(NotTraceable, match=f"more than {sentence} and goes on .*test_limits.py, line"):
        predict(linear, step)


def test_a_loop_in_a_library_is_named_with_the_line_that_called_it(monkeypatch):
    monkeypatch.setattr(limits, "MOST_READS", 50)
    library = {}
    exec(compile("def search(x):\n    while x.item() > 0:\n        x = x * 1\n", "/library/search.py", "exec"), library)

    def step(net):
        library["search"](out(net).sum())

    with pytest.raises(NotTraceable, match=r"\(/library/search.py, line 2, called at .*test_limits.py, line \d+\)"):
        predict(linear, step)


def test_the_bounds_count_a_stretch_and_not_the_whole_step(monkeypatch):
    def step(net):
        y = out(net)
        for _ in range(300):
            y = y * 0.5
        return y.sum()

    monkeypatch.setattr(limits, "MOST_OPERATORS", 700)  # of some 1,900 in two steps, forward and backward
    assert predict(linear, step).fits


def test_the_branch_that_was_followed_is_said_with_its_line():
    lines = []

    def step(net):
        y = out(net)
        lines.append(here())
        if y.sum() > 0:
            return (y.repeat(100_000, 1) ** 2).mean()
        return y.mean() * y.max().item()

    said = predict(linear, step).unseen
    file, number = lines[0].rsplit(" ", 1)
    branch = f"a value read into Python ({file} {int(number) + 1}) was taken as False (2 times)"
    assert any(sentence.startswith(branch) and "another value may need more memory" in sentence for sentence in said)
    assert any(f"({file} {int(number) + 3}) was taken as 1.0 (2 times)" in sentence for sentence in said)
    assert not any("upper bound" in sentence for sentence in said)


def test_many_lines_that_read_values_are_counted():
    watch = limits.Watch()
    for number in range(8):
        watch.taken[f"model.py, line {number}", "False"] = 8 - number
    said = watch.sentences()
    assert len(said) == 6 and "line 0" in said[0] and said[-1].startswith("values read into Python at 3 more lines")
