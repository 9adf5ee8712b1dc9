"""The worst sites of the campaign, in a process of its own from which runs are forked."""

import json
import os
import subprocess
import sys

from tests.conftest import ROOT
from tests.faults import memory


def test_memory_that_runs_out_at_the_worst_sites_is_borne_by_the_run():
    command = [sys.executable, "-m", "tests.faults.memory", "--fast"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["borne"] == figures["sites"] == len(memory.FAST)


def test_the_campaign_has_sixty_sites():
    assert len(memory.sites()) == 60
    assert set(memory.FAST) <= memory.sites().keys()
