"""Scenes that somebody else made: TIFF, VRT and NumPy files that lie about what they are or how large."""

import os
import pickle
import resource
import struct
import zlib

import numpy as np
import pytest
import rasterio

from tests.workloads.glacier.files import scene, write_bands, write_patches
from workloads.glacier.data import layout, readers
from workloads.glacier.data.cutter import cut
from workloads.glacier.data.readers import Scene
from workloads.glacier.settings import Cut, Source

TWO = Source(bands=("red", "nir"))
PATCHES = Source(bands=("a", "b"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
_MOST_KIB = 400 * 1024  # that the process may grow by, GDAL's memory included
SHORT = 3
LONG = 4  # types of a TIFF's tags


@pytest.fixture
def read_all(nothing_outside):
    """read_all(source) -> what the program says when it cuts the hostile folder and reads its first tile."""

    def cut_all(source):
        outside = nothing_outside
        store = cut(
            layout.find(outside.folder, source), outside.root / "cache", source, Cut(size=32)
        )
        store.read(0)

    def attempt(source):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        text = nothing_outside.attempt(cut_all, source, weighed=True)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < _MOST_KIB, f"the process grew by {grown:,} KiB"
        return text

    return attempt


# --- TIFF -------------------------------------------------------------------------------------------------------------


def tiff(tags=None, data=b""):
    """A TIFF of one directory, 64 x 64 bytes in one strip unless `tags` say otherwise: {number: (type, values)}."""
    content = data or bytes(64 * 64)
    every = {
        256: (LONG, [64]), 257: (LONG, [64]), 258: (SHORT, [8]), 259: (SHORT, [1]), 262: (SHORT, [1]),
        273: (LONG, [None]), 277: (SHORT, [1]), 278: (LONG, [64]), 279: (LONG, [len(content)]), **(tags or {}),
    }  # fmt: skip
    every = {number: every[number] for number in sorted(every) if every[number]}
    formats = {SHORT: "H", LONG: "I"}
    end = 8 + 2 + 12 * len(every) + 4
    packed = {}
    for number, (kind, values) in every.items():
        raw = b"".join(struct.pack(f"<{formats[kind]}", v or 0) for v in values)
        packed[number] = (kind, len(values), raw)
    start = end + sum(len(raw) for _, _, raw in packed.values() if len(raw) > 4)
    entries = b""
    more = b""
    for number, (kind, count, raw) in packed.items():
        if kind == LONG and every[number][1] == [None]:
            raw = struct.pack("<I", start)
        if len(raw) <= 4:
            place = raw.ljust(4, b"\0")
        else:
            place = struct.pack("<I", end + len(more))
        more += raw if len(raw) > 4 else b""
        entries += struct.pack("<HHI", number, kind, count) + place
    first = struct.pack("<2sHIH", b"II", 42, 8, len(every))
    return first + entries + bytes(4) + more + content


def vrt(band, attributes=""):
    return (
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1" {attributes}>{band}'
        "</VRTRasterBand></VRTDataset>"
    )


def vrt_of(name):
    return lambda o: vrt(f'<SimpleSource><SourceFilename relativeToVRT="0">{name.format(o=o)}</SourceFilename>'
                         "</SimpleSource>")  # fmt: skip


RAW = "<SourceFilename relativeToVRT='0'>{}</SourceFilename><PixelOffset>1</PixelOffset><LineOffset>8</LineOffset>"
PYTHON = (
    "<PixelFunctionType>f</PixelFunctionType><PixelFunctionLanguage>Python</PixelFunctionLanguage>"
    "<PixelFunctionCode><![CDATA[{}def f(*a, **k): pass]]></PixelFunctionCode>"
)


def bomb(size=500 * 2**20):
    """Zeros as zlib packs them: one packed block many times over, so that making them takes neither time nor room."""
    packer = zlib.compressobj()
    piece = bytes(2**20)
    first, block = (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH) for _ in "ab")
    return first + block * (size // len(piece) - 1) + packer.flush()


PACKED = zlib.compress(bytes(4096))
IMAGES = {  # text or bytes of Band2/img001.tif, of what lies in the watched folder
    "a VRT of a raw file": lambda o: vrt(RAW.format(o.secret), 'subClass="VRTRawRasterBand"'),
    "a VRT of another file": vrt_of("{o.secret}"),
    "a VRT that runs Python": lambda o: vrt(PYTHON.format(o.code()), 'subClass="VRTDerivedRasterBand"'),
    "a strip beyond the end": lambda o: tiff({273: (LONG, [2**32 - 9])}),
    "a block of 16 GB": lambda o: tiff({256: (LONG, [40_000]), 257: (LONG, [40_000]), 278: (LONG, [40_000]),
                                        258: (SHORT, [64]), 339: (SHORT, [3]), 259: (SHORT, [8])}, PACKED),
    "a strip that unpacks to more": lambda o: tiff({259: (SHORT, [8])}, bomb()),
}  # fmt: skip
HARMLESS = {
    "a strip that unpacks to more"
}  # read or not by the reader of TIFF; its sentence may be about another file


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_tiff_is_refused_by_its_name(nothing_outside, read_all, name):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes, crs=None)
    content = IMAGES[name](nothing_outside)
    path = nothing_outside.folder / "Band2" / "img001.tif"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    text = read_all(TWO)
    assert "img001.tif" in text or name in HARMLESS, text


def test_a_file_of_no_bytes_and_many_pixels_is_refused_by_its_size(nothing_outside, read_all):
    kind = {"driver": "GTiff", "count": 1, "dtype": "uint8", "SPARSE_OK": "TRUE"}
    for folder in ("Band1", "Band2", "label"):
        (nothing_outside.folder / folder).mkdir()
        rasterio.open(
            nothing_outside.folder / folder / "img001.tif",
            "w",
            height=200_000,
            width=200_000,
            **kind,
        ).close()
    assert "img001.tif states 200,000 x 200,000 pixels" in read_all(TWO)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["a pipe", "a device"]
)
def test_what_is_no_file_is_not_opened(nothing_outside, read_all, make):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes)
    path = nothing_outside.folder / "Band2" / "img001.tif"
    path.unlink()
    make(path)
    assert "Band2" in read_all(TWO)


