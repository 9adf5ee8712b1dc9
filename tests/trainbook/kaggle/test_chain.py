"""A chain of sessions by the real client: until it is done, within limits, killed anywhere, never two at once."""

import json
import multiprocessing
import os
import signal
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import pytest

from tests.trainbook.kaggle.stub import execute_here
from trainbook.commands import main
from trainbook.kaggle import chain

NAME = "ada/trainbook-01-graphmer"
COMMAND = ["kaggle", "chain", "graphmer", "--poll-seconds", "0.05"]


NOTES = f"runs/kaggle/trainbook-01-graphmer/{chain._STATE}"


def run(*options):
    return main([*COMMAND, *options])


def steps(tmp_path):
    return [session["step"] for session in json.loads((tmp_path / NOTES).read_text())["sessions"]]


def trains(steps_a_session, total=100, until=lambda: None):
    """A session that goes on from the mounted output, as a notebook does, and takes as long as `until`."""

    def runner(session):
        earlier = [
            path for mount in session.mounts.values() for path in mount.glob("toy/summary.json")
        ]
        before = json.loads(earlier[0].read_text()) if earlier else {"step": 0, "session": 0}
        until()
        session.say("training\n")
        step = min(total, before["step"] + steps_a_session)
        reason = "completed" if step == total else "deadline"
        session.summary(step=step, reason=reason, max_steps=total, session=before["session"] + 1)

    return runner


def asked(stub, more=2):
    """asked(stub)() returns once the status was asked for `more` times more."""

    def until():
        before = stub.count("GetKernelSessionStatus")
        stub.wait_for(lambda: stub.count("GetKernelSessionStatus") >= before + more)

    return until


def test_a_chain_goes_on_until_the_training_is_completed(stub, tmp_path, capsys):
    stub.runner = trains(40, until=asked(stub))
    assert run() == 0
    assert steps(tmp_path) == [40, 80, 100]
    assert [s.request.get("kernelDataSources", []) for s in stub.sessions] == [[], [NAME], [NAME]]
    out = capsys.readouterr().out
    assert "Completed at step 100" in out
    assert stub.overlaps == 0
    assert run() == 0
    assert len(stub.sessions) == 3  # it stays completed


def test_a_limit_of_sessions_stops_it_and_a_larger_limit_resumes(stub, tmp_path):
    stub.runner = trains(40, total=80)
    assert run("--max-sessions", "1") == 75
    assert len(stub.sessions) == 1
    assert run("--max-sessions", "5") == 0
    stub.runner = trains(60, total=100)
    assert run("--retry") == 0
    assert steps(tmp_path) == [40, 80, 100]
    assert stub.sessions[2].request["kernelDataSources"] == [NAME]


def test_the_quota_ends_a_chain_and_cuts_the_last_session(stub, capsys):
    """10 h are left: the first session may take the usual 11.5, so it is cut; then 0.5 h are left, too little."""
    stub.quota_hours = (20.0, 30.0)

    def runner(session):
        trains(40)(session)
        stub.quota_hours = (29.5, 30.0)

    stub.runner = runner
    assert run() == 75
    out = capsys.readouterr().out
    assert stub.sessions[0].parameter("SESSION_MINUTES") == 590.0
    assert len(stub.sessions) == 1
    assert "0.5 of 30 GPU hours are left" in out
    stub.runner = trains(100)
    stub.calls.clear()
    assert run("--no-gpu") == 0
    assert stub.count("GetAcceleratorQuotaStatistics") == 0


def ends(steps_a_session):
    """A session of wsd: it never completes, unless its overrides end the run that is mounted."""

    def runner(session):
        overrides = session.parameter("OVERRIDES") or {}
        if not overrides.get("run.finishes"):
            return trains(steps_a_session, total=10**6)(session)
        (earlier,) = [
            p for mount in session.mounts.values() for p in mount.glob("toy/summary.json")
        ]
        step = json.loads(earlier.read_text())["step"] + overrides["scheduler.decay_steps"]
        session.summary(step=step, reason="completed", max_steps=step, session=1)
        return None

    return runner


WSD = ("--set", "scheduler.name=wsd", "--finish")


