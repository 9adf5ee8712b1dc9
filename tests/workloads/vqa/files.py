"""Folders of questions and pictures in the forms that people have them in."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from workloads.vqa.records import read
from workloads.vqa.records.record import Record
from workloads.vqa.records.settings import Pictures, Source

WHERE = "/kaggle/input/vivqa/drive-download/train"


def settings(limit=0, limit_pixels=2**26, **source):
    return SimpleNamespace(
        source=Source(**source), pictures=Pictures(limit_pixels=limit_pixels), bad_input_limit=limit
    )


def picture(path, colour=1, size=(6, 4), mode="RGB", **options):
    """Writes a picture of one colour: another number, another picture."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    value = (37 * colour % 256, colour // 256 % 256, 7, 128)[: len(Image.new(mode, (1, 1)).getbands())]
    Image.new(mode, size, value if len(value) > 1 else value[0]).save(path, **options)
    return path


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    path.write_text(content, "utf-8")
    return path


def rows(path, head, *cells, delimiter=","):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([head, *cells] if head else cells)
    return path


def teacher(number, **changes):
    """A record with the eight fields of the Vietnamese teacher's."""
    found = {
        "img_id": str(number), "image_path": f"{WHERE}/{number}.jpg", "question": f"màu của vật {number} là gì",
        "reasoning_type": "DESCRIPTIVE", "teacher_answer": "màu đỏ", "teacher_reasoning": "Vật có màu đỏ.",
        "teacher_raw": "Answer: màu đỏ", "reasoning_weight": 4.0,
    }  # fmt: skip
    return {**found, **changes}


def lines(path, *records):
    return text(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))


def found(folder, **options):
    return read(folder, settings(**options)).records


def said(records):
    return [(one.question, one.answer, Path(one.image).name) for one in records]


def record(number, picture=None, question="what color is it?", answer="red", **more):
    name = f"p{number if picture is None else picture}"
    return Record(number, question, answer, f"/pictures/{name}.png", name, **more)
