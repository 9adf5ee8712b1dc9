"""Drawn pictures with Vietnamese questions, for runs without data: coloured shapes, each question with one answer."""

import contextlib
import hashlib
import json
import random
import unicodedata
from collections import namedtuple
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lib.machine import disk, platform
from workloads.vqa.settings import Generator

RECORDS = "teacher.jsonl"
IMAGES = "images"
_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
COLOURS, SHAPES, NUMBERS, SIDES, QUESTIONS = _WORDS.values()
# Question types as the Vietnamese teacher has them, in the order in which a picture is asked about; the hardest twice
_OFTEN = ("SPATIAL", "SPATIAL", "COUNTING", "DESCRIPTIVE", "OBJECT")
_RARE = ("COMMONSENSE", "CAUSAL", "INTENT")  # of which one comes first in each picture
_SEED = 20_211_105
_LARGER = 4  # times, to be scaled down with soft edges
_CELLS = 3  # on a side, of which a shape has one
Thing = namedtuple(
    "Thing", ("shape", "colour", "column", "row")
)  # in a picture: its cell from the left and the top


def folder_of(settings: Generator) -> Path:
    """Returns the folder of drawn pictures and their records, which a machine draws once."""
    facts = json.dumps([vars(settings), Path(__file__).read_text("utf-8"), _WORDS])
    folder = (
        platform.detect().scratch_dir
        / "vqa"
        / f"drawn-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    )
    if not (folder / RECORDS).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(OSError),
            disk.whole(folder, cache=True) as aside,
        ):  # another process may be first
            write(aside, settings)
    return folder


def write(folder: Path, settings: Generator) -> None:
    (folder / IMAGES).mkdir(parents=True)
    lines = []
    for number in range(settings.pictures):
        draw = random.Random(f"{_SEED}-{number}")
        cells = [(column, row) for column in range(_CELLS) for row in range(_CELLS)]
        places = draw.sample(cells, draw.choice((1, 2, 2, 3, 3, 4)))
        things = [
            Thing(draw.choice([*SHAPES]), draw.choice([*COLOURS]), *place) for place in places
        ]
        paint(things, settings.side, draw).save(folder / IMAGES / f"{number}.png")
        by_kind: dict[str, list[dict[str, str]]] = {
            kind: [] for kind in (*dict.fromkeys(_OFTEN), *_RARE)
        }
        for question in questions(things, draw):
            by_kind[question["kind"]].append(question)
        for same in by_kind.values():
            draw.shuffle(same)
        begin = number % len(_RARE)
        chosen = list[dict[str, str]]()
        while len(chosen) < settings.questions and any(by_kind.values()):
            for kind in (*_OFTEN, *_RARE[begin:], *_RARE[:begin]):
                chosen += [by_kind[kind].pop()] if by_kind[kind] else []
        for question in chosen[: settings.questions]:
            row = {"image": f"{IMAGES}/{number}.png", **question}
            lines.append(unicodedata.normalize("NFC", json.dumps(row, ensure_ascii=False)) + "\n")
    (folder / RECORDS).write_text("".join(lines), "utf-8")


def paint(things: Sequence[Thing], side: int, draw: random.Random) -> Any:
    from PIL import Image, ImageDraw

    large = side * _LARGER
    image = Image.new("RGB", (large, large), tuple(draw.randint(225, 255) for _ in range(3)))
    brush = ImageDraw.Draw(image)
    cell = large / _CELLS
    for thing in things:
        half = cell * draw.uniform(0.30, 0.42)
        shake = cell * 0.06
        x = (thing.column + 0.5) * cell + draw.uniform(-shake, shake)
        y = (thing.row + 0.5) * cell + draw.uniform(-shake, shake)
        corners = [
            (x + across * half, y + down * half) for across, down in SHAPES[thing.shape]["corners"]
        ]
        shape = brush.polygon if len(corners) > 2 else brush.ellipse
        shape(corners, fill=tuple(COLOURS[thing.colour]))
    return image.resize((side, side), Image.Resampling.LANCZOS)


def questions(things: Sequence[Thing], draw: random.Random) -> Iterator[dict[str, str]]:
    """Yields questions about a scene that have one answer each, of all types that it has an answer for."""

    def asked(name: str, **facts: str) -> dict[str, str]:
        texts = dict(QUESTIONS[name])
        ways = texts["question"]
        texts["question"] = draw.choice(ways) if len(ways) > 1 else ways[0]
        return {key: text.format(**facts) for key, text in texts.items()}

    shapes = [thing.shape for thing in things]
    for shape in ("hình", *SHAPES):
        same = [thing for thing in things if shape in ("hình", thing.shape)]
        yield asked("count", shape=shape, number=NUMBERS[len(same)])
        if len(same) == 1 and shape in SHAPES:
            column = same[0].column
            names = {"shape": shape, "Shape": shape.capitalize()}
            yield asked("colour", **names, colour=same[0].colour)
            if column != 1:
                yield asked("side", **names, side=SIDES[column < 1])
            for other in things:
                if (
                    other.shape != shape
                    and shapes.count(other.shape) == 1
                    and other.column != column
                ):
                    yield asked(
                        "sides of two",
                        **names,
                        side=SIDES[column < other.column],
                        other=other.shape,
                    )
    for colour in COLOURS:
        same = [thing for thing in things if thing.colour == colour]
        if len(same) == 1:
            shape = same[0].shape
            for name in ("shape", "whether it rolls", "why", "use"):
                yield asked(
                    name, colour=colour, shape=shape, Shape=shape.capitalize(), **SHAPES[shape]
                )
