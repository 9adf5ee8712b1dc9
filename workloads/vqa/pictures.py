"""Pictures as arrays: decoded within limits, scaled, and changed in ways that cannot change an answer."""

import hashlib
import io
import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.machine import hardware
from lib.report.progress import counted

# What Pillow opens here: none that runs a program or fetches another file, as EPS and WMF do
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_MOST_BYTES = 2**28  # of a file
_SMALL = 32  # pixels on a side, to which a picture is decoded that is only checked
_MANY = 1000  # pictures, whose decoding takes seconds
_ROOM = 1 / 8  # of a side at most by which training pictures shrink, and within which they move
_LIGHT = 0.1  # share by which their light changes at most
# What Pillow raises for broken files, by format
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, KeyError, IndexError, TypeError, OverflowError, struct.error)

_COLOUR = re.compile(
    r"\b(màu|đỏ|xanh|vàng|đen|trắng|tím|tía|cam|xám|nâu|hồng|sáng|tối|đậm|nhạt|ngày|đêm|colou?rs?|red|green|blue|"
    r"yellow|black|white|purple|orange|gr[ae]y|brown|pink|teal|bright|dark|light|day|night)\b"
)
_COUNT = re.compile(r"\b(bao nhiêu|mấy|đếm|how many|counting)\b")
_SIDE = re.compile(
    r"\b(trái|phải|bên|hướng|phía|giữa|cạnh|trên|dưới|đâu|vị trí|spatial|location|left|right|side|where|direction|"
    r"between|next|facing|middle|cent(?:er|re)|top|bottom|above|below)\b"
)
# Letters, figures, clocks and flags are read from left to right
_READING = re.compile(
    r"\b(chữ|viết|ghi|đọc|biển|tên|số|giờ|cờ|text|words?|letters?|write|written|read|sign|number|name|time|clock|flag)\b"
)


def load(path: str | Path, side: int, limit_pixels: int) -> np.ndarray:
    """Returns a picture as (side, side, 3) uint8 of red, green, blue, scaled whatever its shape, as BLIP does."""
    from PIL import Image

    image = _decoded(path, side, limit_pixels)
    return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0))


def check(paths: Sequence[str], limit_pixels: int) -> dict[str, tuple[str, str]]:
    """Returns a hash of each picture's file, and a sentence where it cannot be used, before anything is trained."""

    def judge(path: str) -> tuple[str, str]:
        try:
            _decoded(path, _SMALL, limit_pixels)
            return hashlib.sha256(read_bytes(Path(path), _MOST_BYTES)).hexdigest()[:20], ""
        except (BadInput, OSError) as error:
            return "", str(error)

    with ThreadPoolExecutor(max(1, min(8, int(hardware.cpus())))) as threads:
        judged = threads.map(judge, paths)
        seen = counted(paths, "Looking at the pictures") if len(paths) > _MANY else paths
        return {path: next(judged) for path in seen}


def _decoded(path: str | Path, side: int, limit_pixels: int) -> Any:
    """Returns a picture of Pillow in RGB, of at least `side` pixels where the file has as many. Raises BadInput."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    shown = printable(path, most=200)
    try:
        content = read_bytes(Path(path), _MOST_BYTES)
    except OSError as error:
        raise BadInput(f"The picture {shown} cannot be read ({error.strerror or error}).") from None
    try:
        Image.init()  # else Pillow knows but a few formats until it meets another; its build may lack one
        image = Image.open(io.BytesIO(content), formats=[name for name in _FORMATS if name in Image.OPEN])
        width, height = image.size
        if width * height > limit_pixels:
            limit = f"workload.pictures.limit_pixels is {limit_pixels:,}. Make it smaller, or raise the limit."
            raise BadInput(f"The picture {shown} has {width:,} x {height:,} pixels, and {limit}")
        image.draft("RGB", (side, side))  # a JPEG is decoded at an eighth of its size where that is enough
        return _rgb(ImageOps.exif_transpose(image))
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise BadInput(f"The picture {shown} has more than {most:,} pixels. Make it smaller.") from None
    except BadInput:
        raise
    except _BROKEN as error:
        why = printable(error, most=120)
        if isinstance(error, UnidentifiedImageError):
            why = f"it is none of {', '.join(_FORMATS)}, and begins with {content[:20]!r}"
        raise BadInput(f"The picture {shown} cannot be decoded ({why}). Download it again.") from None


def _rgb(image: Any) -> Any:
    """Returns a picture in RGB: deep greys stretched from the least to the most, what is transparent on white."""
    from PIL import Image

    if image.mode[0] in "IF":  # 16 or 32 bits of grey: of 12 bits in 16 only a sixteenth of the range would be used
        values = np.asarray(image, np.float32)
        least, most = float(np.nanmin(values)), float(np.nanmax(values))
        values = np.nan_to_num((values - least) * (255 / max(most - least, 1e-9)))
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def augment(picture: np.ndarray, asked: str | Sequence[str], generator: torch.Generator) -> np.ndarray:
    """Returns a picture changed so that the answers stay: `asked` are type and text of each question about it.

    It shrinks and moves within its frame, so nothing leaves it, and does not move where a side is asked for. It is
    mirrored where colours or numbers are asked for, neither sides nor what is read. Its light changes, and never its
    hue, where sides or numbers are asked for and no colours. All of its questions must allow it. The draws are as many
    whatever is asked.
    """
    from PIL import Image

    shrink, left, top, mirrored, light = torch.rand(5, generator=generator).tolist()
    asks = [text.casefold() for text in ([asked] if isinstance(asked, str) else asked)]
    sided, reads = (any(words.search(text) for text in asks) for words in (_SIDE, _READING))
    coloured = any(_COLOUR.search(text) for text in asks)
    if mirrored < 0.5 and not sided and not reads and all(_COLOUR.search(t) or _COUNT.search(t) for t in asks):
        picture = picture[:, ::-1]
    if not coloured and all(_SIDE.search(text) or _COUNT.search(text) for text in asks):
        picture = np.clip(picture * np.float32(1 + _LIGHT * (2 * light - 1)), 0, 255).astype(np.uint8)
    side = picture.shape[0]
    size = side - round(side * _ROOM * shrink)
    if size == side:
        return np.ascontiguousarray(picture)
    room = side - size
    x, y = (room // 2, room // 2) if sided else (round(left * room), round(top * room))
    small = np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((size, size), Image.Resampling.BILINEAR))
    return np.pad(small, ((y, room - y), (x, room - x), (0, 0)), mode="edge")
