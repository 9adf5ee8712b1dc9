"""The archive of all runs without their checkpoints, and what lies in the output folder."""

import contextlib
import gzip
import io
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from lib.config.files import size_of
from lib.errors import BadInput, printable
from lib.machine import disk, platform
from lib.machine.platform import Platform
from lib.text import amount

ARCHIVE = "outputs.tar.gz"
# Checkpoints, what a killed run left half written or half deleted, and what Python makes of a task's files
_LEFT_OUT = re.compile(r"(^|/)(checkpoints|__pycache__|[^/]*\.(tmp|del|old))(/|$)")
DATA = "data"  # what a task keeps of its data in a run's folder
DATA_BYTES = 2**28  # of that, which the archive takes at most
_LOOSE = {"checkpoints", "best", "plots", "code", "named", DATA}
_MANY = 50  # files of a folder above which it is bundled
_SHOWN = 40  # rows of the table
_SMALL = 2**20  # bytes up to which a file is compared with what an archive holds
_MOST_AT_ONCE = 2**22  # of a header; tarfile would take any length into memory
_ALWAYS_BYTES = 2**26  # may be unpacked of however small an archive
_GZIP = b"\x1f\x8b"


class TooMuch(Exception):
    """An archive is larger than it may be; the message says in what."""


class _Bounded(io.RawIOBase):
    """A stream of unpacked bytes that ends with TooMuch instead of growing without end."""

    def __init__(self, stream: io.IOBase, most: int):
        self.stream, self.most = stream, most

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        if not 0 <= size <= _MOST_AT_ONCE:
            raise TooMuch(f"it has a header of {size:,} bytes")
        content = self.stream.read(size)
        self._check(self.stream.tell())
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check(offset)
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def _check(self, position: int) -> None:
        if position > self.most:
            raise TooMuch(f"unpacked it has more than {amount(self.most)}")


def package(output_dir: Path) -> Path:
    """Packs every run of `output_dir` into outputs.tar.gz: weights of the best, tables, plots; no checkpoints.

    The same content gives the same bytes: entries are sorted and carry no times or owners.
    """
    final = output_dir / ARCHIVE
    _write_archive(final, {path.relative_to(output_dir).as_posix(): path for path in packed_files(output_dir)})
    return final


def _write_archive(final: Path, entries: Mapping[str, Path]) -> None:
    with (
        disk.whole(final) as aside,
        aside.open("wb") as raw,
        # Level 1: weights hardly shrink at any level, and level 9 takes ten times as long.
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=1, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(entries.items()):
            with contextlib.suppress(FileNotFoundError):  # another run beside this one has just deleted it
                archive.add(path, arcname=name, filter=_anonymous)


@contextlib.contextmanager
def opened(archive: Path, most: int = 2**36, ratio: int = 1100) -> Iterator[tarfile.TarFile]:
    """Yields an archive, and reads it to its end afterwards: use nothing of it before the block has ended.

    Raises BadInput for a damaged archive, and for one that unpacks to more than `most` bytes or `ratio` times its size
    (gzip reaches 1,032 times).
    """
    try:
        most = min(most, max(_ALWAYS_BYTES, ratio * size_of(archive)))
        with archive.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP
            raw.seek(0)
            stream = _Bounded(gzip.GzipFile(fileobj=raw) if is_gzip else raw, most)
            with tarfile.open(fileobj=stream, mode="r:") as packed:  # type: ignore[call-overload]
                yield packed
                while stream.read(_SMALL):  # tarfile ends at a header that it cannot read; gzip's checksum is behind
                    pass
    except BadInput:
        raise
    except TooMuch as error:
        raise BadInput(f"{printable(archive)} is not unpacked: {error}. No archive of runs is like that.") from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or error, most=200)
        raise BadInput(f"{printable(archive)} cannot be unpacked ({why}). Download it again.") from None


def holds(archive: Path, run: Path) -> bool:
    """Returns whether an archive is whole and has a run's files as they are now; large ones are compared by size."""
    wanted = {path.relative_to(run.parent).as_posix(): path for path in _files(run)}
    try:
        with opened(archive) as packed:
            for entry in packed:
                if not entry.name.startswith(f"{run.name}/"):
                    continue
                path = wanted.pop(entry.name, None)
                if path is None or entry.size != path.stat().st_size:
                    return False
                if entry.size <= _SMALL and packed.extractfile(entry).read() != path.read_bytes():
                    return False
    except BadInput:
        return False
    return not wanted


