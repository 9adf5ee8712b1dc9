"""Writes values as text that is the same on every machine."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from torch import Tensor

from lib.errors import BadInput


@functools.singledispatch
def canonical(value: Any, root: Path | None = None) -> str:
    """Writes a value as text that is the same on every machine: paths count from `root`.

    Raises BadInput.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return canonical(fields, root)
    raise BadInput(
        f"A {type(value).__name__} cannot be told from another one in a later session. "
        "Use text, numbers, paths, arrays, or tuples of these."
    )


@canonical.register
def _(value: Path, root: Path | None = None) -> str:
    bases = _bases(root)
    # from `root` also if one of them is relative or leads over a link
    for form in (Path, Path.absolute, Path.resolve) if bases else ():
        path = form(value)
        for base in bases:
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
    return value.as_posix()


@canonical.register
def _(value: str, root: Path | None = None) -> str:
    for base in _bases(root):
        if value.startswith(f"{base}/"):
            return Path(value).relative_to(base).as_posix()
    return _plain(value)


@canonical.register(bytes)
@canonical.register(int)  # and bool
@canonical.register(float)
@canonical.register(complex)
@canonical.register(NoneType)
def _plain(value: Any, root: Path | None = None) -> str:
    if isinstance(value, np.generic):  # np.str_ and np.bytes_ derive from both
        return repr(value.item())
    return repr(value)


@canonical.register
def _(value: np.generic, root: Path | None = None) -> str:
    plain = value.item()
    if isinstance(plain, np.generic):  # a longdouble has no plain form
        return canonical.dispatch(object)(plain, root)
    return canonical(plain, root)


@canonical.register
def _(value: Tensor, root: Path | None = None) -> str:
    return canonical(value.numpy(), root)


@canonical.register
def _(value: np.ndarray, root: Path | None = None) -> str:
    if value.dtype == object:
        return _sequence(value, root)
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return f"{value.dtype}{value.shape}{digest}"


@canonical.register
def _(value: Mapping, root: Path | None = None) -> str:
    pairs = []
    for key, inner in value.items():
        pairs.append(f"{canonical(key, root)}:{canonical(inner, root)}")
    return f"{{{','.join(pairs)}}}"


@canonical.register(Sequence)
def _sequence(value: Iterable[Any], root: Path | None = None) -> str:
    return f"({','.join(canonical(inner, root) for inner in value)})"


def _bases(root: Path | None) -> tuple[str, ...]:
    return _forms(str(root), os.getcwd()) if root else ()  # noqa: PTH109  # quicker than Path.cwd


@functools.lru_cache(maxsize=16)
def _forms(root: str, _: str) -> tuple[str, ...]:
    """Returns a folder as given, absolute, and without links; `_` is the working folder."""
    folder = Path(root)
    return tuple(dict.fromkeys([root, str(folder.absolute()), str(folder.resolve())]))
