"""What the machine does while it trains: the thread, the columns, the advice. No test sleeps."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from lib import launch, ranks
from lib.machine import hardware
from lib.report import sampler
from lib.report.meter import Meter
from lib.report.metrics import read
from lib.report.progress import Plain
from lib.report.sampler import Advice, Sampler
from lib.task import load_task
from lib.training import data, loop
from tests.conftest import VOLATILE_COLUMNS
from tests.training.test_loop import endless, fit


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "sampler"]


def times(number):
    """A wait that lets the thread read `number` times and then end."""
    left = iter([False] * number)
    return lambda seconds: next(left, True)


def sample(ram, use, memory):
    return {"ram_share": ram, "gpu_use": use, "gpu_memory_bytes": memory}


def test_a_row_has_the_mean_use_and_the_highest_memory_since_the_row_before():
    readings = iter([sample(0.3, 0.2, 100), sample(0.5, 0.4, 300), sample(0.4, 0.9, 200)])
    watch = Sampler(lambda: next(readings), wait=times(2))
    with watch:
        watch._thread.join(600)
        assert watch.row() == {"ram_share": 0.5, "gpu_use": 0.3, "gpu_memory_bytes": 300}
    watch.sample()
    assert watch.row() == {"ram_share": 0.4, "gpu_use": 0.9, "gpu_memory_bytes": 200}
    assert watch.row() == {"ram_share": 0.4, "gpu_use": 0.9, "gpu_memory_bytes": 200}  # no second has passed


def test_the_first_row_does_not_wait_for_the_first_second():
    assert Sampler(lambda: {"ram_share": 0.25}).row() == {"ram_share": 0.25}


class Nvml(SimpleNamespace):
    NVMLError = RuntimeError


def with_a_gpu(monkeypatch, nvml):
    """A card for torch, and `nvml` in the place of pynvml."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="abc"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 4 + index)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 6 + index)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def nvml(**changes):
    whole = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=55),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=7, total=10),
    }
    return Nvml(**(whole | changes))


def fails(*_):
    raise RuntimeError("Driver Not Loaded")


@pytest.mark.parametrize(
    ("changes", "use", "memory"),
    [
        ({}, 0.55, 7),
        ({"nvmlDeviceGetUtilizationRates": fails}, None, 7),  # a slice of a card
        ({"nvmlInit": fails}, None, 70),  # torch answers
    ],
)
def test_a_gpu_is_read_by_the_process_that_has_it_as_far_as_it_answers(monkeypatch, changes, use, memory):
    with_a_gpu(monkeypatch, nvml(**changes))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    probe = sampler.Probe()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # as on a thread
    sample = probe()
    assert (sample.get("gpu_use"), sample["gpu_memory_bytes"]) == (use, memory)
    assert (sample["gpu_allocated_bytes"], sample["gpu_reserved_bytes"]) == (5, 7)


def test_torch_answers_when_nvml_stops_in_the_middle(monkeypatch):
    answers = iter([SimpleNamespace(used=7, total=10)] * 2)
    with_a_gpu(monkeypatch, nvml(nvmlDeviceGetMemoryInfo=lambda handle: next(answers, None) or fails()))
    probe = sampler.Probe()
    assert [probe()["gpu_memory_bytes"] for _ in range(3)] == [7, 7, 70]


def test_without_a_gpu_there_is_ram_alone_as_a_share_of_the_containers(small_container):
    assert sampler.Probe()() == {"ram_share": 0.75}


def test_a_machine_that_cannot_be_read_costs_columns_and_never_the_run(monkeypatch):
    with_a_gpu(monkeypatch, nvml(nvmlInit=fails))
    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    assert "gpu_memory_bytes" not in sampler.Probe()()
    with Sampler(fails, wait=times(3)) as watch:
        watch._thread.join(600)
        assert watch.row() == {}


