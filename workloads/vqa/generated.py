"""Drawn pictures with Vietnamese questions, for runs without data: coloured shapes, each question with one answer."""

import hashlib
import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.machine import disk, platform
from workloads.vqa import records
from workloads.vqa.settings import Generator, Settings

RECORDS, IMAGES = "teacher.jsonl", "images"
COLOURS = {
    "đỏ": (220, 30, 30), "xanh lá": (30, 160, 50), "xanh dương": (40, 70, 220), "vàng": (240, 215, 20),
    "đen": (15, 15, 15), "tím": (140, 40, 170), "cam": (245, 140, 20), "xám": (125, 125, 125),
}  # fmt: skip
NUMBERS = ("không", "một", "hai", "ba", "bốn")
_SEED = 20_211_105
_LARGER = 4  # times, to be scaled down with soft edges
_CELLS = 3  # on a side, of which a shape has one


class Shape(NamedTuple):
    """A shape by its name, and what its corners answer."""

    name: str
    rolls: str
    why: str
    use: str


SHAPES = (
    Shape("hình tròn", "có", "vì nó tròn", "bánh xe"),
    Shape("hình vuông", "không", "vì nó có bốn góc", "cửa sổ"),
    Shape("hình tam giác", "không", "vì nó có ba góc", "mái nhà"),
)
# Question types as the Vietnamese teacher has them
KINDS = ("SPATIAL", "COUNTING", "DESCRIPTIVE", "OBJECT", "COMMONSENSE", "CAUSAL", "INTENT")
# In this order a picture is asked about; the hardest type twice, and of the last three one first in each picture
_OFTEN, _RARE = ("SPATIAL", "SPATIAL", "COUNTING", "DESCRIPTIVE", "OBJECT"), ("COMMONSENSE", "CAUSAL", "INTENT")


class Thing(NamedTuple):
    """A shape in a picture: its cell counts from the left and from the top."""

    shape: Shape
    colour: str
    column: int
    row: int


class Asked(NamedTuple):
    """A question about a picture with its answer."""

    kind: str
    question: str
    answer: str
    reasoning: str


def collection(settings: Generator) -> records.Collection:
    """Returns the records of drawn pictures, which a machine draws once."""
    facts = json.dumps([settings.pictures, settings.questions, settings.side, Path(__file__).read_text("utf-8")])
    folder = platform.detect().scratch_dir / "vqa" / f"drawn-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if not (folder / RECORDS).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with disk.whole(folder, cache=True) as aside:
                write(aside, settings)
        except OSError:  # another process was first; any other error is met again where the folder is read
            if not (folder / RECORDS).is_file():
                raise
    return records.read(folder, Settings())


def write(folder: Path, settings: Generator) -> None:
    """Writes pictures and records, the same ones every time."""
    (folder / IMAGES).mkdir(parents=True)
    lines = []
    for number in range(settings.pictures):
        draw = random.Random(f"{_SEED}-{number}")
        things = scene(draw)
        paint(things, settings.side, draw).save(folder / IMAGES / f"{number}.png")
        for one in chosen(questions(things, draw), settings.questions, number, draw):
            line = json.dumps({"image": f"{IMAGES}/{number}.png", **one._asdict()}, ensure_ascii=False)
            lines.append(unicodedata.normalize("NFC", line) + "\n")
    (folder / RECORDS).write_text("".join(lines), "utf-8")


def scene(draw: random.Random) -> list[Thing]:
    """Returns one to four things in cells of their own."""
    cells = [(column, row) for column in range(_CELLS) for row in range(_CELLS)]
    places = draw.sample(cells, draw.choice((1, 2, 2, 3, 3, 4)))
    return [Thing(draw.choice(SHAPES), draw.choice(list(COLOURS)), *place) for place in places]


