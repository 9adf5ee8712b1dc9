"""Probabilities of graphmer's answers for open references, judged by jedi on seven trees, each left out in turn.

    python -m tests.bench.bench_graphmer_open RUN          fits on six trees, measures on the seventh, writes the record
    python -m tests.bench.bench_graphmer_open RUN --fit    the same, and fits the weights that prediction uses, on all
    python -m tests.bench.bench_graphmer_open RUN --unseen measures these weights on trees that no fit has seen

RUN is the folder of a run of graphmer_small (`make train`). The trees are packages that pip installs into --scratch
with what they import, so that jedi can follow it; nothing of them comes into the checkout. jedi takes a few minutes.
A reference is judged where jedi follows it: right is the entity that it means, and *none* where no answer is that.
"""

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from tests.bench.record import RECORDS, head, rounded, write
from trainbook.launch import ensemble
from workloads.graphmer import promises
from workloads.graphmer.answers import open_references
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.data import Data
from workloads.graphmer.predicting import Calibration
from workloads.graphmer.promises import OF_ANSWER, OF_TOP, Weights

RECORD = RECORDS / "graphmer_open.json"
TREES = {
    "black": ("black", "blackd", "blib2to3", "_black_version.py"), "flask": ("flask",), "click": ("click",),
    "jinja2": ("jinja2",), "requests": ("requests",), "httpx": ("httpx",), "werkzeug": ("werkzeug",),
}  # fmt: skip
UNSEEN = {
    "attrs": ("attr", "attrs"), "typer": ("typer",), "marshmallow": ("marshmallow",), "starlette": ("starlette",),
    "jsonschema": ("jsonschema",), "tqdm": ("tqdm",), "tomlkit": ("tomlkit",), "markdown": ("markdown",),
}  # fmt: skip
BESIDE = (
    "rich",
    "h2",
    "socksio",
    "colorama",
    "watchdog",
    "python-dotenv",
    "asgiref",
    "cryptography",
)
SHRINKAGE = 3.0  # weight of the squared weights of answers, whose features have a deviation of 1
STRENGTH = (
    0.02  # C of the logistic function; with .01 and .05 the calibration error is .015 and .01 more
)
SURE = 0.9
JUDGED = 100  # references of a tree that set its own shift
DRAWS = 20  # of these references
GOALS = {"right": 0.67, "calibration_error": 0.05, "off": 0.05, "sure_right": 0.88, "sure": 0.12}


def installed(scratch: Path, trees: Mapping[str, Sequence[str]]) -> Path:
    """Installs packages into `scratch`, which is for them alone; returns the folder with a tree of each."""
    site = scratch / "site"
    if not site.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
        subprocess.run([*command, *trees, *BESIDE], check=True)
        for compiled in [*site.glob("*mypyc*"), *(site / "black").rglob("*.so")]:
            compiled.unlink()  # jedi would look into it instead of the source
    for tree, names in trees.items():
        for name in names:
            place = scratch / "trees" / tree / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                continue
            if (site / name).is_dir():
                shutil.copytree(site / name, place, ignore=shutil.ignore_patterns("tests"))
            else:
                shutil.copy(site / name, place)
    sys.path.append(str(site))
    return scratch / "trees"


def loaded(run: Path) -> tuple:
    """Returns the task and the model of a run; its own weights of references are fitted anew, by this version."""
    task, models = ensemble.load(run)
    kept = task.learned()
    data = Data((), task.settings, {})
    data.corpus = Corpus.load(kept["corpus"])
    data.use(kept["counts"])
    with torch.no_grad():
        Calibration(data).fit(models[0])
    return task, models


def collected(task, models: list, tree: Path, place: Path) -> tuple[pd.DataFrame, int]:
    """Returns the answers for references that jedi follows, and the number of all open references."""
    if place.is_file():
        return pd.read_pickle(place)
    opened = open_references(task, tree)
    with torch.inference_mode():
        choices = pd.concat(opened.choices(models))
    is_judged = np.array([bool(meanings) for meanings in opened.meanings])
    choices = choices[is_judged[choices["question"]]].sort_values("question", kind="stable")
    found = choices.reset_index(drop=True), len(is_judged)
    pd.to_pickle(found, place)
    return found


