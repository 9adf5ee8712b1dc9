"""The archive of all runs without their checkpoints, and what lies in the output folder."""

import contextlib
import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from lib.config.files import DATA, DATA_BYTES, size_of
from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.machine.platform import Platform
from lib.text import amount

ARCHIVE = "outputs.tar.gz"
# Checkpoints, half-written or half-deleted files of a killed run, and Python's caches of a task's files
_LEFT_OUT = re.compile(r"(^|/)(checkpoints|__pycache__|[^/]*\.(tmp|del|old))(/|$)")
TRACKING = "tracking"  # what trackers write in a run's folder
_SHOWN = 40  # rows of the table
_MOST_AT_ONCE = 2**22  # of a header; tarfile would take any length into memory
_ALWAYS_BYTES = 2**26  # may be unpacked of however small an archive


class TooMuch(Exception):
    """An archive is too large; the message names the folder."""


class _Bounded(io.RawIOBase):
    """A stream of unpacked bytes that ends with TooMuch instead of growing without end."""

    def __init__(self, stream: io.IOBase, most: int):
        self.stream = stream
        self.most = most
        self.tell = stream.tell  # type: ignore[method-assign]

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        if not 0 <= size <= _MOST_AT_ONCE:
            raise TooMuch(f"it has a header of {size:,} bytes")
        self.seek(self.stream.tell())
        return self.stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset > self.most:
            raise TooMuch(f"unpacked it has more than {amount(self.most)}")
        return self.stream.seek(offset, whence)


def package(output_dir: Path) -> Path:
    """Packs all runs, without checkpoints, into outputs.tar.gz; the same content gives the same bytes."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = 0
        entry.uid = 0
        entry.gid = 0
        entry.uname = ""
        entry.gname = ""
        entry.mode = 0o644
        return entry

    final = output_dir / ARCHIVE
    names = {path.relative_to(output_dir).as_posix(): path for path in packed_files(output_dir)}
    with disk.whole(final) as aside, aside.open("wb") as raw:
        # Level 1: weights hardly shrink at any level, and level 9 takes ten times as long.
        zipped = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=1, filename="")
        with zipped, tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, path in sorted(names.items()):
                # Another run beside this one may just have deleted it
                with contextlib.suppress(FileNotFoundError):
                    archive.add(path, name, filter=anonymous)
    return final


def is_current(output_dir: Path) -> bool:
    archive = output_dir / ARCHIVE
    if not archive.is_file():
        return False
    packed_at = archive.stat().st_mtime
    return all(path.stat().st_mtime <= packed_at for path in packed_files(output_dir))


def packed_files(output_dir: Path) -> list[Path]:
    """Lists the files that `package` packs: all files of runs, except checkpoints, links and too much data."""
    packed = []
    for run in sorted(config.parent for config in output_dir.glob("*/config.yaml")):
        data_bytes, _ = disk.held(run / DATA)
        for path in sorted(run.rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            is_much_data = data_bytes > DATA_BYTES and run / DATA in path.parents
            if not is_much_data and not _LEFT_OUT.search(path.relative_to(run).as_posix()):
                packed.append(path)
    return packed


@contextlib.contextmanager
def opened(archive: Path, most: int = 2**36, ratio: int = 1100) -> Iterator[tarfile.TarFile]:
    """Yields an archive, which is read to its end afterwards: use nothing of it before. Raises BadInput."""
    try:
        most = min(most, max(_ALWAYS_BYTES, ratio * size_of(archive)))  # gzip reaches 1,032 times
        with archive.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = _Bounded(gzip.GzipFile(fileobj=raw) if is_gzip else raw, most)
            with tarfile.open(fileobj=stream, mode="r:") as packed:  # type: ignore[call-overload]
                yield packed
                # tarfile ends at a header that it cannot read; gzip's checksum is behind
                while stream.read(2**20):
                    pass
    except BadInput:
        raise
    except TooMuch as error:
        raise BadInput(
            f"{printable(archive)} is not unpacked: {error}. No archive of runs is like that."
        ) from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or error, most=200)
        raise BadInput(
            f"{printable(archive)} cannot be unpacked ({why}). Download it again."
        ) from None


def table(output_dir: Path, here: Platform | None = None) -> str:
    """Returns a line a file with sizes, then the platform's limits and how to download the archive."""
    here = here or platform.detect()
    archive = output_dir / ARCHIVE
    lines = [_line(size, name) for size, name in _sizes(output_dir)]
    for folder in sorted(output_dir.glob("*/checkpoints")):
        size, _ = disk.held(folder)
        run = folder.parent.name
        lines.append(_line(size, f"{run}/checkpoints/ (for resuming; not in the archive)"))
    if archive.is_file():
        about = f"{ARCHIVE} (all of the above but checkpoints)"
        lines.append(_line(archive.stat().st_size, about))
    return "\n".join([*lines, _total(output_dir, here), _way(archive, here)])


def _line(size: int, name: str) -> str:
    return f"{amount(size):>10}  {name}"


def _sizes(output_dir: Path) -> list[tuple[int, str]]:
    """Returns the sizes and names of the largest packed files, and the sum of the others."""
    files = []
    for path in packed_files(output_dir):
        files.append((path.stat().st_size, path.relative_to(output_dir).as_posix()))
    files.sort(reverse=True)
    smaller = files[_SHOWN:]
    if not smaller:
        return files
    size = sum(size for size, _ in smaller)
    return [*files[:_SHOWN], (size, f"in {len(smaller):,} smaller files")]


def _total(output_dir: Path, here: Platform) -> str:
    """Returns a line on all files, beside the limits of the platform."""
    size, number = disk.held(output_dir)
    total = _line(size, f"in {number:,} files")
    if not here.output_bytes:
        return f"{total}."
    total += f", of {here.output_bytes / 1e9:g} GB"
    most = here.output_files or number
    if here.output_files:
        total += f" and {most:,} files"
    if size > here.output_bytes or number > most:
        total += ": TOO MUCH, some of it may not be kept. Lower checkpoint.keep_last, or delete what is not needed"
    return f"{total}."


def _way(archive: Path, here: Platform) -> str:
    """Returns how the archive gets from this platform to a person's machine."""
    if here.download_advice:
        return here.download_advice.format(archive=archive, name=ARCHIVE)
    return f"It is at {archive.resolve()}"
