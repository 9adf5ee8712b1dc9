"""Data sets for the examples of `new`, written in the layout that each reads.

Tables named PACKAGED and the pictures of digits are scikit-learn's. All others are read from checkouts that lie side by
side in the folder ANSWERS_DATA: github.com/mwaskom/seaborn-data, UniversalDependencies/UD_English-ParTUT,
leondz/emerging_entities_17 (WNUT17) and harvardnlp/sent-conv-torch (TREC questions, customer reviews). The bench of
legal reads allenai/sequential_sentence_classification (CSAbstruct) there.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from PIL import Image
from sklearn import datasets

PACKAGED = {
    "diabetes": datasets.load_diabetes,
    "wine": datasets.load_wine,
    "cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
SEABORN = {"mpg": "mpg", "diamonds": "price", "titanic": "survived", "penguins": "species"}
NUMBERS = ("diabetes", "mpg", "diamonds")
TABLES = (*PACKAGED, *SEABORN)
LEFT_OUT = {"mpg": ["name"], "titanic": ["alive", "class", "who", "adult_male", "embark_town"]}
MOST = 6_000  # rows of a table
A_DOCUMENT = 10  # reviews' sentences


class Written(NamedTuple):
    """The example that reads a set, and the options of its run."""

    example: str
    options: Mapping[str, Any]


def write(name: str, folder: Path) -> Written:
    """Writes a set into a new folder. Raises FileNotFoundError if its checkout is missing."""
    if name in TABLES:
        return _write_table(name, folder)
    return OTHERS[name](folder)


def checkout(name: str) -> Path:
    return Path(os.environ.get("ANSWERS_DATA", "answers-data")) / name


def table_of(name: str) -> pd.DataFrame:
    """Returns a table whose last column is `target`."""
    if name in PACKAGED:
        table = PACKAGED[name](as_frame=True).frame
        target = "target"
    else:
        target = SEABORN[name]
        table = pd.read_csv(checkout("seaborn-data") / f"{name}.csv")
        table = table.drop(columns=LEFT_OUT.get(name, []))
    targets = table.pop(target)
    if name not in NUMBERS:
        targets = "is " + targets.astype(str)
    table["target"] = targets
    return table.sample(min(len(table), MOST), random_state=0)


def _write_table(name: str, folder: Path) -> Written:
    table = table_of(name)
    folder.mkdir()
    table.to_csv(folder / "rows.csv", index=False)
    options: dict[str, Any] = {
        "workload.features": [],
        "workload.words": [],
        "workload.target": "target",
    }
    if name not in NUMBERS:
        options["task"] = "my_task.py:Classes"
    if len(table) > 5000:
        options["training.effective_batch"] = 128
    return Written("tabular", options)


def _write_digits(folder: Path) -> Written:
    """Writes pictures of 8 x 8 pixels, in a folder for each digit."""
    digits = datasets.load_digits()
    names = [f"is {number}" for number in range(10)]
    for name in names:
        (folder / name).mkdir(parents=True)
    pairs = zip(digits.images, digits.target, strict=True)
    for number, (image, target) in enumerate(pairs):
        picture = Image.fromarray((image * 255 / 16).astype("uint8"))
        picture.save(folder / names[target] / f"{number:04}.png")
    # left and right tell digits apart
    options = {"workload.classes": names, "workload.size": 32, "workload.flip": False}
    return Written("images", options)


def _classified(file: str) -> list[tuple[str, str]]:
    """Reads sentences, each behind the number of its class."""
    text = (checkout("sent-conv-torch") / "data" / file).read_text("latin-1")
    pairs = [line.split(" ", 1) for line in text.splitlines() if line.strip()]
    return [(sentence, f"is {label}") for label, sentence in pairs]


def _write_texts(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [f"{text}\t{label}\n" for text, label in rows]
    path.write_text("".join(lines), "utf-8")


def _write_questions(folder: Path) -> Written:
    """Writes questions in one file: each is a document."""
    rows = [*_classified("TREC.train.all"), *_classified("TREC.test.all")]
    _write_texts(folder / "questions.tsv", rows)
    return Written("text", {"workload.classes": sorted({label for _, label in rows})})


def _write_reviews(folder: Path) -> Written:
    """Writes documents of ten sentences, in the order of the file."""
    rows = _classified("custrev.all")
    for first in range(0, len(rows), A_DOCUMENT):
        some = rows[first : first + A_DOCUMENT]
        _write_texts(folder / f"{first // A_DOCUMENT:04}.tsv", some)
    return Written("text", {"workload.classes": sorted({label for _, label in rows})})


def _write_tags(folder: Path, texts: list[list[tuple[str, str]]]) -> Written:
    folder.mkdir()
    blocks = ["\n".join(f"{word}\t{tag}" for word, tag in text) for text in texts]
    (folder / "texts.tsv").write_text("\n\n".join(blocks) + "\n", "utf-8")
    classes = sorted({tag for text in texts for _, tag in text})
    return Written("tokens", {"workload.classes": classes})


def _write_speech(folder: Path) -> Written:
    """Writes parts of speech: the three files of ParTUT as one."""
    texts: list[list[tuple[str, str]]] = [[]]
    for path in sorted(checkout("UD_English-ParTUT").glob("*.conllu")):
        for line in path.read_text("utf-8").splitlines():
            cells = line.split("\t")
            if not line:
                texts.append([])
            elif cells[0].isdigit():
                texts[-1].append((cells[1], cells[3]))
    return _write_tags(folder, [text for text in texts if text])


def _write_entities(folder: Path) -> Written:
    """Writes the training file of WNUT17."""
    path = checkout("emerging_entities_17") / "wnut17train.conll"
    texts: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text("utf-8").split("\n"):
        if not line.strip():
            texts.append([])
            continue
        word, tag = line.split("\t")
        texts[-1].append((word, tag))
    return _write_tags(folder, [text for text in texts if text])


OTHERS: Mapping[str, Callable[[Path], Written]] = {
    "pictures of digits": _write_digits,
    "TREC": _write_questions,
    "reviews": _write_reviews,
    "WNUT17": _write_entities,
    "ParTUT": _write_speech,
}
NAMES = (*TABLES, *OTHERS)
