"""Verdicts and the gate in experiments that are drawn, where the truth is known; figures go to records/verdicts.json.

    python -m tests.bench.bench_verdicts            (1,000 of each: half an hour of one core)
    python -m tests.bench.bench_verdicts --rows verdict --number 200

verdict: two methods that are equally good answer a test of 6 to 1,000 units; "surely above" is false. In a second row
the one is better, and the share is how often that is found. gate: a validation of 20 to 1,000 units opens the gate
between a network and a simple method; all three answers are then scored on 40,000 samples. line: probabilities that
are true promise a share of right answers, which the interval of the test's line should hold.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.bench.record import add_run, head
from trainbook import Supervised
from trainbook.supervised import calibration, gate, scoring
from trainbook.supervised.scoring import Judged

RECORD = Path(__file__).with_name("records") / "verdicts.json"
METRICS = ("accuracy", "macro_f1", "mcc", "rmse", "mae")
_CLOSE = 0.005
_TEST = 40_000  # samples, on which an answer's true score is known to about .002


class Drawn(Supervised):
    """A task without data: what is judged is drawn."""

    units: Any = ()

    def group(self, sample):
        return sample

    def _groups(self, part):
        return [*map(str, self.units)]


def task_of(metric: str, units: Any, **members: Any) -> Any:
    task = Drawn.__new__(Drawn)
    is_number = metric in ("rmse", "mae")
    kind = "numbers" if is_number else "classes"
    known = {"kind": kind, "metrics": (metric,), "units": units, "balanced": False}
    known["selection"] = (metric, "min" if is_number else "max")
    vars(task).update({**known, **members})
    return task


def two_methods(draw: np.random.Generator, metric: str, gain: float) -> tuple[Any, dict]:
    """Returns units and answers of two methods; the first is better by about `gain` of a sample's answers."""
    number = int(draw.choice([6, 10, 30, 100, 300, 1000]))
    size = int(draw.choice([1, 5, 20]))
    units = np.repeat(np.arange(number), size)
    total = len(units)
    of_unit = draw.normal(0, draw.uniform(0, 1), (2, number))[:, units]
    together = draw.random(total) < draw.choice([0.0, 0.5, 0.9, 0.99])  # both say the same
    sample = np.arange(total)
    if metric in ("rmse", "mae"):
        true = draw.normal(size=total)
        error = draw.standard_t(3, (2, total)) * np.exp(0.3 * of_unit)
        error[0] *= 1 - gain
        error[1] = np.where(together, error[0], error[1])
        rows = [Judged(true, true + each, sample=sample) for each in error]
    else:
        classes = int(draw.integers(2, 9))
        shares = draw.dirichlet(np.full(classes, 2.0))
        true = draw.choice(classes, total, p=shares)
        ability = draw.normal(0.5, 0.7) + of_unit
        right = draw.random((2, total)) < 1 / (1 + np.exp(-ability))
        right[0] |= draw.random(total) < gain
        guess = np.where(right, true, draw.choice(classes, (2, total), p=shares))
        guess[1] = np.where(together, guess[0], guess[1])
        rows = [Judged(true, each, sample=sample) for each in guess]
    return units, dict(zip(("answer", "strongest"), rows, strict=True))


def verdict(seed: int, gain: float, draws: int = 2000) -> int:
    """Returns the side of the first of two methods that is printed."""
    draw = np.random.default_rng([seed, 1])
    metric = str(draw.choice(METRICS))
    units, rows = two_methods(draw, metric, gain)
    task = task_of(metric, units, _draws=draws)
    pair = {"strongest": rows["strongest"], "answer": rows["answer"]}
    return task._compared(pair, "strongest").gains["answer"][0].side


def scores_of(
    draw: np.random.Generator,
    true: np.ndarray,
    classes: int,
    skill: tuple[float, float],
    both: float,
) -> list[torch.Tensor]:
    """Returns scores of two methods for true classes, whose errors are alike as far as `both` says."""
    shared = draw.normal(size=(len(true), classes))
    found = []
    for each in skill:
        own = draw.normal(size=(len(true), classes))
        noise = np.sqrt(both) * shared + np.sqrt(1 - both) * own
        found.append(torch.from_numpy(each * np.eye(classes)[true] + noise).float())
    return found


