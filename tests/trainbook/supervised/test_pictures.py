"""Pictures are decoded as colours, masks as numbers of classes; others are refused by name."""

import contextlib

import numpy as np
import pytest
import rasterio
from PIL import Image

from lib.errors import BadInput
from tests.trainbook.supervised import drawn
from tests.trainbook.supervised.drawn import RED, SIDE, WHITE
from trainbook import IGNORED, mask, picture
from trainbook.supervised import look
from trainbook.supervised.notes import collecting
from trainbook.supervised.pictures import Mask, Picture

HALF = (WHITE, RED)  # colours of the upper and the lower half


def saved(image, **options):
    return lambda path: image.save(path, **options)


@pytest.mark.parametrize(
    ("name", "write", "wanted"),
    [
        pytest.param("a.png", saved(Image.fromarray(drawn.ramp())), "ramp", id="16 bits of grey"),
        pytest.param("a.png", saved(Image.fromarray(drawn.ramp(4095))), "ramp", id="12 of 16 bits"),
        pytest.param(
            "a.TIF",
            saved(Image.fromarray(drawn.ramp(3000)), format="TIFF"),
            "ramp",
            id="16 bits in a TIFF",
        ),
        pytest.param(
            "a.tif",
            saved(Image.fromarray(drawn.ramp(1, np.float32))),
            "ramp",
            id="floats in a TIFF",
        ),
        pytest.param(
            "a.tif",
            lambda path: drawn.deep(path, 4000, 1, "float64"),
            "ramp",
            id="doubles in a TIFF",
        ),
        pytest.param("a.png", lambda path: drawn.deep(path, 4095), "ramp", id="12 bits a colour"),
        pytest.param("a.tiff", lambda path: drawn.deep(path, 65535), "ramp", id="16 bits a colour"),
        pytest.param(
            "a.tif", lambda path: drawn.deep(path, 1, 3, "float32"), "ramp", id="floats a colour"
        ),
        pytest.param(
            "a.png",
            saved(drawn.half().convert("1", dither=Image.Dither.NONE)),
            (WHITE, (0, 0, 0)),
            id="1 bit",
        ),
        pytest.param("a.jpg", drawn.turned, "turned", id="a photograph on its side"),
        pytest.param("a.jpg", drawn.with_damaged_exif, HALF, id="damaged EXIF"),
        pytest.param("a.png", drawn.of_a_palette, HALF, id="a palette"),
        pytest.param(
            "a.gif", lambda path: drawn.of_a_palette(path, 0), HALF, id="a palette with a hole"
        ),
        pytest.param("a.png", drawn.transparent, HALF, id="transparency"),
        pytest.param(
            "a.png",
            saved(Image.new("LA", (SIDE, SIDE), (0, 0))),
            (WHITE, WHITE),
            id="grey with transparency",
        ),
        pytest.param("a.jpeg", drawn.adobe, HALF, id="CMYK of Photoshop"),
        pytest.param("a.gif", drawn.animated, HALF, id="an animation"),
        pytest.param("a.webp", drawn.animated, HALF, id="an animated WebP"),
        pytest.param("a.png", saved(drawn.half(), format="JPEG"), HALF, id="JPEG by another name"),
        pytest.param("A.PNG", saved(drawn.half()), HALF, id="PNG in capitals"),
        pytest.param("a.jfif", saved(drawn.half(), format="JPEG"), HALF, id="JPEG of Windows"),
        pytest.param("a.tga", saved(drawn.half()), HALF, id="TGA"),
        pytest.param("a.ppm", saved(drawn.half()), HALF, id="PPM"),
        pytest.param("a.jp2", saved(drawn.half()), HALF, id="JPEG 2000"),
        pytest.param("a.qoi", saved(drawn.half()), HALF, id="QOI"),
        pytest.param("a.dib", saved(drawn.half()), HALF, id="DIB"),
        pytest.param("a.pcx", saved(drawn.half()), HALF, id="PCX"),
    ],
)
def test_a_picture_is_read_by_what_it_means(tmp_path, name, write, wanted):
    write(tmp_path / name)
    array = picture(tmp_path / name, SIDE)
    assert array.shape == (SIDE, SIDE, 3)
    assert array.dtype == np.uint8
    if wanted == "ramp":
        assert len(np.unique(array)) > 60
        assert array[:, :, 0].mean() == pytest.approx(127, abs=3)
        column = array[:, 5, 1].tolist()
        assert column == sorted(column)
        return
    if wanted == "turned":
        halves = [array[SIDE // 2, -8], array[SIDE // 2, 8]]
        colours = HALF
    else:
        halves = [array[8, SIDE // 2], array[-8, SIDE // 2]]
        colours = wanted
    assert np.allclose(halves, colours, rtol=0, atol=15), f"{halves} for {colours}"
    (one,) = look.check([Picture(tmp_path / name)]).values()
    assert not one.wrong, one.wrong


@pytest.mark.parametrize(("value", "grey"), [(0, 0), (65535, 255), (4095, 255), (128, 128)])
def test_a_picture_of_one_value_keeps_its_light(tmp_path, value, grey):
    image = Image.fromarray(np.full((8, 8), value, np.uint16))
    image.save(tmp_path / "a.png")
    assert (picture(tmp_path / "a.png") == grey).all()


FORMATS = ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "JPEG2000", "ICO", "PPM")


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_bytes_are_read_or_refused_and_never_end_the_program(tmp_path, kind):
    drawn.half().save(tmp_path / "whole", kind)
    whole = (tmp_path / "whole").read_bytes()
    draw = np.random.default_rng(0)
    for _ in range(30):
        damaged = np.frombuffer(whole, np.uint8).copy()
        places = draw.integers(0, min(len(whole), 300), 4)
        damaged[places] = draw.integers(0, 256, 4)
        length = draw.integers(1, len(whole) + 1)
        (tmp_path / "a.png").write_bytes(damaged[:length].tobytes())
        for read in (picture, mask):
            with contextlib.suppress(BadInput):
                assert read(tmp_path / "a.png", 8).shape[:2] == (8, 8)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        pytest.param("a.png", drawn.cut, id="half a PNG"),
        pytest.param("a.jpg", drawn.cut, id="half a JPEG"),
        pytest.param("a.png", lambda path: path.write_bytes(b""), id="nothing"),
        pytest.param("a.jpg", lambda path: path.write_bytes(b"\n<html>404"), id="a page"),
        pytest.param("a.png", saved(drawn.half(), format="EPS"), id="EPS"),
        pytest.param("a.png", lambda path: path.mkdir(), id="a folder"),
        pytest.param("a.tif", lambda path: drawn.deep(path, 9000, 5), id="four bands"),
        pytest.param("a.png", lambda path: None, id="no file"),
    ],
)
def test_a_broken_picture_is_refused_by_its_name(tmp_path, name, write):
    write(tmp_path / name)
    with pytest.raises(BadInput, match=name):
        picture(tmp_path / name)
    (one,) = look.check([Picture(tmp_path / name)]).values()
    assert name in one.wrong
    assert any(words in one.wrong for words in ("decoded", "no picture", "is empty", "5 bands"))


def test_an_image_in_memory_is_read_as_a_file_is():
    assert np.array_equal(picture(drawn.half(), 8), picture(drawn.half(), 8))
    invisible = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert picture(invisible).min() == 255


STRIPES = drawn.classes()


@pytest.mark.parametrize(
    ("name", "write", "how"),
    [
        pytest.param("a.png", drawn.mask_of_a_palette, {}, id="a palette"),
        pytest.param("a.png", saved(Image.fromarray(STRIPES)), {}, id="greys"),
        pytest.param("a.png", lambda path: drawn.png(path, 4, STRIPES), {}, id="4 bits"),
        pytest.param("a.png", lambda path: drawn.png(path, 2, STRIPES), {}, id="2 bits"),
        pytest.param(
            "a.png",
            lambda path: drawn.png(path, 16, STRIPES.astype(int) * 300),
            {"codes": (0, 300, 600, 900)},
            id="16 bits",
        ),
        pytest.param(
            "a.png", saved(Image.fromarray(STRIPES).convert("RGB")), {}, id="three equal bands"
        ),
        pytest.param(
            "a.png", saved(Image.fromarray(STRIPES).convert("LA")), {}, id="greys with transparency"
        ),
        pytest.param(
            "a.tif",
            saved(Image.fromarray(STRIPES.astype(np.float32))),
            {},
            id="floats that are whole",
        ),
        pytest.param("a.gif", drawn.mask_of_a_palette, {}, id="a GIF"),
        pytest.param("a.BMP", saved(Image.fromarray(STRIPES)), {}, id="a BMP"),
        pytest.param(
            "a.webp",
            saved(Image.fromarray(STRIPES).convert("RGB"), lossless=True),
            {},
            id="lossless WebP",
        ),
        pytest.param(
            "a.png",
            saved(Image.fromarray(STRIPES * 50)),
            {"codes": (0, 50, 100, 150)},
            id="other numbers",
        ),
        pytest.param(
            "a.png",
            saved(Image.fromarray(np.stack([STRIPES * 20, STRIPES * 0, STRIPES * 3], 2))),
            {"codes": tuple(k * (20 * 65536 + 3) for k in range(4))},
            id="colours",
        ),
    ],
)
def test_a_mask_s_numbers_are_its_classes(tmp_path, name, write, how):
    write(tmp_path / name)
    assert np.array_equal(mask(tmp_path / name, **how), STRIPES)
    small = mask(tmp_path / name, 4, **how)
    assert np.array_equal(small, STRIPES[1::2, 1::2])
    (one,) = look.check([Mask(tmp_path / name)]).values()
    assert not one.wrong
    assert len(one.values) == 4


@pytest.mark.parametrize(
    ("name", "write", "how", "sentence"),
    [
        pytest.param(
            "a.jpg", saved(Image.fromarray(STRIPES)), {}, "is a JPEG, which blurs", id="JPEG"
        ),
        pytest.param(
            "a.png",
            saved(Image.fromarray(STRIPES), format="JPEG"),
            {},
            "is a JPEG, which blurs",
            id="JPEG as PNG",
        ),
        pytest.param(
            "a.webp",
            saved(Image.fromarray(STRIPES).convert("RGB")),
            {},
            "is a WEBP, which blurs",
            id="lossy WebP",
        ),
        pytest.param(
            "a.png",
            saved(drawn.half()),
            {},
            r"such as \(200, 10, 20\).*workload.codes \(here 13109780\)",
            id="colours",
        ),
        pytest.param(
            "a.png",
            saved(Image.fromarray(STRIPES * 85)),
            {"codes": (0, 85, 170)},
            r"255.*ignored_codes: \[255\]",
            id="255",
        ),
        pytest.param(
            "a.tif",
            saved(Image.fromarray(STRIPES.astype(np.float32) / 2)),
            {},
            "holds the values? 0.5",
            id="fractions",
        ),
        pytest.param(
            "a.tif",
            saved(Image.fromarray(STRIPES.astype(np.int32) - 1)),
            {},
            "holds the value -1",
            id="negative",
        ),
        pytest.param(
            "a.png",
            drawn.transparent,
            {},
            "differ in their transparency alone",
            id="transparency alone",
        ),
        pytest.param(
            "a.tif", saved(drawn.half().convert("CMYK")), {}, "colours of the kind CMYK", id="CMYK"
        ),
        pytest.param("a.png", drawn.cut, {}, "cannot be decoded", id="half a file"),
    ],
)
def test_what_is_no_mask_is_refused_by_its_name(tmp_path, name, write, how, sentence):
    write(tmp_path / name)
    if "transparency" in sentence:
        image = Image.new("RGBA", (8, 8), (255, 255, 255, 0))
        image.paste((255, 255, 255, 255), (0, 0, 4, 4))
        image.save(tmp_path / name)
    with pytest.raises(BadInput, match=f"(?s){name}.*{sentence}"):
        mask(tmp_path / name, 8, **how)


def test_pixels_without_a_class_are_ignored_by_their_value_or_where_there_is_no_number(tmp_path):
    values = STRIPES.astype(np.float32)
    values[0, 0] = np.nan
    values[1, 1] = 255
    Image.fromarray(values).save(tmp_path / "a.tif")
    classes = mask(tmp_path / "a.tif", codes=(0, 1, 2, 3), ignored=(255,))
    assert classes[0, 0] == classes[1, 1] == IGNORED
    assert classes[2, 2] == 2


def test_pictures_are_looked_at_once_until_they_change(tmp_path, monkeypatch):
    paths = [Picture(tmp_path / f"{number}.png") for number in range(3)]
    for path in paths:
        drawn.half().save(path)
    paths[2].write_bytes(b"broken")
    first = look.check(paths)
    assert [bool(one.wrong) for one in first.values()] == [False, False, True]
    seen = []
    decode = look._look

    def noticed(path):
        seen.append(path)
        return decode(path)

    monkeypatch.setattr(look, "_look", noticed)
    assert look.check(paths) == first, "what is broken may be mended in place"
    assert seen == [paths[2]], "what is broken may be mended in place"
    drawn.plain().save(paths[0])
    drawn.plain().save(paths[2])
    second = look.check(paths)
    assert second[paths[0]].digest != first[paths[0]].digest
    assert seen[1:] == [paths[0], paths[2]]


def test_how_pictures_are_read_is_noted(tmp_path):
    drawn.animated(tmp_path / "a.gif")
    drawn.with_damaged_exif(tmp_path / "b.jpg")
    Image.fromarray(drawn.ramp()).save(tmp_path / "c.png")
    looks = look.check(Picture(path) for path in tmp_path.iterdir())
    with collecting() as notes:
        look.note_remarks(looks.values())
    assert len(notes) == 3
    assert all(line.startswith("1 of 3 pictures") for line in notes)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        pytest.param(
            "a pointer of Git LFS",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n",
            id="a pointer of Git LFS",
        ),
        pytest.param(
            "a web page", b"<!DOCTYPE html>\n<html><title>404</title></html>\n", id="a web page"
        ),
        pytest.param("a HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", id="a HEIC"),
        pytest.param("an SVG", b"<svg/>", id="an SVG"),
        pytest.param("a PDF", b"%PDF-1.7", id="a PDF"),
        pytest.param("empty", b"", id="empty"),
    ],
)
def test_a_file_of_another_kind_is_named_as_that(tmp_path, kind, content):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(BadInput, match=rf"a.jpg is {kind}"):
        picture(tmp_path / "a.jpg")


