"""Digests the files of a finished run that another run of the same configuration must repeat."""

import csv
import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.conftest import VOLATILE_COLUMNS
from trainbook.outputs.packing import ARCHIVE

VOLATILE_KEYS = {"session", "steps_per_second", "peak_memory_bytes"}  # of summary.json
End = dict[str, str]  # by the name of a file: its digest, or why there is none


def end(output_dir: Path) -> End:
    """Returns what lies in an output folder, checkpoints and members of the archive included."""
    found = {ARCHIVE: "is missing"}
    for path in sorted(path for path in output_dir.rglob("*") if path.is_file()):
        name = path.relative_to(output_dir).as_posix()
        if name == ARCHIVE:
            found |= {ARCHIVE: "is there", **_members(path)}
        else:
            found[name] = _digest(name, path.read_bytes())
    return found


def difference(one: End, other: End) -> list[str]:
    """Names the files that only one of two ends has, or that differ."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _members(archive: Path) -> End:
    try:
        with tarfile.open(archive) as packed:
            entries = [entry for entry in packed if entry.isfile()]
            return {
                f"{ARCHIVE}/{e.name}": _digest(e.name, packed.extractfile(e).read())
                for e in entries
            }
    except (tarfile.TarError, OSError, EOFError) as error:
        return {ARCHIVE: f"cannot be read: {error}"}


def _digest(name: str, content: bytes) -> str:
    """Hashes a file without what no second run repeats: speeds, times, memory. A plot need only be there."""
    try:
        if name.endswith("/metrics.csv"):
            content = _table(content)
        elif name.endswith("/summary.json"):
            values = json.loads(content)
            content = json.dumps(
                {key: value for key, value in values.items() if key not in VOLATILE_KEYS}
            ).encode()
    except (ValueError, AttributeError, csv.Error):  # torn: hashed as it is
        pass
    return hashlib.sha256(content[:4] if "/plots/" in name else content).hexdigest()[:16]


def _table(content: bytes) -> bytes:
    """Returns a table without its volatile columns. Raises ValueError or csv.Error."""
    header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    columns = [place for place, name in enumerate(header) if name not in VOLATILE_COLUMNS]
    cells = [
        [row[i] for i in columns] if len(row) == len(header) else row for row in (header, *rows)
    ]
    return json.dumps([cells, content.endswith(b"\n")]).encode()
