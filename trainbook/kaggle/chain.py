"""Runs session after session until the training is done: push, wait, read the summaries, push again.

chain.json is written whole before and after each push, so this process may end at any moment and be
started again. There are never two sessions at once: nothing is pushed while one is active, the client
inherits a lock that excludes a second chain, and a push without an answer is looked for on Kaggle by
its mark.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lib import untrusted
from lib.config import as_overrides
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.text import aligned
from lib.training.summary import FILE as SUMMARY
from lib.training.summary import Summary
from trainbook.kaggle import client
from trainbook.kaggle.client import Result
from trainbook.kaggle.kernel import Notebook, keep_log, prepare, send, wait_for_data

_STATE = "chain.json"
# Polls until an end without an active status is believed, a push is given up, or a refusal that is not understood
_SETTLING_POLLS = 3
_SETTLING_SECONDS = 120  # after a push, while Kaggle may deny the notebook
_MAX_TRIES = 60  # requests without an answer in a row; a poll apart, that is an hour
_MAX_LOST = 2  # sessions in a row without results; one more would spend quota on the same fault
_QUOTA_MARGIN_MINUTES = 10  # start and end of a session that is cut to the remaining quota
_DECAY_SHARE = 0.9  # of the steps of a session, for the decay that ends a run in it
_RETRIED = " (retried)"  # appended to a reason that ends a chain, after --retry
_FILES = rf"(^|/){re.escape(SUMMARY)}$"


@dataclass
class Session:
    """One session of a chain. `state` is pushing, running or ended; `reason` is how it ended."""

    mark: str
    state: str = "pushing"
    version: int = 0
    reason: str = ""  # completed, deadline, interrupted, failed, lost, stopped
    first_step: int = 0
    step: int = 0
    digest: str = ""  # hash of its summaries; an earlier session's hash means no results
    message: str = ""
    minutes: float = 0.0  # that it was given
    run: str = ""  # the folder of its run, if it had one
    finishes: str = ""  # the run that it ends

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
    finish: bool = False  # the last session ends a run of scheduler wsd
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
        """How often a denied question is asked: Kaggle denies a new notebook for a while."""
        has_session = any(session.state != "pushing" for session in self.sessions)
        if has_session:
            return max(_SETTLING_POLLS, math.ceil(_SETTLING_SECONDS / self.poll_seconds))
        return 1

    @property
    def least_hours(self) -> float:
        """The hours of quota without which no session begins."""
        return max(self.min_hours, 2 * _QUOTA_MARGIN_MINUTES / 60)

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
        if chain.retry:
            for session in chain.sessions:
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
    """Returns the exit code and a sentence if the chain ends; None if another session is to be run."""
    if chain.sessions and (verdict := _verdict_of_sessions(chain)):
        return verdict
    quota = chain.quota()
    if quota is None or quota.remaining >= chain.least_hours:
        return None
    return 75, (
        f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week, less than the"
        f" {chain.least_hours:.1f} that a session needs (--min-hours). New ones come"
        f" {quota.refreshes or 'every week'}; the same command resumes then."
    )


def _verdict_of_sessions(chain: Chain) -> tuple[int, str] | None:
    sessions = chain.sessions
    last = sessions[-1]
    if last.reason == "completed":
        results = f"trainbook kaggle fetch {chain.kernel}"
        return 0, f"Completed at step {last.step:,}. The results: {results}"
    if last.reason == "failed":
        return 1, (
            f"The training failed, and would fail again: {last.message}\n"
            "Correct it, then give --retry."
        )
    reasons = [session.reason for session in sessions[-_MAX_LOST:]]
    if reasons == ["lost"] * _MAX_LOST:
        message = last.message or "Kaggle says nothing more"
        return 1, (
            f"{_MAX_LOST} sessions in a row left no results ({message}). See their log: trainbook"
            f" kaggle status {chain.kernel} --log. --retry continues the chain nevertheless."
        )
    if last.trained and len(sessions) > 1 and last.step <= last.first_step:
        return 1, (
            f"The last session stayed at step {last.step:,}, too short for a step and a save. See its"
            " log."
        )
    if len(sessions) >= chain.max_sessions:
        return 75, (
            f"{len(sessions)} sessions were run. A larger --max-sessions resumes at step"
            f" {chain.step:,}."
        )
    return None


def _begin(chain: Chain, hold: int, fresh: bool) -> None:
    """Pushes the next session, cut to the remaining quota, or takes the active one.

    chain.json names it first. The first session resumes from the output of a push before the chain,
    unless `fresh`.
    """
    quota = chain.quota()
    values = dict(chain.values)
    status = chain.ask(lambda: client.find(chain.kernel, chain.notebook.was_pushed))
    session = Session("", first_step=chain.step, step=chain.step)
    if status and status.active:
        print(f"{chain.kernel} has an active session: waiting for that one.", flush=True)
        session.state = "running"
        return chain.save(session)
    minutes: Any = values.get("SESSION_MINUTES") or FACTS["kaggle_run_minutes"].value
    session.minutes = float(minutes)
    if quota:
        left = 60 * quota.remaining - _QUOTA_MARGIN_MINUTES
        if left < session.minutes:
            session.minutes = values["SESSION_MINUTES"] = round(left, 1)
            print(
                f"{quota.remaining:.1f} GPU hours are left: the session ends after {left:.0f} minutes.",
                flush=True,
            )
    if chain.finish and _is_end(chain, session, quota):
        overrides: Any = values.get("OVERRIDES")
        values["OVERRIDES"] = {**as_overrides(overrides), **_end(chain, session)}
    has_output = any(session.trained for session in chain.sessions)
    if not chain.sessions and not fresh and status is not None:
        has_output = status.word == "COMPLETE"
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
    number = len(chain.sessions)
    start = f"from step {session.first_step:,}"
    print(f"Session {number}: version {session.version}, {start}, {url}", flush=True)
    return None


def _is_end(chain: Chain, session: Session, quota: client.Quota | None) -> bool:
    """Returns whether a session is to end the run: the last one that the limits allow, or one after such a one."""
    if any(earlier.finishes for earlier in chain.sessions):
        return True
    if len(chain.sessions) + 1 >= chain.max_sessions:
        return True
    return quota is not None and quota.remaining - session.minutes / 60 < chain.least_hours


def _end(chain: Chain, session: Session) -> dict[str, Any]:
    """Returns the overrides of a session that ends the run, and keeps the run's name; {} if nothing is trained.

    The decay takes a fifth of all steps, or as many as this session has time for, by the steps of the one before.
    """
    finishing = [earlier.finishes for earlier in chain.sessions if earlier.finishes]
    if finishing:
        session.finishes = finishing[-1]
        return _names(session.finishes)
    trained = [earlier for earlier in chain.sessions if earlier.trained]
    if not trained or not trained[-1].run:
        print(
            "--finish: no session of this chain has trained one run, so none is ended.", flush=True
        )
        return {}
    before = trained[-1]
    steps = before.step - before.first_step
    possible = _DECAY_SHARE * steps * session.minutes / max(before.minutes, session.minutes)
    decay = max(1, min(chain.step // 4, int(possible)))
    session.finishes = before.run
    print(
        f"The last session ends {before.run}: in {decay:,} steps from step {chain.step:,} on the "
        "learning rate falls.",
        flush=True,
    )
    return {**_names(before.run), "scheduler.decay_steps": decay}


def _names(run: str) -> dict[str, Any]:
    return {"run.name": f"{run}-finish", "run.finishes": run}


def _arrived(chain: Chain, session: Session) -> bool:
    """Tells whether a push without an answer reached Kaggle; if not, after some polls, removes its session."""

    def is_there() -> bool:
        if not client.find(chain.kernel):
            return False
        return session.mark in client.source(chain.kernel)

    for poll in range(_SETTLING_POLLS):
        if poll:
            time.sleep(chain.poll_seconds)
        if chain.ask(is_there):
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
                now = time.strftime("%H:%M")
                print(f"{now} {chain.kernel} is {status.word.lower()}", flush=True)
            if not status.active:
                return status
            printed = status.word
        time.sleep(chain.poll_seconds)


def _collect(chain: Chain, session: Session, status: client.Status) -> None:
    """Reads the summaries that a session left."""
    number = chain.sessions.index(session) + 1
    folder = chain.notebook.folder / "sessions" / f"{number:02}"
    files = chain.ask(lambda: client.output(chain.kernel, folder, _FILES))
    runs = {path.parent: summary for path in files if (summary := Summary.read(path.parent))}
    summaries = list(runs.values())
    texts = [(run / SUMMARY).read_bytes() for run in runs]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()
    reasons = [summary.reason for summary in summaries]
    if digest in {other.digest for other in chain.sessions}:  # of an earlier session
        reasons = []
    session.state = "ended"
    session.message = status.failure
    if "failed" in reasons:
        session.reason = "failed"
        errors = [summary.error for summary in summaries if summary.error]
        session.message = next(iter(errors), status.failure)
    elif status.word == "CANCEL_ACKNOWLEDGED":
        session.reason = "stopped"
    elif status.word != "COMPLETE" or not reasons:
        session.reason = "lost"
    else:
        session.reason = "completed"
        for reason in ("interrupted", "deadline"):
            if reason in reasons:
                session.reason = reason
        session.digest = digest
        if len(runs) == 1:
            session.run = next(iter(runs)).name
        session.step = sum(summary.step for summary in summaries)
    keep_log(folder, chain.kernel)
    chain.save()


def table(chain: Chain) -> str:
    rows = [["session", "version", "steps", "ended"]]
    for number, session in enumerate(chain.sessions, 1):
        version = str(session.version or "-")
        steps = f"{session.first_step:,} -> {session.step:,}"
        rows.append([str(number), version, steps, session.reason or session.state])
    return aligned(rows, left=[3])