def paint(things: Sequence[Thing], side: int, draw: random.Random) -> Any:
    """Returns the picture of a scene, on light ground."""
    from PIL import Image, ImageDraw

    large = side * _LARGER
    image = Image.new("RGB", (large, large), tuple(draw.randint(225, 255) for _ in range(3)))
    brush, cell = ImageDraw.Draw(image), large / _CELLS
    for thing in things:
        half, shake = cell * draw.uniform(0.30, 0.42), cell * 0.06
        x = (thing.column + 0.5) * cell + draw.uniform(-shake, shake)
        y = (thing.row + 0.5) * cell + draw.uniform(-shake, shake)
        fill = COLOURS[thing.colour]
        if thing.shape is SHAPES[0]:
            brush.ellipse([x - half, y - half, x + half, y + half], fill=fill)
        elif thing.shape is SHAPES[1]:
            brush.rectangle([x - 0.9 * half, y - 0.9 * half, x + 0.9 * half, y + 0.9 * half], fill=fill)
        else:
            brush.polygon([(x, y - half), (x - half, y + 0.85 * half), (x + half, y + 0.85 * half)], fill=fill)
    return image.resize((side, side), Image.Resampling.LANCZOS)


def questions(things: Sequence[Thing], draw: random.Random) -> Iterator[Asked]:
    """Yields questions about a scene that have one answer each, of all types that it has an answer for."""
    yield _counted("hình", len(things), draw)
    for shape in SHAPES:
        same = [one for one in things if one.shape is shape]
        yield _counted(shape.name, len(same), draw)
        if len(same) == 1:
            yield from _of_shape(same[0], things, draw)
    for colour in COLOURS:
        same = [one for one in things if one.colour == colour]
        if len(same) == 1:
            yield from _of_colour(same[0], draw)


def _counted(name: str, count: int, draw: random.Random) -> Asked:
    question = draw.choice((f"có bao nhiêu {name} trong ảnh", f"có mấy {name} trong ảnh", f"đếm được mấy {name}"))
    return Asked("COUNTING", question, NUMBERS[count], f"Đếm được {NUMBERS[count]} {name} trong ảnh.")


def _of_shape(thing: Thing, things: Sequence[Thing], draw: random.Random) -> Iterator[Asked]:
    """Yields questions about the only thing of a shape: its colour, and on which side it is."""
    name, colour, sides = thing.shape.name, f"màu {thing.colour}", ("bên phải", "bên trái")
    question = draw.choice((f"màu của {name} là gì", f"{name} có màu gì", f"màu sắc của {name} là gì"))
    yield Asked("DESCRIPTIVE", question, colour, f"Hình ảnh cho thấy {name} có {colour}.")
    if thing.column != 1:
        side = sides[thing.column < 1]
        question = draw.choice((f"{name} nằm ở bên nào", f"{name} ở bên trái hay bên phải"))
        yield Asked("SPATIAL", question, side, f"{name.capitalize()} nằm ở {side} của ảnh.")
    for other in things:
        is_only = sum(one.shape is other.shape for one in things) == 1
        if other.shape is not thing.shape and is_only and other.column != thing.column:
            side, there = sides[thing.column < other.column], other.shape.name
            yield Asked("SPATIAL", f"{name} ở bên nào của {there}", side, f"So với {there} thì {name} ở {side}.")


def _of_colour(thing: Thing, draw: random.Random) -> Iterator[Asked]:
    """Yields questions about the only thing of a colour, whose answers its shape gives."""
    name, (shape, rolls, why, use) = f"hình màu {thing.colour}", thing.shape
    question = draw.choice((f"{name} là hình gì", f"vật màu {thing.colour} là gì"))
    yield Asked("OBJECT", question, shape, f"{name.capitalize()} trong ảnh là {shape}.")
    moves = "lăn được" if rolls == "có" else "không lăn được"
    yield Asked("COMMONSENSE", f"{name} có lăn được không", rolls, f"{shape.capitalize()} thường {moves}.")
    question = f"vì sao {name} lăn hay không lăn"
    yield Asked("CAUSAL", question, why, f"{name.capitalize()} là {shape} nên {moves}.")
    yield Asked("INTENT", f"{name} dùng để vẽ gì", use, f"{shape.capitalize()} dùng để vẽ {use}.")


def chosen(asked: Iterator[Asked], most: int, number: int, draw: random.Random) -> list[Asked]:
    """Returns at most `most` questions about a picture, of its types in turn."""
    by_kind: dict[str, list[Asked]] = {kind: [] for kind in KINDS}
    for one in asked:
        by_kind[one.kind].append(one)
    for own in by_kind.values():
        draw.shuffle(own)
    begin = number % len(_RARE)
    found: list[Asked] = []
    while len(found) < most and any(by_kind.values()):
        for kind in (*_OFTEN, *_RARE[begin:], *_RARE[:begin]):
            if by_kind[kind] and len(found) < most:
                found.append(by_kind[kind].pop())
    return found
