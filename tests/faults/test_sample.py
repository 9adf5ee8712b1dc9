"""A sample of the campaign, in a process of its own: runs are forked there, which threads of other tests would not
survive."""

import json
import os
import subprocess
import sys

from tests.conftest import ROOT


def test_a_sample_of_kills_failures_flips_and_power_losses_loses_nothing():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.campaign", "--fast"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = {name: counts for line in done.stdout.splitlines() for name, counts in json.loads(line).items()}
    operations = figures["every operation"]
    assert operations["equal"] == operations["runs"] > 20 and operations["survived the error"] > 5
    assert figures["random kills"]["equal"] == 3
    assert figures["bit flips"]["found"] == figures["bit flips"]["tried"] > 100
    losses = figures["power losses"]
    assert losses["states"] > 200 and losses["wrong"] == losses["lost"] == 0
    assert losses["control without file syncs"]["lost"] > 100
