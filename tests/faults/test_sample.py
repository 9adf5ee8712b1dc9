"""A sample of the campaign, in a process of its own: runs are forked there, which threads of other tests would not
survive."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.faults import disk_calls, ends


def test_a_sample_of_kills_flips_and_power_losses_loses_nothing():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.campaign", "--fast"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = {
        name: counts
        for line in done.stdout.splitlines()
        for name, counts in json.loads(line).items()
    }
    assert figures["random kills"]["equal"] == 3
    assert figures["bit flips"]["found"] == figures["bit flips"]["tried"] > 100
    losses = figures["power losses"]
    assert losses["states"] > 200
    assert losses["wrong"] == losses["lost"] == 0
    assert losses["control without file syncs"]["lost"] > 100


def test_a_run_bears_a_sample_of_faults_below_python(tmp_path):
    if missing := disk_calls.build(tmp_path / "disk_calls.so"):
        pytest.skip(missing)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.disk_calls", "--fast"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert figures["borne"] == figures["tried"] == disk_calls.SAMPLE
    assert not figures["not borne"]


def test_the_end_of_a_run_is_compared_without_what_no_run_repeats_and_with_all_else(tmp_path):
    run = tmp_path / "toy"
    (run / "plots").mkdir(parents=True)
    files = {
        "metrics.csv": "step,loss,elapsed_seconds\n1,0.5,3\n", "summary.json": '{"step": 1, "session": 1}',
        "plots/metrics.png": "PNG of one time", "events.csv": "step,kind\n1,plateau\n",
    }  # fmt: skip
    for name, text in files.items():
        (run / name).write_text(text)
    first = ends.end(tmp_path)
    (run / "metrics.csv").write_text("step,loss,elapsed_seconds\n1,0.5,4\n")
    (run / "summary.json").write_text('{"step": 1, "session": 2}')
    (run / "plots" / "metrics.png").write_text("PNG of another")
    assert ends.difference(first, ends.end(tmp_path)) == []
    (run / "metrics.csv").write_text("step,loss,elapsed_seconds\n1,0.5,4\n1,0.5")
    (run / "events.csv").write_text("step,kind\n")
    (tmp_path / "outputs.tar.gz").write_bytes(b"torn")
    assert ends.difference(first, ends.end(tmp_path)) == [
        "outputs.tar.gz",
        "toy/events.csv",
        "toy/metrics.csv",
    ]
