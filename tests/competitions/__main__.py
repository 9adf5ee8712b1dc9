"""Plays six competitions: `make competitions`, after every change of readers, answers or submissions.

Five are played by the block of settings that `trainbook new --like competition` proposes, without a line of Python, and
one by a task of its own. A submission must have the sample's rows and columns, and the score of the same answers joined
by hand. Beside it stands what plain scikit-learn reaches in five folds.

    python -m tests.competitions [NAME ...]           plays
    python -m tests.competitions --record [NAME ...]  writes the scores to tests/bench/records/competitions.json, too
    python -m tests.competitions --seeds 3            plays with three seeds each
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench import record
from tests.competitions import play
from tests.competitions.layouts import LAYOUTS
from tests.competitions.plain import PLAIN

STEPS = 150  # of the task of its own; the others train as proposed
RECORD = record.RECORDS / "competitions.json"


def _played(name: str, seed: int) -> dict[str, object]:
    """Returns the scores by sample of one seed, and that of plain scikit-learn for the first sample."""
    layout = LAYOUTS[name]
    steps = STEPS if layout.task else 0
    with tempfile.TemporaryDirectory() as folder:
        scores = play.scores(layout, Path(folder), steps, seed)
    result: dict[str, object] = {"scores": record.rounded(scores)}
    if name in PLAIN:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "input")
            truth = layout.write(data, *layout.rows)
            answers = PLAIN[name](data, seed)
        key = truth.columns[0]
        score_of = next(iter(layout.samples.values()))
        pair = play.aligned(truth.astype({key: str}), answers.astype({key: str}))
        result |= record.rounded({"plain scikit-learn": score_of(*pair)})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LAYOUTS))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of each, from 0")
    parser.add_argument("--record", action="store_true", help="write the record, too")
    options = parser.parse_args()
    for name in options.names or LAYOUTS:
        begin = time.perf_counter()
        runs = [_played(name, seed) for seed in range(options.seeds)]
        result = {"lines of Python": play.lines_of(LAYOUTS[name]), "seeds": runs}
        print(f"{name:10} {time.perf_counter() - begin:4.0f} s  {result}", flush=True)
        if options.record:
            runs = {**record.runs_of(RECORD), name: result}
            record.write(RECORD, {**record.head("torch", "pandas"), "steps": STEPS, "runs": runs})


if __name__ == "__main__":
    main()
