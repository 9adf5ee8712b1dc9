"""A hash of data by which it is recognised: of files, or of what a task makes without any."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lib.errors import BadInput

_CHUNK = 2**20  # bytes that are read at once


def fingerprint(source: Path) -> str:
    """Returns a hash of the names and bytes of all files in a folder and below it, or of one file."""
    digest = hashlib.sha256()
    files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
    named = {path.relative_to(source).as_posix() if path != source else "": path for path in files}
    for name in sorted(named):
        digest.update(f"{name}\n{named[name].stat().st_size}\n".encode("utf-8", "surrogateescape"))
        with named[name].open("rb") as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    return digest.hexdigest()


def canonical(value: Any, root: Path | None = None) -> str:
    """Writes a value as text that is the same on every machine: paths count from `root`. Raises BadInput."""
    bases = _forms(str(root), os.getcwd()) if root and isinstance(value, str | Path) else ()  # noqa: PTH109  # quicker
    if isinstance(value, Path):  # counted from `root` also where one of them is relative or leads over a link
        forms = (form(value) for form in (Path, Path.absolute, Path.resolve))  # the last one asks the file system
        below = (form.relative_to(base) for form in forms for base in bases if form.is_relative_to(base))
        return next(below, value).as_posix()
    if base := next((base for base in bases if value.startswith(f"{base}/")), ""):
        return Path(value).relative_to(base).as_posix()
    value = value.item() if isinstance(value, np.generic) else value.numpy() if isinstance(value, Tensor) else value
    if value is None or isinstance(value, str | bytes | bool | int | float | complex):
        return repr(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{canonical(k, root)}:{canonical(v, root)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence | np.ndarray):
        return "(" + ",".join(canonical(inner, root) for inner in value) + ")"
    what = f"A {type(value).__name__} cannot be told from another one in a later session"
    raise BadInput(f"{what}. Use text, numbers, paths, arrays, or tuples of these.")


@functools.lru_cache(maxsize=16)
def _forms(root: str, _: str) -> tuple[str, ...]:
    """Returns a folder as it is given, from the top, and without links. The second argument is the working folder."""
    return tuple(dict.fromkeys([root, str(Path(root).absolute()), str(Path(root).resolve())]))
