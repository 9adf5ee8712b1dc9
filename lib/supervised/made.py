"""Small data in the layout that each example reads, the same at every call."""

import csv
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

WORDS = {"facts": "the car was on the road", "argument": "he says that we claim", "ruling": "the court orders costs"}
SHAPES = ("circle", "square", "triangle")


def images(folder: Path, number: int = 180, size: int = 64) -> Path:
    """Writes PNG files of a drawn shape into a folder for each class."""
    draw = np.random.default_rng(0)
    for index in range(number):
        name = SHAPES[index % 3]
        picture = Image.new("RGB", (size, size), tuple(draw.integers(0, 100, 3).tolist()))
        x, y = draw.integers(0, size // 2, 2).tolist()
        w = int(draw.integers(size // 4, size // 2))
        pen, colour = ImageDraw.Draw(picture), tuple(draw.integers(150, 255, 3).tolist())
        if name == "circle":
            pen.ellipse([x, y, x + w, y + w], fill=colour)
        elif name == "square":
            pen.rectangle([x, y, x + w, y + w], fill=colour)
        else:
            pen.polygon([x, y + w, x + w, y + w, x + w // 2, y], fill=colour)
        (folder / name).mkdir(parents=True, exist_ok=True)
        picture.save(folder / name / f"{index:04}.png")
    return folder


def digits(folder: Path) -> Path:
    """Writes scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, as PNG files into a folder for each class.

    The last 97 lie in `new` beside the folder, without their class, and with a sample_submission.csv.
    """
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    new = folder.with_name("new")
    for number, (row, digit) in enumerate(zip(pixels, classes, strict=True)):
        target = folder / str(digit) if number < 1700 else new
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray((row.reshape(8, 8) * 15.9).astype(np.uint8)).save(target / f"{number:04}.png")
    lines = "".join(f"{number:04},0\n" for number in range(1700, len(pixels)))
    (new / "sample_submission.csv").write_text(f"id,label\n{lines}", "utf-8")
    return folder


def text(folder: Path, documents: int = 30, lines: int = 8) -> Path:
    """Writes TSV files, a document each, with a sentence and its label in a line; one label is rare."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for document in range(documents):
        labels = draw.choices(list(WORDS), (6, 3, 1), k=lines)
        told = (" ".join(draw.choices(WORDS[label].split(), k=6)) for label in labels)
        rows = "".join(f"{sentence}\t{label}\n" for sentence, label in zip(told, labels, strict=True))
        (folder / f"{document:04}.tsv").write_text(rows, "utf-8")
    return folder


def lm(folder: Path, number: int = 200) -> Path:
    """Writes JSON Lines with a prompt and its answer: a word, and the same word in capitals."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    words = ("".join(draw.choices("abcd", k=draw.randint(2, 4))) for _ in range(number))
    lines = (json.dumps({"prompt": word, "answer": word.upper()}) for word in words)
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def tabular(folder: Path, number: int = 200) -> Path:
    """Writes a CSV file of flats with a price that follows from the other columns, and some noise."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "flats.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rooms", "area", "age", "price"])
        for _ in range(number):
            rooms, age = draw.randint(1, 6), draw.randint(0, 80)
            area = round(rooms * draw.uniform(15, 30), 1)
            writer.writerow([rooms, area, age, round(2500 * area - 900 * age + draw.gauss(0, 5000))])
    return folder
