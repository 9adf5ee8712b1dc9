"""Session after session until the training is done: push, wait, read the summary, push again with the own output.

What is known stands in chain.json, written whole before and after each push, so that this process may end at any
moment and be started again. There are never two runs at once: nothing is pushed while a session is active; a lock,
which the client inherits, keeps a second chain away while a push of a killed one is still on its way; and a push of
which nothing is known is looked for on Kaggle by its mark.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from lib.errors import BadInput
from lib.kaggle import client
from lib.kaggle.kernel import Notebook, keep_log, prepare, pushed_as, uses_gpu
from lib.machine.facts import FACTS
from lib.report import summary
from lib.report.metrics import read, series
from lib.report.summary import Summary

_STATE, _LOCK = "chain.json", "chain.lock"
_SETTLING_POLLS = 3  # looks after which an end is believed that no active state preceded, or a push given up
_PATIENCE = 60  # unanswered questions in a row; a poll apart, that is an hour
_LOST_IN_A_ROW = 2  # sessions that end without results; one more would spend quota on the same fault
_QUOTA_MARGIN_MINUTES = 10  # start and end of a session that is cut to what is left of the quota
_GONE_ON = " (gone on)"  # behind a reason that holds a chain up, once a person said to go on all the same
_FILES = rf"(^|/)({summary.FILE.replace('.', '[.]')}|metrics[.]csv)$"
Result = TypeVar("Result")


@dataclass
class Session:
    """One session of the chain. `state` is pushing, running or ended; `reason` says how it ended."""

    mark: str
    pushed_at: float
    state: str = "pushing"
    version: int = 0
    reason: str = ""  # completed, deadline, interrupted, failed, lost, stopped
    first_step: int = 0
    step: int = 0
    digest: str = ""  # of the summaries that it left, by which those of the session before are told from its own
    hours: float | None = None
    quota_before: float | None = None
    quota_used: float | None = None
    loss: float | None = None
    message: str = ""

    @property
    def trained(self) -> bool:
        """Whether its output can be gone on with."""
        return self.reason.removesuffix(_GONE_ON) in ("completed", "deadline", "interrupted")


@dataclass
class Chain:
    """A notebook's sessions, and what a person asked of them."""

    notebook: Notebook
    values: Mapping[str, object]
    max_sessions: int = 10
    min_hours: float = 1.0
    poll_seconds: float = 60.0
    own_output: bool = False  # sessions that were not pushed from here left an output
    retry: bool = False  # sessions that were lost, failed or completed no longer hold it up
    sessions: list[Session] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.notebook.folder / _STATE

    @property
    def kernel(self) -> str:
        return self.notebook.kernel

    @property
    def step(self) -> int:
        """The step that the next session starts at."""
        return next((session.step for session in reversed(self.sessions) if session.trained), 0)

    def save(self) -> None:
        aside = self.path.with_name(self.path.name + ".tmp")
        with aside.open("w", encoding="utf-8") as file:
            json.dump({"kernel": self.kernel, "sessions": [asdict(one) for one in self.sessions]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path)

    def load(self) -> None:
        try:
            self.sessions = [Session(**one) for one in json.loads(self.path.read_text("utf-8"))["sessions"]]
        except FileNotFoundError:
            self.sessions = []
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{self.path} cannot be read ({error}). Rename it to begin a new chain.") from None


def run(chain: Chain, fresh: bool = False) -> int:
    """Runs a chain, or goes on with it. Returns the exit code: 0 completed, 75 stopped with sessions to come, 1 failed,
    130 stopped by hand on Kaggle.

    `fresh` forgets the sessions of an earlier chain, and starts without their output. Raises BadInput.
    """
    chain.notebook.folder.mkdir(parents=True, exist_ok=True)
    with _locked(chain.notebook.folder / _LOCK) as hold:
        if fresh:
            chain.path.unlink(missing_ok=True)
        chain.load()
        if not chain.sessions and not fresh:
            _look_back(chain)
        for session in chain.sessions if chain.retry else ():
            session.reason += _GONE_ON * (session.reason in ("lost", "failed", "completed"))
        while True:
            session = _open_session(chain)
            if session is None:
                if verdict := _verdict(chain):
                    code, sentence = verdict
                    print(f"{table(chain)}\n{sentence}", flush=True)
                    return code
                session = _begin(chain, hold)
            if session.state == "pushing" and not _arrived(chain, session):
                continue
            state = _wait(chain)
            _collect(chain, session, state)
            print(table(chain), flush=True)
            if session.reason == "stopped":
                print(
                    "The session was stopped on Kaggle, so the chain stops too. The same command goes on.", flush=True
                )
                return 130


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Holds a lock that the children inherit; it ends when the last of them has."""
    try:
        import fcntl
    except ImportError:
        raise BadInput("A chain needs file locks of Linux or macOS. On Windows start it in WSL.") from None
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"Another chain holds {path}: it runs, or was killed with a push on its way. Wait for it, or end it."
            ) from None
        yield file.fileno()


# --- the steps of the loop --------------------------------------------------------------------------------------------


def _open_session(chain: Chain) -> Session | None:
    return chain.sessions[-1] if chain.sessions and chain.sessions[-1].state != "ended" else None


def _look_back(chain: Chain) -> None:
    """A notebook that was pushed before the chain: its last session counts as the first one of the chain."""
    state = _asked(chain, lambda: client.find(chain.kernel))
    if state and state.word == "COMPLETE":
        session = Session(mark="", pushed_at=0, state="running")
        chain.sessions.append(session)
        _collect(chain, session, state)
        if not session.trained:
            chain.sessions.clear()


def _verdict(chain: Chain) -> tuple[int, str] | None:
    """The exit code and what to say where no further session is to be pushed."""
    sessions = chain.sessions
    if not sessions:
        return _too_little_quota(chain)
    last = sessions[-1]
    if last.reason == "completed":
        return 0, f"Completed at step {last.step:,}. The results: python -m lib kaggle fetch {chain.kernel}"
    if last.reason == "failed":
        return 1, f"The training failed, and would fail again: {last.message}\nMend it, then go on with --retry."
    lost = next((n for n, one in enumerate(reversed(sessions)) if one.reason != "lost"), len(sessions))
    if lost >= _LOST_IN_A_ROW:
        return 1, (
            f"{lost} sessions in a row left no results ({last.message or 'Kaggle says nothing more'}). See their log: "
            f"python -m lib kaggle status {chain.kernel} --log. With --retry the chain goes on all the same."
        )
    if last.trained and len(sessions) > 1 and last.step <= last.first_step:
        return 1, f"The last session stayed at step {last.step:,}: it is too short to get anywhere. See its log."
    if len(sessions) >= chain.max_sessions:
        return (
            75,
            f"{len(sessions)} sessions were run, the limit. A larger --max-sessions goes on from step {chain.step:,}.",
        )
    return _too_little_quota(chain)


def _too_little_quota(chain: Chain) -> tuple[int, str] | None:
    quota, least = _quota(chain), max(chain.min_hours, 2 * _QUOTA_MARGIN_MINUTES / 60)
    if quota is None or quota.remaining >= least:
        return None
    return 75, (
        f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week, less than the {least:.1f} that a "
        f"session needs (--min-hours). New ones come {quota.refreshes or 'every week'}; the same command goes on."
    )


def _quota(chain: Chain) -> client.Quota | None:
    """What is left of the week; None for a notebook that uses no GPU."""
    return _asked(chain, client.quota) if uses_gpu(chain.notebook) else None


def _begin(chain: Chain, hold: int) -> Session:
    """Pushes the next session, or takes the one that is active; what is about to happen is on disk before it does."""
    quota = _quota(chain)
    state = _asked(chain, lambda: client.find(chain.kernel))
    if state and state.active:
        print(f"{chain.kernel} has an active session: waiting for that one.", flush=True)
        session = Session(mark="", pushed_at=time.time(), state="running")
    else:
        own_output = chain.own_output or any(one.trained for one in chain.sessions)
        folder, mark = prepare(chain.notebook, _values(chain, quota), own_output)
        session = Session(mark=mark, pushed_at=time.time())
    session.first_step = session.step = chain.step
    session.quota_before = quota.used if quota else None
    chain.sessions.append(session)
    chain.save()
    if session.state == "pushing":
        _push(chain, session, folder, hold)
    return session


def _push(chain: Chain, session: Session, folder: Path, hold: int) -> None:
    try:
        pushed = client.push(folder, hold)
    except client.NoAnswer as silence:
        print(f"{silence} Looking whether the push arrived.", flush=True)
        return
    except BadInput:
        chain.sessions.pop()
        chain.save()
        raise
    session.state, session.version = "running", pushed.version
    chain.save()
    print(
        f"Session {len(chain.sessions)}: version {pushed.version}, from step {session.first_step:,}, {pushed.url}",
        flush=True,
    )


def _values(chain: Chain, quota: client.Quota | None) -> dict[str, object]:
    """The parameters, with the session cut to what is left of the quota, because its end would not wait for a save."""
    values = dict(chain.values)
    if quota is None:
        return values
    left = 60 * quota.remaining - _QUOTA_MARGIN_MINUTES
    asked = float(values.get("SESSION_MINUTES") or FACTS["kaggle_run_minutes"].value)
    if left < asked:
        values["SESSION_MINUTES"] = round(left, 1)
        print(f"{quota.remaining:.1f} GPU hours are left: the session ends after {left:.0f} minutes.", flush=True)
    return values


def _arrived(chain: Chain, session: Session) -> bool:
    """Whether a push of which nothing is known reached Kaggle; forgets it when it has not after some looks."""
    for look in range(_SETTLING_POLLS):
        if look:
            time.sleep(chain.poll_seconds)
        if _asked(chain, lambda: client.find(chain.kernel) and pushed_as(chain.kernel) == session.mark):
            session.state = "running"
            chain.save()
            return True
    print("The push did not arrive; it is made again.", flush=True)
    chain.sessions.remove(session)
    chain.save()
    return False


def _wait(chain: Chain) -> client.Status:
    """Waits for the end of a session. Right after a push Kaggle may still tell the end of the one before."""
    shown, active, polls = "", False, 0
    while True:
        state = _asked(chain, lambda: client.status(chain.kernel))
        active, polls = active or state.active, polls + 1
        believed = active or polls >= _SETTLING_POLLS
        if state.word != shown and believed:
            print(f"{time.strftime('%H:%M')} {chain.kernel} is {state.word.lower()}", flush=True)
            shown = state.word
        if not state.active and believed:
            return state
        time.sleep(chain.poll_seconds)


def _asked(chain: Chain, question: Callable[[], Result]) -> Result:
    """The answer to a question; a network that fails for a while does not end a chain."""
    for tries in range(_PATIENCE):
        try:
            return question()
        except client.NoAnswer as silence:
            if tries == _PATIENCE - 1:
                raise
            if tries == 0:
                print(f"{silence} Asking again every {chain.poll_seconds:.0f} s.", flush=True)
            time.sleep(chain.poll_seconds)
    raise AssertionError("unreachable")


def _collect(chain: Chain, session: Session, state: client.Status) -> None:
    """Reads what a session left: summaries, metrics, the length of its log, the quota."""
    folder = chain.notebook.folder / "sessions" / f"{chain.sessions.index(session) + 1:02}"
    files = _asked(chain, lambda: client.output(chain.kernel, folder, _FILES))
    runs = {path.parent: found for path in files if (found := Summary.read(path.parent))}
    digest = hashlib.sha256(json.dumps([asdict(found) for found in runs.values()], sort_keys=True).encode()).hexdigest()
    is_new = digest not in {one.digest for one in chain.sessions}
    session.state, session.message = "ended", state.failure
    session.reason = _reason(state, [found.reason for found in runs.values()] if is_new else [])
    if session.trained:
        session.digest = digest
        session.step = sum(found.step for found in runs.values())
        session.loss = _last_loss(list(runs))
    if session.reason == "failed":
        session.message = next((found.error for found in runs.values() if found.error), session.message)
    session.hours = _length(folder / f"{chain.kernel.split('/')[1]}.log")
    keep_log(folder, chain.kernel)
    quota = _quota(chain)
    if quota and session.quota_before is not None and quota.used >= session.quota_before:
        session.quota_used = quota.used - session.quota_before
    chain.save()


def _reason(state: client.Status, reasons: list[str]) -> str:
    """How a session ended, from Kaggle's word and the reasons in the summaries that this session wrote."""
    if "failed" in reasons:
        return "failed"
    if state.word == "CANCEL_ACKNOWLEDGED":
        return "stopped"
    if state.word != "COMPLETE" or not reasons:
        return "lost"
    return next((reason for reason in ("deadline", "interrupted") if reason in reasons), "completed")


def _last_loss(runs: list[Path]) -> float | None:
    rows = [row for run in runs if (run / "metrics.csv").is_file() for row in read(run / "metrics.csv")]
    losses = series(rows, "train", "loss")[1]
    return losses[-1] if losses else None


def _length(log: Path) -> float | None:
    """Hours from the first to the last line of a session, by Kaggle's own clock."""
    times = [event.get("time") for event in client.events(log.read_text("utf-8"))] if log.is_file() else []
    seconds = [float(one) for one in times if isinstance(one, int | float)]
    return max(seconds) / 3600 if seconds else None


# --- the table --------------------------------------------------------------------------------------------------------


def table(chain: Chain) -> str:
    """A line a session: steps, hours, quota used, the last loss, and how it ended."""
    lines = [f"{'session':>7}  {'version':>7}  {'steps':>17}  {'hours':>6}  {'quota h':>7}  {'loss':>8}  ended"]
    for number, one in enumerate(chain.sessions, 1):
        steps = f"{one.first_step:,} -> {one.step:,}"
        figures = (_cell(one.hours, ".2f"), _cell(one.quota_used, ".2f"), _cell(one.loss, ".4f"))
        lines.append(
            f"{number:>7}  {one.version or '-':>7}  {steps:>17}  {figures[0]:>6}  {figures[1]:>7}  {figures[2]:>8}  "
            f"{one.reason or one.state}"
        )
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
