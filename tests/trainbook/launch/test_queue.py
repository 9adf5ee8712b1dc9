"""A queue's runs resume by themselves wherever it was cut, and end in the same bytes as without a cut."""

import json
from types import SimpleNamespace

import pytest

from lib.errors import BadInput, TrainingFailed
from lib.machine import inputs
from lib.training import loop
from lib.training.session import Session
from lib.training.summary import Summary
from tests.conftest import TOY
from trainbook import launch
from trainbook.commands import main
from trainbook.launch import queue

pytestmark = pytest.mark.usefixtures("quick")
SEEDS = "queue: {seeds: [1, 2, 3]}\n"


@pytest.fixture
def config(tmp_path):
    """config(text, name) -> the path of a toy configuration with that text behind it."""

    def write(more="", name="toy"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            TOY.replace("run: {name: toy}\n", "") + f"{more}\noutput_dir: {tmp_path / 'runs'}\n"
        )
        return path

    return write


def queue_of(path, **overrides):
    return queue.entries(path, overrides)


def results(folder):
    """What each run ended in: its summary without speeds, its metrics without times, its best weights."""
    found = {}
    for run in sorted(path.parent for path in folder.glob("*/summary.json")):
        summary = json.loads((run / "summary.json").read_text())
        kept = {key: summary[key] for key in ("reason", "step", "metrics", "best", "test_loss")}
        weights = sorted((run / "best").glob("*/model.safetensors"))
        found[run.name] = (kept, [path.read_bytes() for path in weights])
    return found


def test_names_are_those_of_the_parts_and_all_combinations_are_there(config):
    found = queue_of(config("queue: {seeds: [42, 7], grid: {optimizer.lr: [0.1, 3e-4]}}\n"))
    assert [entry.name for entry in found] == [
        "toy-lr0.1-seed42", "toy-lr0.1-seed7", "toy-lr3e-4-seed42", "toy-lr3e-4-seed7",
    ]  # fmt: skip
    assert [(entry.config.optimizer.lr, entry.config.seed) for entry in found][1:3] == [
        (0.1, 7),
        (3e-4, 42),
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a queue of three seeds ends in that nothing cuts."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "toy.yaml").write_text(TOY.replace("run: {name: toy}\n", "") + SEEDS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launch, "plot", lambda run, baseline: run.folder)
        patched.setenv("TRAINBOOK_CACHE", str(folder / "cache"))
        assert queue.run_queue(queue_of(folder / "toy.yaml", output_dir=str(folder / "runs"))) == 0
    found = results(folder / "runs")
    assert len(found) == 3
    return found


class Killed(BaseException):
    """What a kill is to the code."""


def test_killed_in_run_2_of_3_and_resumed_it_ends_in_the_same_bytes(
    config, tmp_path, whole, monkeypatch
):
    path = config(SEEDS)
    real = loop.optimizer_step

    def step(state, task, config, slots, number, *rest):
        if config.run.name == "toy-seed2" and number == 7:
            raise Killed
        return real(state, task, config, slots, number, *rest)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "optimizer_step", step)
        patched.setattr(launch, "_write_failure", lambda *_: None)
        queue.run_queue(queue_of(path))
    states = [line.split()[1:3] for line in queue.table(queue_of(path)).splitlines()[1:4]]
    assert [state for state, _ in states] == ["completed", "stopped", "not"]
    assert 0 < queue.newest(queue_of(path)[1]).step <= 7
    assert queue.run_queue(queue_of(path)) == 0
    assert results(tmp_path / "runs") == whole


def test_the_deadline_may_fall_anywhere(config, tmp_path, monkeypatch, whole):
    path = config(SEEDS)
    real = loop.optimizer_step
    clock = {"left": 0}

    def step(*arguments):
        clock["left"] -= 1
        return real(*arguments)

    monkeypatch.setattr(loop, "optimizer_step", step)
    monkeypatch.setattr(
        Session, "remaining", lambda self: float("inf") if clock["left"] > 0 else 0.0
    )
    codes = []
    while not codes or codes[-1] == 75:
        clock["left"] = 8  # steps in a session: it ends within a run, and between two
        codes.append(queue.run_queue(queue_of(path)))
        assert len(codes) < 20
    assert codes[-1] == 0, codes
    assert len(codes) >= 4, codes
    assert results(tmp_path / "runs") == whole


