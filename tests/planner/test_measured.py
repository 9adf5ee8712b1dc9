"""What ran on this machine is kept, shown, and corrects the next plan of its card."""

import dataclasses
import json
import types

import pytest
import torch

from lib.launch import run, smoke
from lib.machine import platform
from lib.planner import find_card, make, measured, of_plan
from lib.planner.measured import Measured
from lib.training.loop import Outcome

HALF = Measured("toy", "tests/toy.py:Toy", "fp16", 5.0, 10.0, 6 * 2**30, 5 * 2**30)


def kept(*rows, card="T4"):
    for row in rows:
        measured.keep(card, row)


def task_of(config, row=HALF):
    return dataclasses.replace(row, task=config.task)


def test_a_measurement_is_kept_for_its_card_and_the_newest_fifty_stay():
    kept(*(dataclasses.replace(HALF, run=str(n)) for n in range(60)), card="Tesla/../T4")
    (file,) = (platform.detect().scratch_dir / "measured").iterdir()
    assert file.name == "tesla-t4.json"
    assert [row.run for row in measured.of_card("Tesla/../T4")] == [str(n) for n in range(10, 60)]
    assert measured.of_card("T4") == []


def test_without_measurements_nothing_is_corrected(toy):
    target = find_card("t4")
    assert measured.corrected(target, toy()) is target
    assert make(toy(), target).measured == ""


def test_the_next_plan_of_the_card_is_corrected_and_says_so(toy):
    config, target = toy(), find_card("t4")
    kept(task_of(config))
    plain, plan = (make(config, card) for card in (target, measured.corrected(target, config)))
    assert plan.chosen.expected_seconds == pytest.approx(2 * plain.chosen.expected_seconds)
    assert plan.chosen.step_seconds == pytest.approx([2 * seconds for seconds in plain.chosen.step_seconds])
    assert plan.limit_bytes == pytest.approx(plain.limit_bytes / 1.2, abs=2)
    said = "Measured on this T4: 5.00 steps/s of toy, where 10.0 were predicted. Times are multiplied by 2.00"
    assert said in of_plan(plan) and "20% above the prediction" in of_plan(plan)


def test_the_same_task_counts_before_others_and_the_median_of_five(toy):
    config, target = toy({"training.precision": "fp16"}), find_card("t4")
    other = dataclasses.replace(HALF, task="mine.py:Mine", steps_per_second=2.5)
    kept(other)
    assert measured.corrected(target, config).slower == 4 and measured.corrected(target, config).larger == 1
    assert measured.corrected(target, toy({"training.precision": "fp32"})) is target, "another precision says nothing"
    kept(*(dataclasses.replace(task_of(config), steps_per_second=speed) for speed in (1.5, 4, 5, 8, 10, 12.5)))
    assert measured.corrected(target, config).slower == pytest.approx(10 / 8)


def test_a_peak_below_the_prediction_leaves_no_less_room(toy):
    config, target = toy(), find_card("t4")
    kept(dataclasses.replace(task_of(config), peak_bytes=4 * 2**30))
    assert measured.corrected(target, config).limit_bytes == target.limit_bytes


@pytest.mark.parametrize("changes", [{"steps_per_second": 0.0}, {"steps_per_second": 1.0}, {"peak_bytes": 0}])
def test_what_says_nothing_of_the_card_is_not_kept(changes):
    assert measured.keep("T4", dataclasses.replace(HALF, **changes)) is None
    assert measured.of_card("T4") == []


@pytest.mark.parametrize(
    "text", ["{", "[1]", "3", '[{"run": "a"}]', json.dumps([dataclasses.asdict(HALF) | {"peak_bytes": "many"}])]
)
def test_a_damaged_file_is_said_and_corrects_nothing(toy, text, capsys):
    kept(HALF)
    path = platform.detect().scratch_dir / "measured" / "t4.json"
    path.write_text(text)
    target = find_card("t4")
    assert measured.corrected(target, toy()) is target
    assert "t4.json is not read, so plans of T4 are not corrected" in capsys.readouterr().out
    kept(HALF)
    assert measured.of_card("T4") == [HALF]


@pytest.fixture
def on_a_card(monkeypatch, toy):
    """on_a_card() -> the toy as it is prepared for a T4, planned in this process."""
    monkeypatch.setattr(run.process, "plan", lambda config, card, count: make(config, card, count))
    monkeypatch.setattr(run, "card_of_gpu", lambda index: find_card("t4"))
    monkeypatch.setattr(run.ranks, "cards", lambda device: [0])

    def prepared():
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            config, plan, lines = run.apply_plan(toy(), 1)
        return run.Run(config, None, None, lines, plan)

    return prepared


def test_the_smoke_test_keeps_what_it_measured_beside_the_forecast(on_a_card, monkeypatch):
    first = on_a_card()
    likely = 1 / first.predicted.expected_seconds
    state = types.SimpleNamespace(step=3, micro_batch=8, precision="fp16")
    outcome = Outcome("completed", state, likely / 2, 2**30, {}, [])
    monkeypatch.setattr(smoke, "few_steps", lambda run: outcome)
    monkeypatch.setattr(smoke.contract, "require", lambda task, config: [])
    monkeypatch.setattr(smoke.memory, "card_bytes", lambda: 14 * 2**30)
    monkeypatch.setattr(smoke.torchrun, "processes", lambda config: 1)
    monkeypatch.setattr(measured, "_WIDEST", 1e6)  # the toy's peak is some hundred KiB
    text = smoke.test(first)
    assert f"{likely / 2:.2f} steps/s (predicted {likely:.2f}, " in text
    (row,) = measured.of_card("T4")
    assert row.slower == pytest.approx(2) and row.predicted_peak_bytes == first.predicted.prediction.peak_bytes
    again = on_a_card()
    assert again.plan.slower == pytest.approx(2)
    assert again.predicted.expected_seconds == pytest.approx(2 * first.predicted.expected_seconds)
    smoke.test(again)
    assert measured.of_card("T4")[-1].slower == pytest.approx(2), "beside the forecast without a correction"
