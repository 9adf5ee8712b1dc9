"""Questions about pictures with their answers: tables whose columns the configuration names, in parts by picture."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.config.files import absolute
from lib.errors import BadInput, check_limit, first_ten, printable
from lib.machine import inputs, platform
from lib.report.progress import counted
from lib.supervised import tables
from lib.supervised.text import normal
from lib.training.order import mix, permutation
from lib.training.splits import makes_a_split, part_of, stratify
from workloads.vqa import pictures
from workloads.vqa.settings import Settings, Split

_HOW = (
    "Give a folder of pictures, each with a text file of the same name and a question a line in it, or a file of JSON "
    'lines {"image": "cat.png", "question": "..."} beside the pictures.'
)
_WHERE = (
    "Name where the pictures lie: workload.source.images is their folder, and workload.source.picture a row's picture "
    "there, such as {image}.jpg. docs/vqa.md has both for known collections."
)
PARTS = ("train", "validation", "test")
OTHER = "other types"  # stands for rare question types
_SPLIT_SEED = 0  # runs of all seeds are tested on the same pictures, and their models can answer together
_OPTIONAL = ("kind", "reasoning", "split")
_RARE, _NAMED = 0.01, 8  # of the records: slips, several types in one, ids; types in a sentence
_LETTERS, _KIND_LETTERS = 4000, 60  # of a question or an answer (the longest of the sample records has 274); of a type
_WORDS = {"train": "train", "validation": "val", "test": "test"}  # of {split} in a pattern
_PICTURES, _RUNS = 1, 2  # domains of `mix`


class Record(NamedTuple):
    """A question about a picture, and where it was read; its answer, the target, comes last."""

    number: int  # row of its file, from 1
    question: str  # NFC
    image: str  # path of the picture on this machine
    picture: str  # hash of the picture's file, by which parts are made
    kind: str = ""  # question type
    reasoning: str = ""  # of a teacher
    part: str = ""  # train, validation or test, if the split column, files or folders are named so
    file: str = ""
    answer: str = ""  # NFC

    @property
    def place(self) -> str:
        return f"{printable(self.file)}, row {self.number}"


def read(folder: Path, settings: Settings) -> tuple[list[Record], list[str]]:
    """Returns the records of a folder or a file in order, and notes on what did not match. Raises BadInput."""
    root = folder if folder.is_dir() else folder.parent
    images = settings.source.images
    if images and not (root := inputs.find_input(images, platform.detect())).is_dir():
        raise BadInput(f"workload.source.images is {printable(root)}, which is no folder. Name the pictures' folder.")
    rows = list(_rows(folder, root, settings))
    shown = sorted({record.image for record, wrong in rows if not wrong})
    judged = pictures.check(shown, settings.pictures.limit_pixels)
    bad = [f"{r.place}: {why}" for r, wrong in rows if (why := wrong or judged[r.image][1])]
    records = [r._replace(picture=judged[r.image][0]) for r, wrong in rows if not (wrong or judged[r.image][1])]
    if not records:
        how = _WHERE if rows and not any(pictures.is_there(record.image) for record, _ in rows) else "Look at data.dir."
        none = f"None of the {len(rows):,} rows in {printable(folder)} can be used. {how}"
        raise BadInput("\n".join(filter(None, [none, first_ten(bad)])))
    check_limit("Rows that cannot be used", bad, settings.bad_input_limit)
    first = "".join(f"\n  {printable(line)}" for line in bad[:3])
    notes = [f"Questions with their picture: {len(records):,}; rows that are left out: {len(bad):,}.{first}"]
    return _cleaned(records, notes), notes


def fingerprint(parts: Mapping[str, Sequence[Record]]) -> str:
    """Hashes what records say and what their pictures show, wherever they lie, and which part they are in."""
    rows = ((name, record) for name, part in parts.items() for record in part)
    facts = (repr((name, r.picture, r.question, r.answer, r.kind, r.reasoning)) for name, r in rows)
    return hashlib.sha256("".join(facts).encode()).hexdigest()


def _rows(folder: Path, root: Path, settings: Settings) -> Iterator[tuple[Record, str]]:
    """Yields a record without the hash of its picture for each row, and why it cannot be used, if it cannot."""
    names = vars(settings.columns)
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    for shown, path in tables.find_files(folder, settings.source.files).items():
        for number, row in enumerate(tables.read_table(path, shown, names, optional).to_dict("records"), 1):
            part, image = part_of(PurePosixPath(row.pop("split") or shown)), row.pop("image")
            there = root / _filled(settings.source.picture, image, part, shown)
            record = Record(number, image=str(there), picture="", part=part, file=shown, **row)
            yield record, _wrong(record, image)


def _filled(pattern: str, image: str, part: str, file: str) -> str:
    """Returns where the picture of a row lies, by the pattern of the configuration. Raises BadInput."""
    inside, names = PurePosixPath(image.replace("\\", "/")), {"image": image, "split": _WORDS.get(part, "")}
    try:
        return pattern.format(**names, stem=inside.stem, name=inside.name, folder=PurePosixPath(file).parent)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        what = f"workload.source.picture {printable(pattern)} cannot be filled in ({printable(repr(error))})"
        raise BadInput(f"{what}. Write {{image}}, {{name}}, {{stem}}, {{split}} or {{folder}} in it.") from None


def _wrong(record: Record, image: str) -> str:
    texts = {"question": record.question, "answer": record.answer, "image": image, "reasoning": record.reasoning}
    for name, text in texts.items():
        if not text and name != "reasoning":
            return f"There is no {name}."
        if len(text) > _LETTERS:
            return f"The {name} has {len(text):,} letters, and at most {_LETTERS:,} are read."
    return "" if pictures.is_there(record.image) else f"There is no picture {printable(record.image, most=200)}."


def questions(source: Path) -> list[Record]:
    """Returns the questions of a folder or a file, without answers. Raises BadInput."""
    root, paths = (source.parent, [source]) if source.is_file() else (source, sorted(source.rglob("*")))
    records = [record for path in counted(paths, "files read") for record in _questions_in(path, root)]
    if not records:
        raise BadInput(f"There is no question about a picture in {printable(source)}. {_HOW}")
    return records


def _questions_in(path: Path, root: Path) -> Iterator[Record]:
    rows, is_table = list[tuple[Path, str]](), path.suffix.lower() == ".jsonl"
    if path.suffix.lower() == ".txt":
        beside = (path.with_suffix(suffix) for suffix in pictures.SUFFIXES)
        if image := next((picture for picture in beside if picture.is_file()), None):
            rows = [(image, line) for line in tables.read_text(path, printable(path)).splitlines()]
    if is_table:
        table = tables.read_table(path, printable(path), {"question": "question", "image": "image"})
        rows = [(path.parent / row["image"], row["question"]) for row in table.to_dict("records")]
    for number, (image, question) in enumerate(rows, 1):
        is_there = pictures.is_there(image) and absolute(image).is_relative_to(absolute(root))
        if is_table and not (is_there and question):
            lacking = "question" if is_there else f"picture {printable(image, most=100)} below {printable(root)}"
            raise BadInput(f"{printable(path)}, row {number}: there is no {lacking}. {_HOW}")
        if question.strip():
            yield Record(number, " ".join(question.split()), str(image), str(image.resolve()), file=str(path))


def _cleaned(records: Sequence[Record], notes: list[str]) -> list[Record]:
    """Returns each question once, of copies one with a reasoning; rare types as one; no parts that share pictures."""
    best: dict[tuple[str, str, str], Record] = {}
    for record in records:
        key = (record.picture, normal(record.question), normal(record.answer))
        other = best.setdefault(key, record)
        if (bool(record.reasoning), bool(record.part)) > (bool(other.reasoning), bool(other.part)):
            best[key] = record._replace(part=record.part or other.part)
    if copies := len(records) - len(best):
        notes.append(f"Questions that repeat another one and are left out: {copies:,}.")
    records = list(best.values())
    counts = Counter(record.kind for record in records if record.kind)
    names = {kind: printable(kind, most=_KIND_LETTERS) for kind in counts}
    if odd := [kind for kind, count in counts.items() if count < _RARE * len(records) or names[kind] != kind]:
        common, shown = OTHER if len(odd) < len(counts) else "", ", ".join([*map(names.__getitem__, odd)][:_NAMED])
        few = f"fewer than {_RARE:.0%} of the rows each, or no short plain name: {common or 'ignored'}"
        notes.append(f"{len(odd):,} question types ({shown}{', ...' * (len(odd) > _NAMED)}) have {few}.")
        records = [record._replace(kind=common) if record.kind in {*odd} else record for record in records]
    parts: dict[str, set[str]] = defaultdict(set)
    for record in records:
        parts[record.picture].add(record.part)
    if shared := sum(len(names - {""}) > 1 for names in parts.values()):
        notes.append(f"Pictures that the files have in two parts: {shared:,}. All pictures are dealt anew.")
        records = [record._replace(part="") for record in records]
    return records


def split(records: Sequence[Record], settings: Split, seed: int = _SPLIT_SEED) -> dict[str, list[Record]]:
    """Returns the records of "train", "validation" and "test", in their order. Raises BadInput.

    Every part has its share of each question type. The parts of the files count where every record is in one and there
    is one to train on and one to hold out; what is missing of three is dealt from the training pictures.
    """
    parts: dict[str, list[Record]] = {PARTS[0]: list(records)}
    if settings.given and makes_a_split(record.part for record in records):
        parts = {name: [record for record in records if record.part == name] for name in PARTS}
    held = {name: getattr(settings, name) for name in PARTS[1:] if not parts.get(name)}
    if held:
        rest, names = parts[PARTS[0]], (PARTS[0], *held)
        # The parts hang on pictures, not on the order of files
        counts = pd.crosstab(np.array([r.picture for r in rest]), np.array([r.kind for r in rest]))
        numbers = np.zeros(len(counts), int)
        if len(counts) >= len(names):
            numbers = stratify(counts.to_numpy(float), [1 - sum(held.values()), *held.values()], seed)
        dealt = dict(zip(counts.index, numbers, strict=True))
        parts |= {name: [r for r in rest if dealt[r.picture] == n] for n, name in enumerate(names)}
    if empty := [name for name in PARTS if not parts[name]]:
        how = f"there are {len({record.picture for record in records})} in all. Give more, or change workload.split."
        raise BadInput(f"No picture is left for {empty[0]}: {how}")
    return {name: parts[name] for name in PARTS}


class Questions(list[Record]):
    """Training questions, in an order that brings up to `together` of a picture after each other."""

    def __init__(self, records: Sequence[Record], together: int):
        super().__init__(records)
        self.together = together
        self.pictures = np.unique([record.picture for record in records], return_inverse=True)[1]

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Returns an epoch's order: of each picture `together` questions at most, then another's."""
        shuffled = permutation(mix(_PICTURES, seed), epoch, len(self))
        by_picture = shuffled[np.argsort(self.pictures[shuffled], kind="stable")]
        ordered = self.pictures[by_picture]
        begins = (np.arange(len(ordered)) - np.searchsorted(ordered, ordered)) % self.together == 0
        run = np.cumsum(begins) - 1
        return by_picture[np.argsort(permutation(mix(_RUNS, seed), epoch, int(begins.sum()))[run], kind="stable")]
