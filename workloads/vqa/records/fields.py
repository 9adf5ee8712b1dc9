"""Rows as records: which columns hold question, answer and picture, and what is wrong with a row."""

import ast
import difflib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lib.errors import BadInput, printable
from workloads.vqa.records.files import KEY, NAME, Table, plain
from workloads.vqa.records.folders import PictureFiles
from workloads.vqa.records.settings import Source
from workloads.vqa.scoring import normal

# What columns are called, the likeliest first
USUAL = {
    "question": (
        "question", "questions", "cau_hoi", "câu_hỏi", "question_text", "question_vi", "question_content", "query", "q",
    ),
    "answer": (
        "answer", "multiple_choice_answer", "answers", "cau_tra_loi", "câu_trả_lời", "tra_loi", "trả_lời", "dap_an",
        "đáp_án", "answer_text", "answer_vi", "gt_answer", "ground_truth", "label", "target", "ans", "a",
        "teacher_answer",
    ),
    "image": (
        NAME, "image_path", "img_path", "image_name", "img_name", "file_name", "filename", "image_filename", "image",
        "img", "images", "picture", "photo", "anh", "ảnh", "hinh", "hình", "hinh_anh", "hình_ảnh", "image_id", "img_id",
        "imageid", "imgid", "id_anh", "id_ảnh", "image_url", "coco_url", "url", "path", "file",
    ),
    "kind": ("reasoning_type", "question_type", "content_type", "type", "kind", "answer_type", "category"),
    "reasoning": ("teacher_reasoning", "reasoning", "explanation", "rationale", "giai_thich", "giải_thích"),
    "teacher": ("teacher_answers", "teacher_probabilities", "teacher_probs"),
    "id": ("question_id", "qid", "qa_id", "questionid"),
}  # fmt: skip
LAST_RESORT = (KEY, "id", "0")  # of pictures, where no other column is one's
_POSITIONS = ("question", "answer", "kind", "reasoning")  # of columns without names, the picture's left out
# Of ViVQA, whose head this is, as of COCO-QA, from which it was translated
_VIVQA, _VIVQA_KINDS = {"question", "answer", "img_id", "type"}, ("OBJECT", "NUMBER", "COLOR", "LOCATION")
_LETTERS = 4000  # of a question or an answer; the longest of the sample records has 274
_KIND_LETTERS = 60
_PROBED = 300  # rows in which the column of the picture is looked for
Columns = dict[str, tuple[str, ...]]


def known(source: Source, *fields: str) -> tuple[str, ...]:
    """Returns the names that a column of one of these fields may have: the configured one, else the usual ones."""
    names = [[plain(own)] if (own := getattr(source, name, "")) else USUAL[name] for name in fields]
    return tuple(name for some in names for name in some)


def has(table: Table, source: Source, name: str) -> bool:
    return not table.is_named or bool({*known(source, name)} & {*table.columns})


def choose(table: Table, source: Source, pictures: PictureFiles, near: Any) -> Columns:
    """Returns the columns of each field, of which a row's first filled one counts. Raises BadInput.

    The picture's first column is that in which most values stand for one; where none does, the usual one.
    """
    columns = table.columns
    usual = [name for name in known(source, "image") if name in columns]
    if source.image and not usual:
        raise no_column(table, "image", source)
    taken = () if not table.is_named else known(source, "question", "answer")
    others = [name for name in LAST_RESORT if name in columns and table.is_named]
    rows = [row for _, row in table.rows[:_PROBED]]

    def count(name: str) -> int:
        return sum(bool(pictures.find(one(row.get(name)), near, table.part)) for row in rows if name in row)

    candidates = usual or others or [name for name in columns if name not in taken]
    image = max(candidates, key=count, default="")
    if not usual and (not image or not count(image)):
        image = "" if table.is_named else "2"
        if image not in columns:
            raise no_column(table, "image", source)
    if not table.is_named:
        rest = [name for name in columns if name != image]
        return {"image": (image,), **{key: (name,) for key, name in zip(_POSITIONS, rest, strict=False)}}
    found = {name: tuple(one for one in known(source, name) if one in columns) for name in USUAL}
    return {**found, "image": (image, *(name for name in usual if name != image))}


def no_column(table: Table, name: str, source: Source) -> BadInput:
    """Returns the error of a table in which a field is not found."""
    columns = printable(", ".join(table.columns), most=300) or "none"
    asked = getattr(source, name)
    what = f"no column {printable(asked)}" if asked else f"no column that is called like that of the {name}"
    near = difflib.get_close_matches(plain(asked or name), table.columns, 1, 0.5)
    hint = f" Is {printable(near[0])} meant?" if near else ""
    return BadInput(
        f"{table.file} has {what}; its columns are {columns}.{hint} Write the one with the {name} as "
        f"workload.source.{name}."
    )


