"""Hostile scenes: TIFF, VRT and NumPy files with a false kind or size."""

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
FORMATS = {SHORT: "H", LONG: "I"}


@pytest.fixture
def read_all(nothing_outside):
    """read_all(source) -> the output of cutting the hostile folder and reading its first tile."""

    def cut_all(source):
        scenes = layout.find(nothing_outside.folder, source)
        store = cut(scenes, nothing_outside.root / "cache", source, Cut(size=32))
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
    """Returns a TIFF of 64 x 64 bytes in one strip, with `tags`: {number: (type, value)}."""
    content = data or bytes(64 * 64)
    every = {256: (LONG, 64), 257: (LONG, 64), 258: (SHORT, 8), 259: (SHORT, 1), 262: (SHORT, 1)}
    every |= {273: (LONG, 0), 277: (SHORT, 1), 278: (LONG, 64), 279: (LONG, len(content))}
    every |= tags or {}
    start = 8 + 2 + 12 * len(every) + 4
    every[273] = (LONG, every[273][1] or start)
    entries = b""
    for number, (kind, value) in sorted(every.items()):
        raw = struct.pack(f"<{FORMATS[kind]}", value)
        entries += struct.pack("<HHI", number, kind, 1) + raw.ljust(4, b"\0")
    first = struct.pack("<2sHIH", b"II", 42, 8, len(every))
    return first + entries + bytes(4) + content


def vrt(band, attributes=""):
    return (
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1" {attributes}>{band}'
        "</VRTRasterBand></VRTDataset>"
    )


def vrt_of(name):
    return f'<SimpleSource><SourceFilename relativeToVRT="0">{name}</SourceFilename></SimpleSource>'


RAW = "<SourceFilename relativeToVRT='0'>{}</SourceFilename><PixelOffset>1</PixelOffset><LineOffset>8</LineOffset>"
PYTHON = (
    "<PixelFunctionType>f</PixelFunctionType><PixelFunctionLanguage>Python</PixelFunctionLanguage>"
    "<PixelFunctionCode><![CDATA[{}def f(*a, **k): pass]]></PixelFunctionCode>"
)


def bomb(size=500 * 2**20):
    """Returns compressed zeros: one block many times, which takes little time and memory."""
    packer = zlib.compressobj()
    piece = bytes(2**20)
    first, block = (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH) for _ in "ab")
    return first + block * (size // len(piece) - 1) + packer.flush()


def vrt_of_a_raw_file(outside):
    return vrt(RAW.format(outside.secret), 'subClass="VRTRawRasterBand"').encode()


def vrt_of_another_file(outside):
    return vrt(vrt_of(outside.secret)).encode()


def vrt_that_runs_python(outside):
    return vrt(PYTHON.format(outside.code()), 'subClass="VRTDerivedRasterBand"').encode()


def strip_beyond_the_end(outside):
    return tiff({273: (LONG, 2**32 - 9)})


def block_of_16_gb(outside):
    tags = {256: (LONG, 40_000), 257: (LONG, 40_000), 278: (LONG, 40_000)}
    tags |= {258: (SHORT, 64), 339: (SHORT, 3), 259: (SHORT, 8)}
    return tiff(tags, zlib.compress(bytes(4096)))


def strip_that_unpacks_to_more(outside):
    return tiff({259: (SHORT, 8)}, bomb())


@pytest.mark.parametrize(
    "make",
    [
        vrt_of_a_raw_file,
        vrt_of_another_file,
        vrt_that_runs_python,
        strip_beyond_the_end,
        block_of_16_gb,
        strip_that_unpacks_to_more,
    ],
)
def test_a_hostile_tiff_is_refused_by_its_name(nothing_outside, read_all, make):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes, crs=None)
    path = nothing_outside.folder / "Band2" / "img001.tif"
    path.write_bytes(make(nothing_outside))
    text = read_all(TWO)
    # The last one is read or not by the reader of TIFF; its sentence may be about another file
    assert "img001.tif" in text or make is strip_that_unpacks_to_more, text


def test_a_file_of_no_bytes_and_many_pixels_is_refused_by_its_size(nothing_outside, read_all):
    kind = {"driver": "GTiff", "count": 1, "dtype": "uint8", "SPARSE_OK": "TRUE"}
    for folder in ("Band1", "Band2", "label"):
        path = nothing_outside.folder / folder / "img001.tif"
        path.parent.mkdir()
        rasterio.open(path, "w", height=200_000, width=200_000, **kind).close()
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
    beside.write_bytes(vrt_of_another_file(nothing_outside))
    assert "4 tiles" in read_all(TWO)
    scenes = layout.find(nothing_outside.folder, TWO)[0]
    with readers.opened(scenes[0], TWO) as opened:
        assert np.array_equal(opened.bands((0, 0, 64, 64)), image)


def test_a_name_that_gdal_would_take_for_an_address_is_no_file(nothing_outside):
    def read(name):
        path = nothing_outside.folder.joinpath(name)
        with readers.opened(Scene("x", "x", (path,), None), TWO):
            pass

    for name in ("/vsicurl/http://127.0.0.1:9/x.tif", "/vsistdin/x.tif", "GTIFF_DIR:1:x.tif"):
        assert "is not a file" in nothing_outside.attempt(read, name)


# --- NumPy ------------------------------------------------------------------------------------------------------------


class Runs:
    """An object whose pickle opens a file for writing."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def npy(header, data=b"", version=(1, 0), stated=None):
    """Returns a .npy with any header, whose length the file states as `stated`."""
    head = header if isinstance(header, bytes) else header.encode("latin1")
    length_type = "<H" if version == (1, 0) else "<I"
    length = struct.pack(length_type, stated or len(head))
    return b"\x93NUMPY" + bytes(version) + length + head + data


GIANT = "{'descr': '<f4', 'fortran_order': False, 'shape': (40_000, 40_000, 2), }\n"
RUNNING = "{{'descr': open({!r}, 'w'), 'shape': (1,)}}\n"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda outside: pickle.dumps(Runs(outside.ran)), id="a pickle"),
        pytest.param(
            lambda outside: npy(b"{", version=(2, 0), stated=2**32 - 1), id="a header of 4 GB"
        ),
        pytest.param(
            lambda outside: npy(RUNNING.format(str(outside.ran))), id="a header that runs"
        ),
        pytest.param(lambda outside: npy(GIANT, bytes(8192)), id="a shape beyond the file"),
    ],
)
def test_a_hostile_patch_is_refused_by_its_name(nothing_outside, read_all, make):
    write_patches(nothing_outside.folder, sources=1, patches=1, bands=2)
    (nothing_outside.folder / "slice_0_img_000.npy").write_bytes(make(nothing_outside))
    assert "slice_0_img_000.npy" in read_all(PATCHES)
