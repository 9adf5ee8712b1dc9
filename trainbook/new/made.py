"""Small data in the layout that each example reads, the same at every call."""

import csv
import importlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from scipy.io import wavfile

from trainbook import HOME

__all__ = [
    "audio",
    "chat",
    "gpt",
    "images",
    "segmentation",
    "sequence",
    "series",
    "tabular",
    "text",
    "tokens",
]

# Areas as shares of the square around them
SHAPES = {"circle": np.pi / 4, "square": 1.0, "triangle": 0.5}
WORDS = {
    "facts": "the car was on the road",
    "argument": "he says that we claim",
    "ruling": "the court orders costs",
}
SYLLABLES = ("ka", "lo", "mi", "re", "su", "to", "ne", "vi", "da", "pu", "sha", "gro")
THINGS = ("lamps", "ropes", "apples", "books", "stones", "shells", "coins", "cups")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
DATES = ("{day} {month} {year}", "{month} {day}, {year}", "{day}.{number}.{year}", "the {day} of {month} {year}",
         "{short} {day} {year}", "{number}/{day}/{year}", "{year}, {short} {day}")  # fmt: skip
DISTRICTS = {1010: 3200, 1050: 2800, 1160: 2200, 1230: 1900}
SENTENCES = (
    "{person} went to {place}",
    "{person} met {person} in {place}",
    "the road from {place} to {place}",
)


def images(folder: Path, number: int = 180, size: int = 64) -> None:
    """Writes PNG files, into a folder for each class: the shape that is red in it. The other two shapes are blue.

    Places, sizes and brightness are drawn, all shapes have areas of one range, and each picture has every shape: sums
    over a picture say little of its class, and so do linear methods.
    """
    draw = np.random.default_rng(0)
    half = size // 2
    for index in range(number):
        name = list(SHAPES)[index % len(SHAPES)]
        picture = Image.new("RGB", (size, size), (int(draw.integers(0, 60)),) * 3)
        for shape, quarter in zip(SHAPES, draw.permutation(4), strict=False):
            width = round(half * draw.uniform(0.4, 0.65) / SHAPES[shape] ** 0.5)
            room = max(1, half - width)
            corner = half * np.array(divmod(quarter, 2)) + draw.integers(0, room, 2)
            bright = int(draw.integers(180, 256))
            colour = (bright, 60, 60) if shape == name else (60, 60, bright)
            _draw(picture, shape, corner.tolist(), width, colour)
        (folder / name).mkdir(parents=True, exist_ok=True)
        picture.save(folder / name / f"{index:04}.png")


