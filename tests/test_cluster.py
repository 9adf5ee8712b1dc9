"""The examples for clusters, as far as they can be checked without one."""

import os
import re
import subprocess
import time

import pytest
from torch.distributed.run import parse_args

from lib.config import Config
from lib.config.reader import sentences
from tests.conftest import ROOT
from trainbook.commands import _parser

CLUSTER = ROOT / "configs" / "cluster"

# Stand-ins: srun starts a task for each of two nodes, scontrol names them and notes a requeue, and Python notes what it
# was asked and leaves the summary of a run that its deadline stopped.
PROGRAMS = {
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || exit 1; done
""",
    "scontrol": """#!/bin/bash
case $1 in
    show) printf '127.0.0.1\\n127.0.0.2\\n' ;;
    requeue) echo "$2" > requeued.txt ;;
esac
""",
    "python": """#!/bin/bash
printf '%s\\n' "$@" > "asked-$SLURM_NODEID.txt"
mkdir -p shared/toy
echo '{"reason": "deadline"}' > shared/toy/summary.json
""",
}


def test_the_slurm_example_starts_both_nodes_with_the_jobs_end_as_deadline_and_requeues_itself(
    tmp_path,
):
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2",
        "SLURM_JOB_END_TIME": str(int(time.time()) + 100),
        "CONFIG": "toy.yaml", "OUTPUT_DIR": "shared", "PYTHON": "python", "PROCESSES": "1", "SLOTS": "2",
    }  # fmt: skip
    command = ["bash", str(CLUSTER / "slurm.sh")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "requeued.txt").read_text() == "77\n"
    asked = (tmp_path / "asked-0.txt").read_text()
    assert (tmp_path / "asked-1.txt").read_text() == asked
    assert "\nsession.minutes=1\n" in asked
    launcher, *arguments = asked.split("\n")[1:-1]
    parsed = parse_args(arguments)
    assert launcher == "torch.distributed.run"
    assert parsed.nnodes == "2"
    assert parsed.nproc_per_node == "1"
    assert parsed.module
    assert parsed.training_script == "trainbook"
    assert parsed.rdzv_endpoint == "127.0.0.1:20077"
    trained = _parser().parse_args(parsed.training_script_args)
    assert trained.run
    assert {
        "output_dir=shared",
        "run.name=toy",
        "training.micro_batch_slots=2",
    } <= {*trained.set}
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Give a folder that all nodes see" in done.stderr


def test_every_key_that_an_example_sets_exists():
    text = "".join(
        (CLUSTER / name).read_text() for name in ("slurm.sh", "trainjob.yaml", "skypilot.yaml")
    )
    keys = set(re.findall(r"--set[= ]\s*\"?([\w.]+)=", text))
    assert (
        {"output_dir", "training.micro_batch_slots", "session.minutes", "run.name"}
        <= keys
        <= set(sentences(Config))
    )


@pytest.mark.parametrize("name", ["slurm.sh", "trainjob.yaml", "skypilot.yaml"])
def test_an_example_starts_the_command_that_trains(name):
    assert re.search(r"-m,? trainbook,? train\b", (CLUSTER / name).read_text())