def packed_files(output_dir: Path) -> list[Path]:
    """Lists the files that `package` packs: those of runs, except checkpoints."""
    return [path for config in sorted(output_dir.glob("*/config.yaml")) for path in _files(config.parent)]


def _files(run: Path) -> list[Path]:
    left_out = run / DATA if disk.held(run / DATA)[0] > DATA_BYTES else None
    found = (path for path in _below(run) if not _LEFT_OUT.search(path.relative_to(run).as_posix()))
    return [path for path in found if left_out not in path.parents]


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, 0, "", "", 0o644
    return entry


def bundle(output_dir: Path, here: Platform) -> None:
    """Packs folders of many small files into FOLDER.tar.gz, if the platform takes fewer files than there are."""
    if here.output_files is None or disk.held(output_dir)[1] <= here.output_files:
        return
    for config in sorted(output_dir.glob("*/config.yaml")):
        for folder in sorted(path for path in config.parent.iterdir() if path.is_dir() and path.name not in _LOOSE):
            if (number := disk.held(folder)[1]) > _MANY:
                _pack_folder(folder)
                limit = f"{here.name} takes {here.output_files} files in all"
                print(f"{folder} was packed into {folder.name}.tar.gz: it had {number:,} files, and {limit}.")


def _pack_folder(folder: Path) -> None:
    """Replaces FOLDER by FOLDER.tar.gz; what an earlier archive has and the folder lacks stays in it."""
    final = folder.with_name(folder.name + ".tar.gz")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="bundle-", suffix=".tmp") as earlier:
        if final.is_file():
            with opened(final) as packed:
                packed.extractall(earlier, filter="data")
        bases = (Path(earlier) / folder.name, folder)
        entries = {path.relative_to(base.parent).as_posix(): path for base in bases for path in _below(base)}
        _write_archive(final, entries)
    shutil.rmtree(folder)


def _below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def table(output_dir: Path, here: Platform | None = None) -> str:
    """Returns a line a file with sizes, then the platform's limits and how to download the archive."""
    here = here or platform.detect()
    shown = [(path.relative_to(output_dir).as_posix(), path.stat().st_size) for path in packed_files(output_dir)]
    if len(shown) > _SHOWN:
        shown.sort(key=lambda row: -row[1])
        rest = [size for _, size in shown[_SHOWN:]]
        shown[_SHOWN:] = [(f"and {len(rest):,} smaller files", sum(rest))]
    for folder in sorted(output_dir.glob("*/checkpoints")):
        name = folder.relative_to(output_dir).as_posix()
        shown.append((f"{name}/ (for resuming; not in the archive)", disk.held(folder)[0]))
    if (archive := output_dir / ARCHIVE).is_file():
        shown.append((f"{ARCHIVE} (all of the above but checkpoints)", archive.stat().st_size))
    lines = [f"{amount(size):>10}  {name}" for name, size in shown]
    size, number = disk.held(output_dir)
    total = f"{amount(size):>10}  in {number:,} files"
    if here.output_bytes:
        total += f", of {here.output_bytes / 1e9:g} GB"
        total += f" and {here.output_files:,} files" if here.output_files else ""
        if size > here.output_bytes or number > (here.output_files or number):
            total += ": TOO MUCH, some of it may not be kept. Lower checkpoint.keep_last, or delete what is not needed"
    return "\n".join([*lines, f"{total}.", _download(archive, here)])


def _download(archive: Path, here: Platform) -> str:
    """Returns how to download the archive from this platform."""
    if here.name == "kaggle" and here.batch:
        return f"Download: the Output tab of this version, {archive.name}; or trainbook kaggle fetch OWNER/NOTEBOOK"
    if here.name == "kaggle":
        return f"Download: Save Version first, or this is lost with the session; then its Output tab, {archive.name}."
    if here.name == "colab" and here.input_dir is None:
        return f"Download: from google.colab import files; files.download('{archive}'), or it is lost with the session."
    return f"It is at {archive.resolve()}"
