"""Reads questions about pictures, with answers, from tables with configured columns; splits by picture."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from lib.errors import BadInput, check_limit, first_ten, printable
from lib.machine import inputs, platform
from lib.training.order import mix, permutation
from trainbook.supervised import tables
from trainbook.supervised.notes import note
from trainbook.supervised.samples import PARTS
from trainbook.supervised.splits import makes_a_split, part_of, stratify
from trainbook.supervised.text import normal
from workloads.vqa import pictures
from workloads.vqa.settings import Settings, Split

_WHERE = "workload.source.images is the pictures' folder, and workload.source.picture a row's picture in it."
OTHER = "other types"  # replaces rare question types
_SEED = 0  # runs of all seeds are tested on the same pictures, and their models can answer together
_OPTIONAL = ("kind", "reasoning", "split")
_RARE = 0.01  # smallest share of a question type: rarer ones are slips, several types in one, ids
_KIND_LETTERS = 60  # most letters of a type's name
_LETTERS = 4000  # most letters of a question or answer; the longest sample record has 274
_PICTURES = 1
_RUNS = 2  # domains of `mix`


class Record(NamedTuple):
    """A question about a picture, with its place in a file; its answer, the target, comes last."""

    number: int  # row of its file, from 1
    question: str  # NFC
    image: str  # path of the picture on this machine
    picture: str  # hash of the picture's file, by which parts are made
    kind: str = ""  # question type
    reasoning: str = ""  # a teacher's
    part: str = ""  # train, validation or test, if the split column, files or folders are named so
    file: str = ""
    answer: str = ""  # NFC

    @property
    def place(self) -> str:
        return f"{printable(self.file)}, row {self.number}"


def read(folder: Path, settings: Settings) -> list[Record]:
    """Returns the records of a folder or file in order; notes unmatched files and columns. Raises BadInput."""
    root = folder if folder.is_dir() else folder.parent
    images = settings.source.images
    if images:
        root = inputs.find_input(images, platform.detect())
    if images and not root.is_dir():
        raise BadInput(
            f"workload.source.images is {printable(root)}, which is not a folder. Name the pictures' folder."
        )
    rows = [*_rows(folder, root, settings)]
    looks = pictures.check(sorted({record.image for record, wrong in rows if not wrong}))
    bad = []
    records = []
    for record, wrong in rows:
        picture, unreadable, *_ = ("", "") if wrong else looks[record.image]
        if wrong or unreadable:
            bad.append(f"{record.place}: {wrong or unreadable}")
        else:
            records.append(record._replace(picture=picture))
    if not records:
        raise BadInput(f"No row in {printable(folder)} can be used. {_WHERE}\n{first_ten(bad)}")
    check_limit("Rows that cannot be used", bad, settings.bad_input_limit)
    first = "".join(f"\n  {printable(line)}" for line in bad[:3])
    note(
        f"Questions with their picture: {len(records):,}; rows that are left out: {len(bad):,}.{first}"
    )
    return _cleaned(records)


def _rows(folder: Path, root: Path, settings: Settings) -> Iterator[tuple[Record, str]]:
    """Yields for each row a record without its picture's hash, and the problem of an unusable row. Raises BadInput."""
    names = vars(settings.columns)
    pattern = settings.source.picture
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    for shown, path in tables.find_files(folder, settings.source.files).items():
        rows = tables.read_table(path, shown, names, optional).to_dict("records")
        for number, row in enumerate(rows, 1):
            wrong = _wrong(row)
            part = part_of(PurePosixPath(row.pop("split") or shown))
            image = str(root / _filled(pattern, row.pop("image"), part, shown))
            yield Record(number, image=image, picture="", part=part, file=shown, **row), wrong


def _wrong(row: Mapping[str, str]) -> str:
    for name in ("question", "answer", "image"):
        if not 0 < len(row[name]) <= _LETTERS:
            return f"There is no {name}, or one of more than {_LETTERS:,} letters."
    return ""


def _filled(pattern: str, image: str, part: str, table: str) -> str:
    """Returns the path of a row's picture. Raises BadInput for a pattern with other fields."""
    cell = PurePosixPath(image.replace("\\", "/"))
    fields = {"image": image, "name": cell.name, "stem": cell.stem}
    fields |= {"split": part.replace("validation", "val")}
    try:
        return pattern.format(**fields, folder=PurePosixPath(table).parent)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise BadInput(
            f"workload.source.picture {printable(pattern)} cannot be filled in ({printable(repr(error))}). "
            f"Write {{image}}, {{name}}, {{stem}}, {{split}} or {{folder}} in it."
        ) from None


def questions(source: Path) -> list[Record]:
    """Returns the lines of text files about pictures of the same names in a folder, as questions. Raises BadInput."""
    records = []
    for path in sorted(source.rglob("*.txt")):
        beside = (path.with_suffix(suffix) for suffix in pictures.SUFFIXES)
        image = next((picture for picture in beside if picture.is_file()), None)
        if image is None:
            continue
        for number, line in enumerate(tables.read_lines(path, printable(path)), 1):
            if question := " ".join(line.split()):
                records.append(Record(number, question, str(image), str(image.resolve())))
    if not records:
        raise BadInput(
            f"There is no question about a picture in {printable(source)}. "
            f"Give a folder of pictures, each with a text file of the same name and a question a line in it."
        )
    return records


