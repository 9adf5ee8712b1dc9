"""What counting alone reaches on the sample corpus of judgments; figures go to records/legal_counting.json.

    python -m tests.bench.bench_legal_counting [FOLDER]       about 6 minutes of one core for each of two partitions

The corpus is github.com/Law-AI/semantic-segmentation, 50 judgments: in FOLDER, or legal_rr_lawai in TRAINBOOK_DATA.

Five folds by document, stratified by category; every document is tested once, its confusion is pooled with those of
the others, and intervals and gains are by document. The choices (terms, C, steps, exponents) were made on inner splits
of another partition of the same documents, so that the two partitions here are no independent samples.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from lib.scores import Interval
from tests.bench.record import RECORDS, head, write
from workloads.legal import judging, splits
from workloads.legal.counting.linear import Linear
from workloads.legal.counting.stack import CONTEXT, SENTENCE, Fitting, Stack
from workloads.legal.documents import Document, class_names, read
from workloads.legal.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("TRAINBOOK_DATA", ROOT.parent / "shared" / "data")) / "legal_rr_lawai"
FOLDS, PARTITIONS = 5, 2
# The rows whose gain over another one is judged, paired by document
GAINS = {
    "context over sentence": ("LR in context, balanced", "LR of the sentence, balanced"),
    "product over context": ("product", "LR in context, balanced"),
    "offsets over product": ("product + class offsets", "product"),
    "product + offsets over context": ("product + class offsets", "LR in context, balanced"),
}
# An earlier prototype, on a partition that was shuffled otherwise; its regressions took 60 steps and knew the category
PROTOTYPE = {
    "majority": 0.080, "LR of the sentence, balanced": 0.444, "LR in context, balanced": 0.542,
    "CRF over the sentence": 0.551, "product": 0.555, "product + class offsets": 0.570,
}  # fmt: skip


def plain(fitting: Fitting) -> Fitting:
    return Fitting(fitting.strength, fitting.steps, class_weight=None)


def fold(train: list[Document], test: list[Document], classes: tuple[str, ...]) -> tuple[dict, dict]:
    """Returns the predictions of each row for each test document, and seconds and bytes of the stack."""
    begin = time.process_time()
    stack = Stack.fit(train, classes)
    cost = {"cpu_seconds": round(time.process_time() - begin, 1), "json_bytes": len(json.dumps(stack.as_json()))}
    truth = np.array([classes.index(role) for document in train for role in document.roles])
    own, own_test = stack.vocabulary.own(train), [stack.vocabulary.own([document]) for document in test]
    wide = stack.vocabulary.in_context(train, own)
    wide_test = [stack.vocabulary.in_context([one], row) for one, row in zip(test, own_test, strict=True)]
    most = int(np.bincount(truth).argmax())
    rows = {"majority": [np.full(len(document), most) for document in test]}
    for name, fitting, matrix, tested in (
        ("LR of the sentence", SENTENCE, own, own_test), ("LR in context", CONTEXT, wide, wide_test)
    ):  # fmt: skip
        for suffix, options in (("", plain(fitting)), (", balanced", fitting)):
            model = Linear.fit(matrix, truth, len(classes), options)
            rows[name + suffix] = [model.scores(one).argmax(1) for one in tested]
    parts = [stack.parts(document) for document in test]
    rows["LR in context, mean of 5"] = [part["context"].argmax(1) for part in parts]
    rows["CRF over the sentence"] = [part["crf"].argmax(1) for part in parts]
    scores = [stack.scores(document) for document in test]
    rows["product"] = [one.argmax(1) for one in scores]
    rows["product + class offsets"] = [(one + stack.offsets).argmax(1) for one in scores]
    return rows, cost


def partition(documents: list[Document], classes: tuple[str, ...], seed: int) -> dict:
    counts: dict[str, list[np.ndarray]] = {}
    costs = []
    for number in range(FOLDS):
        parts = splits.deal(documents, FOLDS, number, seed=seed, validation=0.0)
        test = [documents[place] for place in parts.test]
        rows, cost = fold([documents[place] for place in parts.train], test, classes)
        truth = [np.array([classes.index(role) for role in document.roles]) for document in test]
        for name, predicted in rows.items():
            counts.setdefault(name, []).append(judging.confusions(truth, predicted, len(classes)))
        costs.append(cost)
        print(f"partition {seed}, fold {number}: {cost}", flush=True)
    pooled = {name: np.concatenate(found) for name, found in counts.items()}
    best = pooled["product + class offsets"].sum(0)
    return {
        "rows": {name: figures(judging.judge(found)) for name, found in pooled.items()},
        "gains": {name: figures(judging.gain(pooled[a], pooled[b])) for name, (a, b) in GAINS.items()},
        "f1_of_product_with_offsets": {row[0]: row[4] for row in judging.report(best, classes)[1:]},
        "folds": costs,
    }


def figures(judged: dict[str, Interval]) -> dict[str, list[float]]:
    return {name: [round(one.value, 4), round(one.low, 4), round(one.high, 4)] for name, one in judged.items()}


def main(folder: Path) -> None:
    if not folder.is_dir():
        print(f"{folder} is not there, so nothing is measured. Name the folder of the corpus.")
        return
    documents, _ = read(folder, Settings())
    classes = class_names(documents, 30)
    record = {
        **head("numpy", "scipy", "scikit-learn", threads=1, note="shared with other work while measured"),
        "corpus": {"documents": len(documents), "sentences": sum(map(len, documents)), "roles": len(classes)},
        "prototype_macro_f1": PROTOTYPE,
    }
    for seed in range(PARTITIONS):
        record[f"partition_{seed}"] = partition(documents, classes, seed)
        write(RECORDS / "legal_counting.json", record)
        print(json.dumps(record[f"partition_{seed}"]["rows"], indent=1), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS)
