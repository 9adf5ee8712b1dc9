"""Runs session after session until the training is done: push, wait, read the summaries, push again.

chain.json is written whole before and after each push, so this process may end at any moment and be started again.
There are never two sessions at once: nothing is pushed while one is active, the client inherits a lock that excludes a
second chain, and a push without an answer is looked for on Kaggle by its mark.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from lib import untrusted
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.text import aligned
from trainbook.kaggle import client
from trainbook.kaggle.client import Result
from trainbook.kaggle.kernel import Notebook, keep_log, prepare, send, wait_for_data
from trainbook.outputs.summary import FILE as SUMMARY
from trainbook.outputs.summary import Summary

_STATE = "chain.json"
# Polls until an end without an active status is believed, a push is given up, or a refusal that is not understood
_SETTLING_POLLS = 3
_SETTLING_SECONDS = (
    120  # after a push, in which Kaggle may deny what it is asked about the notebook
)
_MAX_TRIES = 60  # requests without an answer in a row; a poll apart, that is an hour
_MAX_LOST = 2  # sessions in a row without results; one more would spend quota on the same fault
_QUOTA_MARGIN_MINUTES = 10  # start and end of a session that is cut to what is left of the quota
_RETRIED = " (retried)"  # appended to a reason that ends a chain, after --retry
_FILES = rf"(^|/){re.escape(SUMMARY)}$"


@dataclass
class Session:
    """One session of a chain. `state` is pushing, running or ended; `reason` says how it ended."""

    mark: str
    state: str = "pushing"
    version: int = 0
    reason: str = ""  # completed, deadline, interrupted, failed, lost, stopped
    first_step: int = 0
    step: int = 0
    digest: str = ""  # of its summaries: a session with those of an earlier one has written none
    message: str = ""

    @property
    def trained(self) -> bool:
        return self.reason.removesuffix(_RETRIED) in ("completed", "deadline", "interrupted")


@dataclass
class Chain:
    """A notebook's sessions, and the options of the command."""

    notebook: Notebook
    values: Mapping[str, object]
    max_sessions: int = 10
    min_hours: float = 1.0
    poll_seconds: float = 60.0
    retry: bool = False  # sessions that were lost, failed or completed no longer end the chain
    sessions: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel = self.notebook.kernel
        self.path = self.notebook.folder / _STATE

    @property
    def step(self) -> int:
        return next((session.step for session in reversed(self.sessions) if session.trained), 0)

    def save(self, *more: Session) -> None:
        self.sessions += more
        record = {"kernel": self.kernel, "sessions": [asdict(session) for session in self.sessions]}
        disk.write_text(self.path, json.dumps(record, indent=1))

    def load(self) -> None:
        try:
            records = untrusted.objects(self.path.read_text("utf-8"))["sessions"]
            self.sessions = [untrusted.parse(record, Session) for record in records]
        except FileNotFoundError:
            self.sessions = []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{self.path} cannot be read ({error}). Rename it to begin a new chain."
            ) from None

    def ask(self, question: Callable[[], Result]) -> Result:
        return client.insist(question, self.poll_seconds, _MAX_TRIES, _SETTLING_POLLS, self.denied)

    @property
    def denied(self) -> int:
        """How often a question is asked that is denied, as all about a new notebook are for a while."""
        has_session = any(session.state != "pushing" for session in self.sessions)
        if has_session:
            return max(_SETTLING_POLLS, math.ceil(_SETTLING_SECONDS / self.poll_seconds))
        return 1

    def quota(self) -> client.Quota | None:
        if self.notebook.uses_gpu:
            return self.ask(client.quota)
        return None


def run(chain: Chain, fresh: bool = False) -> int:
    """Runs or resumes a chain; returns 0 completed, 75 with sessions to come, 1 failed, 130 stopped on Kaggle."""
    folder = chain.notebook.folder
    busy = f"Another chain holds {folder}: it runs, or was killed during a push. Wait for it, or end it."
    with disk.lock(folder, busy) as hold:
        if hold is None:
            raise BadInput(
                f"A chain needs a folder that can be locked, on Linux or macOS. {folder} cannot."
            )
        if fresh:
            chain.path.unlink(missing_ok=True)
        chain.load()
        for session in chain.sessions if chain.retry else ():
            session.reason += _RETRIED * (session.reason in ("lost", "failed", "completed"))
        while True:
            if not chain.sessions or chain.sessions[-1].state == "ended":
                if verdict := _verdict(chain):
                    print(f"{table(chain)}\n{verdict[1]}", flush=True)
                    return verdict[0]
                _begin(chain, hold, fresh)
            session = chain.sessions[-1]
            if session.state == "pushing" and not _arrived(chain, session):
                continue
            _collect(chain, session, _wait(chain))
            print(table(chain), flush=True)
            if session.reason == "stopped":
                print(
                    "The session was stopped on Kaggle, so the chain stops. The same command resumes it.",
                    flush=True,
                )
                return 130


