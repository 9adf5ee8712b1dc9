"""Answers to questions about new pictures, as JSON lines that a student can be trained on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib.config.files import absolute
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted
from lib.supervised import tables
from lib.task.batches import in_batches
from lib.training.data import to_device
from workloads.vqa.decoding import Answer, candidates
from workloads.vqa.records import Record
from workloads.vqa.samples import Questions
from workloads.vqa.scoring import normal

FILE = "answers.jsonl"
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
_AT_ONCE = 8  # questions, where no batch is set
_HOW = (
    "Give a folder of pictures, each with a text file of the same name and a question a line in it, or a file of JSON "
    'lines {"image": "cat.png", "question": "..."} beside the pictures.'
)


def predict(task: Any, models: Sequence[nn.Module], source: Path, out: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Returns the answers of all models to each picture's questions by its name, and writes them. Raises BadInput."""
    records = questions(source)
    samples, settings = Questions("new", records, task.settings, task.reader, task.writer), task.settings

    def answered(numbers: range) -> dict[Record, dict[str, Any]]:
        chosen = [samples[n] for n in numbers]
        batch, by_model = task.collate(chosen, torch.Generator()), []
        for model in models:
            there = to_device(batch, next(model.parameters()).device)
            written = candidates(model, there, settings.writing.beams, settings.decoder.length, task.writer)  # type: ignore
            by_model.append(written)
        return {one.record: row(one.record, several) for one, *several in zip(chosen, *by_model, strict=True)}

    at_once = task.config.data.evaluation_batch or task.config.training.micro_batch or _AT_ONCE
    rows: dict[Record, dict[str, Any]] = {}
    with torch.inference_mode():
        for part in in_batches(answered, range(len(samples)), at_once):
            rows |= part
    answers: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        answers.setdefault(Path(record.image).name, []).append(rows[record])
    if out is not None:
        write([row for own in answers.values() for row in own], out / FILE)
    return answers


def row(record: Record, found: Sequence[Mapping[Answer, float]]) -> dict[str, Any]:
    """Returns what several models answer together, in the fields of a teacher's records."""
    first: dict[str, Answer] = {}
    shares: dict[str, float] = {}
    for one, share in (pair for own in found for pair in own.items()):
        text = first.setdefault(normal(one.text), one).text
        shares[text] = shares.get(text, 0.0) + share / len(found)
    text = max(shares, key=lambda name: shares[name])
    best = first[normal(text)]
    return {
        "img_id": Path(record.image).stem, "image_path": record.image, "question": record.question,
        "reasoning_type": best.kind, "teacher_answer": text, "teacher_reasoning": best.reasoning,
        "teacher_answers": {name: round(share, 6) for name, share in shares.items() if name},
        "is_valid": best.is_valid,
    }  # fmt: skip


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes rows as JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole(path) as aside:
        aside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def questions(source: Path) -> list[Record]:
    """Returns the questions of a folder or a file, without answers. Raises BadInput."""
    if not source.exists():
        raise BadInput(f"There is no {printable(source)}. {_HOW}")
    root = source.parent if source.is_file() else source
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    records = [record for path in counted(files, "files read") for record in _of_file(path, root)]
    if not records:
        raise BadInput(f"There is no question about a picture in {printable(source)}. {_HOW}")
    return records


def _of_file(path: Path, root: Path) -> Iterator[Record]:
    if path.suffix.lower() == ".txt":
        beside = (path.with_suffix(suffix) for suffix in _PICTURES)
        if image := next((picture for picture in beside if picture.is_file()), None):
            for number, line in enumerate(tables.read_text(path, printable(path)).splitlines(), 1):
                if line.strip():
                    yield _record(number, line, image, path)
    if path.suffix.lower() == ".jsonl":
        rows = tables.read_table(path, printable(path), {"question": "question", "image": "image"}).to_dict("records")
        for number, row in enumerate(rows, 1):
            image = path.parent / row["image"]
            try:
                is_there = image.is_file() and absolute(image).is_relative_to(absolute(root))
            except (OSError, ValueError):  # a name that no disk takes
                is_there = False
            if not is_there or not row["question"]:
                shown = printable(row["image"], most=100)
                what = "there is no question" if is_there else f"there is no picture {shown} below {printable(root)}"
                raise BadInput(f"{printable(path)}, row {number}: {what}. {_HOW}")
            yield _record(number, row["question"], image, path)


def _record(number: int, question: str, image: Path, path: Path) -> Record:
    return Record(number, " ".join(question.split()), "", str(image), str(image.resolve()), file=str(path))
