"""Arrays in an .npz without compression, each aligned so that it can be mapped."""

import math
import struct
import zipfile

import numpy as np

_ALIGNMENT = 64  # bytes; where an array begins in the file


def padding(begin: int) -> bytes:
    """Returns an extra field of a zip member, of such a length that data behind it is aligned."""
    size = -(begin + 4) % _ALIGNMENT
    return struct.pack("<HH", 0xD935, size) + bytes(size)  # the number that Android's zipalign uses for this


def mapped(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Returns an uncompressed array of an .npz, mapped. Raises ValueError where it is none of plain numbers."""
    member = archive.getinfo(name)
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(content)
        header = content.tell()
    size = header + math.prod(shape) * dtype.itemsize
    if dtype.hasobject or member.compress_type != zipfile.ZIP_STORED or member.file_size != size:
        raise ValueError(
            f"{name} is no array of plain numbers"
        )  # mapped objects would be addresses of anybody's choice
    if not math.prod(shape):
        return np.empty(shape, dtype)  # an empty stretch cannot be mapped
    file = archive.fp
    assert file and archive.filename
    file.seek(member.header_offset + 26)
    begin = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + header
    return np.asarray(np.memmap(archive.filename, dtype, "r", begin, shape))  # slices of a memmap itself are slow
