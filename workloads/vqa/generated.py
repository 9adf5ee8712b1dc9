"""Draws pictures of coloured shapes with Vietnamese questions, for runs without data."""

import contextlib
import hashlib
import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lib.machine import disk, platform
from workloads.vqa.settings import Generator

RECORDS = "teacher.jsonl"
IMAGES = "images"
_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
COLOURS, SHAPES, NUMBERS, SIDES, QUESTIONS = _WORDS.values()
# Question types as the Vietnamese teacher has them, in the order in which a picture is asked about; the hardest twice
_OFTEN = ("SPATIAL", "SPATIAL", "COUNTING", "DESCRIPTIVE", "OBJECT")
_RARE = ("COMMONSENSE", "CAUSAL", "INTENT")  # each picture begins with another one
_SEED = 20_211_105
_LARGER = 4  # times, to be scaled down with soft edges
_CELLS = 3  # on a side; each shape has one


class Thing(NamedTuple):
    """A shape in a picture, and its cell from the left and the top."""

    shape: str
    colour: str
    column: int
    row: int


def folder_of(settings: Generator) -> Path:
    """Returns the folder of drawn pictures and records; draws it once a machine."""
    facts = json.dumps([vars(settings), Path(__file__).read_text("utf-8"), _WORDS])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    folder = platform.detect().scratch_dir / "vqa" / f"drawn-{digest}"
    if not (folder / RECORDS).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be first
        with contextlib.suppress(OSError), disk.whole(folder, cache=True) as aside:
            write(aside, settings)
    return folder


def write(folder: Path, settings: Generator) -> None:
    (folder / IMAGES).mkdir(parents=True)
    lines = []
    for number in range(settings.pictures):
        draw = random.Random(f"{_SEED}-{number}")
        cells = [(column, row) for column in range(_CELLS) for row in range(_CELLS)]
        things = []
        for place in draw.sample(cells, draw.choice((1, 2, 2, 3, 3, 4))):
            things.append(Thing(draw.choice([*SHAPES]), draw.choice([*COLOURS]), *place))
        image = f"{IMAGES}/{number}.png"
        paint(things, settings.side, draw).save(folder / image)
        begin = number % len(_RARE)
        order = (*_OFTEN, *_RARE[begin:], *_RARE[:begin])
        for question in _chosen([*questions(things, draw)], order, settings.questions, draw):
            line = json.dumps({"image": image, **question}, ensure_ascii=False)
            lines.append(unicodedata.normalize("NFC", line) + "\n")
    (folder / RECORDS).write_text("".join(lines), "utf-8")


def _chosen(
    every: list[dict[str, str]], order: Sequence[str], count: int, draw: random.Random
) -> list[dict[str, str]]:
    """Draws up to `count` questions, with types in turn."""
    by_kind: dict[str, list[dict[str, str]]] = {kind: [] for kind in (*_OFTEN, *_RARE)}
    for question in every:
        by_kind[question["kind"]].append(question)
    for same in by_kind.values():
        draw.shuffle(same)
    chosen: list[dict[str, str]] = []
    while len(chosen) < count and any(by_kind.values()):
        for kind in order:
            if by_kind[kind]:
                chosen.append(by_kind[kind].pop())
    return chosen[:count]


def paint(things: Sequence[Thing], side: int, draw: random.Random) -> Any:
    from PIL import Image, ImageDraw

    large = side * _LARGER
    paper = (draw.randint(225, 255), draw.randint(225, 255), draw.randint(225, 255))
    image = Image.new("RGB", (large, large), paper)
    brush = ImageDraw.Draw(image)
    cell = large / _CELLS
    for thing in things:
        half = cell * draw.uniform(0.30, 0.42)
        shake = cell * 0.06
        x = (thing.column + 0.5) * cell + draw.uniform(-shake, shake)
        y = (thing.row + 0.5) * cell + draw.uniform(-shake, shake)
        corners = []
        for across, down in SHAPES[thing.shape]["corners"]:
            corners.append((x + across * half, y + down * half))
        paint_shape = brush.polygon if len(corners) > 2 else brush.ellipse
        paint_shape(corners, fill=tuple(COLOURS[thing.colour]))
    return image.resize((side, side), Image.Resampling.LANCZOS)


def questions(things: Sequence[Thing], draw: random.Random) -> Iterator[dict[str, str]]:
    """Yields questions about a scene, each with one answer, of all answerable types."""

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
            others = [thing for thing in things if shapes.count(thing.shape) == 1]
            for other in others:
                if other.column != column:
                    side = SIDES[column < other.column]
                    yield asked("sides of two", **names, side=side, other=other.shape)
    for colour in COLOURS:
        same = [thing for thing in things if thing.colour == colour]
        if len(same) == 1:
            shape = same[0].shape
            names = {"shape": shape, "Shape": shape.capitalize()}
            for name in ("shape", "whether it rolls", "why", "use"):
                yield asked(name, colour=colour, **names, **SHAPES[shape])
