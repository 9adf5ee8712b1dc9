"""Scenes that somebody else made: TIFF, VRT and NumPy files that lie about what they are or how large."""

import os
import pickle
import resource
import struct
import zlib

import numpy as np
import pytest
import rasterio

from tests.workloads.glacier.files import scene, write_bands, write_patches, write_tiff
from workloads.glacier.data import layout, readers
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.data.readers import Scene
from workloads.glacier.settings import Cut, Source

TWO = Source(bands=("red", "nir"))
PATCHES = Source(bands=("a", "b"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
_MOST_KIB = 400 * 1024  # that the process may grow by, GDAL's memory included
SHORT, LONG, DOUBLE = 3, 4, 12  # types of a TIFF's tags


@pytest.fixture
def read_all(nothing_outside):
    """read_all(source) -> what the program says when it cuts the hostile folder and reads its first tile."""

    def cut(source):
        outside = nothing_outside
        store = Cutter(outside.root / "cache", source, Cut(size=32)).all(layout.find(outside.folder, source))
        store.read(0)

    def attempt(source):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        text = nothing_outside.attempt(cut, source, weighed=True)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < _MOST_KIB, f"the process grew by {grown:,} KiB"
        return text

    return attempt


# --- TIFF -------------------------------------------------------------------------------------------------------------


def tiff(tags=None, data=b"", following=0):
    """A TIFF of one directory, 64 x 64 bytes in one strip unless `tags` say otherwise: {number: (type, values)}."""
    content = data or bytes(64 * 64)
    every = {
        256: (LONG, [64]), 257: (LONG, [64]), 258: (SHORT, [8]), 259: (SHORT, [1]), 262: (SHORT, [1]),
        273: (LONG, [None]), 277: (SHORT, [1]), 278: (LONG, [64]), 279: (LONG, [len(content)]), **(tags or {}),
    }  # fmt: skip
    every = {number: every[number] for number in sorted(every) if every[number]}
    formats = {SHORT: "H", LONG: "I", DOUBLE: "d"}
    end = 8 + 2 + 12 * len(every) + 4
    packed = {}
    for number, (kind, values) in every.items():
        raw = b"".join(struct.pack(f"<{formats[kind]}", v or 0) for v in values)
        packed[number] = (kind, len(values), raw)
    start = end + sum(len(raw) for _, _, raw in packed.values() if len(raw) > 4)
    entries, more = b"", b""
    for number, (kind, count, raw) in packed.items():
        if kind == LONG and every[number][1] == [None]:
            raw = struct.pack("<I", start)
        place = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack("<I", end + len(more))
        more += raw if len(raw) > 4 else b""
        entries += struct.pack("<HHI", number, kind, count) + place
    first = struct.pack("<2sHIH", b"II", 42, 8, len(every))
    return first + entries + struct.pack("<I", following) + more + content


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
LAUGHS = "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))


def place(a=30.0, e=-30.0):
    """Tags of a georeference: a transform of any numbers, in EPSG:32643."""
    keys = [1, 1, 0, 2, 1024, 0, 1, 1, 3072, 0, 1, 32643]
    return {34264: (DOUBLE, [a, 0, 0, 600, 0, e, 0, 9000, 0, 0, 0, 0, 0, 0, 0, 1]), 34735: (SHORT, keys)}


def sparse(path, height, width):
    kind = {"driver": "GTiff", "count": 1, "dtype": "uint8", "SPARSE_OK": "TRUE"}
    rasterio.open(path, "w", height=height, width=width, **kind).close()


def bomb(size=500 * 2**20):
    """Zeros as zlib packs them: one packed block many times over, so that making them takes neither time nor room."""
    packer, piece = zlib.compressobj(), bytes(2**20)
    first, block = (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH) for _ in "ab")
    return first + block * (size // len(piece) - 1) + packer.flush()


PACKED = zlib.compress(bytes(4096))
IMAGES = {  # text or bytes of Band2/img001.tif, of what lies in the watched folder
    "a VRT of a raw file": lambda o: vrt(RAW.format(o.secret), 'subClass="VRTRawRasterBand"'),
    "a VRT of another file": vrt_of("{o.secret}"),
    "a VRT that runs Python": lambda o: vrt(PYTHON.format(o.code()), 'subClass="VRTDerivedRasterBand"'),
    "entities without end": lambda o: f'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">{LAUGHS}]><VRTDataset>&j;</VRTDataset>',
    "a strip beyond the end": lambda o: tiff({273: (LONG, [2**32 - 9])}),
    "2,000,000,000 strips": lambda o: tiff()[:-4096].replace(
        struct.pack("<HHI", 273, LONG, 1), struct.pack("<HHI", 273, LONG, 2_000_000_000)),
    "a block of 16 GB": lambda o: tiff({256: (LONG, [40_000]), 257: (LONG, [40_000]), 278: (LONG, [40_000]),
                                        258: (SHORT, [64]), 339: (SHORT, [3]), 259: (SHORT, [8])}, PACKED),
    "a strip that unpacks to more": lambda o: tiff({259: (SHORT, [8])}, bomb()),
    "a directory that follows itself": lambda o: tiff(following=8),
}  # fmt: skip
# What is harmless, and read or not by the reader of TIFF; the sentence may then be another one, about the mask's grid
HARMLESS = {"a directory that follows itself", "a strip that unpacks to more"}


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_tiff_is_refused_by_its_name(nothing_outside, read_all, name):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes, crs=None)
    content = IMAGES[name](nothing_outside)
    path = nothing_outside.folder / "Band2" / "img001.tif"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    text = read_all(TWO)
    assert "img001.tif" in text or name in HARMLESS, text


@pytest.mark.parametrize("pixel", [float("nan"), 0.0, 1e308])
def test_a_place_that_no_map_has_is_refused_by_the_scenes_name(nothing_outside, read_all, pixel):
    for folder in ("Band1", "Band2", "label"):
        (nothing_outside.folder / folder).mkdir()
        (nothing_outside.folder / folder / "img001.tif").write_bytes(tiff(place(a=pixel, e=-pixel)))
    assert "Band1/img001.tif has no place on the map" in read_all(TWO)


@pytest.mark.parametrize("height, width", [(200_000, 200_000), (8, 2_000_000)])
def test_a_file_of_no_bytes_and_many_pixels_is_refused_by_its_size(nothing_outside, read_all, height, width):
    for folder in ("Band1", "Band2", "label"):
        (nothing_outside.folder / folder).mkdir()
        sparse(nothing_outside.folder / folder / "img001.tif", height, width)
    assert f"img001.tif states {height:,} x {width:,} pixels" in read_all(TWO)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link(to):
    def make(path):
        path.unlink()
        path.symlink_to(to)

    return make


def folder(path):
    path.unlink()
    path.mkdir()


NO_FILES = {"a pipe": pipe, "a link to a device": link("/dev/zero"), "a link to itself": link("img001.tif"),
            "a folder": folder}  # fmt: skip


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_file_is_not_opened(nothing_outside, read_all, make):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes)
    make(nothing_outside.folder / "Band2" / "img001.tif")
    assert "Band2" in read_all(TWO)


