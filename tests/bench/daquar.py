"""DAQUAR: questions about photographs of rooms, in their own split by picture (Malinowski and Fritz, 2014).

Pictures and questions are read from a checkout of github.com/tezansahu/VQA-With-Multimodal-Transformers (of e737e61f,
0.4 GB) in the folder ANSWERS_DATA. They name their picture at the end, which is left out here.
"""

import csv
import re
from pathlib import Path
from typing import Any

from tests.bench.published.gain import Missing
from tests.bench.sets import checkout

_FOLDER = "VQA-With-Multimodal-Transformers/dataset"
_PICTURE = re.compile(r"image\d+")
_ENDING = re.compile(r"\s*(?:(?:in|on|of) )?(?:(?:the|this) )?image\d+")


def write(folder: Path) -> dict[str, Any]:
    """Writes the table of the questions into a folder; returns the options that read it. Raises Missing."""
    source = checkout(_FOLDER)
    if not (source / "all_qa_pairs.txt").is_file():
        raise Missing(f"{source} has no questions: tests/bench/daquar.py says where they are.")
    lines = (source / "all_qa_pairs.txt").read_text("utf-8").splitlines()
    test = {*(source / "test_images_list.txt").read_text("utf-8").split()}
    rows = [("question", "answer", "image", "split")]
    for asked, answer in zip(lines[::2], lines[1::2], strict=True):
        *_, picture = _PICTURE.findall(asked)
        question = " ".join(_ENDING.sub(" ", asked).rstrip(" ?").split())
        rows.append((question, answer, picture, "test" if picture in test else "train"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return {
        "data.dir": folder,
        "workload.source.files": "*.csv",
        "workload.source.images": (source / "images").resolve(),
        "workload.source.picture": "./{image}.png",
    }