def _verdict(chain: Chain) -> tuple[int, str] | None:
    sessions = chain.sessions
    if sessions:
        last = sessions[-1]
        if last.reason == "completed":
            return (
                0,
                f"Completed at step {last.step:,}. The results: trainbook kaggle fetch {chain.kernel}",
            )
        if last.reason == "failed":
            return (
                1,
                f"The training failed, and would fail again: {last.message}\nCorrect it, then give --retry.",
            )
        if [session.reason for session in sessions[-_MAX_LOST:]] == ["lost"] * _MAX_LOST:
            what = f"{_MAX_LOST} sessions in a row left no results ({last.message or 'Kaggle says nothing more'})"
            log = f"See their log: trainbook kaggle status {chain.kernel} --log"
            return 1, f"{what}. {log}. --retry continues the chain nevertheless."
        if last.trained and len(sessions) > 1 and last.step <= last.first_step:
            return (
                1,
                f"The last session stayed at step {last.step:,}, too short for a step and a save. See its log.",
            )
        if len(sessions) >= chain.max_sessions:
            return (
                75,
                f"{len(sessions)} sessions were run. A larger --max-sessions resumes at step {chain.step:,}.",
            )
    quota = chain.quota()
    least = max(chain.min_hours, 2 * _QUOTA_MARGIN_MINUTES / 60)
    if quota is None or quota.remaining >= least:
        return None
    left = f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week, less than the {least:.1f} that a"
    later = f"New ones come {quota.refreshes or 'every week'}; the same command resumes then."
    return 75, f"{left} session needs (--min-hours). {later}"


def _begin(chain: Chain, hold: int, fresh: bool) -> None:
    """Pushes the next session, cut to what is left of the quota, or takes the active one; chain.json names it first.

    The first one continues from what the notebook left when it was pushed before the chain, unless `fresh`.
    """
    quota = chain.quota()
    values = dict(chain.values)
    status = chain.ask(lambda: client.find(chain.kernel, chain.notebook.was_pushed))
    session = Session("", first_step=chain.step, step=chain.step)
    if status and status.active:
        print(f"{chain.kernel} has an active session: waiting for that one.", flush=True)
        session.state = "running"
        return chain.save(session)
    if quota:
        left = 60 * quota.remaining - _QUOTA_MARGIN_MINUTES
        if left < float(values.get("SESSION_MINUTES") or FACTS["kaggle_run_minutes"].value):  # type: ignore[arg-type]
            values["SESSION_MINUTES"] = round(left, 1)
            print(
                f"{quota.remaining:.1f} GPU hours are left: the session ends after {left:.0f} minutes.",
                flush=True,
            )
    has_earlier = (
        not chain.sessions and not fresh and status is not None and status.word == "COMPLETE"
    )
    has_output = has_earlier or any(session.trained for session in chain.sessions)
    wait_for_data(chain.notebook)
    folder, session.mark = prepare(chain.notebook, values, has_output)
    chain.save(session)
    try:
        session.version, url = send(chain.notebook, folder, hold)
    except client.NoAnswer as silence:
        print(f"{silence} Checking whether the push arrived.", flush=True)
        return None
    except BadInput:
        chain.sessions.pop()
        chain.save()
        raise
    session.state = "running"
    chain.save()
    start = f"version {session.version}, from step {session.first_step:,}, {url}"
    print(f"Session {len(chain.sessions)}: {start}", flush=True)
    return None


def _arrived(chain: Chain, session: Session) -> bool:
    """Returns whether a push without an answer reached Kaggle; removes its session when it has not after some polls."""
    for poll in range(_SETTLING_POLLS):
        if poll:
            time.sleep(chain.poll_seconds)
        if chain.ask(
            lambda: client.find(chain.kernel) and session.mark in client.source(chain.kernel)
        ):
            session.state = "running"
            chain.save()
            return True
    print("The push did not arrive. Pushing again.", flush=True)
    chain.sessions.remove(session)
    chain.save()
    return False


def _wait(chain: Chain) -> client.Status:
    """Waits for the end of a session. Right after a push Kaggle may still report the end of the one before."""
    printed = ""
    was_active = False
    poll = 0
    while True:
        poll += 1
        status = chain.ask(lambda: client.status(chain.kernel))
        was_active |= status.active
        if was_active or poll >= _SETTLING_POLLS:
            if status.word != printed:
                print(
                    f"{time.strftime('%H:%M')} {chain.kernel} is {status.word.lower()}", flush=True
                )
            if not status.active:
                return status
            printed = status.word
        time.sleep(chain.poll_seconds)


def _collect(chain: Chain, session: Session, status: client.Status) -> None:
    """Reads the summaries that a session left."""
    folder = chain.notebook.folder / "sessions" / f"{chain.sessions.index(session) + 1:02}"
    files = chain.ask(lambda: client.output(chain.kernel, folder, _FILES))
    runs = {path.parent: summary for path in files if (summary := Summary.read(path.parent))}
    digest = hashlib.sha256(b"".join((run / SUMMARY).read_bytes() for run in runs)).hexdigest()
    is_new = digest not in {other.digest for other in chain.sessions}
    reasons = [summary.reason for summary in runs.values()] if is_new else []
    session.state = "ended"
    session.message = status.failure
    if "failed" in reasons:
        session.reason = "failed"
        session.message = next(
            (summary.error for summary in runs.values() if summary.error), status.failure
        )
    elif status.word == "CANCEL_ACKNOWLEDGED":
        session.reason = "stopped"
    elif status.word != "COMPLETE" or not reasons:
        session.reason = "lost"
    else:
        session.reason = next(
            (reason for reason in ("deadline", "interrupted") if reason in reasons), "completed"
        )
        session.digest, session.step = digest, sum(summary.step for summary in runs.values())
    keep_log(folder, chain.kernel)
    chain.save()


def table(chain: Chain) -> str:
    rows = [["session", "version", "steps", "ended"]]
    for number, session in enumerate(chain.sessions, 1):
        steps = f"{session.first_step:,} -> {session.step:,}"
        rows.append(
            [str(number), str(session.version or "-"), steps, session.reason or session.state]
        )
    return aligned(rows, left=[3])
