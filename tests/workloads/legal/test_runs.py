"""Whole runs, from the configuration to predictions out of what the run leaves."""

import json

import pytest
import torch

from lib import checkpoint, launch
from lib.launch import ensemble
from lib.report.metrics import read
from lib.task import load_config
from tests.conftest import VOLATILE_COLUMNS
from tests.workloads.legal.conftest import CONFIG

MORE = {"training.max_steps": 4, "training.evaluate_every_steps": 2, "training.log_every_steps": 1}
MORE |= {"workload.encoder.dropout": 0.2, "checkpoint.every_steps": 2}


def config(home, name):
    (home / "legal.yaml").write_text(CONFIG)
    return load_config(home / "legal.yaml", {**MORE, "run.name": name, "output_dir": str(home / "runs")})


def newest(folder, kind):
    return checkpoint.load_model(checkpoint.path_of(folder / kind, checkpoint.steps(folder / kind)[-1]))


@pytest.mark.usefixtures("quick", "learned")
def test_a_run_that_is_cut_off_ends_in_the_same_bytes_and_predicts(tmp_path, cut, monkeypatch):
    monkeypatch.setattr("lib.report.figure.save", lambda figure, path: path)
    cut(None)
    assert launch.train(config(tmp_path, "whole")).reason == "completed"
    cut(3)
    assert launch.train(config(tmp_path, "cut")).reason == "deadline"
    cut(None)
    # On another machine, whose cache is empty: what was learned comes from the run's own folder
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("workloads.legal.data.Stack.fit", lambda *_: pytest.fail("a resumed run counts again"))
    ended = launch.train(config(tmp_path, "cut"))
    assert ended.reason == "completed" and ended.session == 2 and not ended.missing
    whole, other = (tmp_path / "runs" / name for name in ("whole", "cut"))
    for kind in ("checkpoints", "best"):
        one, two = newest(whole, kind), newest(other, kind)
        assert one.step == two.step and one.state.get("learned") == two.state.get("learned")
        assert all(torch.equal(value, two.tensors["model"][name]) for name, value in one.tensors["model"].items())
    rows = [
        [{k: v for k, v in row.items() if k not in VOLATILE_COLUMNS} for row in read(folder / "metrics.csv")]
        for folder in (whole, other)
    ]
    assert rows[0] == rows[1] and all(0 <= float(row["padding"]) < 1 for row in rows[0] if row["split"] == "train")
    (tmp_path / "new.txt").write_text("The trial court convicted the accused. The appeal is allowed.")
    ensemble.run(other, tmp_path / "new.txt", tmp_path / "out")
    found = [json.loads(line) for line in (tmp_path / "out" / "new.jsonl").read_text().splitlines()]
    assert len(found) == 2 and (tmp_path / "out" / "new.html").is_file()