def test_the_last_session_that_the_limit_allows_ends_a_run_of_wsd(stub, tmp_path, capsys):
    stub.runner = ends(400)
    assert run(*WSD, "--max-sessions", "3") == 0
    assert steps(tmp_path) == [400, 800, 1000]
    overrides = [session.parameter("OVERRIDES") for session in stub.sessions]
    assert overrides[:2] == [{"scheduler.name": "wsd"}] * 2
    assert overrides[2] == {
        "scheduler.name": "wsd",
        "run.name": "toy-finish",
        "run.finishes": "toy",
        "scheduler.decay_steps": 200,
    }
    assert "The last session ends toy: in 200 steps from step 800" in capsys.readouterr().out


def test_the_last_session_that_the_quota_allows_ends_it_by_a_decay_that_fits(stub, tmp_path):
    stub.quota_hours = (0.0, 30.0)

    def runner(session):
        ends(2000)(session)
        stub.quota_hours = (stub.quota_hours[0] + 12.5, 30.0)

    stub.runner = runner
    assert run(*WSD) == 0
    # 5 hours are left for the third: 0.9 of what it does in 290 minutes of 690, less than a quarter of 4,000
    assert steps(tmp_path) == [2000, 4000, 4000 + int(0.9 * 2000 * 290 / 690)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--finish",), "the schedule here is cosine"),
        ((*WSD, "--max-sessions", "1"), "none is ended"),
    ],
)
def test_what_cannot_be_ended_is_said(stub, capsys, options, sentence):
    stub.runner = ends(100)
    assert run(*options) != 0
    printed = capsys.readouterr()
    assert sentence in printed.out + printed.err


def test_two_lost_in_a_row_end_it_and_retry_goes_on(stub, capsys):
    good = trains(100)
    stub.runner = lambda session: stub.lose(session) if session.version <= 2 else good(session)
    assert run() == 1
    out = capsys.readouterr().out
    assert "2 sessions in a row left no results" in out
    assert "exceeded the limits" in out
    assert len(stub.sessions) == 2
    assert run("--retry") == 0
    assert len(stub.sessions) == 3


@pytest.mark.parametrize("facts, number, sentence", [
    ({"reason": "failed", "error": "The loss is not finite."}, 1, "The loss is not finite."),
    ({"reason": "deadline"}, 2, "stayed at step 7"),
])  # fmt: skip
def test_a_training_that_fails_or_gets_nowhere_ends_it(stub, capsys, facts, number, sentence):
    stub.runner = lambda session: session.summary(step=7, session=session.version, **facts)
    assert run() == 1
    assert sentence in capsys.readouterr().out
    assert len(stub.sessions) == number


def test_a_session_that_was_stopped_on_kaggle_stops_the_chain(stub):
    ended = threading.Event()

    def runner(session):
        session.status = "CANCEL_ACKNOWLEDGED"
        ended.wait(60)

    stub.runner = runner
    assert run() == 130
    stub.runner = trains(100)
    assert run() == 0
    assert len(stub.sessions) == 2


def test_a_refusal_ends_it_and_leaves_no_session_behind(stub, tmp_path, capsys):
    stub.refuse_push = "Maximum batch GPU session count of 2 reached."
    assert run() == 2
    assert "count of 2 reached" in capsys.readouterr().err
    assert steps(tmp_path) == []
    stub.failures["GetKernelSessionStatus"] = [409] * 100
    assert run() == 2
    assert stub.sessions == []
    assert len(stub.failures["GetKernelSessionStatus"]) == 100 - chain._SETTLING_POLLS
    (tmp_path / NOTES).write_text("{")
    assert run() == 2, "notes that cannot be read are not thrown away"
    assert (tmp_path / NOTES).read_text() == "{", "notes that cannot be read are not thrown away"


def test_denials_after_a_push_and_unready_data_do_not_end_it(stub, tmp_path, capsys):
    stub.datasets["ada/graphs"], stub.states = [{}], ["BLOBS_RECEIVED"]
    slow = trains(50, until=asked(stub, 4))

    def runner(session):
        stub.failures["GetKernelSessionStatus"] = [403, 403]
        slow(session)

    stub.runner = runner
    assert run("--dataset", "ada/graphs") == 0
    assert steps(tmp_path) == [50, 100]
    assert stub.overlaps == 0
    assert "ada/graphs is not ready yet (blobs_received)" in capsys.readouterr().out


