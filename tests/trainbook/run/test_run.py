"""`trainbook run` around commands with good and bad habits, as real processes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from lib.errors import BadInput
from lib.machine import clock
from lib.training.summary import Summary
from tests.conftest import ROOT
from trainbook.run import INTERRUPT_SECONDS, POLL_SECONDS, _Session, settings

COUNT = """
import argparse, os, pickle, time
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--seconds", type=float, default=0.05)
options = parser.parse_args()
step = pickle.load(open(options.resume, "rb")) if options.resume else 0
print("begins at", step, flush=True)
os.makedirs("checkpoints", exist_ok=True)
while step < options.steps:
    time.sleep(options.seconds)
    step += 1
    with open("checkpoints/last.pt", "wb") as file:  # in place
        pickle.dump(step, file)
    print(f"step={step} loss={1 / step:.3f}", flush=True)
print("the end")
"""
STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("begun", flush=True)
time.sleep(600)
"""
CAREFUL = """
import os, pickle, signal, sys, time
os.makedirs("checkpoints", exist_ok=True)
def save(*_):
    time.sleep(1)
    pickle.dump("saved", open("checkpoints/state.pkl", "wb"))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(600)
"""
NOTING = """
import sys, types
class Writer:
    def __init__(self, folder):
        self.out = open("sent.txt", "a")
    def add_scalar(self, name, value, step):
        print(name, value, step, file=self.out, flush=True)
    def close(self):
        print("closed", file=self.out, flush=True)
module = types.ModuleType("torch.utils.tensorboard")
module.SummaryWriter = Writer
sys.modules["torch.utils.tensorboard"] = module
"""
RESUME = ["--keep", "checkpoints", "--resume", "--resume {newest}"]
TIGHT = """
command: [{python}, train.py]
keep: checkpoints
session: {{minutes: 0.9, margin_seconds: 0}}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An imitated session on Kaggle with a script in its working folder."""
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    working = tmp_path / "kaggle" / "working"
    working.mkdir(parents=True)
    return working


def write(place, code):
    (place / "train.py").write_text(code)