def test_a_picture_without_a_number_is_refused_with_advice(tmp_path):
    image = Image.fromarray(np.full((8, 8), np.nan, np.float32))
    image.save(tmp_path / "a.tif")
    with pytest.raises(BadInput, match="has no pixel with a number. Export it again"):
        picture(tmp_path / "a.tif")


def test_a_picture_that_is_too_large_is_refused_with_advice(tmp_path):
    Image.new("1", (9000, 9000)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match="has 9,000 x 9,000 pixels, .*Scale it down"):
        picture(tmp_path / "a.png")


def test_a_mask_of_several_pages_is_refused(tmp_path):
    pages = [Image.new("L", (8, 8), value) for value in (0, 1)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(BadInput, match="a.tif has 2 pages. Save one mask"):
        mask(tmp_path / "a.tif")


def of_two_bands(path):
    size = {"width": 8, "height": 8, "count": 2, "dtype": "uint8"}
    bands = np.arange(2, dtype=np.uint8)
    with rasterio.open(path, "w", driver="GTiff", **size) as file:
        file.write(bands.repeat(64).reshape(2, 8, 8))


def test_a_mask_of_several_bands_is_refused(tmp_path):
    of_two_bands(tmp_path / "b.tif")
    with pytest.raises(BadInput, match="b.tif has bands beside the first"):
        mask(tmp_path / "b.tif")


def test_bands_and_transparency_that_change_a_picture_are_noted(tmp_path):
    of_two_bands(tmp_path / "a.tif")
    Image.new("RGBA", (8, 8), (0, 0, 0, 9)).save(tmp_path / "b.png")
    Image.new("RGBA", (8, 8), (0, 0, 0, 255)).save(tmp_path / "c.png")
    looks = look.check(Picture(path) for path in sorted(tmp_path.iterdir()))
    remarks = [one.remarks for one in looks.values()]
    assert remarks == [("bands",), ("alpha",), ()]


def test_the_values_of_a_blurred_mask_are_called_so(tmp_path):
    values = np.arange(0, 128, 2, dtype=np.uint8)
    Image.fromarray(values.reshape(8, 8)).save(tmp_path / "a.png")
    with pytest.raises(BadInput, match="Many values come of a mask that was scaled smoothly"):
        mask(tmp_path / "a.png", codes=(0, 255))