def _draw(
    picture: Image.Image, shape: str, corner: list[int], width: int, colour: tuple[int, ...]
) -> None:
    pen = ImageDraw.Draw(picture)
    left, top = corner
    right = left + width
    bottom = top + width
    if shape == "triangle":
        pen.polygon([left, bottom, right, bottom, left + width // 2, top], fill=colour)
    elif shape == "square":
        pen.rectangle([left, top, right, bottom], fill=colour)
    else:
        pen.ellipse([left, top, right, bottom], fill=colour)


def text(folder: Path, documents: int = 30, lines: int = 8) -> None:
    """Writes TSV files, a document each, with a sentence and its label in a line; one label is rare."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for document in range(documents):
        rows = []
        for label in draw.choices(list(WORDS), (6, 3, 1), k=lines):
            sentence = " ".join(draw.choices(WORDS[label].split(), k=6))
            rows.append(f"{sentence}\t{label}\n")
        (folder / f"{document:04}.tsv").write_text("".join(rows), "utf-8")


def chat(folder: Path, number: int = 1800) -> None:
    """Writes JSON Lines with a prompt and its answer, the JSON call of a small API; in `base` a small chat model."""
    left_out = shutil.ignore_patterns("*.py", "*.md")
    shutil.copytree(HOME / "configs" / "chat-base", folder / "base", ignore=left_out)
    generated = importlib.import_module("workloads.chat.generated")  # workloads are loaded by name
    lines = []
    for prompt, answer in generated.pairs(0, "train", number):
        lines.append(json.dumps({"prompt": prompt, "answer": answer}))
    (folder / "calls.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def tabular(folder: Path, number: int = 200) -> None:
    """Writes a CSV file of flats with a price that follows from the other columns, and some noise.

    A square metre has its price in each district, whose name is a number.
    """
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "flats.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rooms", "area", "age", "district", "price"])
        for _ in range(number):
            rooms = draw.randint(1, 6)
            age = draw.randint(0, 80)
            area = round(rooms * draw.uniform(15, 30), 1)
            district = draw.choice(list(DISTRICTS))
            exact = DISTRICTS[district] * area - 900 * age
            price = round(exact + draw.gauss(0, 5000))
            writer.writerow([rooms, area, age, district, price])


def segmentation(folder: Path, number: int = 120, size: int = 64) -> None:
    """Writes images of a circle and a square, and masks that mark the circle, as PNG files of the same names."""
    draw = np.random.default_rng(0)
    side = size // 3
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(number):
        image = Image.new("RGB", (size, size), tuple(draw.integers(0, 100, 3).tolist()))
        mask = Image.new("L", (size, size))
        colour = tuple(draw.integers(150, 255, 3).tolist())
        pen = ImageDraw.Draw(image)
        (x, y), (left, top) = draw.integers(0, size // 2, (2, 2)).tolist()
        pen.rectangle([left, top, left + side, top + side], fill=colour)
        circle = [x, y, x + side, y + side]
        pen.ellipse(circle, fill=colour)
        ImageDraw.Draw(mask).ellipse(circle, fill=1)
        image.save(folder / "images" / f"{index:04}.png")
        mask.save(folder / "masks" / f"{index:04}.png")


def tokens(folder: Path, number: int = 300) -> None:
    """Writes a TSV file of short texts whose words are tagged; a name is a person's or a place's by its neighbours."""
    draw = random.Random(0)
    lines = []
    for _ in range(number):
        for word in draw.choice(SENTENCES).split():
            if word[0] != "{":
                lines.append(f"{word}\tO\n")
                continue
            name = "".join(draw.choices(("ka", "lo", "mi", "re", "su"), k=3)).title()
            lines.append(f"{name}\t{word.strip('{}')}\n")
        lines.append("\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.tsv").write_text("".join(lines[:-1]), "utf-8")


def audio(folder: Path, number: int = 300, rate: int = 8000, seed: int = 0) -> None:
    """Writes WAV files, into a folder for each class: a tone that rises, falls, or turns, in noise.

    Ranges, durations and loudness are drawn alike for all classes: the mean of a band over time says
    little of the class.
    """
    draw = np.random.default_rng(seed)
    for index in range(number):
        name = ("falling", "rising", "turning")[index % 3]
        seconds = draw.uniform(0.7, 1.0)
        time = np.linspace(0, 1, round(seconds * rate))
        low = draw.uniform(300, 900)
        high = low * draw.uniform(1.8, 3)
        places = {"rising": time, "falling": 1 - time, "turning": 1 - abs(2 * time - 1)}
        pitch = low * (high / low) ** places[name]
        tone = np.sin(2 * np.pi * np.cumsum(pitch) / rate)
        noisy = draw.uniform(0.1, 0.4) * (tone + draw.normal(0, 0.5, len(tone)))
        (folder / name).mkdir(parents=True, exist_ok=True)
        samples = (noisy.clip(-1, 1) * 32767).astype(np.int16)
        wavfile.write(folder / name / f"{index:04}.wav", rate, samples)


def series(folder: Path, number: int = 30, length: int = 300, seed: int = 0) -> None:
    """Writes CSV files, a series each: a tank that fills at its own rate and empties when it is full.

    Linear forecasts blur the edge, and trees do not know the size of a tank. Some cells are empty.
    """
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    start = np.datetime64("2024-01-01T00")
    for index in range(number):
        size = draw.uniform(20, 200)
        rate = draw.uniform(0.03, 0.06)
        level = draw.uniform(0, 1)
        rows = []
        for step in range(length):
            level += rate * draw.uniform(0.9, 1.1)
            if level > 1:
                level = 0.0
            value = f"{size * (level + draw.normal(0, 0.01)):.2f}" if draw.random() > 0.01 else ""
            rows.append([str(start + np.timedelta64(step, "h")), value])
        with (folder / f"tank{index:02}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["time", "value"], *rows])


def sequence(folder: Path, number: int = 3000, seed: int = 0) -> None:
    """Writes a TSV file of dates, as people write them, and the same dates as 1999-12-31.

    Each is another date: the nearest one that is known has another answer.
    """
    draw = random.Random(seed)
    lines = ["source\ttarget\n"]
    for date in draw.sample(range(60_000), number):
        year, day = divmod(date, 12 * 28)
        month, day = divmod(day, 28)
        name = MONTHS[month]
        values = {"year": 1900 + year, "month": name, "short": name[:3], "number": month + 1}
        source = draw.choice(DATES).format(day=day + 1, **values)
        lines.append(f"{source}\t{1900 + year}-{month + 1:02}-{day + 1:02}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dates.tsv").write_text("".join(lines), "utf-8")


def gpt(folder: Path, number: int = 400, sentences: int = 40, seed: int = 0) -> None:
    """Writes text files, a story each, of three people with invented names who give and take things.

    A name comes once from nowhere, and later from the story: runs of a few tokens do not reach so far.
    """
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        people = ["".join(draw.choices(SYLLABLES, k=4)).capitalize() for _ in range(3)]
        owned = {name: dict.fromkeys(draw.sample(THINGS, 2), 5) for name in people}
        lines = [f"{name} has 5 {' and 5 '.join(things)}." for name, things in owned.items()]
        for _ in range(sentences):
            giver, taker = draw.sample(people, 2)
            thing = draw.choice([*owned[giver]])
            count = draw.randint(1, 3)
            lines.append(f"{taker} takes {count} {thing} from {giver}.")
            left = owned[giver].pop(thing) - count
            owned[taker][thing] = owned[taker].get(thing, 0) + count
            owned[giver][thing] = max(0, left) + 3 * (left < 2)
            lines.append(f"Now {giver} has {owned[giver][thing]} {thing}.")
        (folder / f"{index:04}.txt").write_text("\n".join(lines) + "\n", "utf-8")
