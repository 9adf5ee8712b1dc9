"""The session ends within its minutes at every cut and goes on where it was; each part's small form runs on a CPU."""

import contextlib
import json
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.gpu import parts
from tests.gpu.parts import bits, memory, panel, plans, ranks, smoke, speed
from tests.gpu.session import Part, Record, code_of_tree, run, started, verdict

FOREVER = 10.0**9


class Cut(Exception):
    """The machine is gone: nothing of this session runs any more."""


class Clock:
    """Seconds that pass where a fake row runs; beyond `cut` the session is gone."""

    def __init__(self, cut=FOREVER):
        self.now = 0.0
        self.cut = cut

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        if self.now + seconds > self.cut:
            raise Cut
        self.now += seconds


def fake(clock, durations, tried):
    """Runs rows one after another; a row takes its duration, and is killed at the end of the part's time."""

    def start(part, rows, seconds):
        end = clock() + seconds
        for row in rows:
            tried.append((part.name, row))
            left = end - clock()
            clock.sleep(min(durations[part.name, row], left))
            if durations[part.name, row] > left:
                yield row, {"killed": "at the end"}
                return
            yield row, {"ok": True}

    return start


def record_at(path, code="now"):
    return Record.open(path, {"machine": "none"}, code)


row_times = some.lists(
    some.one_of(some.floats(0.1, 200), some.just(FOREVER)), min_size=1, max_size=4
)
sessions = some.lists(some.tuples(row_times, some.floats(12, 400)), min_size=1, max_size=4)


@given(sessions, some.floats(0.2, 12), some.floats(0, 720))
def test_a_session_ends_within_its_minutes_at_every_cut_and_the_next_one_goes_on(
    plan, minutes, cut
):
    declared = [
        Part(f"part {n}", "", seconds, tuple(f"row {k}" for k in range(len(times))))
        for n, (times, seconds) in enumerate(plan)
    ]
    durations = {(part.name, row): t for part, (times, _) in zip(declared, plan, strict=True)
                 for row, t in zip(part.rows, times, strict=True)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu.json"
        first = []
        second = []
        clock = Clock(cut)
        with contextlib.suppress(Cut):
            run(declared, minutes, record_at(path), fake(clock, durations, first), clock)
        assert clock() <= 60 * minutes
        saved = json.loads(path.read_text())["parts"] if path.is_file() else {}
        whole = {
            (part, row)
            for part, rows in saved.items()
            for row, result in rows.items()
            if "ok" in result
        }
        assert whole <= set(first)
        run(declared, 1000, record_at(path), fake(Clock(), durations, second), Clock())
        assert not whole & set(second), "a row with a result is not run again"
        saved = json.loads(path.read_text())["parts"]
        for part in declared:
            if sum(durations[part.name, row] for row in part.rows) < part.seconds:
                assert all(saved[part.name][row].get("ok") for row in part.rows), (
                    "what fits its time is measured"
                )


def test_results_of_another_code_are_measured_again_and_killed_rows_come_last(tmp_path):
    part = Part("speed", "", 100, ("a", "b", "c"))
    record = record_at(tmp_path / "gpu.json", "old")
    record.add("speed", "b", {"ok": True})
    record = record_at(tmp_path / "gpu.json", "now")
    record.add("speed", "a", {"killed": "after 3 s"})
    assert record.waiting(part) == ["b", "c", "a"]
    record.add("speed", "c", {"ok": False, "missed": "MFU is 12 %"})
    assert verdict(record, [part]) == [
        "speed, a: after 3 s", "speed, b: not run on this code yet.", "speed, c: MFU is 12 %",
    ]  # fmt: skip


def test_the_hash_of_the_code_follows_the_files_that_rows_run(tmp_path):
    (tmp_path / "lib").mkdir()
    before = code_of_tree(tmp_path)
    (tmp_path / "lib" / "step.py").write_text("1")
    (tmp_path / "lib" / "picture.png").write_text("1")
    after = code_of_tree(tmp_path)
    (tmp_path / "lib" / "picture.png").write_text("2")
    assert before != after == code_of_tree(tmp_path)


def test_a_row_that_hangs_is_killed_with_its_children_and_one_that_fails_says_why(
    tmp_path, monkeypatch
):
    (tmp_path / "hangs.py").write_text(
        "import subprocess, sys, time\n"
        "if sys.argv[4] == 'fails': sys.exit('the card is on fire')\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "open(sys.argv[5] + '/child', 'w').write(str(child.pid)); time.sleep(1000)\n"
    )
    monkeypatch.setattr("tests.gpu.session.LEAST", 0.5)
    monkeypatch.setattr("tests.gpu.session.sys.executable", str(runner(tmp_path)))
    part = Part("panel", "", 100, ("hangs", "fails"), at_once=2)
    results = dict(started(True, tmp_path)(part, part.rows, 3.0))
    assert "killed" in results["hangs"]
    assert "the card is on fire" in results["fails"]["error"]
    child = int((tmp_path / "panel" / "hangs" / "child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{child}").exists()


def runner(folder):
    """Writes what stands for Python: it runs the fake row with the arguments of a real one."""
    import sys

    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/hangs.py "$@"\n')
    path.chmod(0o755)
    return path


def test_every_part_names_its_rows_once_and_all_fit_twelve_minutes():
    assert len({part.name for part in parts.PARTS}) == len(parts.PARTS)
    assert all(len(set(part.rows)) == len(part.rows) for part in parts.PARTS)
    assert sum(part.seconds for part in parts.PARTS) <= 12 * 60


@pytest.mark.parametrize(
    "part", [bits, memory, panel, plans, ranks, smoke, speed], ids=lambda part: part.__name__
)
def test_the_small_form_of_a_part_runs_on_a_cpu(part, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINBOOK_GPU_SCRATCH", str(tmp_path))
    result = part.measure(part.ROWS[0], tmp_path, True)
    assert result["ok"], result
    json.dumps(result)


@pytest.mark.parametrize("row", memory.ROWS[1:])
def test_memory_that_runs_out_at_each_place_costs_nothing(row, tmp_path):
    assert memory.measure(row, tmp_path, True)["ok"]


def test_a_plan_is_judged_by_its_peak_on_both_sides_and_by_its_seconds():
    figures = {
        "peak_bytes": 100,
        "steps_per_second": 2.0,
        "predicted_peak_bytes": 104,
        "predicted_seconds": 0.6,
    }
    assert plans.judged(figures)["ok"]
    assert "-4.0%" in plans.judged({**figures, "predicted_peak_bytes": 96})["missed"]
    assert "+6.0%" in plans.judged({**figures, "predicted_peak_bytes": 106})["missed"]
    assert "+40%" in plans.judged({**figures, "predicted_seconds": 0.7})["missed"]


@pytest.mark.parametrize("row", [*plans.LARGE, *plans.SPLITS[:1]])
def test_configurations_of_plans_are_valid_without_a_card(row, tmp_path):
    config = plans.config_of(row, tmp_path)
    assert config.training.effective_batch % config.training.micro_batch_slots == 0


@pytest.mark.parametrize("name", bits.WORKLOADS)
def test_configurations_of_deterministic_runs_are_valid_without_a_card(name, tmp_path):
    assert bits.workload(name, tmp_path).training.deterministic
