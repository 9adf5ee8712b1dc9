"""Loads and scales pictures, and augments them without changing answers."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from trainbook.supervised import look
from trainbook.supervised.pictures import SUFFIXES, picture

__all__ = ["SUFFIXES", "augment", "batch", "check", "loader", "picture"]

_ROOM = 1 / 8  # largest share of a side by which training pictures shrink and move
_LIGHT = 0.1  # largest share by which their light changes
_CACHED = 2**28  # bytes of pictures that a process keeps
_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_COLOUR, _COUNT, _SIDE, _READING = (re.compile(rf"\b({words})\b") for words in _TEXTS.values())


@functools.cache
def loader(side: int) -> Callable[[str], np.ndarray]:
    """Returns a cached function from a path to (side, side, 3) uint8 of red, green, blue.

    It scales a picture of any shape, as BLIP does.
    """
    number = max(1, _CACHED // (3 * side**2))
    return functools.lru_cache(number)(functools.partial(picture, size=side))


def batch(
    records: Sequence[Any], side: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (B, 3, side, side) uint8, and (B) which record has each picture first.

    With a `generator` each picture is augmented once, as its questions allow.
    """
    load = loader(side)
    first = dict[str, int]()
    places = [first.setdefault(record.picture, number) for number, record in enumerate(records)]
    loaded = {place: load(records[place].image) for place in first.values()}
    if generator:
        asks: dict[int, list[str]] = {place: [] for place in loaded}
        for place, record in zip(places, records, strict=True):
            asks[place].append(f"{record.kind} {record.question}")
        loaded = {place: augment(loaded[place], asks[place], generator) for place in loaded}
    pixels = np.stack([loaded[place] for place in places]).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.tensor(places)


def check(paths: Sequence[str]) -> Mapping[str, look.Look]:
    """Checks each picture before training; notes pictures that are read in an unusual way."""
    looks: Any = look.check(paths)
    look.note_remarks(looks.values())
    return looks


def augment(picture: np.ndarray, asks: Sequence[str], generator: torch.Generator) -> np.ndarray:
    """Augments a picture without changing answers; `asks` are type and text of its questions.

    It shrinks and moves within its frame, but does not move if a question is about sides. It is mirrored if all
    questions are about colours or numbers, and none about sides or reading. Its light changes if all are about sides or
    numbers, and none about colours. Its hue never changes. The number of draws is constant.
    """
    from PIL import Image

    shrink, left, top, mirrored, light = torch.rand(5, generator=generator).tolist()
    texts = [text.casefold() for text in asks]
    colour = [text for text in texts if _COLOUR.search(text)]
    side = [text for text in texts if _SIDE.search(text)]
    count = [text for text in texts if _COUNT.search(text)]
    is_read = any(map(_READING.search, texts))
    if mirrored < 0.5 and not side and not is_read and {*colour, *count} == {*texts}:
        picture = picture[:, ::-1]
    if not colour and {*side, *count} == {*texts}:
        brightness = np.float32(1 + _LIGHT * (2 * light - 1))
        picture = np.clip(picture * brightness, 0, 255).astype(np.uint8)
    whole = len(picture)
    size = whole - round(whole * _ROOM * shrink)
    room = whole - size
    x = room // 2 if side else round(left * room)
    y = room // 2 if side else round(top * room)
    image = Image.fromarray(np.ascontiguousarray(picture))
    small = image.resize((size, size), Image.Resampling.BILINEAR)
    frame = ((y, room - y), (x, room - x), (0, 0))
    return np.pad(np.asarray(small), frame, mode="edge")
