"""Records of what the cache holds: JSON that carries its own hash, with size and checksum of the files beside it.

CRC-32 guards against accidents and takes 0.4 s a GB, where sha256 takes 1.1 s (one core of a Xeon at 2.8 GHz).
"""

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lib.config import environment
from lib.errors import BadInput
from lib.machine import disk

_checksums: dict[tuple[Path, int, int, int, int], int] = {}  # by path and what changes with a file


class Damaged(Exception):
    """A file of the cache is not as it was written; the text says in a few words how."""


class Verified:
    """The records of a folder and the files that they describe; it says once that one is damaged, and what follows."""

    def __init__(self, folder: Path, remedy: str):
        self.folder, self.remedy, self._is_silent = folder, remedy, False

    def read(self, name: str, stamp: list[Any] | None = None) -> dict[str, Any] | None:
        """Returns a record whose files are whole; None where there is none with this `stamp`, or a damaged one."""
        try:
            record = None
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                content = json.loads((self.folder / name).read_bytes())
                record = content["record"] if _hash(content["record"]) == content["sha256"] else None
            if record is None:
                raise Damaged(f"{name} is not what was written")
            if stamp is not None and record["stamp"] != stamp:
                return None
            for file, (size, checksum) in record.get("files", {}).items():
                if not (path := self.folder / file).exists():
                    raise Damaged(f"{file} is missing")
                if (now := path.stat().st_size) != size:
                    raise Damaged(f"{file} has {now:,} of {size:,} bytes")
                if _checksum(path) != checksum:
                    raise Damaged(f"{file} has other bytes than were written")
            return record
        except FileNotFoundError:
            return None
        except (Damaged, OSError) as damage:
            if not self._is_silent:
                why = f"{name} cannot be read: {damage.strerror}" if isinstance(damage, OSError) else damage
                print(f"The cache {self.folder} is damaged ({why}): {self.remedy}.", flush=True)
            self._is_silent = True
            return None

    def write(self, name: str, content: dict[str, Any], files: Sequence[Path] = ()) -> dict[str, Any]:
        """Writes a record with size and checksum of some files of the folder, whole or not at all; returns it."""
        sizes = {str(path.relative_to(self.folder)): [path.stat().st_size, _checksum(path)] for path in files}
        record = {**content, "files": sizes}
        with disk.whole(self.folder / name, cache=True) as aside:
            aside.write_text(json.dumps({"sha256": _hash(record), "record": record}), "utf-8")
        return record


def _hash(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> int:
    """Reads a file whole, once a process unless it changes."""
    status = path.stat()
    key = path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if key not in _checksums:
        checksum = 0
        with path.open("rb") as file:
            while chunk := file.read(2**22):
                checksum = zlib.crc32(chunk, checksum)
        _checksums[key] = checksum
    return _checksums[key]


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises BadInput, which names the cache and its setting, where the block cannot write to it."""
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if error.filename else folder
        if not (named.is_relative_to(folder) or folder.is_relative_to(named)):  # a file of the data
            raise
        raise BadInput(
            f"The cache folder {folder} cannot be written to ({error.strerror or error}). Make room on its disk, or "
            f"name another folder in the environment variable {environment.CACHE}."
        ) from error
