"""Polygons are a GeoPackage that other programs read: its tables, its geometries, its classes and areas."""

import sqlite3
import struct

import numpy as np
import pytest
import rasterio

from workloads.glacier import geopackage

NAMES = {85: "glacier", 255: "lake"}
PLACE = rasterio.Affine(30, 0, 600, 0, -30, 9000)


def rings(blob):
    """The header's box and the rings of a geometry."""
    magic, _, flags, system, *box = struct.unpack_from("<2sBBi4d", blob)
    assert magic == b"GP" and flags == 3
    order, kind, count = struct.unpack_from("<BII", blob, 40)
    assert (order, kind) == (1, 3)
    at, found = 49, []
    for _ in range(count):
        (points,) = struct.unpack_from("<I", blob, at)
        found.append(np.frombuffer(blob, "<f8", 2 * points, at + 4).reshape(-1, 2))
        at += 4 + 16 * points
    assert at == len(blob)
    return system, box, found


@pytest.fixture
def codes():
    """A lake of two pixels in a glacier of 6 x 6 with a hole of one pixel, beside ground and no data."""
    mask = np.zeros((10, 12), np.uint8)
    mask[2:8, 3:9] = 85
    mask[3, 4:6] = 255
    mask[6, 6] = 0
    mask[:, 11] = 254
    return mask


def test_areas_have_their_class_their_size_and_their_holes_on_the_map(tmp_path, codes):
    assert geopackage.write(tmp_path / "a.gpkg", codes, NAMES, "EPSG:32643", PLACE) == 2
    file = sqlite3.connect(tmp_path / "a.gpkg")
    assert file.execute("PRAGMA application_id").fetchone() == (0x47504B47,)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = file.execute("SELECT class, code, area, geom FROM areas ORDER BY code").fetchall()
    assert [row[:3] for row in rows] == [("glacier", 85, 33 * 900.0), ("lake", 255, 2 * 900.0)]
    system, box, found = rings(rows[0][3])
    assert system == 32643 and len(found) == 3, "an outer ring, a lake and a hole"
    assert box == [600 + 3 * 30, 600 + 9 * 30, 9000 - 8 * 30, 9000 - 2 * 30]
    assert (found[0][0] == found[0][-1]).all()
    srs = dict(file.execute("SELECT srs_id, definition FROM gpkg_spatial_ref_sys"))
    assert srs.keys() == {-1, 0, 4326, 32643} and "43N" in srs[32643]
    assert file.execute("SELECT min_x, min_y, max_x, max_y, srs_id FROM gpkg_contents").fetchone() == (
        690, 8760, 870, 8940, 32643,
    )  # fmt: skip


def test_without_a_place_on_the_map_areas_are_in_pixels(tmp_path, codes):
    geopackage.write(tmp_path / "a.gpkg", codes, {255: "lake"}, None, None)
    file = sqlite3.connect(tmp_path / "a.gpkg")
    assert file.execute("SELECT area FROM areas").fetchall() == [(2.0,)]
    assert file.execute("SELECT srs_id FROM gpkg_geometry_columns").fetchone() == (-1,)


def test_a_map_of_the_first_class_alone_has_no_areas_and_is_still_a_geopackage(tmp_path):
    assert geopackage.write(tmp_path / "a.gpkg", np.zeros((4, 4), np.int32), NAMES, "EPSG:32643", PLACE) == 0
    file = sqlite3.connect(tmp_path / "a.gpkg")
    assert file.execute("SELECT count(*), min(min_x) FROM gpkg_contents").fetchone() == (1, None)


def test_pyogrio_reads_it(tmp_path, codes):
    pyogrio = pytest.importorskip("pyogrio")
    geopackage.write(tmp_path / "a.gpkg", codes, NAMES, "EPSG:32643", PLACE)
    info = pyogrio.read_info(tmp_path / "a.gpkg")
    assert (info["crs"], info["features"], info["geometry_type"]) == ("EPSG:32643", 2, "Polygon")
