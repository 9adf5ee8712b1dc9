"""Ten thousand simulated sessions against the real clock logic: is any final save late, and how much time is left over?

    python -m tests.bench.bench_session

Only the last half hour of a session is simulated, by a clock that jumps. Steps take 0.2 to 20 s and vary by 10 %, one
in a hundred three times as long; saves take 0.2 to 20 s and vary by 30 %, one in fifty twice as long; evaluations and
packaging likewise. Figures go to records/session.json.
"""

import random
import time
from types import SimpleNamespace

from lib.machine import clock as clocks
from lib.training import session as sessions
from lib.training.session import Session
from tests.bench.record import head, publish

SESSIONS = 10_000
MINUTES = 30
MARGIN_SECONDS = 120.0
SAVE_EVERY_SECONDS = 300.0


class Clock(SimpleNamespace):
    """Stands in for the module `time`."""

    now = 1e9

    def time(self) -> float:
        return self.now

    perf_counter = monotonic = time


def one(seed: int, clock: Clock, margin: float = MARGIN_SECONDS) -> float:
    """Seconds left at the end of one simulated session; negative when the final save was late."""
    draw = random.Random(seed)
    usual = {
        "step": 10 ** draw.uniform(-0.7, 1.3),
        "save": 10 ** draw.uniform(-0.7, 1.3),
        "evaluate": 10 ** draw.uniform(0, 1.5),
        "package": 10 ** draw.uniform(-0.7, 1.3),
    }
    spread = {"step": 0.1, "save": 0.3, "evaluate": 0.2, "package": 0.3}
    slow = {
        "step": (0.01, 3.0),
        "save": (0.02, 2.0),
        "evaluate": (0.02, 1.5),
        "package": (0.02, 2.0),
    }

    session = Session(MINUTES, margin, clock.now)

    def do(what: str) -> None:
        chance, factor = slow[what]
        seconds = (
            usual[what]
            * draw.lognormvariate(0, spread[what])
            * (factor if draw.random() < chance else 1)
        )
        with session.measured(what):
            clock.now += seconds

    every = draw.randint(20, 2000)  # steps between evaluations
    do("package")  # an earlier cell of the notebook packs once, so it is known
    saved = clock.now
    step = draw.randint(0, every)
    while True:
        do("step")
        step += 1
        if step % every == 0:
            do("evaluate")
        stop = session.stop_reason(evaluates_next=(step + 1) % every == 0)
        if stop or clock.now - saved >= SAVE_EVERY_SECONDS:
            do("save")
            saved = clock.now
        if stop:
            do("package")
            return session.remaining()


def main() -> None:
    clock = Clock()
    sessions.time = clock  # type: ignore[assignment]
    clocks.time = clock  # type: ignore[assignment]
    clocks._ANCHOR = 0.0
    begin = time.perf_counter()
    left = sorted(one(seed, clock) for seed in range(SESSIONS))
    short = sorted(one(seed, clock, 60.0) for seed in range(SESSIONS))
    record = {
        **head(),
        "sessions": SESSIONS,
        "margin_seconds": MARGIN_SECONDS,
        "late": sum(seconds < 0 for seconds in left),
        "unused_seconds": {"least": left[0], "median": left[SESSIONS // 2], "most": left[-1]},
        "late_with_a_margin_of_60": sum(seconds < 0 for seconds in short),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    publish("session", record)


if __name__ == "__main__":
    main()