@pytest.mark.parametrize("suffix", [".aux.xml", ".ovr"])
def test_files_beside_an_image_change_nothing(nothing_outside, read_all, suffix):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image, classes)
    beside = nothing_outside.folder / "Band2" / f"img001.tif{suffix}"
    if suffix == ".aux.xml":
        nodata = f"<NoDataValue>{image[1, 0, 0]:.9g}</NoDataValue>"
        beside.write_text(f"<PAMDataset><PAMRasterBand band='1'>{nodata}</PAMRasterBand></PAMDataset>")
    else:
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


def test_a_mask_of_extreme_numbers_is_refused_by_its_name(nothing_outside, read_all):
    image, classes = scene()
    write_bands(nothing_outside.folder, "img001", image.astype(np.float64) * 1e300, classes)
    assert "Band1/img001.tif holds no data at all" in read_all(TWO)
    write_bands(nothing_outside.folder, "img001", image, classes)
    write_tiff(nothing_outside.folder / "label" / "img001.tif", np.full((64, 64), -(2**63), np.int64))
    assert "label/img001.tif holds the value -9.22337e+18" in read_all(TWO)


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
    length = struct.pack("<H" if version == (1, 0) else "<I", len(head) if stated is None else stated)
    return b"\x93NUMPY" + bytes(version) + length + head + data


def head(shape, kind="<f4"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n"


ARRAYS = {  # bytes of slice_0_img_000.npy
    "a pickle": lambda o: pickle.dumps(Runs(o.ran)),
    "a header of 4 GB": lambda o: npy(b"{", version=(2, 0), stated=2**32 - 1),
    "a header that runs": lambda o: npy(f"{{'descr': open({str(o.ran)!r}, 'w'), 'shape': (1,)}}\n"),
    "a type that is a billion bytes": lambda o: npy(head((1, 1, 2), "<U1000000000"), bytes(64)),
    "a shape beyond the file": lambda o: npy(head((40_000, 40_000, 2)), bytes(8192)),
    "bytes that are cut off": lambda o: npy(head((32, 32, 2)), bytes(8000)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_hostile_patch_is_refused_by_its_name(nothing_outside, read_all, name):
    write_patches(nothing_outside.folder, sources=1, patches=1, bands=2)
    (nothing_outside.folder / "slice_0_img_000.npy").write_bytes(ARRAYS[name](nothing_outside))
    assert "slice_0_img_000.npy" in read_all(PATCHES)


def test_a_giant_that_takes_no_room_is_refused_by_its_size(nothing_outside, read_all):
    write_patches(nothing_outside.folder, sources=1, patches=1, bands=2)
    with (nothing_outside.folder / "slice_0_img_000.npy").open("wb") as file:
        file.write(npy(head((60_000, 60_000, 2), "|u1")))
        file.truncate(2 * 60_000**2 + 1000)
    assert "slice_0_img_000.npy states 60,000 x 60,000 pixels" in read_all(PATCHES)
