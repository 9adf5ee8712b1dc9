"""What a run leaves behind: summary.json, and one archive of all runs without their checkpoints."""

import gzip
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARCHIVE = "outputs.tar.gz"
SUMMARY = "summary.json"
_MIB = 2**20


def write_summary(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Writes `summary.json` whole or not at all."""
    path = folder / SUMMARY
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(summary, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    aside.replace(path)
    return path


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of an earlier session, if there is one; a loss of power may have left an empty file."""
    try:
        return json.loads((folder / SUMMARY).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def package(output_dir: Path) -> Path:
    """Packs every run of `output_dir` into outputs.tar.gz: weights of the best, tables, plots; no checkpoints.

    The same content gives the same bytes: entries are sorted and carry no times or owners.
    """
    final = output_dir / ARCHIVE
    aside = final.with_name(final.name + ".tmp")
    with (
        aside.open("wb") as raw,
        # Level 1: weights hardly shrink at any level, and level 9 takes ten times as long.
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=1, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in packed_files(output_dir):
            archive.add(path, arcname=path.relative_to(output_dir).as_posix(), filter=_anonymous)
    aside.replace(final)
    return final


def packed_files(output_dir: Path) -> list[Path]:
    """The files that `package` packs: those of folders with a resolved configuration, except checkpoints."""
    runs = sorted(p.parent for p in output_dir.glob("*/config.yaml"))
    files = [path for run in runs for path in sorted(run.rglob("*")) if path.is_file()]
    return [path for path in files if not _left_out(path.relative_to(output_dir).parts[1:])]


def _left_out(parts: tuple[str, ...]) -> bool:
    """Checkpoints, and what a killed run left half written or half deleted."""
    return any(part == "checkpoints" or part.endswith((".tmp", ".del", ".old")) for part in parts)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, 0, "", "", 0o644
    return entry


def table(output_dir: Path) -> str:
    """What lies in `output_dir`, a line a file, with sizes; checkpoints are summed up."""
    rows = [(path.relative_to(output_dir).as_posix(), path.stat().st_size) for path in packed_files(output_dir)]
    for folder in sorted(output_dir.glob("*/checkpoints")):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        rows.append((f"{folder.relative_to(output_dir).as_posix()}/ (for resuming; not in the archive)", size))
    if (output_dir / ARCHIVE).is_file():
        rows.append((ARCHIVE, (output_dir / ARCHIVE).stat().st_size))
    return "\n".join(f"{_size(size):>10}  {name}" for name, size in rows)


def _size(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB" if count >= _MIB else f"{count / 1024:,.1f} KiB"