def started(place, *arguments, command=("train.py",), **environment):
    own = [sys.executable, "-m", "trainbook", "run", *arguments]
    foreign = ["--", sys.executable, *command] if command else []
    return subprocess.Popen(
        [*own, *foreign],
        cwd=place,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(place, *arguments, **options):
    process = started(place, *arguments, **options)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def wait_for(process, words):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError("".join(lines))


def mount(place, layout):
    """Ends the session: its output becomes a read-only input of the next one."""
    root = place.parent
    target = root / "input" / layout
    shutil.rmtree(root / "input", ignore_errors=True)
    target.parent.mkdir(parents=True)
    place.rename(target)
    subprocess.run(["chmod", "-R", "a-w", target], check=True)
    place.mkdir()


def test_a_command_that_ends_by_itself_is_completed_with_figures_and_an_archive(place):
    write(place, COUNT)
    patterns = ["--metric", r"step=(\d+)", "--metric", r"loss=(\S+)"]
    code, output = run(place, *RESUME, *patterns)
    assert code == 0, output
    assert "begins at 0" in output
    folder = place / "run-train"
    summary = Summary.read(folder)
    assert summary.reason == "completed"
    assert summary.step == 20
    assert summary.metrics == {"loss": 0.05}
    assert summary.report.endswith("the end")
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert len(rows) == 21
    assert (place / "outputs.tar.gz").is_file()
    assert "the end" in (folder / "output.log").read_text()


def test_a_completed_command_is_not_run_again_under_its_name(place):
    write(place, COUNT)
    assert run(place, *RESUME, command=("train.py", "--steps", "2"))[0] == 0
    code, output = run(place, *RESUME, command=("train.py", "--steps", "2"))
    assert code == 0
    assert "completed already" in output
    assert "begins" not in output
    code, output = run(place, *RESUME, command=("train.py", "--steps", "4"))
    assert "begins at 2" in output, "another command goes on from its checkpoint"


@pytest.mark.parametrize("layout", ["before", "notebooks/ada/before"])
def test_a_killed_session_is_carried_over_from_a_mounted_output(place, layout):
    write(place, COUNT)
    command = ("train.py", "--steps", "12", "--seconds", "0.4")
    process = started(place, *RESUME, command=command)
    wait_for(process, "step=6 ")
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        each.kill()
    process.wait()
    mount(place, layout)
    write(place, COUNT)
    code, output = run(place, *RESUME, command=command)
    assert code == 0, output
    first = int(output.split("begins at ")[1].split()[0])
    assert first >= 5, "at most the save that was being written is lost"
    assert Summary.read(place / "run-train").session == 2


def test_nothing_to_resume_from_leaves_the_arguments_out(place):
    write(place, "import sys; print(sys.argv[1:])")
    code, output = run(place, *RESUME)
    assert code == 0
    assert "[]" in output


def test_a_bare_flag_resumes_where_a_checkpoint_exists(place):
    write(place, "import sys; print(sys.argv[1:])")
    arguments = ["--keep", "checkpoints", "--resume", "--resume"]
    assert "[]" in run(place, *arguments)[1]
    (place / "checkpoints" / "torn.pt").write_bytes(b"\x80\x04N")
    assert "[]" in run(place, *arguments, "--name", "second")[1]
    (place / "checkpoints" / "last.pt").write_bytes(b"\x80\x04N.")
    assert "['--resume']" in run(place, *arguments, "--name", "third")[1]


def test_the_deadline_ends_a_command_in_time_and_the_next_session_completes_it(place):
    write(place, COUNT.replace("default=20", "default=140").replace("0.05", "0.1"))
    text = TIGHT.format(python=sys.executable) + 'resume: "--resume {newest}"\n'
    (place / "short.yaml").write_text(text)
    code, output = run(place, "short.yaml", command=())
    assert code == 75, output
    assert Summary.read(place / "short").reason == "deadline"
    (place / "short.yaml").write_text(text.replace("minutes: 0.9", "minutes: 60"))
    code, output = run(place, "short.yaml", command=())
    assert code == 0, output
    assert "begins at 0" not in output


def test_exit_code_0_after_a_request_to_end_is_no_completion_and_its_save_is_kept(place):
    write(place, CAREFUL)
    (place / "short.yaml").write_text(TIGHT.format(python=sys.executable))
    code, output = run(place, "short.yaml", command=())
    assert code == 75, output
    index = json.loads((place / "short" / "checkpoints" / "index.json").read_text())
    assert [copy["entry"] for copy in index["copies"]] == ["state.pkl"]


def test_a_command_that_ignores_signals_is_killed_with_a_descendant_of_another_session(place):
    write(place, STUBBORN)
    process = started(place, "--keep", "checkpoints")
    wait_for(process, "begun")
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 2
    process.send_signal(signal.SIGINT)
    wait_for(process, "was sent SIGINT")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert not [each for each in below if each.is_running()]
    assert Summary.read(place / "run-train").reason == "interrupted"


def test_a_proof_of_the_end_decides_what_completed_is(place):
    write(place, COUNT)
    assert run(place, *RESUME, "--done", "the end")[0] == 0
    code, output = run(place, *RESUME, "--done", "never printed", "--name", "other")
    assert code == 75, "it saved, and may go on"
    assert "without 'never printed'" in output
    write(place, "print('nothing')")
    assert run(place, "--done", "never printed", "--name", "third")[0] == 1
    write(place, "open('final.txt', 'w').write('x')")
    assert run(place, "--done", "final.txt", "--name", "fourth")[0] == 0


def test_a_command_that_fails_leaves_its_last_line_as_the_error(place):
    write(place, "raise SystemExit('no such data')")
    code, output = run(place, "--keep", "checkpoints")
    assert code == 1, output
    summary = Summary.read(place / "run-train")
    assert summary.reason == "failed"
    assert summary.error == "exit code 1: no such data"


def test_the_command_gets_the_deadline_and_the_starts_of_the_session(place):
    write(place, "import os; print(os.environ['TRAINBOOK_DEADLINE'])")
    code, output = run(place)
    assert code == 0, output
    left = float(output.splitlines()[-2]) - time.time()
    assert 10 * 3600 < left < 11.5 * 3600


@pytest.mark.parametrize(("patterns", "step"), [(["epoch=(\\d+)"], 2), ([], 7)])
def test_steps_go_on_where_the_earlier_session_ended(place, patterns, step):
    """A chain takes a session whose steps did not grow for one that came to nothing."""
    write(place, "print('epoch=2'); raise SystemExit(75)")
    options = [word for pattern in patterns for word in ("--metric", pattern)]
    options += ["--keep", "checkpoints"]
    assert run(place, *options)[0] == 75
    if not patterns:
        summary = Summary.read(place / "run-train")
        replace(summary, step=7).write(place / "run-train")
        assert run(place, *options)[0] == 75
    assert Summary.read(place / "run-train").step == step


def test_a_command_with_a_lib_of_its_own_imports_that_one(place):
    write(
        place, "import lib; print('own', lib.NAME); import trainbook; print('and', trainbook.HOME)"
    )
    (place / "src" / "lib").mkdir(parents=True)
    (place / "src" / "lib" / "__init__.py").write_text("NAME = 'theirs'")
    code, output = run(place, PYTHONPATH=f"{place / 'src'}{os.pathsep}{ROOT}")
    assert "own theirs" in output, output
    assert code == 1, "import trainbook names the other lib"
    assert "Another module named lib is imported already" in output


def test_a_pattern_without_a_figure_in_the_output_is_named(place):
    write(place, "print('loss=0.5')")
    patterns = ["--metric", r"loss=(\S+)", "--metric", r"accuracy=(\S+)"]
    code, output = run(place, *patterns)
    assert code == 0, output
    assert r"no figure for accuracy=(\S+)" in output
    assert "no figure for loss" not in output


def test_figures_go_to_the_trackers_of_the_settings_and_a_later_session_sends_no_step_twice(place):
    """TensorBoard's package may be absent: a module of its name in the working folder notes the calls."""
    (place / "sitecustomize.py").write_text(NOTING)
    (place / "my.yaml").write_text(
        "command: [python, train.py]\nmetrics: ['step=(\\d+)', 'loss=(\\S+)']\n"
        "keep: checkpoints\ntracking: {tensorboard: true}\n"
    )
    environment = {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}
    for steps in ("(1, 2)", "(1, 2, 3)"):
        write(place, f"for s in {steps}:\n    print(f'step={{s}} loss={{1 / s}}', flush=True)")
        name = ["my.yaml", "--name", "tracked", "--done", "never printed"]
        code, output = run(place, *name, command=(), **environment)
        assert code == 1, output
    sent = (place / "sent.txt").read_text().splitlines()
    losses = [line for line in sent if line.startswith("train/loss")]
    assert losses == ["train/loss 1.0 1", "train/loss 0.5 2", "train/loss 0.3333333333333333 3"]
    assert sent.count("closed") == 2


def test_the_command_line_does_not_wait_for_torch(place):
    write(place, "print('x')")
    code = (
        "import sys; from trainbook.commands import main; main(['run', '--', 'true']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=place).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--keep", "."], "holds the working folder"),
        (["--keep", "file.txt"], "is a file"),
        (["--keep", "a", "--output", "a/runs"], "lies in the kept folder"),
        (["--resume", "--x {newest}"], "needs `keep`"),
        (["--metric", "loss="], "needs one group"),
        (["--metric", "loss=("], "is no pattern"),
        (["--metric", r"loss=(\S+)", "--metric", r"loss: (\S+)"], "two patterns for loss"),
    ],
)
def test_what_cannot_work_is_a_sentence_before_anything_starts(place, arguments, words):
    write(place, "print('started')")
    (place / "file.txt").write_text("x")
    code, output = run(place, *arguments)
    assert code == 2
    assert words in output
    assert "started" not in output
    assert "Traceback" not in output


def test_none_of_10_000_simulated_sessions_is_late(monkeypatch, tmp_path):
    """A command saves within the time that its saves took so far; copies and the archive follow."""
    draw = random.Random(0)
    monkeypatch.setattr(clock, "session_start", lambda minutes: 0.0)
    chosen = settings.read("", {"name": "x", "output_dir": str(tmp_path)}, ["true"])
    for _ in range(10_000):
        one = _Session(chosen, None, tmp_path, 1)
        one.deadline = 12 * 3600.0
        longest_save = draw.lognormvariate(2, 1.5)
        longest_copy = draw.lognormvariate(1, 1.5)
        one.store = SimpleNamespace(longest_save=longest_save, longest_copy=longest_copy)
        last_save = longest_save * draw.uniform(0.5, 1.5)
        asked_at = one._stop_at() + POLL_SECONDS
        ended_at = asked_at + min(last_save, one._saving_seconds() + INTERRUPT_SECONDS)
        packed_at = ended_at + longest_copy * draw.uniform(0.5, 2) + draw.uniform(0, 60)
        assert packed_at < one.deadline


def test_without_a_command_the_form_is_shown():
    with pytest.raises(BadInput, match=r"trainbook run -- python train\.py"):
        settings.read("", {}, [])
