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


def test_parts_run_by_name_where_there_is_a_gpu_and_one_that_fails_stops_no_other(monkeypatch, capfd):
    ends = {"first": 3, "second": 0}
    code = {name: [sys.executable, "-c", f"print('ran {name}'); raise SystemExit({end})"] for name, end in ends.items()}
    assert gpu.run(code) == 1
    output = capfd.readouterr().out
    assert "ran first" in output and "ran second" in output and "with exit code 3" in output
    parts = []
    monkeypatch.setattr(gpu, "run", lambda named: parts.append(list(named)) or 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2 == gpu.main(["sped"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.main(["plans"]) == gpu.main([]) == 0 and parts == [["plans"], list(gpu.PARTS)]
    for *_, name in gpu.PARTS.values():
        assert (ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")).is_file()


@pytest.mark.usefixtures("quick")
def test_a_row_of_the_plans_has_what_was_measured_beside_the_forecast(toy):
    run = launch.prepare(toy())
    plan = make(run.config, find_card("t4"), 1)
    row = bench_plans.compare(dataclasses.replace(run, plan=plan, config=with_changes(run.config, plan.overrides)))
    assert row["steps_per_second"] > 0 and row["peak_bytes"] > 0, "the toy was trained, here on a CPU"
    assert row["from"] < row["predicted"] < row["to"]
