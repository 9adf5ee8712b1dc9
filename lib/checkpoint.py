"""Checkpoints: directories of safetensors and JSON with a hashed manifest; written aside, renamed, verified on load.

    step-00000500/  model.safetensors  optimizer.safetensors  state.json  manifest.json

There is no pickle in them, so loading one never runs code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_MANIFEST = "manifest.json"


class DamagedCheckpoint(Exception):
    """A checkpoint that does not match its manifest; says which file and how."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: named groups of tensors ("model", "optimizer"), and a JSON state with the step."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def steps(folder: Path) -> list[int]:
    """The committed steps in `folder`, ascending by number and not by name."""
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for p in folder.iterdir() if p.is_dir() and (m := _NAME.fullmatch(p.name)))


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def save(folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Commits a checkpoint: whole after the last rename, absent before it. Raises OSError, leaving the others alone."""
    final = path_of(folder, step)
    aside = final.with_name(final.name + ".tmp")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for name, group in tensors.items():
            save_file({key: value.detach().contiguous() for key, value in group.items()}, aside / f"{name}.safetensors")
        _write_json(aside / "state.json", {**state, "step": step})
        files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(aside.iterdir())}
        _write_json(aside / _MANIFEST, {"format": FORMAT, "step": step, "files": files})
        for file in aside.iterdir():
            _sync(file)
        _sync(aside)
        if final.exists():  # the same step again, after a resume from an earlier one
            _remove(final)
        aside.rename(final)
        _sync(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file matches it. Raises DamagedCheckpoint."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text("utf-8"))
        files = manifest["files"]
        if manifest["format"] > FORMAT:
            raise DamagedCheckpoint(f"it has format {manifest['format']}; this version reads up to {FORMAT}")
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise DamagedCheckpoint(f"{name} has {size:,} bytes instead of {expected['bytes']:,}")
            if _sha256(path / name) != expected["sha256"]:
                raise DamagedCheckpoint(f"the content of {name} does not match its sha256")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"its manifest or a file cannot be read ({type(error).__name__}: {error})") from error
    return manifest


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint after verifying it. Raises DamagedCheckpoint."""
    manifest = verify(path)
    tensors = {
        name.removesuffix(".safetensors"): load_file(path / name)
        for name in manifest["files"]
        if name.endswith(".safetensors")
    }
    return Checkpoint(path, manifest["step"], tensors, json.loads((path / "state.json").read_text("utf-8")))


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and one sentence for each damaged one that was passed over."""
    passed_over = []
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            return load(path), passed_over
        except DamagedCheckpoint as damage:
            passed_over.append(f"Checkpoint {path} is damaged ({damage}); the one before it is tried.")
    return None, passed_over


def retain(folder: Path, keep: int, protect: int = -1) -> None:
    """Removes all but the newest `keep` checkpoints; `protect` is a step that stays in any case."""
    for step in steps(folder)[: -keep or None]:
        if step != protect:
            _remove(path_of(folder, step))


def _remove(path: Path) -> None:
    """Renames first, so that a half-deleted checkpoint can never look whole. Failing to delete only warns."""
    doomed = path.with_name(path.name + ".del")
    try:
        path.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        print(f"Could not delete the old checkpoint {path} ({error}); delete it by hand if space runs out.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
