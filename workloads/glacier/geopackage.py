"""Areas of a map as polygons in a GeoPackage, which QGIS, ArcGIS and geopandas open.

A GeoPackage is an SQLite file with some tables of its own (OGC 12-128r18), so Python's own sqlite3 writes it: no
package for vector data is needed.
"""

import contextlib
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lib.machine import disk
from workloads.glacier.data import rasters

_TABLES = """
PRAGMA application_id = 0x47504B47;
PRAGMA user_version = 10300;
CREATE TABLE gpkg_spatial_ref_sys (srs_name TEXT NOT NULL, srs_id INTEGER PRIMARY KEY, organization TEXT NOT NULL,
  organization_coordsys_id INTEGER NOT NULL, definition TEXT NOT NULL, description TEXT);
CREATE TABLE gpkg_contents (table_name TEXT NOT NULL PRIMARY KEY, data_type TEXT NOT NULL, identifier TEXT UNIQUE,
  description TEXT DEFAULT '', last_change DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')),
  min_x DOUBLE, min_y DOUBLE, max_x DOUBLE, max_y DOUBLE, srs_id INTEGER REFERENCES gpkg_spatial_ref_sys(srs_id));
CREATE TABLE gpkg_geometry_columns (table_name TEXT NOT NULL PRIMARY KEY REFERENCES gpkg_contents(table_name),
  column_name TEXT NOT NULL, geometry_type_name TEXT NOT NULL,
  srs_id INTEGER NOT NULL REFERENCES gpkg_spatial_ref_sys(srs_id), z TINYINT NOT NULL, m TINYINT NOT NULL);
CREATE TABLE areas (fid INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, geom POLYGON, code INTEGER, class TEXT,
  area DOUBLE);
"""
_UNKNOWN, _OWN = -1, 100_000  # numbers of no place on the map, and of a place that has no number of EPSG
_SYSTEMS = (
    ("Undefined Cartesian", _UNKNOWN, "NONE", -1, "undefined", None),
    ("Undefined geographic", 0, "NONE", 0, "undefined", None),
    ("WGS 84", 4326, "EPSG", 4326, 'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],'
     'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],AUTHORITY["EPSG","4326"]]', None),
)  # fmt: skip


def write(path: Path, codes: np.ndarray, names: Mapping[int, str], crs: str | None, transform: Any) -> int:
    """Writes the areas of (h, w) whose codes have names; returns how many there are. Whole or not at all.

    Pixels of one code that share an edge are one area, in the units of the CRS, or of pixels without one.
    """
    rasterio = rasters.import_rasterio()
    path.parent.mkdir(parents=True, exist_ok=True)
    transform = transform if crs else rasterio.Affine(1, 0, 0, 0, -1, 0)
    with disk.whole(path) as aside, contextlib.closing(sqlite3.connect(aside)) as file:
        file.executescript(_TABLES)
        file.executemany("INSERT INTO gpkg_spatial_ref_sys VALUES (?, ?, ?, ?, ?, ?)", _SYSTEMS)
        number = _add_system(file, crs)
        # the content's row goes first: the others refer to it
        file.execute("INSERT INTO gpkg_contents (table_name, data_type, identifier, srs_id) VALUES (?, ?, ?, ?)",
                     ("areas", "features", path.stem, number))  # fmt: skip
        file.execute("INSERT INTO gpkg_geometry_columns VALUES ('areas', 'geom', 'POLYGON', ?, 0, 0)", (number,))
        insert = "INSERT INTO areas (geom, code, class, area) VALUES (?, ?, ?, ?)"
        box, count = [np.inf, np.inf, -np.inf, -np.inf], 0
        for rings, code in _areas(codes, names, transform):
            low, high = rings[0].min(0), rings[0].max(0)
            box = [*np.minimum(box[:2], low).tolist(), *np.maximum(box[2:], high).tolist()]
            file.execute(insert, (_geometry(rings, number, low, high), code, names[code], _area(rings)))
            count += 1
        if count:
            file.execute("UPDATE gpkg_contents SET min_x = ?, min_y = ?, max_x = ?, max_y = ?", box)
        file.commit()
    return count


def _add_system(file: sqlite3.Connection, crs: str | None) -> int:
    """Adds a coordinate system unless it is there; returns its number."""
    if not crs:
        return _UNKNOWN
    known = rasters.import_rasterio().crs.CRS.from_string(crs)
    code = known.to_epsg()
    number, organisation = (code, "EPSG") if code else (_OWN, "NONE")
    row = (crs[:100], number, organisation, number, known.to_wkt(), None)
    file.execute("INSERT OR IGNORE INTO gpkg_spatial_ref_sys VALUES (?, ?, ?, ?, ?, ?)", row)
    return number


def _areas(codes: np.ndarray, names: Mapping[int, str], transform: Any) -> Iterator[tuple[list[np.ndarray], int]]:
    """Yields the rings of each area, the outer one first, as (points, 2), and its code."""
    from rasterio import features

    wide = codes if codes.dtype in (np.uint8, np.uint16, np.int16, np.int32) else codes.astype(np.int32)
    for shape, code in features.shapes(wide, np.isin(codes, list(names)), transform=transform):
        yield [np.asarray(ring, "<f8") for ring in shape["coordinates"]], int(code)


def _geometry(rings: list[np.ndarray], system: int, low: np.ndarray, high: np.ndarray) -> bytes:
    """Returns a polygon as GeoPackage has it: a header with its box, and well-known binary."""
    header = struct.pack("<2sBBi4d", b"GP", 0, 0b011, system, low[0], high[0], low[1], high[1])
    content = b"".join(struct.pack("<I", len(ring)) + ring.tobytes() for ring in rings)
    return header + struct.pack("<BII", 1, 3, len(rings)) + content


def _area(rings: list[np.ndarray]) -> float:
    """Returns the area of a polygon, without its holes."""
    sizes = [
        abs(float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]))) / 2 for x, y in (ring.T - ring[:1].T for ring in rings)
    ]
    return sizes[0] - sum(sizes[1:])