def test_a_file_beside_an_image_changes_nothing(nothing_outside, read_all):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes)
    beside = nothing_outside.folder / "Band2" / "img001.tif.ovr"
    beside.write_text(vrt_of("{o.secret}")(nothing_outside))
    assert "4 tiles" in read_all(TWO)
    with readers.opened(layout.find(nothing_outside.folder, TWO)[0][0], TWO) as opened:
        assert np.array_equal(opened.bands((0, 0, 64, 64)), image)


def test_a_name_that_gdal_would_take_for_an_address_is_no_file(nothing_outside):
    def read(name):
        with readers.opened(Scene("x", "x", (nothing_outside.folder.joinpath(name),), None), TWO):
            pass

    for name in ("/vsicurl/http://127.0.0.1:9/x.tif", "/vsistdin/x.tif", "GTIFF_DIR:1:x.tif"):
        assert "is no file" in nothing_outside.attempt(read, name)


# --- NumPy ------------------------------------------------------------------------------------------------------------


class Runs:
    """What a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def npy(header, data=b"", version=(1, 0), stated=None):
    """A .npy of any header; `stated` is the length of it that the file states."""
    head = header if isinstance(header, bytes) else header.encode("latin1")
    length = struct.pack(
        "<H" if version == (1, 0) else "<I", len(head) if stated is None else stated
    )
    return b"\x93NUMPY" + bytes(version) + length + head + data


GIANT = "{'descr': '<f4', 'fortran_order': False, 'shape': (40_000, 40_000, 2), }\n"
ARRAYS = {  # bytes of slice_0_img_000.npy
    "a pickle": lambda o: pickle.dumps(Runs(o.ran)),
    "a header of 4 GB": lambda o: npy(b"{", version=(2, 0), stated=2**32 - 1),
    "a header that runs": lambda o: npy(f"{{'descr': open({str(o.ran)!r}, 'w'), 'shape': (1,)}}\n"),
    "a shape beyond the file": lambda o: npy(GIANT, bytes(8192)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_hostile_patch_is_refused_by_its_name(nothing_outside, read_all, name):
    write_patches(nothing_outside.folder, sources=1, patches=1, bands=2)
    (nothing_outside.folder / "slice_0_img_000.npy").write_bytes(ARRAYS[name](nothing_outside))
    assert "slice_0_img_000.npy" in read_all(PATCHES)
