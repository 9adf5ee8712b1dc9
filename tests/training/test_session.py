"""The clock: per session, with reserves measured on the way."""

import os
import signal
import time
from unittest import mock

import psutil
import pytest

from lib import ranks
from lib.training import session
from lib.training.session import Session, start_session


def test_the_deadline_leaves_the_margin_and_a_save():
    now = time.time()
    assert Session(10, 60, now - 500).stop_reason() is None  # 100 s left, 60 + 10 of reserves
    late = Session(10, 60, now - 535)
    assert late.stop_reason() == "deadline"
    assert Session(None, 180, now).stop_reason() is None
    assert late.decide(False, False, last=False) == ("deadline", False)
    assert late.decide(False, True, last=True) == (None, True), (
        "after the last step nothing is stopped"
    )


def test_measured_durations_are_reserved_and_old_ones_forgotten(monkeypatch):
    one = Session(10, 0, time.time())
    clock = [0.0]
    monkeypatch.setattr(session.time, "perf_counter", lambda: clock[0])
    for seconds in (100, 1, 1, 1, 1, 1, 1, 1):
        with one.measured("save"):
            clock[0] += seconds
    assert one.reserves["save"] == pytest.approx(1.5 * 100 + 5)
    with one.measured("save"):
        clock[0] += 2
    assert one.reserves["save"] == pytest.approx(
        1.5 * 2 + 5
    )  # the eighth last is no longer among them


def test_the_limit_is_counted_from_the_process_or_from_what_the_parent_hands_down(monkeypatch):
    monkeypatch.delenv("TRAINBOOK_SESSION_START", raising=False)
    begun = psutil.Process(os.getpid()).create_time()
    assert start_session(30, 0).deadline == pytest.approx(begun + 1800, abs=1)
    monkeypatch.setenv("TRAINBOOK_SESSION_START", "1000")
    assert start_session(30, 0).deadline == pytest.approx(1000 + 1800)


def test_a_session_on_kaggle_begins_with_its_container(monkeypatch, tmp_path):
    assert start_session(0, 0).remaining() == float("inf"), "at home there is no limit"
    container = mock.Mock(**{"create_time.return_value": session.now() - 13 * 3600})
    monkeypatch.setattr(session.psutil, "Process", lambda number: container)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    assert 3600 < start_session(0, 0).remaining() < 690 * 60
    monkeypatch.delenv("TRAINBOOK_KAGGLE_ROOT")
    assert start_session(0, 0).remaining() <= 0


def test_under_torchrun_the_same_signal_passed_on_is_no_second_one(monkeypatch):
    """Ctrl-C in a terminal reaches a rank itself and once more through its agent."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before = signal.getsignal(signal.SIGTERM)
    one = Session(None, 0, 0)
    try:
        with one.catching_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert one.stop_reason() == "interrupted"
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    "highest, stop", [([0, 1], None), ([1, 0], "deadline"), ([2, 1], "interrupted")]
)
def test_what_another_rank_must_do_all_do(monkeypatch, highest, stop):
    monkeypatch.setattr(ranks, "_here", ranks._Place(0, 2, 2))
    monkeypatch.setattr(ranks, "highest", lambda *mine: highest)
    session = Session(None, 0, 0)
    assert session.decide(False, False, last=False) == (stop, bool(highest[1]))
    assert session.stop_reason() == ("interrupted" if stop == "interrupted" else None)


@pytest.mark.parametrize("hours", [87_600, -87_600])
def test_a_clock_that_is_set_in_mid_session_moves_no_deadline(monkeypatch, hours):
    monkeypatch.delenv("TRAINBOOK_SESSION_START", raising=False)
    one = start_session(30, 0)
    before = one.remaining()
    wall = time.time
    monkeypatch.setattr(session.time, "time", lambda: wall() + 3600 * hours)
    monkeypatch.setattr(
        psutil, "Process", lambda: 1 / 0
    )  # whose start follows the clock that was set
    assert before - 60 < one.remaining() <= before
    assert before - 60 < start_session(30, 0).remaining() <= before  # the next run of a queue
    assert float(session.handed_down()) == pytest.approx(one.deadline - 1800 + 3600 * hours, abs=60)


def test_time_in_which_the_machine_is_suspended_counts(monkeypatch):
    one = Session(60, 0, session.now())
    clock = session._clock
    monkeypatch.setattr(session, "_clock", lambda: clock() + 1800)
    assert one.remaining() == pytest.approx(1800, abs=60)
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert clock() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)
