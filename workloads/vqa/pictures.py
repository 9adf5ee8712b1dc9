"""Pictures as arrays: decoded within limits, scaled, and changed in ways that cannot change an answer."""

import functools
import hashlib
import io
import operator
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.report.progress import counted

# What Pillow opens here: none that runs a program or fetches another file, as EPS and WMF do
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
_MOST_BYTES, _MOST_PIXELS = 2**28, 2**26  # of a file
_SMALL = 32  # pixels on a side, to which a picture is decoded that is only checked
_ROOM = 1 / 8  # of a side at most by which training pictures shrink, and within which they move
_LIGHT = 0.1  # share by which their light changes at most
_CACHED = 2**28  # bytes of pictures that a process keeps
_WORDS = [re.compile(rf"\b({words})\b")
          for words in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).values()]  # fmt: skip


@functools.cache
def loader(side: int) -> Callable[[str], np.ndarray]:
    """Returns a function from a path to (side, side, 3) uint8 of red, green, blue, which keeps what fits in memory.

    A picture is scaled whatever its shape, as BLIP does.
    """
    from PIL import Image

    @functools.lru_cache(max(1, _CACHED // (3 * side**2)))
    def load(path: str) -> np.ndarray:
        image = _decoded(path, side)
        return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0))

    return load


def batch(records: Sequence[Any], side: int, generator: torch.Generator | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (B, 3, side, side) uint8, and (B) which record has each picture first.

    With a `generator` each picture is changed once, as no question about it forbids.
    """
    load, first = loader(side), dict[str, int]()
    places = [first.setdefault(record.picture, number) for number, record in enumerate(records)]
    loaded = {place: load(records[place].image) for place in first.values()}
    for place in first.values() if generator else ():
        same = [record for record, other in zip(records, places, strict=True) if other == place]
        loaded[place] = augment(loaded[place], [f"{record.kind} {record.question}" for record in same], generator)
    pixels = np.stack([loaded[place] for place in places]).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.tensor(places)


def check(paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns a hash of each picture's file, and a sentence where it cannot be used, before anything is trained."""

    def judge(path: str) -> tuple[str, str]:
        try:
            _decoded(path, _SMALL)
            return hashlib.sha256(read_bytes(Path(path), _MOST_BYTES)).hexdigest()[:20], ""
        except (BadInput, OSError) as error:
            return "", str(error)

    with ThreadPoolExecutor(8) as threads:
        judged = counted(threads.map(judge, paths), "Looking at the pictures", len(paths))
        return dict(zip(paths, judged, strict=True))


def _decoded(path: str | Path, side: int) -> Any:
    """Returns a picture of Pillow in RGB, of at least `side` pixels where the file has as many. Raises BadInput."""
    from PIL import Image, ImageOps

    shown = printable(path, most=200)
    try:
        content = read_bytes(Path(path), _MOST_BYTES)
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        if image.width * image.height > _MOST_PIXELS:
            raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
        image.draft("RGB", (side, side))  # a JPEG is decoded at an eighth of its size where that is enough
        image = ImageOps.exif_transpose(image)
        if image.mode[0] in "IF":  # of 12 bits in 16 only a sixteenth of the range would be used
            grey = np.asarray(image, np.float32)
            least, most = float(np.nanmin(grey)), float(np.nanmax(grey))
            grey = np.nan_to_num((grey - least) * (255 / max(most - least, 1e-9)))
            image = Image.fromarray(grey.astype(np.uint8))
        if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
    except FileNotFoundError:
        raise BadInput(f"There is no picture {shown}.") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds for broken files
        why = printable(error, most=120)
        raise BadInput(f"The picture {shown} cannot be decoded ({why}). Download it again, or save it anew.") from None


def augment(picture: np.ndarray, asks: Sequence[str], generator: torch.Generator) -> np.ndarray:
    """Returns a picture changed so that the answers stay: `asks` are type and text of each question about it.

    It shrinks and moves within its frame, so nothing leaves it, and does not move where a side is asked for. It is
    mirrored where colours or numbers are asked for, neither sides nor what is read. Its light changes, and never its
    hue, where sides or numbers are asked for and no colours. The draws are as many whatever is asked.
    """
    from PIL import Image

    shrink, left, top, mirrored, light = torch.rand(5, generator=generator).tolist()
    colour, count, side, reading = ([bool(words.search(text.casefold())) for text in asks] for words in _WORDS)
    if mirrored < 0.5 and not any(side) and not any(reading) and all(map(operator.or_, colour, count)):
        picture = picture[:, ::-1]
    if not any(colour) and all(map(operator.or_, side, count)):
        picture = np.clip(picture * np.float32(1 + _LIGHT * (2 * light - 1)), 0, 255).astype(np.uint8)
    whole, size = len(picture), len(picture) - round(len(picture) * _ROOM * shrink)
    x, y = ((whole - size) // 2,) * 2 if any(side) else (round(left * (whole - size)), round(top * (whole - size)))
    small = Image.fromarray(np.ascontiguousarray(picture)).resize((size, size), Image.Resampling.BILINEAR)
    return np.pad(np.asarray(small), ((y, whole - size - y), (x, whole - size - x), (0, 0)), mode="edge")