def _cleaned(records: Sequence[Record]) -> list[Record]:
    """Drops repeated questions, joins rare types, and drops splits that share pictures. Notes all of these."""
    first: dict[tuple[str, str, str], Record] = {}
    for record in records:
        key = (record.picture, normal(record.question), normal(record.answer))
        first.setdefault(key, record)
    _note_repeats(records, first)
    records = _with_common_kinds([*first.values()])
    parts: dict[str, set[str]] = {}
    for record in records:
        if record.part:
            parts.setdefault(record.picture, set()).add(record.part)
    shared = [picture for picture, names in parts.items() if len(names) > 1]
    if not shared:
        return records
    paths = dict.fromkeys(record.image for record in records if record.picture == shared[0])
    example = " = ".join(printable(path, most=200) for path in [*paths][:2])
    note(
        f"Pictures in two of the files' splits: {len(shared):,}, such as {example}. All pictures are split anew."
    )
    return [record._replace(part="") for record in records]


def _with_common_kinds(records: Sequence[Record]) -> list[Record]:
    """Returns records with rare or odd question types replaced by `OTHER`, and notes these."""
    counts = Counter(record.kind for record in records if record.kind)
    least = _RARE * len(records)
    odd = {kind for kind, count in counts.items() if count < least or _is_odd(kind)}
    if not odd:
        return [*records]
    number = sum(counts[kind] for kind in odd)
    names = printable(", ".join(sorted(odd)), most=200)
    note(
        f"Questions that count as {OTHER}: {number:,}, of {len(odd):,} rare or odd types ({names})."
    )
    return [r._replace(kind=OTHER) if r.kind in odd else r for r in records]


def _is_odd(kind: str) -> bool:
    return printable(kind, most=_KIND_LETTERS) != kind


def _note_repeats(records: Sequence[Record], first: Mapping[tuple[str, str, str], Record]) -> None:
    """Notes rows that repeat another one, which are left out, and questions with several answers, which stay."""
    if repeats := len(records) - len(first):
        taken = {(record.file, record.number) for record in first.values()}
        again = next(record for record in records if (record.file, record.number) not in taken)
        note(
            f"Rows with picture, question and answer of an earlier one: {repeats:,}, left out, "
            f"such as {again.place}."
        )
    answers: dict[tuple[str, str], list[Record]] = {}
    for (picture, question, _), record in first.items():
        answers.setdefault((picture, question), []).append(record)
    several = [rows for rows in answers.values() if len(rows) > 1]
    if several:
        first_two = several[0][:2]
        shown = [f"{printable(row.answer, most=60)} ({row.place})" for row in first_two]
        example = " and ".join(shown)
        note(
            f"Questions about one picture with several answers: {len(several):,}, such as {example}. All are trained."
        )


def split(records: Sequence[Record], shares: Split) -> dict[str, list[Record]]:
    """Returns the records of "train", "validation" and "test", in their order. Raises BadInput.

    Every part has its share of each question type. The parts of the files count where every record is in one and there
    is one to train on and one to hold out; a missing third split is dealt from the training pictures.
    """
    are_named = makes_a_split(record.part for record in records)
    part = {record.picture: record.part if are_named else "train" for record in records}
    lacking = [name for name in vars(shares) if name not in part.values()]
    if lacking:
        names = ["train", *lacking]
        held_out = [getattr(shares, name) for name in lacking]
        pictures, counts = _counts([r for r in records if part[r.picture] == "train"])
        numbers = stratify(counts, [1 - sum(held_out), *held_out], _SEED)
        for picture, number in zip(pictures, numbers, strict=True):
            part[picture] = names[number]
    parts: dict[str, list[Record]] = {name: [] for name in PARTS}
    for record in records:
        parts[part[record.picture]].append(record)
    for name, chosen in parts.items():
        if not chosen:
            raise BadInput(
                f"No picture is left for {name}: there are {len(part)} in all. "
                f"Give more, or change workload.split."
            )
    return parts


def _counts(records: Sequence[Record]) -> tuple[list[str], np.ndarray]:
    """Returns sorted names of pictures, and (pictures, types) numbers of questions."""
    names, picture = np.unique([record.picture for record in records], return_inverse=True)
    kinds, kind = np.unique([record.kind for record in records], return_inverse=True)
    counts = np.zeros((len(names), len(kinds)))
    np.add.at(counts, (picture, kind), 1)
    return names.tolist(), counts


class Questions(list[Record]):
    """Training questions, up to `together` of a picture in succession."""

    def __init__(self, records: Sequence[Record], together: int):
        super().__init__(records)
        self.together = together
        self.pictures = np.unique([record.picture for record in records], return_inverse=True)[1]

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Returns an epoch's order: up to `together` questions of a picture, then another picture's."""
        shuffled = permutation(mix(_PICTURES, seed), epoch, len(self))
        by_picture = shuffled[np.argsort(self.pictures[shuffled], kind="stable")]
        ordered = self.pictures[by_picture]
        number = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)  # in its picture
        begins = number % self.together == 0
        run = np.cumsum(begins) - 1
        order_of_runs = permutation(mix(_RUNS, seed), epoch, int(begins.sum()))
        return by_picture[np.argsort(order_of_runs[run], kind="stable")]
