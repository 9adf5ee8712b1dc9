"""Files of pictures and masks in many forms, as people bring them."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import rasterio
from PIL import Image

RED = (200, 10, 20)
WHITE = (255, 255, 255)
SIDE = 64


def ramp(most: int = 65535, kind: type = np.uint16) -> np.ndarray:
    """Rows from 0 to `most`, 64 of them."""
    return np.outer(np.linspace(0, most, SIDE), np.ones(SIDE)).astype(kind)


def plain(size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    return Image.new("RGB", size, RED)


def half() -> Image.Image:
    """Red with a white upper half."""
    image = plain()
    image.paste(WHITE, (0, 0, SIDE, SIDE // 2))
    return image


def turned(path: Path, orientation: int = 6) -> None:
    options = Image.Exif()
    options[0x0112] = orientation
    half().save(path, exif=options)


def with_damaged_exif(path: Path) -> None:
    half().save(path, "JPEG", exif=b"Exif\0\0no TIFF")


def transparent(path: Path) -> None:
    """Red, with the upper half fully transparent over black."""
    image = half().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, SIDE, SIDE // 2))
    image.save(path)


def of_a_palette(path: Path, transparency: int | None = None) -> None:
    """A palette of white and red; with `transparency` the upper half is a hole over black."""
    image = Image.new("P", (SIDE, SIDE), 1)
    image.putpalette([*((0, 0, 0) if transparency == 0 else WHITE), *RED] + [0] * (3 * 254))
    image.paste(0, (0, 0, SIDE, SIDE // 2))
    image.save(path, **({} if transparency is None else {"transparency": transparency}))


def animated(path: Path) -> None:
    half().save(path, save_all=True, append_images=[plain(), plain().rotate(90)], duration=50)


def adobe(path: Path) -> None:
    """CMYK as Photoshop writes it into a JPEG: inverted."""
    half().convert("CMYK").save(path, "JPEG", quality=95)


def deep(path: Path, most: int, count: int = 3, kind: str = "uint16") -> None:
    """A ramp in each of `count` bands."""
    driver = "PNG" if path.suffix == ".png" else "GTiff"
    bands = np.repeat(ramp(most, np.dtype(kind).type)[None], count, 0)
    how = {"photometric": "RGB"} if driver == "GTiff" and count == 3 else {}
    with rasterio.open(
        path, "w", driver=driver, dtype=kind, count=count, height=SIDE, width=SIDE, **how
    ) as file:
        file.write(bands)


def png(path: Path, depth: int, rows: np.ndarray) -> None:
    """A grey PNG of 1, 2, 4, 8 or 16 bits, which keeps the numbers as they are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    bits = [[format(int(value), f"0{depth}b") for value in row] for row in rows]
    packed = (int("".join(row).ljust(-(-len("".join(row)) // 8) * 8, "0"), 2) for row in bits)
    width = -(-rows.shape[1] * depth // 8)
    data = b"".join(b"\0" + number.to_bytes(width) for number in packed)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], depth, 0, 0, 0, 0))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    )


def classes(most: int = 3) -> np.ndarray:
    """(8, 8) numbers 0 to `most` in stripes."""
    return np.outer(np.arange(8) % (most + 1), np.ones(8)).astype(np.uint8)


def mask_of_a_palette(path: Path) -> None:
    """Indices 0 to 3 with colours that are no numbers, as VOC's."""
    image = Image.fromarray(classes(), "L").convert("P")
    image.putdata(classes().flatten().tolist())
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0] + [7] * (3 * 252))
    image.save(path)


def cut(path: Path) -> None:
    image = io.BytesIO()
    Image.effect_noise((SIDE, SIDE), 50).save(image, path.suffix[1:].upper().replace("JPG", "JPEG"))
    path.write_bytes(image.getvalue()[: len(image.getvalue()) // 2])
