"""card.json: predicted before the first step, measured at the end, and what was off is said."""

import tarfile
from dataclasses import replace

import pytest

from lib import planner
from lib.config import with_changes
from lib.errors import BadInput
from lib.machine import hardware
from lib.machine.hardware import Driver, Gpu
from trainbook import launch
from trainbook.commands import compared, main
from trainbook.outputs.summary import CARD, Card, Predicted, read_card

GPU = Gpu("Tesla T4", (7, 5), 15_000_000_000)
MEASURED = Card(
    str(GPU), "570.1", {"torch": "2.9"}, {"MHz": 585}, "my", 2, "fp16", 32, 1000, 3 * 2**30, 0.5, 4096.0, 5,
    Predicted(32, 3 * 2**30, [0.4, 0.6]),
)  # fmt: skip


def test_a_run_on_a_gpu_has_it_in_its_archive_with_plan_and_readings(
    toy, quick, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(hardware, "gpus", lambda: [GPU])
    monkeypatch.setattr(hardware, "driver", lambda: Driver("570.1", (12, 8), ["Tesla T4"]))
    monkeypatch.setattr(hardware, "clocks", lambda: {"MHz": 1590})
    plan = planner.make(toy({"training.precision": "fp16"}), planner.find_card("t4"), 1)
    config = with_changes(toy({"training.precision": "fp16"}), plan.overrides)
    run = replace(launch.prepare(config), plan=plan)
    summary = launch.train(run)
    with tarfile.open(run.output_dir / "outputs.tar.gz") as archive:
        archive.extract("toy/card.json", tmp_path, filter="data")
    found = read_card(tmp_path / "toy" / "card.json")
    chosen = plan.chosen
    peak = chosen.prediction.peak_bytes
    assert found.predicted == Predicted(chosen.micro_batch, peak, [*chosen.step_seconds])
    assert found.gpu == str(GPU)
    assert found.driver == "570.1"
    assert found.clocks == {"MHz": 1590}
    assert found.steps == summary.step
    assert found.peak_bytes == summary.peak_memory_bytes
    assert found.precision == "fp16"
    assert found.step_seconds == 1 / summary.steps_per_second
    assert found.loss_scale >= 1
    assert main(["card", str(tmp_path / "toy" / "card.json")]) == 0
    assert "Tesla T4" in capsys.readouterr().out


def test_what_was_measured_is_beside_what_was_planned(tmp_path):
    MEASURED.write(tmp_path)
    assert read_card(tmp_path / CARD) == MEASURED
    text = compared(replace(MEASURED, peak_bytes=4 * 2**30, skipped_steps=20))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "peak, GiB 4.00 3.00" in rows
    assert "seconds a step 0.5 0.4 to 0.6" in rows
    assert "skipped steps 20 of 1,000" in rows


def test_a_file_of_anybody_is_refused_or_printed_without_its_control_characters(tmp_path):
    place = tmp_path / CARD
    for content in ("", '{"steps": "many"}'):
        place.write_text(content)
        with pytest.raises(BadInput, match="is no card.json of a run"):
            read_card(place)
    assert "\x1b" not in compared(
        replace(MEASURED, gpu="\x1b[2J", run="\x1b", versions={"torch": "\x1b"})
    )
