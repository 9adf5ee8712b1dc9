"""What the machine does while it trains: the thread, the columns, the advice. No test sleeps."""

import threading

import pytest
import torch

from lib.report import sampler
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.report.sampler import Advice, Sampler
from lib.task import load_task
from tests.conftest import VOLATILE_COLUMNS
from tests.training.test_loop import fit


def sample(ram, use, memory):
    return {"ram_share": ram, "gpu_use": use, "gpu_memory_bytes": memory}


def test_a_row_has_the_mean_use_and_the_highest_memory_since_the_row_before(monkeypatch):
    monkeypatch.setattr(sampler, "SECONDS", 0.0)
    readings = iter(
        [sample(0.3, 0.2, 100), sample(0.5, 0.4, 300)]
    )  # then it fails, which ends the thread
    with Sampler(lambda: next(readings)) as watch:
        watch._thread.join(600)
        assert watch.row() == {"ram_share": 0.5, "gpu_use": 0.3, "gpu_memory_bytes": 300}
    watch._samples.append(sample(0.4, 0.9, 200))
    assert watch.row() == watch.row() == {"ram_share": 0.4, "gpu_use": 0.9, "gpu_memory_bytes": 200}
    assert Sampler(lambda: {"ram_share": 0.25}).row() == {"ram_share": 0.25}, (
        "the first row waits for no second"
    )


def test_the_thread_ends_with_the_run_also_when_it_fails(toy, tmp_path, monkeypatch):
    alive = lambda: [thread for thread in threading.enumerate() if thread.name == "sampler"]  # noqa: E731
    numbers = []
    monkeypatch.setattr(Plain, "update", lambda *_: numbers.append(len(alive())))
    fit(toy(), tmp_path / "run")
    assert set(numbers) == {1}
    assert not alive()
    rows = read(tmp_path / "run" / "metrics.csv")
    assert all(0 < float(row["ram_share"]) < 1 for row in rows if row["split"] == "train")
    assert ("gpu_use" in rows[0]) == ("gpu_memory_bytes" in rows[0]) == torch.cuda.is_available()
    assert {"ram_share", "data_wait_share"} <= VOLATILE_COLUMNS
    monkeypatch.setattr(type(load_task(toy())), "loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(toy(), tmp_path / "failing")
    assert not alive()


def test_waiting_and_full_ram_are_printed_once_with_advice():
    advice = Advice(workers=1)
    slow = {"data_wait_share": 0.4}
    fast = {"data_wait_share": 0.1}
    for row in (slow, slow, slow, fast, slow, slow, {"ram_share": 0.8}):
        assert advice.lines(row) == []
    assert [advice.lines(slow) for _ in range(2)] == [[]] * 2
    (sentence,) = advice.lines(slow)
    assert sentence.startswith("Training waits for data 40% of the time. Raise data.num_workers (n")
    (sentence,) = advice.lines({"ram_share": 0.85})
    assert "RAM is 85% full" in sentence
    assert "data.num_workers (now 1)" in sentence
    assert advice.lines(slow | {"ram_share": 0.95}) == []
