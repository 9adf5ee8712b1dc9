"""Lists files as Kaggle unpacks them: `x.csv.gz` to `x.csv`, `more.zip` to a folder `more`."""

import contextlib
import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

_CHUNK = 2**20  # bytes that are read at once


class Content(NamedTuple):
    """A file, or one in an archive: its name when unpacked, its size, and a function that opens it."""

    name: str
    size: int
    open: Callable[[], Any]  # IO[bytes], by `with`


def contents(path: Path, name: str) -> Iterator[Content]:
    """Yields a file under `name`, or the files in it if it is an archive that can be read."""
    suffix = path.suffix.lower()
    with contextlib.suppress(OSError, EOFError, zlib.error, zipfile.BadZipFile):
        if suffix == ".gz" and not name.lower().endswith(".tar.gz"):
            stem = name[: -len(suffix)]
            yield Content(stem, _gzip_size(path), partial(gzip.open, path))
            return
        if suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
            base = name[: -len(suffix)]
            for member in members:
                opener = partial(_member, path, member.filename)
                yield Content(f"{base}/{member.filename}", member.file_size, opener)
            return
    yield Content(name, path.stat().st_size, partial(path.open, "rb"))


def _gzip_size(path: Path) -> int:
    with gzip.open(path) as file:
        return sum(map(len, iter(partial(file.read, _CHUNK), b"")))


@contextlib.contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        yield file