def filled(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "", [], {})), None)


def is_vivqa(table: Table) -> bool:
    """Says whether a table has the head of ViVQA, and numbers as types."""
    values = {str(row.get("type")).strip() for _, row in table.rows}
    return {*table.columns} - {"", "unnamed_0"} == _VIVQA and values <= {*"0123"}


def values(row: Mapping[str, Any], columns: Columns, allowed: Sequence[str], is_vivqa: bool) -> dict[str, Any]:
    """Returns question, answer, kind, reasoning and teacher of a row. Raises ValueError, which says what is wrong."""
    found: dict[str, Any] = {
        name: text(one(filled(row, columns.get(name, ())))) for name in ("question", "kind", "reasoning")
    }
    if not found["question"]:
        raise ValueError("There is no question.")
    if (answer := filled(row, columns["answer"])) is None:
        raise ValueError("There is no answer.")
    found |= {"answer": answer_of(answer), "teacher": ()}
    if is_vivqa:
        found["kind"] = _VIVQA_KINDS[int(found["kind"])]
    if (given := filled(row, columns.get("teacher", ()))) is not None:
        found["teacher"] = teacher_of(given)
    elif row.get("teacher_answer") and "teacher_answer" not in columns["answer"][:1]:  # beside the right answer
        found["teacher"] = ((answer_of(row["teacher_answer"]), 1.0),)
    for name in ("question", "answer", "reasoning"):
        if len(found[name]) > _LETTERS:
            raise ValueError(f"The {name} has {len(found[name]):,} letters, and at most {_LETTERS:,} are read.")
    _check_kind(found["kind"], allowed)
    return found


def text(value: Any) -> str:
    """Returns a value as NFC with single spaces; "" for none. Raises ValueError for what is no text."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise ValueError(f"{printable(repr(value), most=60)} is no text.")
    found = " ".join(unicodedata.normalize("NFC", _number(value)).split())
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ValueError("There is half of a character (a lone surrogate), which no text file can hold.") from None
    return found


def _number(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer_of(value: Any) -> str:
    """Returns an answer as text: a number as its digits, of several answers the commonest. Raises ValueError."""
    if found := _answer(value):
        return found
    raise ValueError("The answer is empty.")


def _answer(value: Any) -> str:
    if isinstance(value, str) and value[:1] == "[" and value[-1:] == "]":  # a list that went through a CSV
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text(value)
    if isinstance(value, dict):
        value = filled(value, USUAL["answer"])
    if isinstance(value, list):
        given = [one for one in map(_answer, value) if one]
        most = Counter(map(normal, given)).most_common(1)
        return next((one for one in given if normal(one) == most[0][0]), "")
    return "" if value != value else text(value)  # NaN, as pandas writes what is missing


def teacher_of(value: Any) -> tuple[tuple[str, float], ...]:
    """Returns the teacher's answers with their probabilities. Raises ValueError where these are none."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if isinstance(pairs, list) and all(isinstance(one, dict) for one in pairs):
        pairs = [(filled(one, USUAL["answer"]), filled(one, ("probability", "prob", "p", "score"))) for one in pairs]
    try:
        found = tuple((answer_of(answer), float(share)) for answer, share in pairs)
    except (TypeError, ValueError):
        found = ()
    total = sum(share for _, share in found)
    if not found or not all(0 <= share <= 1 for _, share in found) or not 0 < total <= 1.001:
        raise ValueError("The teacher's answers need probabilities from 0 to 1 that make at most 1 together.")
    return found


def _check_kind(kind: str, allowed: Sequence[str]) -> None:
    if allowed and kind not in allowed:
        near = difflib.get_close_matches(kind.casefold(), [one.casefold() for one in allowed], 1)
        hint = next((f" Is {one} meant?" for one in allowed if [one.casefold()] == near), "")
        raise ValueError(
            f"The question type {printable(repr(kind), most=60)} is none of workload.source.kinds, "
            f"{', '.join(allowed)}.{hint}"
        )
    if len(kind) > _KIND_LETTERS or any(letter in "[]<>" for letter in kind):
        raise ValueError(
            f"{printable(repr(kind), most=60)} is no question type: at most {_KIND_LETTERS} letters without brackets."
        )


def one(value: Any) -> Any:
    """Returns the first of a list of pictures, or the value."""
    return value[0] if isinstance(value, list) and value else value
