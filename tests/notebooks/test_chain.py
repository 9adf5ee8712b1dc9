"""A chain of sessions, each of which really runs the built notebook, as Kaggle would: from the command line to the
same weights as one long run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from lib import checkpoint
from lib.task import load_config
from tests.conftest import ROOT
from tests.notebooks.test_notebooks import PARAMETERS, small_graph
from trainbook import launch
from trainbook.commands import main

STEPS = 60
MINUTES = 20.0  # of a session; the first one begins when nearly all of them have passed
RESERVED = 10.0  # seconds that a session keeps for a save and the archive, beside its margin
PLAN = "notebook.plan(run)\\n"  # which takes as long as the training; of three sessions the last one plans, too
IMPORTS = 7  # times the seconds of importing lib that the first session has: three to five pass until it trains

RUN = """
import sys
import papermill
source, folder = sys.argv[1:]
papermill.execute_notebook(source, source + ".out", kernel_name="python3", cwd=folder, progress_bar=False)
"""


class Kaggle:
    """Runs a session of the stub: mounts its inputs, executes its notebook in a process, keeps what it leaves."""

    def __init__(self, stub, folder):
        self.stub = stub
        self.folder = folder

    def __call__(self, session):
        root = self.folder / f"session-{session.version}"
        (root / "input").mkdir(parents=True)
        for name, content in session.mounts.items():
            (root / "input" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "input" / name).symlink_to(content, target_is_directory=True)
        (root / "working").symlink_to(session.working, target_is_directory=True)
        assert session.request["text"].count(PLAN) == 1
        if session.version == 3:
            text = session.request["text"]
        else:
            text = session.request["text"].replace(PLAN, "")
        (root / "notebook.ipynb").write_text(text)
        left = IMPORTS * importing() if session.version == 1 else 60 * MINUTES
        saved = lambda: any(session.working.glob("*/checkpoints/step-*/manifest.json"))  # noqa: E731
        deadline = time.time() + left
        child = self.start(root, deadline - 60 * MINUTES)
        if session.version <= 2:
            self.stub.wait_for(lambda: saved() or child.poll() is not None, seconds=600)
            assert saved(), (root / "said.txt").read_text()[-2000:]
        if (
            session.version == 1
        ):  # sleeps until no step fits, so that a fast machine does not complete the run before
            signal_all(child.pid, signal.SIGSTOP)
            time.sleep(max(0.0, deadline - RESERVED - time.time()))
            signal_all(child.pid, signal.SIGCONT)
        if session.version == 2:
            signal_all(child.pid, signal.SIGKILL)
            child.wait()
            self.stub.lose(session)
        assert child.wait(timeout=900) == 0, (root / "said.txt").read_text()[-2000:]

    def start(self, root, session_start):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KAGGLE", "PYTHON"))
        }
        environment |= {
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "TRAINBOOK_KAGGLE_ROOT": str(root),
            "TRAINBOOK_SESSION_START": str(session_start),
        }
        with (root / "said.txt").open("w") as said:
            command = [
                sys.executable,
                "-c",
                RUN,
                str(root / "notebook.ipynb"),
                str(root / "working"),
            ]
            return subprocess.Popen(command, cwd=root, env=environment, stdout=said, stderr=said)


def signal_all(process: int, number: int) -> None:
    """The process and its kernel, which stands in a process group of its own; some of its workers may just end."""
    parent = psutil.Process(process)
    for one in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def importing() -> float:
    """Seconds that this machine takes now to import what a notebook imports."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from trainbook import launch, doctor, notebook"],
        cwd=ROOT,
        check=True,
    )
    return time.perf_counter() - begin


def weights(run: Path) -> dict:
    """The hashes of every file of the last checkpoint but its state, which knows how often it was resumed."""
    files = checkpoint.verify(checkpoint.path_of(run / "checkpoints", STEPS)).files
    return {name: entry.sha256 for name, entry in files.items() if name.endswith(".safetensors")}


def test_three_sessions_with_the_second_killed_end_in_the_weights_of_one_long_run(stub, tmp_path):
    small_graph(tmp_path / "stub" / "datasets" / "ada" / "code-graph")
    stub.datasets["ada/code-graph"] = [{}]
    stub.runner = Kaggle(stub, tmp_path / "sessions")
    overrides = {
        **PARAMETERS["01_graphmer"]["OVERRIDES"], "training.evaluate_every_steps": 20, "checkpoint.every_steps": 5,
        "session.margin_seconds": 1,
    }  # fmt: skip
    values = {"MAX_STEPS": STEPS, "SMOKE_STEPS": 1, "SESSION_MINUTES": MINUTES}
    given = [f"--param={name}={value}" for name, value in values.items()]
    given += [f"--set={key}={value}" for key, value in overrides.items()]
    command = [
        "kaggle",
        "chain",
        "graphmer",
        "--dataset",
        "ada/code-graph",
        "--poll-seconds",
        "0.5",
        *given,
    ]
    assert main(command) == 0, [one.failure for one in stub.sessions]

    home = tmp_path / "runs" / "kaggle" / "trainbook-01-graphmer"
    sessions = json.loads((home / "chain.json").read_text())["sessions"]
    assert [one["reason"] for one in sessions] == ["deadline", "lost", "completed"], stub.sessions[
        -1
    ].failure
    assert 0 < sessions[0]["step"] < STEPS
    assert sessions[2]["step"] == STEPS
    assert stub.overlaps == 0
    assert sessions[2]["first_step"] == sessions[0]["step"]
    mounted = stub.sessions[2].mounts
    assert mounted["notebooks/ada/trainbook-01-graphmer"] == stub.sessions[0].working
    root = tmp_path / "sessions" / "session-3"
    before = root / "input" / "notebooks" / "ada" / "trainbook-01-graphmer"
    step = sessions[0]["step"]
    said = (root / "notebook.ipynb.out").read_text()
    assert f"Resuming graphmer_small from {before / 'graphmer_small'}" in said
    assert f"step {step}: {STEPS - step} of {STEPS} steps left" in said

    alone = tmp_path / "alone"
    settings = {
        **overrides, "training.max_steps": STEPS, "output_dir": str(alone),
        "data.dir": str(tmp_path / "stub" / "datasets" / "ada" / "code-graph"),
    }  # fmt: skip
    launch.train(load_config(ROOT / "configs" / "graphmer_small.yaml", settings))
    assert weights(stub.sessions[2].working / "graphmer_small") == weights(alone / "graphmer_small")

    assert main(["kaggle", "fetch", "graphmer"]) == 0
    summary = json.loads((home / "results" / "graphmer_small" / "summary.json").read_text())
    assert summary["reason"] == "completed"
    assert summary["step"] == STEPS
    assert summary["session"] == 2