def test_the_thread_ends_with_the_run_also_when_it_fails(toy, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Plain, "update", lambda *_: seen.append(len(alive())))
    fit(toy(), tmp_path / "run")
    assert set(seen) == {1} and not alive()
    task = load_task(toy())
    monkeypatch.setattr(type(task), "loss", lambda *_: 1 / 0)
    (tmp_path / "failing").mkdir()
    with pytest.raises(ZeroDivisionError):
        loop.train(task, toy(), tmp_path / "failing", endless(), Plain())
    assert not alive()


def test_rows_say_what_the_machine_did_and_a_column_without_values_is_not_there(toy, tmp_path):
    launch.train(toy())
    rows = read(tmp_path / "runs" / "toy" / "metrics.csv")
    train = [row for row in rows if row["split"] == "train"]
    assert all(0 < float(row["ram_share"]) < 1 and 0 <= float(row["data_wait_share"]) <= 1 for row in train)
    assert ("gpu_use" in rows[0]) == ("gpu_memory_bytes" in rows[0]) == torch.cuda.is_available()
    assert [bool(row["save_peak_memory_bytes"]) for row in train] == [True, True, False]  # 5, 10, 12
    assert {"ram_share", "data_wait_share", "save_peak_memory_bytes"} <= VOLATILE_COLUMNS


def test_waiting_for_data_is_said_once_with_what_to_do_and_not_for_one_row():
    advice = Advice(workers=1, most=lambda: 4)
    slow, fast = {"data_wait_share": 0.4}, {"data_wait_share": 0.1}
    assert [advice.lines(row) for row in (slow, slow, slow, fast, slow, slow)] == [[]] * 6
    (sentence,) = advice.lines(slow)
    assert sentence.startswith("Training waits for data 40% of the time. Raise data.num_workers from 1 to 4, the")
    assert advice.lines(slow) == []


@pytest.mark.parametrize("way, advice", [(1e9, "set data.num_workers to 0 (now 2)"), (0.0, "data.prefetch_factor")])
def test_where_a_batch_costs_less_than_its_way_no_worker_is_the_advice(toy, monkeypatch, way, advice):
    monkeypatch.setattr(data, "_WAY_SECONDS", way)
    task = load_task(toy())
    asked = Advice(2, lambda: 2, lambda: data.is_cheap(task, task.datasets()["train"], 8))
    before = torch.random.get_rng_state()
    (sentence,) = [line for _ in range(9) for line in asked.lines({"data_wait_share": 0.4})]
    assert advice in sentence and torch.equal(before, torch.random.get_rng_state())


def test_ram_that_is_nearly_full_is_said_once():
    advice = Advice(workers=2)
    assert advice.lines({"ram_share": 0.8}) == []
    (sentence,) = advice.lines({"ram_share": 0.85})
    assert "RAM is 85% full" in sentence and "data.num_workers (now 2)" in sentence
    assert advice.lines({"ram_share": 0.95}) == []


def test_advice_reaches_the_person(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Sampler, "row", lambda self: {"ram_share": 0.93})
    monkeypatch.setattr(Meter, "row", lambda self, size, row=Meter.row: {**row(self, size), "data_wait_share": 0.5})
    fit(toy({"training.log_every_steps": 1}), tmp_path / "run")
    out = capsys.readouterr().out
    assert out.count("RAM is 93% full") == 1 and out.count("Training waits for data 50% of the time") == 1


@pytest.mark.parametrize("cpus, said", [(8.0, "Raise data.num_workers from 2 to 4, the most"),
                                        (4.0, "It has all the loader workers")])  # fmt: skip
def test_the_advice_never_asks_for_more_workers_than_a_run_may_have(toy, monkeypatch, cpus, said):
    monkeypatch.setattr(hardware, "cpus", lambda: cpus)
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2, 2))
    task, options = load_task(toy()), toy({"data.num_workers": 8}).data
    most = data.most_workers(task, [])
    assert most == data.limit_workers(task, [], options, print).num_workers
    advice = Advice(workers=2, most=lambda: most)
    (sentence,) = [line for _ in range(9) for line in advice.lines({"data_wait_share": 0.4})]
    assert said in sentence
