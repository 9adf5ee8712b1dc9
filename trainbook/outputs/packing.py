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
# Checkpoints, what a killed run left half written or half deleted, and what Python makes of a task's files
_LEFT_OUT = re.compile(r"(^|/)(checkpoints|__pycache__|[^/]*\.(tmp|del|old))(/|$)")
TRACKING = "tracking"  # what trackers write in a run's folder
_SHOWN = 40  # rows of the table
_MOST_AT_ONCE = 2**22  # of a header; tarfile would take any length into memory
_ALWAYS_BYTES = 2**26  # may be unpacked of however small an archive


class TooMuch(Exception):
    """An archive is larger than it may be; the message says in what."""


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
    with (
        disk.whole(final) as aside,
        aside.open("wb") as raw,
        # Level 1: weights hardly shrink at any level, and level 9 takes ten times as long.
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=1, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(
            packed_files(output_dir), key=lambda path: path.relative_to(output_dir).as_posix()
        ):
            with contextlib.suppress(
                FileNotFoundError
            ):  # another run beside this one has just deleted it
                archive.add(path, path.relative_to(output_dir).as_posix(), filter=anonymous)
    return final


def is_current(output_dir: Path) -> bool:
    archive = output_dir / ARCHIVE
    packed = packed_files(output_dir)
    return archive.is_file() and all(
        path.stat().st_mtime <= archive.stat().st_mtime for path in packed
    )


def packed_files(output_dir: Path) -> list[Path]:
    """Lists the files that `package` packs: those of runs, except checkpoints, links and too much data."""
    packed = []
    for run in sorted(config.parent for config in output_dir.glob("*/config.yaml")):
        if disk.held(run / DATA)[0] > DATA_BYTES:
            left_out = run / DATA
        else:
            left_out = None
        for path in sorted(run.rglob("*")):
            is_left_out = (
                _LEFT_OUT.search(path.relative_to(run).as_posix()) or left_out in path.parents
            )
            if path.is_file() and not path.is_symlink() and not is_left_out:
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
                while stream.read(
                    2**20
                ):  # tarfile ends at a header that it cannot read; gzip's checksum is behind
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
    files = [
        (path.stat().st_size, path.relative_to(output_dir).as_posix())
        for path in packed_files(output_dir)
    ]
    shown = sorted(files, reverse=True)[:_SHOWN]
    if (left := len(files) - _SHOWN) > 0:
        shown.append(
            (
                sum(size for size, _ in files) - sum(size for size, _ in shown),
                f"in {left:,} smaller files",
            )
        )
    for folder in sorted(output_dir.glob("*/checkpoints")):
        shown.append(
            (
                disk.held(folder)[0],
                f"{folder.parent.name}/checkpoints/ (for resuming; not in the archive)",
            )
        )
    if (archive := output_dir / ARCHIVE).is_file():
        shown.append((archive.stat().st_size, f"{ARCHIVE} (all of the above but checkpoints)"))
    lines = [f"{amount(size):>10}  {name}" for size, name in shown]
    size, number = disk.held(output_dir)
    total = f"{amount(size):>10}  in {number:,} files"
    if here.output_bytes:
        total += f", of {here.output_bytes / 1e9:g} GB"
        total += f" and {here.output_files:,} files" if here.output_files else ""
        if size > here.output_bytes or number > (here.output_files or number):
            total += ": TOO MUCH, some of it may not be kept. Lower checkpoint.keep_last, or delete what is not needed"
    way = f"It is at {archive.resolve()}"
    if here.download_advice:
        way = here.download_advice.format(archive=archive, name=ARCHIVE)
    return "\n".join([*lines, f"{total}.", way])
