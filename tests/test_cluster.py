"""The examples for clusters, as far as they can be checked without one."""

import json
import os
import re
import subprocess
import sys
import time

import yaml

from lib.config import Config
from lib.config.reader import sentences
from tests.conftest import ROOT, TOY

CLUSTER = ROOT / "configs" / "cluster"

# Stand-ins on one machine: srun starts a task for each of two nodes, scontrol names them and notes a requeue.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
pids=()
for node in 0 1; do SLURM_NODEID=$node "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""
SCONTROL = """#!/bin/bash
case $1 in
    show) printf '127.0.0.1\\n127.0.0.2\\n' ;;
    requeue) echo "$2" > requeued.txt ;;
esac
"""


def test_the_slurm_example_trains_on_two_nodes_stops_before_the_jobs_end_and_requeues_itself(tmp_path):
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "toy.yaml").write_text(TOY)
    environment = {
        **os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2",
        "SLURM_JOB_END_TIME": str(int(time.time()) + 100),  # less than the margin: one step, then the end
        "CONFIG": "toy.yaml", "OUTPUT_DIR": str(tmp_path / "shared"), "PYTHON": sys.executable,
        "PROCESSES": "1", "SLOTS": "2", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    command = ["bash", str(CLUSTER / "slurm.sh")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "shared" / "toy" / "summary.json").read_text())
    assert (summary["reason"], summary["world_size"]) == ("deadline", 2)
    assert (tmp_path / "requeued.txt").read_text().strip() == str(os.getpid())
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "Give a folder that all nodes see" in done.stderr


def documents():
    runtime, job = yaml.safe_load_all((CLUSTER / "trainjob.yaml").read_text())
    return runtime, job, yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())


def test_every_key_that_an_example_sets_exists():
    _, job, sky = documents()
    texts = [*job["spec"]["trainer"]["command"], *job["spec"]["trainer"]["args"], sky["run"]]
    text = " ".join([*texts, (CLUSTER / "slurm.sh").read_text().replace("\\\n", " ")])
    keys = set(re.findall(r"--set[= ]\s*\"?([\w.]+)=", text))
    assert {"output_dir", "training.micro_batch_slots", "session.minutes", "run.name"} <= keys <= set(sentences(Config))


def test_the_trainjob_fits_its_runtime_and_its_slots_its_processes():
    runtime, job, _ = documents()
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node"
    pod = node["template"]["spec"]["template"]["spec"]
    mounted = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    trainer = job["spec"]["trainer"]
    assert f"--set=output_dir={mounted['runs']}" in trainer["args"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    assert f"--set=training.micro_batch_slots={trainer['numNodes'] * trainer['numProcPerNode']}" in trainer["args"]


def test_the_shell_parts_of_the_skypilot_example_parse():
    for part in ("setup", "run"):
        assert subprocess.run(["bash", "-n"], input=documents()[2][part], text=True).returncode == 0
