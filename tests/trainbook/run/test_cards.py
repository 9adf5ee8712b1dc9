"""Several cards: a command for each, or one over all; without cards they are processes on the CPU."""

import signal
import sys

import pytest

from lib.config import environment
from lib.training.summary import Summary
from tests.trainbook.run.test_run import COUNT, mount, place, run, started, wait_for, write
from trainbook.run import cards, settings

__all__ = ["place"]
FOLDS = COUNT.replace('"checkpoints', 'f"checkpoints/{options.fold}').replace(
    'parser.add_argument("--resume"',
    'parser.add_argument("--fold")\nparser.add_argument("--resume"',
)
EACH = """
command: [{python}, train.py, --steps, "{steps}", --seconds, "{seconds}"]
two_cards: each
sets: [{sets}]
keep: checkpoints/{{set}}
resume: --resume {{newest}}
metrics: ['step=(\\d+)', 'loss=(\\S+)']
"""
RANKS = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(*_):
    open(f"saved-{rank}", "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", rank, "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""
TORCHRUN = """
command: [{python}, -u, train.py, "{seconds}", "{code}"]
torchrun: 2
"""


def each(place, steps=4, seconds=0.05, sets="--fold 0, --fold 1"):
    write(place, FOLDS)
    text = EACH.format(python=sys.executable, steps=steps, seconds=seconds, sets=sets)
    (place / "folds.yaml").write_text(text)


def test_each_set_of_arguments_is_a_run_of_its_own_and_all_are_in_one_archive(place):
    each(place, sets="--fold 0, --fold 1, --fold 2")
    code, output = run(place, "folds.yaml", command=())
    assert code == 0, output
    assert "3 commands, 2 at once: there is no GPU." in output
    assert "folds-2: begins at 0" in output
    for number in range(3):
        summary = Summary.read(place / f"folds-{number}")
        assert (summary.reason, summary.step) == ("completed", 4)
        assert summary.task.endswith(f"--fold {number}")
    assert (place / "outputs.tar.gz").is_file()


def test_commands_side_by_side_are_asked_to_end_and_all_are_carried_over(place):
    each(place, steps=20, seconds=0.2, sets="--fold 0 --steps 1, --fold 1, --fold 2")
    process = started(place, "folds.yaml", command=())
    wait_for(process, "folds-2: step=2 ")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    mount(place, "notebooks/ada/before")
    each(place, steps=20, seconds=0.2, sets="--fold 0 --steps 1, --fold 1, --fold 2")
    code, output = run(place, "folds.yaml", command=())
    assert code == 0, output
    assert "folds-0 is completed already" in output
    assert "begins at 0" not in output
    ends = {number: Summary.read(place / f"folds-{number}") for number in range(3)}
    assert {number: summary.reason for number, summary in ends.items()} == dict.fromkeys(
        range(3), "completed"
    )
    assert (place / "checkpoints" / "0" / "last.pt").is_file(), "a later session mounts this alone"
    rows = (place / "folds-1" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(step) for step in range(1, 21)]


def test_all_are_ended_at_the_deadline_and_none_is_begun_behind_it(place):
    each(place, sets="--fold 0, --fold 1, --fold 2", seconds=0.2, steps=4000)
    with (place / "folds.yaml").open("a") as file:
        file.write("session: {minutes: 0.85, margin_seconds: 0}\n")
    code, output = run(place, "folds.yaml", command=())
    assert code == 75, output
    assert output.count("was sent SIGTERM") == 2
    ends = [Summary.read(place / f"folds-{number}") for number in range(3)]
    assert [summary.reason for summary in ends] == ["deadline"] * 3
    assert ends[2].step == 0


def test_a_command_that_was_not_begun_is_left_for_the_next_session(place):
    each(place, sets="--fold 0, --fold 1, --fold 2", seconds=0.5, steps=40)
    process = started(place, "folds.yaml", command=())
    wait_for(process, "step=1 ")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "folds-2 was not begun" in output
    summary = Summary.read(place / "folds-2")
    assert (summary.reason, summary.step) == ("interrupted", 0)


def test_one_command_that_fails_fails_the_session_and_leaves_the_others_alone(place):
    each(place, sets="--fold 0, --folds 1")
    code, _ = run(place, "folds.yaml", command=())
    assert code == 1
    assert Summary.read(place / "folds-0").reason == "completed"
    assert "unrecognized arguments" in Summary.read(place / "folds-1").error


def test_torchrun_starts_a_process_for_each_rank_which_get_time_to_save(place):
    write(place, RANKS)
    text = TORCHRUN.format(python=sys.executable, seconds=600, code=0)
    (place / "both.yaml").write_text(text)
    process = started(place, "both.yaml", command=())
    lines = wait_for(process, "rank 1 of 2")
    if not any("rank 0 of 2" in line for line in lines):
        wait_for(process, "rank 0 of 2")
    assert any("torchrun starts 2 processes on the CPU" in line for line in lines)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert (place / "saved-0").is_file()
    assert (place / "saved-1").is_file()


def test_ranks_that_stop_themselves_with_75_are_no_failure(place):
    write(place, RANKS)
    (place / "both.yaml").write_text(TORCHRUN.format(python=sys.executable, seconds=0, code=75))
    code, output = run(place, "both.yaml", command=())
    assert code == 75, output
    assert Summary.read(place / "both").reason == "deadline"
    assert cards.stopped_themselves({75, -15})
    assert not cards.stopped_themselves({75, 1})


@pytest.fixture
def two_cards(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cards, "_names", lambda: ["Tesla T4", "Tesla T4"])


def test_a_command_sees_its_own_card_alone_unless_it_names_it(two_cards, monkeypatch):
    assert cards.visible() == ["0", "1"]
    own = cards.environment_of(1, ["python", "train.py"])
    assert own == {environment.CARD: "1", "CUDA_VISIBLE_DEVICES": "1"}
    named = ["python", "train.py", "cuda:{card}"]
    assert cards.environment_of(1, named) == {environment.CARD: "1"}
    monkeypatch.setenv(environment.CARD, "1")
    assert cards.placed(named) == ["python", "train.py", "cuda:1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert cards.environment_of(1, ["python"])["CUDA_VISIBLE_DEVICES"] == "5"


def test_torchrun_starts_no_more_processes_than_there_are_cards(two_cards, capsys):
    command = cards.under_torchrun(["python", "-u", "-m", "pack.train", "--fold", "1"], 4)
    assert "2 processes instead of 4" in capsys.readouterr().out
    assert command[:4] == ["python", "-u", "-m", "torch.distributed.run"]
    assert command[4:] == ["--standalone", "--nproc_per_node=2", "-m", "pack.train", "--fold", "1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sets": ["--fold 0"]}, "need each other"),
        ({"two_cards": "each"}, "need each other"),
        ({"two_cards": "each", "sets": ["a", "b"], "keep": "checkpoints"}, "have a folder each"),
        ({"two_cards": "each", "sets": ["a"], "torchrun": 2}, "Keep one"),
        ({"torchrun": 2, "command": ["bash", "train.sh"]}, "begins with bash"),
    ],
)
def test_settings_that_exclude_each_other_are_sentences(changes, sentence):
    with pytest.raises(settings.BadInput, match=sentence):
        settings.read("", {}, [], {"command": ["python", "train.py"], **changes})