def test_a_run_that_fails_is_said_and_the_others_go_on(config, monkeypatch, capsys):
    found = queue_of(config(SEEDS))
    assert queue.table(found).count("not started") == 3
    real = loop.train

    def failing(task, config, *rest):
        if config.seed == 2:
            raise TrainingFailed("The gradient was not finite.")
        return real(task, config, *rest)

    monkeypatch.setattr(loop, "train", failing)
    assert queue.run_queue(found) == 1
    assert (
        "1 of 3 runs failed:\n  toy-seed2: The gradient was not finite." in capsys.readouterr().out
    )
    assert queue.table(found).count("completed") == 2
    monkeypatch.setattr(loop, "train", real)
    assert queue.run_queue(found) == 0
    assert queue.table(found).count("12/12") == 3


BEFORE = "queue: {before: [base.yaml], before_overrides: {training.max_steps: 4}, start_from: base, seeds: [1, 2]}\n"


def test_what_comes_before_is_made_small_where_it_is_missing_and_its_weights_are_used(
    config, capsys, tmp_path
):
    config(name="base")
    path = config(BEFORE)
    found = queue_of(path)
    assert [entry.name for entry in found] == ["base-short", "toy-seed1", "toy-seed2"]
    assert "No completed base was found" in capsys.readouterr().out
    assert queue.run_queue(found) == 0
    said = capsys.readouterr().out
    assert said.count("Initial weights: 4 of 4 tensors match") == 2
    assert [entry.name for entry in queue_of(path)] == ["toy-seed1", "toy-seed2"]
    assert "Only a small base was made earlier" in capsys.readouterr().out


def test_runs_completed_in_a_mounted_output_come_along_without_checkpoints(
    config, tmp_path, monkeypatch
):
    path = config("queue: {seeds: [1, 2]}\n")
    launch.train(queue_of(path)[0].config)
    mount = tmp_path / "input" / "earlier"
    mount.parent.mkdir()
    (tmp_path / "runs").rename(mount)
    monkeypatch.setattr(inputs, "mounted", lambda here: [mount])
    assert queue.newest(queue_of(path)[0]).reason == "completed"
    assert queue.run_queue(queue_of(path)) == 0
    first = tmp_path / "runs" / "toy-seed1"
    assert Summary.read(first) == Summary.read(mount / "toy-seed1")
    assert list((first / "best").iterdir())
    assert not (first / "checkpoints").exists()
    assert (tmp_path / "runs" / "toy-seed2" / "checkpoints").is_dir()


def test_best_and_worst_follow_the_direction_and_criteria_are_judged_and_not_enforced(
    config, monkeypatch
):
    task = SimpleNamespace(selection=("loss", "max"))
    monkeypatch.setattr(queue, "find_task", lambda name: lambda config: task)
    entries = queue_of(
        config("queue: {seeds: [1, 2, 3], mean_at_least: 0.5, best_at_least: 0.99}\n")
    )
    assert queue.verdict(entries) == "No run of the queue is completed yet."
    for entry, value in zip(entries, (0.9, 0.2, 0.5), strict=True):
        assert "Criterion" not in queue.verdict(entries)
        entry.folder.mkdir(parents=True)
        reached = {"metric": "loss", "value": value, "step": 12}
        Summary(entry.name, entry.config.task, "completed", 12, 12, best=reached).write(
            entry.folder
        )
    text = queue.verdict(entries)
    assert "best 0.9000 (toy-seed1)" in text
    assert "Criterion mean >= 0.50: 0.5333, reached" in text
    assert "Criterion best >= 0.99: 0.9000, missed" in text
    other = SimpleNamespace(selection=("loss", "min"))
    monkeypatch.setattr(queue, "find_task", lambda name: lambda config: other)
    assert "best 0.2000 (toy-seed2)" in queue.verdict(entries)


def test_what_contradicts_the_queue_is_refused(config):
    with pytest.raises(BadInput, match="Less loss is better"):
        queue_of(config("queue: {seeds: [1], mean_at_least: 0.8}\n"))
    with pytest.raises(BadInput, match="seed was given as override, but queue.seeds sets it"):
        queue_of(config(SEEDS), seed=1)


def test_train_trains_every_run_of_a_queue_but_not_under_torchrun(
    config, tmp_path, monkeypatch, capsys
):
    path = config("queue: {seeds: [1, 2]}\n")
    assert main(["train", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.count("completed at step") == 0
    assert "The queue: toy-seed1, toy-seed2" in said
    assert "2 runs by" in said
    assert sorted(results(tmp_path / "runs")) == ["toy-seed1", "toy-seed2"]
    again = tmp_path / "runs" / "toy-seed1" / "config.yaml"
    assert main(["train", str(again)]) == 0, "the configuration of a run names that run alone"
    assert sorted(results(tmp_path / "runs")) == ["toy-seed1", "toy-seed2"]
    monkeypatch.setattr("lib.ranks.under_torchrun", lambda: True)
    assert main(["train", str(path)]) == 2
    assert "Start it without torchrun" in capsys.readouterr().err
