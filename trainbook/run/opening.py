"""Tells whether a file is a whole checkpoint. Nothing is unpickled: only frames and directories are read."""

import json
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = frozenset(
    (
        ".bin", ".ckpt", ".h5", ".joblib", ".keras", ".msgpack", ".pickle", ".pkl", ".pt", ".pth",
        ".safetensors",
    )
)  # fmt: skip
_LEAST = 9  # bytes of a checkpoint of an unknown form: less is the beginning of one
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_END = {0: 40, 1: 44, 2: 28, 3: 28}  # offset of the end-of-file address by superblock version
_MOST_TEXT = 2**24  # bytes that are searched for names
_MOST_HEADER = 100 * 2**20  # bytes of a header of safetensors, the format's own limit


def is_checkpoint_file(path: Path) -> bool:
    """Returns whether a file is a checkpoint by its name or its first bytes, whole or torn."""
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == _ZIP
    except OSError:
        return False


def opens(path: Path, whole: bool = False) -> bool:
    """Returns whether a checkpoint file is complete: zip, safetensors, pickle or HDF5, by the frame of its format.

    JSON is parsed. With `whole` the check sums of a zip are computed too, which reads all of it. Any other file
    must not be empty.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(9)
        if head.startswith(_ZIP):
            return _zip_opens(path, whole)
        if head.startswith(_HDF5):
            return _hdf5_opens(path, size)
        if path.suffix.lower() == ".safetensors" or head[8:] == b"{":
            return _safetensors_opens(path, size)
        if head.startswith(_PICKLE):
            return _pickle_opens(path)
        if path.suffix.lower() == ".json":
            return _json_opens(path, size)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return size >= _LEAST if path.suffix.lower() in SUFFIXES else size > 0


def _zip_opens(path: Path, whole: bool) -> bool:
    with zipfile.ZipFile(path) as archive:
        return not whole or archive.testzip() is None


def _safetensors_opens(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, _MOST_HEADER):
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends, default=0)


def _pickle_opens(path: Path) -> bool:
    """Returns whether the first pickle reaches its STOP. Old files of torch have raw bytes behind it."""
    with path.open("rb") as file:
        last = None
        for opcode, _, _ in pickletools.genops(file):
            last = opcode.name
    return last == "STOP"


def _json_opens(path: Path, size: int) -> bool:
    """Returns whether JSON does not break off. Comments, or an object a line, are a person's own matter."""
    if size > _MOST_TEXT:
        return True
    text = path.read_text("utf-8", errors="replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos < len(text) and not error.msg.startswith("Unterminated")
    return True


def _hdf5_opens(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        start = file.read(64)
    offset = _HDF5_END[start[8]]
    return size >= int.from_bytes(start[offset : offset + 8], "little")


def named_in(path: Path, names: Iterable[str]) -> set[str]:
    """Returns which names a checkpoint file, or a JSON file beside it, holds as the end of a path.

    So Trainer and Lightning note their best checkpoint. The frame of a pickle is searched as bytes.
    """
    text = _text_of(path)
    return {
        name
        for name in names
        if re.search(rb"[/\\\\]" + re.escape(name.encode()) + rb"(?!\d)", text)
    }


def _text_of(path: Path) -> bytes:
    try:
        if path.suffix.lower() == ".json":
            return path.read_bytes() if path.stat().st_size <= _MOST_TEXT else b""
        if not zipfile.is_zipfile(path):
            return b""
        with zipfile.ZipFile(path) as archive:
            frames = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            return b"".join(archive.read(i) for i in frames if i.file_size <= _MOST_TEXT)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error):
        return b""
