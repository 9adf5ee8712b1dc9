"""Hashes samples apart from the bytes of their files, so that a run survives replaced files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.config.files import absolute
from lib.errors import BadInput
from lib.task.contract import sketch
from trainbook.supervised.canonical import canonical
from trainbook.supervised.look import paths_in
from trainbook.supervised.places import is_of_another_system
from trainbook.supervised.samples import input_of


def hashes(parts: Mapping[str, Any], digests: Mapping[Path, Mapping[Path, str]]) -> dict[str, Any]:
    """Returns hashes by which a run recognises data with replaced files.

    `digests` are the digests of files by source. "rest" is a hash of all samples with their targets
    and splits, and of files that are not inputs; "files" is a sketch of the inputs. Returns {} if
    samples are read lazily or have no canonical text, or if no input is a file.
    """
    if not all(isinstance(part.samples, list | tuple) for part in parts.values()):
        return {}
    lines: list[str] = []
    inputs: set[Path] = set()
    try:
        for name, part in parts.items():
            for sample in part.samples:
                lines.append(f"{name} {canonical(sample, part.task.source)}")
                inputs.update(map(absolute, paths_in(input_of(sample))))
    except BadInput:
        return {}
    files: dict[str, str] = {}
    for source, digest_of in digests.items():
        for path, digest in digest_of.items():
            inner = path.relative_to(source)
            if absolute(path) in inputs:
                files[inner.as_posix()] = digest
            elif not is_of_another_system(inner):
                lines.append(f"{inner.as_posix()} {digest}")
    if not files:
        return {}
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return {"rest": hashlib.sha256(text).hexdigest(), "number": len(files), "files": sketch(files)}
