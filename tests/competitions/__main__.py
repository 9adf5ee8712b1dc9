"""Plays six competitions: `make competitions`, after every change of readers, answers or submissions.

Each is begun by `trainbook new`, trained, and predicted in the form of each of its samples. A submission must have
the sample's rows and columns, and the score of the same answers joined by hand.

    python -m tests.competitions [NAME ...]           plays
    python -m tests.competitions --record [NAME ...]  writes the scores to tests/bench/records/competitions.json, too
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench import record
from tests.competitions import play
from tests.competitions.layouts import LAYOUTS

STEPS = 150
RECORD = record.RECORDS / "competitions.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LAYOUTS))
    parser.add_argument("--record", action="store_true", help="write the record, too")
    options = parser.parse_args()
    for name in options.names or LAYOUTS:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            scores = play.scores(LAYOUTS[name], Path(folder), STEPS)
        result = {"lines of Python": play.lines_of(LAYOUTS[name]), "scores": record.rounded(scores)}
        print(f"{name:10} {time.perf_counter() - begin:4.0f} s  {result}", flush=True)
        if options.record:
            runs = {**record.runs_of(RECORD), name: result}
            record.write(RECORD, {**record.head("torch", "pandas"), "steps": STEPS, "runs": runs})


if __name__ == "__main__":
    main()
