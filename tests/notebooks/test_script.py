"""A command of somebody else's on Kaggle: its pushed notebook is cut in one session, and the next finishes it."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pytest

from lib.training.summary import Summary
from tests.conftest import ROOT
from tests.markup import page_of, unbalanced
from tests.notebooks.test_chain import RUN
from tests.notebooks.test_notebooks import PARAMETERS, execute, kaggle  # noqa: F401
from tests.trainbook.kaggle.test_script import git
from trainbook import run
from trainbook.commands import main
from trainbook.run import sent

TRAIN = """
import argparse, pathlib, pickle, time
import data

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
options = parser.parse_args()
epoch = pickle.loads(pathlib.Path(options.resume).read_bytes()) if options.resume else 0
print("begins at", epoch, "with", data.read(), flush=True)
pathlib.Path("checkpoints").mkdir(exist_ok=True)
while epoch < 400:
    pause = 0.2 if epoch < 40 else 600  # the first session never gets to the end
    time.sleep(0.005 if options.resume else pause)
    epoch += 1
    if epoch % 4 == 0:
        pathlib.Path("checkpoints/last.pkl").write_bytes(pickle.dumps(epoch))
    if epoch % 20 == 0 or not options.resume:
        print(f"epoch={epoch} loss={1 / epoch:.4f}", flush=True)
pathlib.Path("answers.csv").write_text("id,answer\\n1,2\\n")
print("final accuracy 0.9")
"""
DATA = """
import pathlib

def read():
    return pathlib.Path("waves/waves.csv").read_text().strip()
"""
SETTINGS = """
command: [python, train.py]
keep: checkpoints
resume: --resume {newest}
done: final accuracy
metrics: ['epoch=(\\d+)', 'loss=(\\S+)']
inputs: {waves: ada/waves}
session: {margin_seconds: 0}
"""
MINUTES = 20.0
STARTS = 7  # times the seconds of a start that a notebook takes until its command runs


class Kaggle:
    """Runs a session of the stub in a process; the deadline of the first one comes when its command has begun."""

    def __init__(self, stub, folder):
        self.stub, self.folder = stub, folder

    def __call__(self, session):
        root = self.folder / f"session-{session.version}"
        (root / "input").mkdir(parents=True)
        for name, content in session.mounts.items():
            place = root / "input" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            uploaded = self.stub.datasets.get(name.removeprefix("datasets/"), [{}])[-1]
            if "contents" in uploaded:
                place.mkdir()
                for file, data in uploaded["contents"].items():
                    (place / file).write_bytes(data)
            else:
                place.symlink_to(content, target_is_directory=True)
        (root / "working").symlink_to(session.working, target_is_directory=True)
        (root / "notebook.ipynb").write_text(session.request["text"])
        reserved = run.SAVING_SECONDS + run.INTERRUPT_SECONDS + run.PACKING_SECONDS
        left = reserved + min(40, STARTS * starting()) if session.version == 1 else 60 * MINUTES
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KAGGLE", "PYTHON"))
        }
        environment |= {
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "TRAINBOOK_KAGGLE_ROOT": str(root),
            "TRAINBOOK_SESSION_START": str(time.time() + left - 60 * MINUTES),
        }
        command = [sys.executable, "-c", RUN, f"{root}/notebook.ipynb", f"{root}/working"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


def starting():
    """Seconds that this machine takes now to start a notebook and what it imports."""
    begin = time.perf_counter()
    code = "import papermill, trainbook.run.notebook, matplotlib.figure"
    subprocess.run([sys.executable, "-c", code], check=True)
    return max(1.0, time.perf_counter() - begin)


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, text in {"train.py": TRAIN, "data.py": DATA, "job.yaml": SETTINGS}.items():
        (folder / name).write_text(text)
    git("init", "--quiet")
    git("add", ".")
    return folder


def said(root):
    notebook = nbformat.read(root / "notebook.ipynb.out", 4)
    assert not unbalanced(page_of(notebook))
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    text = "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
    return outputs, text


def test_a_pushed_command_is_cut_in_the_first_session_and_finished_in_the_second(
    stub, project, tmp_path
):
    waves = tmp_path / "stub" / "datasets" / "ada" / "waves"
    waves.mkdir(parents=True)
    (waves / "waves.csv").write_text("seven waves")
    stub.datasets["ada/waves"] = [{}]
    stub.runner = Kaggle(stub, tmp_path / "sessions")
    minutes = f"--param=SESSION_MINUTES={MINUTES}"
    assert main(["kaggle", "chain", "job.yaml", "--poll-seconds", "0.3", minutes]) == 0, [
        session.failure for session in stub.sessions
    ]
    home = project / "runs" / "kaggle" / "trainbook-job"
    sessions = json.loads((home / "chain.json").read_text())["sessions"]
    assert [session["reason"] for session in sessions] == ["deadline", "completed"]

    _, first = said(tmp_path / "sessions" / "session-1")
    assert "begins at 0 with seven waves" in first
    assert "was sent SIGTERM" in first
    outputs, second = said(tmp_path / "sessions" / "session-2")
    begin = int(second.split("begins at ")[1].split()[0])
    assert begin > 0
    assert "final accuracy 0.9" in second
    assert any("<tr>" in o.get("data", {}).get("text/html", "") for o in outputs)
    assert any("image/png" in o.get("data", {}) for o in outputs)

    left = stub.sessions[1].working
    assert {path.name for path in left.iterdir()} == {"job", sent.FOLDER, "outputs.tar.gz"}
    own = {p.relative_to(left / sent.FOLDER).as_posix() for p in (left / sent.FOLDER).rglob("*.*")}
    assert own == {"answers.csv", "checkpoints/last.pkl"}, "what the command made, and no more"
    assert main(["kaggle", "fetch", "job.yaml"]) == 0
    results = home / "results" / "job"
    summary = json.loads((results / "summary.json").read_text())
    assert (summary["reason"], summary["session"]) == ("completed", 2)
    assert (results / "plots" / "metrics.png").stat().st_size > 10_000
    rows = (results / "metrics.csv").read_text().splitlines()[1:]
    steps = {int(row.split(",")[0]) for row in rows}
    assert {1, begin, 400} <= steps, "the figures of both sessions"
    assert sessions[1]["step"] == 400


def test_the_notebook_of_a_script_cuts_a_session_resumes_and_runs_two_seeds(
    kaggle,  # noqa: F811
):
    working = kaggle / "working"
    name = "09_your_script"
    cells, text = execute(ROOT / "notebooks" / f"{name}.ipynb", working, PARAMETERS[name])
    assert "The repository: data.py, model.py, train.py" in text
    assert text.count("The command was sent SIGTERM") == 1
    first, second = text.split("deadline: see", 1)
    assert "final accuracy" not in first
    assert "final accuracy" in second
    runs = {run: Summary.read(working / run) for run in ("digits", "seeds-0", "seeds-1")}
    assert {run: summary.reason for run, summary in runs.items()} == dict.fromkeys(
        runs, "completed"
    )
    assert (runs["digits"].session, runs["digits"].step) == (2, 30)
    assert runs["seeds-0"].task.endswith("--out seeds/0 --seed 0")
    pictures = [o for cell in cells for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 3
    assert {path.name for path in working.iterdir()} == {*runs, "outputs.tar.gz"}
