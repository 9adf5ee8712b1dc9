"""`make gpu` where there is none, and its parts as far as a CPU can show them; tests/gpu has what only a card can."""

import dataclasses
import sys

import pytest
import torch

from lib import launch
from lib.config import with_changes
from lib.planner import find_card, make
from tests.conftest import ROOT
from tests.gpu import __main__ as gpu
from tests.gpu import bench_plans


def test_without_a_gpu_it_is_said_and_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "run", lambda parts: pytest.fail("it measures nothing"))
    assert gpu.main([]) == 2 and "There is no GPU that PyTorch can use here" in capsys.readouterr().err
    assert gpu.main(["sped"]) == 2 and "There is no part 'sped'. Write tests, memory, plans" in capsys.readouterr().err


def test_with_one_the_parts_that_are_named_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = []
    monkeypatch.setattr(gpu, "run", lambda parts: asked.append(list(parts)) or 0)
    assert gpu.main(["plans"]) == gpu.main([]) == 0
    assert asked == [["plans"], list(gpu.PARTS)]


def test_a_part_that_fails_stops_no_other(capfd):
    code = {name: [sys.executable, "-c", f"print('ran {name}'); raise SystemExit({end})"] for name, end in
            (("first", 3), ("second", 0))}  # fmt: skip
    assert gpu.run(code) == 1 and gpu.run({"second": code["second"]}) == 0
    said = capfd.readouterr().out
    assert "ran first" in said and "ran second" in said and "with exit code 3" in said


def test_every_part_exists_and_make_knows_them():
    for command in gpu.PARTS.values():
        name = command[-1]
        assert (ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")).is_file()
    assert "-m tests.gpu\n" in (ROOT / "Makefile").read_text()
    assert all((ROOT / "configs" / f"{name}.yaml").is_file() for name in bench_plans.CONFIGS)


def test_a_row_of_the_plans_has_what_was_measured_beside_the_forecast(toy):
    run = launch.prepare(toy())
    plan = make(run.config, find_card("t4"), 1)
    config = with_changes(run.config, plan.overrides)
    run = dataclasses.replace(run, plan=plan, config=config)
    row = bench_plans.compare(run)
    assert row["steps_per_second"] > 0 and row["peak_bytes"] > 0, "the toy was trained, here on a CPU"
    assert row["from"] < row["predicted"] < row["to"]
    assert row["predicted_driver_bytes"] <= row["predicted_most_driver_bytes"]