@pytest.mark.parametrize("polls", [0, 1])
def test_a_session_that_was_pushed_by_hand_is_waited_for_and_gone_on_with(stub, tmp_path, polls):
    """Or one that was pushed by a chain whose notes are lost; it may end right after the chain's first question."""
    if polls:
        stub.runner = trains(60, until=asked(stub, polls))
        main(["kaggle", "push", "graphmer"])
    else:
        stub.ended(trains(60))
        stub.runner = trains(40)
    assert run() == 0
    assert steps(tmp_path) == ([60, 100] if polls else [100])
    assert stub.overlaps == 0
    assert stub.sessions[1].request["kernelDataSources"] == [NAME]


def test_a_fresh_chain_begins_without_what_was_trained_before(stub, tmp_path):
    stub.ended(trains(60))
    assert run("--fresh", "--max-sessions", "1") == 75
    assert steps(tmp_path) == [60]
    assert "kernelDataSources" not in stub.sessions[1].request


def test_answers_about_the_last_session_and_failing_servers_do_not_end_it(stub, tmp_path):
    slow = trains(50, until=asked(stub, 4))
    stub.nested = True

    def runner(session):
        stub.stale = 2  # two answers after each push are still about the session before
        slow(session)

    stub.runner = runner
    for method in (
        "GetKernelSessionStatus",
        "GetAcceleratorQuotaStatistics",
        "ListKernelSessionOutput",
    ):
        stub.failures[method] = [200, 429, 503]
    assert run() == 0
    assert steps(tmp_path) == [50, 100]
    assert stub.overlaps == 0


class Forked:
    """A chain in a child of this process; killing it kills a client inside it, and no client that is its child."""

    def __init__(self, said):
        self.said = said
        self.process = multiprocessing.get_context("fork").Process(target=self._run)
        self.process.start()

    def _run(self):
        with self.said.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
            os._exit(run())

    def wait(self):
        self.process.join(60)
        return self.process.exitcode, self.said.read_text()


MOMENTS = {
    "while the push is answered": lambda stub: stub.count("SaveKernel") == 1,
    "while the results are read": lambda stub: stub.count("ListKernelSessionOutput") >= 1,
    "during the second push": lambda stub: stub.count("SaveKernel") == 2,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_chain_resumes_and_repeats_no_push_that_outlived_it(
    real_client, tmp_path, monkeypatch, moment
):
    real_client.runner = trains(50, until=asked(real_client))
    real_client.delay = {
        "SaveKernel": 0.3,
        "ListKernelSessionOutput": 0.2,
        "GetKernelSessionStatus": 0.05,
    }
    outlives = moment == "while the push is answered"
    if not outlives:
        monkeypatch.setattr("trainbook.kaggle.client._execute", execute_here)
    killed = Forked(tmp_path / "killed.txt")
    real_client.wait_for(lambda: MOMENTS[moment](real_client))
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.wait()
    monkeypatch.setattr("trainbook.kaggle.client._execute", execute_here)
    for number in range(40):  # until no orphan of it holds the lock
        code, said = Forked(tmp_path / f"again{number}.txt").wait()
        if "Another chain holds" not in said:
            break
        time.sleep(0.1)
    assert code == 0, said
    assert real_client.overlaps == 0
    assert [s.status for s in real_client.sessions] == [
        "COMPLETE",
        "COMPLETE",
    ]
    assert steps(tmp_path) == [50, 100]
    assert real_client.count("SaveKernel") == 2 or not outlives


def test_a_second_chain_is_kept_away(stub, tmp_path):
    ended = threading.Event()
    stub.runner = trains(100, until=lambda: ended.wait(60))
    first = Forked(tmp_path / "first.txt")
    stub.wait_for(lambda: len(stub.sessions) == 1)
    code, said = Forked(tmp_path / "second.txt").wait()
    ended.set()
    assert code == 2
    assert "Another chain holds" in said
    assert first.wait()[0] == 0
    assert len(stub.sessions) == 1


def test_interrupting_says_that_the_session_goes_on(stub, monkeypatch, capsys):
    ended = threading.Event()
    stub.runner = trains(100, until=lambda: ended.wait(120))
    with monkeypatch.context() as patched:
        patched.setattr(chain, "time", mock.Mock(sleep=mock.Mock(side_effect=KeyboardInterrupt)))
        assert run() == 130
    assert "continues by itself" in capsys.readouterr().out
    ended.set()
    assert run() == 0
    assert len(stub.sessions) == 1
