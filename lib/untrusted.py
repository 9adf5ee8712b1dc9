"""Reads untrusted files: bounded, only regular files, strictly typed."""

import contextlib
import errno
import json
import os
import re
import stat
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lib.errors import BadInput, printable

Natural = Annotated[int, "not negative"]
T = TypeVar("T")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFLNK: "a link",
}
_NAME = re.compile(r"\w[\w.+ -]{0,198}")
_LARGEST = {int: 10**18, float: 10**300}  # absolute value of a number


def read(path: Path, limit: int) -> bytes:
    """Reads a regular file of at most `limit` bytes. Raises OSError for anything else.

    A pipe or a device is not even opened: the first would block, and the second may have no end.
    """
    size_of(path)
    # it may have become a pipe by now
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        size = _size(os.fstat(handle), path)
        content = file.read(size + 1) if size <= limit else b""
        if len(content) > size:  # it has grown, or names no size
            content += file.read(limit)
        if max(size, len(content)) > limit:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read", str(path)
            )
    return content


def size_of(path: Path, links: bool = True) -> int:
    """Returns the size of a regular file, or of one behind a link, without opening it.

    Raises OSError otherwise.
    """
    return _size(path.stat() if links else path.lstat(), path)


def _size(status: os.stat_result, path: Path) -> int:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        name = _KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"it is {name}, not a regular file", str(path))
    return status.st_size


def is_name(text: object) -> bool:
    """Returns whether a text is a safe name of a file."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def objects(content: bytes | str) -> dict[str, Any]:
    """Reads a JSON object. Raises BadInput for any other text."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"it is no JSON ({printable(error, most=200)})") from None
    if not isinstance(values, dict):
        raise BadInput(f"it is {shown(values)} instead of an object")
    return values


def parse(content: bytes | str | dict[str, Any], kind: type[T]) -> T:
    """Makes a dataclass of a JSON object, without unknown keys; converts nothing.

    Raises BadInput for another type.
    """
    values = content if isinstance(content, dict) else objects(content)
    return _value(values, kind, "it")


def fits(value: object, kind: Any) -> bool:
    """Returns whether a value of JSON has a type, as `parse` checks it."""
    with contextlib.suppress(BadInput):
        _value(value, kind, "")
        return True
    return False


def _value(value: Any, kind: Any, where: str) -> Any:
    """Returns a value of JSON as a type. Raises BadInput, which names the key."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Annotated:
        if isinstance(value, int | float) and value < 0:
            raise BadInput(f"{where} is {shown(value)}")
        return _value(value, inner[0], where)
    if origin in (Union, UnionType) and any(fits(value, choice) for choice in inner):
        return value
    if is_dataclass(kind) and isinstance(value, dict):
        return _record(value, kind, where)
    if origin is list and isinstance(value, list):
        return [_value(item, inner[0], where) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _value(item, inner[1], where) for key, item in value.items()}
    is_exact = type(value) is kind or (kind is float and type(value) is int)
    if kind in _LARGEST and is_exact and abs(value) < _LARGEST[kind]:
        return value
    if kind in (str, bool, dict, list) and is_exact:
        return value
    if kind is Any or (origin is Literal and value in inner):
        return value
    if value is None and kind in (None, type(None)):
        return value
    raise BadInput(f"{where} is {shown(value)}")


def _record(values: dict[str, Any], kind: Any, where: str) -> Any:
    """Returns a JSON object as a dataclass; unknown keys are left out. Raises BadInput."""
    for field in fields(kind):
        is_optional = field.default is not MISSING or field.default_factory is not MISSING
        if not is_optional and field.name not in values:
            raise BadInput(f"{where} has no {field.name}")
    arguments = {}
    for key, hint in get_type_hints(kind, include_extras=True).items():
        if key in values:
            arguments[key] = _value(values[key], hint, key)
    return kind(**arguments)


def shown(value: object) -> str:
    """Returns a value, cut and made printable, for a sentence."""
    return printable(repr(value), most=60)