def together(trees: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Returns the answers of trees as one table, with `share`, by which each tree counts as much as another."""
    parts = []
    first = 0
    for name, choices in trees.items():
        number = pd.factorize(choices["question"])[0]
        share = 1 / (number[-1] + 1)
        parts.append(choices.assign(question=first + number, tree=name, share=share))
        first += number[-1] + 1
    table = pd.concat(parts, ignore_index=True)
    mean = table.groupby("question")["share"].first().mean()
    return table.assign(share=table["share"] / mean)


def fitted_answers(table: pd.DataFrame) -> np.ndarray:
    """Returns the likeliest weights of OF_ANSWER; of several right answers each may be meant."""
    features = table[OF_ANSWER].to_numpy()
    spread = features.std(0) + 1e-9
    features = features / spread
    number = table["question"].to_numpy()
    begin = np.flatnonzero(np.diff(number, prepend=-1))
    share = table["share"].to_numpy()
    right = table["right"].to_numpy()

    def lost(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns minus the log likelihood, with the shrinkage, and its gradient."""
        scores = features @ weights
        chance = np.exp(scores - np.maximum.reduceat(scores, begin)[number])
        chance /= np.add.reduceat(chance, begin)[number]
        likelihood = np.maximum(np.add.reduceat(chance * right, begin), 1e-12)
        of_right = chance * right / likelihood[number]
        loss = -share[begin] @ np.log(likelihood) + SHRINKAGE / 2 * weights @ weights
        return loss, features.T @ (share * (chance - of_right)) + SHRINKAGE * weights

    found = minimize(lost, np.zeros(len(OF_ANSWER)), jac=True, method="L-BFGS-B")
    if not found.success:
        raise RuntimeError(f"The weights of answers were not found: {found.message}")
    return found.x / spread


def fitted(trees: dict[str, pd.DataFrame]) -> Weights:
    """Returns weights of two or more trees; those of top answers by answers of trees that were left out."""
    tops = []
    for name, choices in trees.items():
        others = {other: table for other, table in trees.items() if other != name}
        top = promises.tops(choices, fitted_answers(together(others)))
        tops.append(top.assign(share=1 / len(top)))
    top = pd.concat(tops, ignore_index=True)
    features = top[OF_TOP].to_numpy()
    mean = features.mean(0)
    spread = features.std(0) + 1e-6
    line = LogisticRegression(C=STRENGTH, max_iter=3000)
    share = top["share"] / top["share"].mean()
    line.fit((features - mean) / spread, top["right"], sample_weight=share)
    weights = line.coef_[0] / spread
    bias = float(line.intercept_[0] - mean @ weights)
    return Weights(fitted_answers(together(trees)), weights, bias)


def calibration_error(chance: np.ndarray, right: np.ndarray) -> float:
    """Returns the mean distance of what is right from what is promised, over ten bins of the probability."""
    tenth = np.minimum((10 * chance).astype(int), 9)
    off = np.bincount(tenth, right - chance, 10)
    return float(np.abs(off).sum() / len(chance))


def figures(chance: np.ndarray, right: np.ndarray) -> dict[str, float]:
    is_sure = chance >= SURE
    return rounded(
        {
            "judged": float(len(right)),
            "right": right.mean(),
            "promised": chance.mean(),
            "off": abs(right.mean() - chance.mean()),
            "calibration_error": calibration_error(chance, right),
            "sure": is_sure.mean(),
            "sure_right": right[is_sure].mean() if is_sure.any() else np.nan,
        }
    )


def moved(odds: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Returns how far a promise is off where JUDGED others set its shift: the mean over draws, and that of a draw.

    That of a draw has the chance of the references that are left in it too, which are fewest in requests: 47.
    """
    off = []
    for seed in range(DRAWS):
        order = np.random.default_rng(seed).permutation(len(right))
        judged, others = order[:JUDGED], order[JUDGED:]
        shift = promises.shift(odds[judged], right[judged])
        off.append(promises.chance_of(odds[others] + shift).mean() - right[others].mean())
    return abs(float(np.mean(off))), float(np.abs(off).mean())


def measured(trees: dict[str, pd.DataFrame]) -> dict:
    """Returns the figures of each tree by weights of the others, those of all, and those of a run's own weights."""
    rows = {}
    odds = {}
    right = {}
    own = {}
    for name, choices in trees.items():
        weights = fitted({other: table for other, table in trees.items() if other != name})
        top = promises.tops(choices, weights.answer)
        odds[name] = promises.log_odds(top, weights)
        right[name] = top["right"].to_numpy(float)
        rows[name] = figures(promises.chance_of(odds[name]), right[name])
        off, off_of_draw = moved(odds[name], right[name])
        rows[name] |= rounded({"off_with_100_judged": off, "off_in_a_draw": off_of_draw})
        of_run = choices.loc[choices.groupby("question")["probability"].idxmax()]
        own[name] = of_run["probability"].to_numpy(), of_run["right"].to_numpy(float)
    every = [np.concatenate([*values.values()]) for values in (odds, right)]
    of_run = [np.concatenate(values) for values in zip(*own.values(), strict=True)]
    return {
        "trees": rows,
        "all": figures(promises.chance_of(every[0]), every[1]),
        "mean_of_trees": pd.DataFrame(rows).T.mean().round(4).to_dict(),
        "own_weights": {
            "trees": {name: figures(*values) for name, values in own.items()}, "all": figures(*of_run),
        },
    }  # fmt: skip


def held(trees: dict[str, pd.DataFrame], weights: Weights) -> dict:
    """Returns the figures of trees under given weights, and those of all."""
    rows = {}
    odds = []
    right = []
    for name, choices in trees.items():
        top = promises.tops(choices, weights.answer)
        odds.append(promises.log_odds(top, weights))
        right.append(top["right"].to_numpy(float))
        rows[name] = figures(promises.chance_of(odds[-1]), right[-1])
        if len(right[-1]) > JUDGED:
            off, off_of_draw = moved(odds[-1], right[-1])
            rows[name] |= rounded({"off_with_100_judged": off, "off_in_a_draw": off_of_draw})
    every = figures(promises.chance_of(np.concatenate(odds)), np.concatenate(right))
    return {"trees": rows, "all": every, "reached": reached(every)}


def reached(found: dict) -> dict[str, bool]:
    """Tells which of GOALS the figures of all trees reach: at least so much, of errors at most."""
    errors = ("calibration_error", "off")
    return {
        name: bool(found[name] <= goal if name in errors else found[name] >= goal)
        for name, goal in GOALS.items()
    }


def save(weights: Weights, trees: dict[str, pd.DataFrame]) -> None:
    """Writes the weights that prediction uses, with their origin."""
    about = (
        "Made by python -m tests.bench.bench_graphmer_open RUN --fit, from open references that jedi follows in "
        f"{', '.join(trees)}; see tests/bench/records/graphmer_open.json."
    )
    answer = dict(zip(OF_ANSWER, weights.answer.round(4).tolist(), strict=True))
    top = dict(zip(OF_TOP, weights.top.round(4).tolist(), strict=True))
    content = {"about": about, "answer": answer, "top": top, "bias": round(weights.bias, 4)}
    promises.WEIGHTS.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--fit", action="store_true", help="write the weights of prediction too")
    parser.add_argument(
        "--unseen", action="store_true", help="measure these weights on trees of no fit"
    )
    scratch = Path(tempfile.gettempdir()) / "trainbook-bench"
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args(arguments)
    names = UNSEEN if options.unseen else TREES
    if options.scratch is None:
        options.scratch = scratch / f"graphmer_{'unseen' if options.unseen else 'open'}"
    folder = installed(options.scratch, names)
    task, models = loaded(options.run)
    trees = {}
    counts = {}
    for name in names:
        place = options.scratch / f"{name}.pickle"
        trees[name], counts[name] = collected(task, models, folder / name, place)
        print(f"{name}: {trees[name]['question'].nunique()} of {counts[name]} judged", flush=True)
    found_in = importlib.metadata.distributions(path=[str(options.scratch / "site")])
    versions = {one.name.lower(): one.version for one in found_in if one.name.lower() in names}
    record = {**head("torch", "jedi"), "packages": versions, "open": counts}
    if options.unseen:
        found = {**record, **held(trees, Weights.read())}
        write(RECORD, {**json.loads(RECORD.read_text("utf-8")), "unseen": found})
        print(json.dumps(found, indent=1))
        return
    if options.fit:
        save(fitted(trees), trees)
    found = measured(trees)
    record["goals"] = GOALS
    write(RECORD, {**record, "reached": reached(found["all"]), **found})
    print(json.dumps(found["all"], indent=1), reached(found["all"]))


if __name__ == "__main__":
    main(sys.argv[1:])
