"""Folders of questions and pictures."""

import json
from pathlib import Path

from PIL import Image

from trainbook.supervised.coverage import covering
from trainbook.supervised.notes import collecting
from workloads.vqa.data import Record, read
from workloads.vqa.settings import Settings


def picture(path, colour=1, size=(6, 4)):
    """Writes a picture of one colour: another number, another picture."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (37 * colour % 256, colour // 256 % 256, 7)).save(path)
    return path


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    path.write_text(content, "utf-8")
    return path


def row(number, **changes):
    return {
        "question": f"màu của vật {number} là gì",
        "answer": "màu đỏ",
        "image": f"{number}.jpg",
        **changes,
    }


def lines(path, *rows):
    return text(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows))


def collected(folder, limit=0):
    """Returns the records of a folder, and the notes on them."""
    with collecting() as notes, covering(folder):
        records = read(folder, Settings(bad_input_limit=limit))
    return records, notes


def record(number, picture=None, question="what color is it?", answer="red", **more):
    name = f"p{number if picture is None else picture}"
    return Record(number, question, f"/pictures/{name}.png", name, answer=answer, **more)
