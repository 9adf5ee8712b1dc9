"""Pictures of any kind become red, green and blue; what cannot be is refused; changes leave answers as they are."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from lib.errors import BadInput
from workloads.vqa import pictures

RED = (200, 10, 20)
WHITE = (255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "CMYK"])
def test_pictures_of_every_mode_become_red_green_and_blue(tmp_path, mode):
    path = tmp_path / f"a.{'jpg' if mode == 'CMYK' else 'png'}"
    Image.new("RGB", (40, 20), RED).convert(mode).save(path)
    loaded = pictures.loader(8)(path)
    assert loaded.shape == (8, 8, 3)
    assert loaded.dtype == np.uint8
    assert abs(loaded[4, 4].astype(int) - RED).max() <= 8


@pytest.mark.parametrize(("kind", "name"), [(np.uint16, "a.png"), (np.float32, "a.tif")])
def test_deep_greys_use_their_whole_range(tmp_path, kind, name):
    Image.fromarray(np.linspace(100, 4095, 64 * 64).reshape(64, 64).astype(kind)).save(
        tmp_path / name
    )
    loaded = pictures.loader(64)(tmp_path / name)
    assert loaded.min() < 4
    assert loaded.max() > 251
    assert 120 < loaded.mean() < 135


def test_a_turned_photograph_is_put_upright(tmp_path):
    image = Image.new("RGB", (32, 32), RED)
    image.paste(WHITE, (0, 0, 32, 16))  # the upper half
    options = image.getexif()
    options[0x0112] = 6  # to be turned by a quarter, clockwise
    image.save(tmp_path / "a.png", exif=options)
    loaded = pictures.loader(32)(tmp_path / "a.png").astype(int)
    assert abs(loaded[16, 28] - WHITE).max() < 9
    assert abs(loaded[16, 4] - RED).max() < 9


def bomb(path, side=20_000):
    """A PNG of 400 million pixels that says so and has none of them."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )
    return path


def cut(path):
    image = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(image, "JPEG")
    path.write_bytes(image.getvalue()[:-400])
    return path


BAD = {
    "20,000 x 20,000 pixels": (bomb, "cannot be decoded .*400000000 pixels"),
    "9,000 x 9,000 pixels": (lambda path: bomb(path, 9_000), "has 9,000 x 9,000 pixels, .*Scale it down"),
    "half a file": (cut, "cannot be decoded .*truncated"),
    "HTML": (lambda path: path.write_bytes(b"\n<html><body>404"), "cannot be decoded"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "sentence"), BAD.values(), ids=BAD)
def test_what_is_no_picture_or_too_large_is_refused(tmp_path, write, sentence):
    write(tmp_path / "a.jpg")
    with pytest.raises(BadInput, match=f"a.jpg.*{sentence}"):
        pictures.loader(8)(tmp_path / "a.jpg")
    (look,) = pictures.check([str(tmp_path / "a.jpg")]).values()
    assert not look.digest
    assert look.wrong


def marked():
    """Grey, with a red square in the left upper part and a blue one in the right lower one."""
    found = np.full((32, 32, 3), 120, np.uint8)
    found[4:10, 4:10] = (250, 0, 0)
    found[-10:-4, -10:-4] = (0, 0, 250)
    return found


def middle(image, channel):
    """Where a coloured square is: column and row of its middle."""
    is_bright = image[..., channel] > 190
    is_dark = (image[..., 1] < 60) & (image[..., 2 - channel] < 90)
    where = np.argwhere(is_bright & is_dark)
    assert len(where), "the square has left the picture"
    return where.mean(0)[::-1]


@pytest.mark.parametrize(
    ("asks", "changes"),
    [
        (["SPATIAL hình tròn ở bên nào"], "light"),
        (["có mấy hình", "màu gì"], "mirror place"),
        (["có mấy hình"], "mirror place light"),
    ],
)
def test_a_picture_changes_only_in_what_no_question_about_it_asks_for(asks, changes):
    generator = torch.Generator().manual_seed(0)
    images = [pictures.augment(marked(), asks, generator).astype(int) for _ in range(60)]
    squares = np.array(
        [[middle(image, 0), middle(image, 2)] for image in images]
    )  # nothing leaves the frame
    assert (squares[:, 0, 1] < squares[:, 1, 1]).all(), "up stays up"
    orders = {True, False} if "mirror" in changes else {True}
    assert {*(squares[:, 0, 0] < squares[:, 1, 0])} == orders
    assert (np.abs(squares.mean(1) - 15.5).max() > 1) == ("place" in changes)
    ground = np.array([image[16, 16] for image in images])
    assert (ground[:, :1] == ground).all(), "the hue never changes"
    assert abs(ground - 120).max() <= 13, "the hue never changes"
    assert (len(np.unique(ground)) > 5) == ("light" in changes)
    assert "light" in changes or (ground == 120).all()