def gated(seed: int) -> dict[str, float]:
    """Returns the true scores of simple method, network and answer, and whether validation was sure of the network."""
    draw = np.random.default_rng([seed, 2])
    metric = str(draw.choice(["accuracy", "macro_f1"]))
    classes = int(draw.integers(2, 7))
    shares = draw.dirichlet(np.full(classes, 3.0))
    number = int(draw.choice([20, 50, 100, 300, 1000]))
    size = int(draw.choice([1, 1, 5]))
    skill = (float(draw.uniform(0, 2)), float(draw.uniform(0, 2)))
    both = float(draw.uniform(0, 0.9))
    sharpness = float(draw.choice([1, 4]))  # of a network that is too sure
    prior = torch.from_numpy(np.log(shares)).float()
    parts = []
    for total in (number * size, _TEST):
        true = draw.choice(classes, total, p=shares)
        simple, network = scores_of(draw, true, classes, skill, both)
        parts.append((true, (simple + prior).log_softmax(-1), sharpness * (network + prior)))
    (true, start, scores), (test, test_start, test_scores) = parts
    units = np.repeat(np.arange(number), size)
    seen = {"classes of train": np.round(1e4 * shares).astype(int)}
    simple = SimpleNamespace(name="linear model", is_constant=False)
    members = {"_simples": [simple], "_seen": seen}
    task = task_of(metric, units, **members)
    judged = Judged(true, true, sample=np.arange(len(true)))
    opened = gate.opened(task, scores, start, judged)
    answer = test_start + opened.gate * (test_scores - test_start)

    def score(each: torch.Tensor) -> float:
        (value,) = scoring.scores([metric], Judged(test, each.argmax(1).numpy())).values()
        return value

    found = {"simple": score(test_start), "network": score(test_scores), "answer": score(answer)}
    return {**found, "gate": opened.gate, "sure": float(opened.lead.low > 0)}


def line(seed: int, power: float = 1.0) -> tuple[float, float, float] | None:
    """Returns the interval of a line on probabilities, and the share of right ones that is true there."""
    draw = np.random.default_rng([seed, 3])
    total = int(draw.choice([100, 300, 1000]))
    scores = torch.from_numpy(draw.normal(0, 2, (total, 3)))
    shares = scores.softmax(-1)
    true = torch.multinomial(shares, 1, generator=torch.Generator().manual_seed(seed))[:, 0].numpy()
    promised = (power * scores).softmax(-1).numpy()
    judged = Judged(true, promised.argmax(1), None, promised, np.arange(total))
    answers = calibration.given(judged)
    found = calibration.chosen(answers.promised)
    if found is None:
        return None
    _, places = found
    low, high = calibration.covered(answers.right[places], answers.sample[places])
    return low, high, float(shares.numpy().max(1)[places].mean())


def row(name: str, number: int) -> dict[str, Any]:
    """Returns the figures of a row over experiments."""
    if name == "line":
        found = [each for each in map(line, range(number)) if each]
        covers = [low <= share <= high for low, high, share in found]
        return {
            "lines": len(found),
            "interval holds the true share": round(float(np.mean(covers)), 4),
        }
    if name == "gate":
        runs = [*map(gated, range(number))]
        sure = [run for run in runs if run["sure"]]
        below = [run["simple"] - run["answer"] for run in runs]
        behind = [run["network"] - run["answer"] for run in sure]
        return {
            "experiments": number,
            "answer below simple method by .005": int(np.sum(np.array(below) > _CLOSE)),
            "furthest below": round(max(below), 4),
            "network surely better": len(sure),
            "of these answer below network by .005": int(np.sum(np.array(behind) > _CLOSE)),
            "gate between 0 and 1": sum(0 < run["gate"] < 1 for run in runs),
            "mean gain over simple method": round(-float(np.mean(below)), 4),
        }
    sides = np.array([*map(partial(verdict, gain=0.0), range(number))])
    better = np.array([*map(partial(verdict, gain=0.1), range(number))])
    return {
        "experiments": number,
        "equal methods, surely above": round(float((sides > 0).mean()), 4),
        "equal methods, surely below": round(float((sides < 0).mean()), 4),
        "better by a tenth, surely above": round(float((better > 0).mean()), 4),
        "better by a tenth, surely below": round(float((better < 0).mean()), 4),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="verdict,gate,line")
    parser.add_argument("--number", type=int, default=1000, help="experiments of a row")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.rows.split(","):
        run = {**head("torch", "numpy"), **row(name, options.number)}
        print(name, run, flush=True)
        add_run(RECORD, name, run, lambda runs: {}, "torch", "numpy")


if __name__ == "__main__":
    main(sys.argv[1:])
