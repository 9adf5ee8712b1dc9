"""Saves and loads checkpoints: folders with a hashed manifest, written aside, renamed, and verified on load.

    step-00000500/  model.safetensors  optimizer.safetensors  state.json  manifest.json

They contain no pickle. A killed run may leave `step-00000500.tmp` (not yet committed), `.old` (being replaced by one of
the same step), `.del` (being deleted) and `.damaged` (did not verify) beside them.
"""

import contextlib
import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lib import untrusted
from lib.errors import BadInput, PrintableError, printable
from lib.machine import disk
from lib.untrusted import Natural, shown

FORMAT = 1
_NAME = re.compile(r"step-([0-9]{8,18})")
_LEFTOVER = re.compile(r"(step-[0-9]{8,18})\.(tmp|old|del|old\.del)")
_QUARANTINED = re.compile(r"step-[0-9]{8,18}\.damaged(-[0-9]+)?")
MANIFEST = "manifest.json"
_STATE = "state.json"
# Anyone can write a manifest: its own sha256 shows damage, not the author.
_FILE = re.compile(r"[a-z_]{1,40}\.safetensors|state\.json")
_MOST_BYTES = {MANIFEST: 2**20, _STATE: 16 * 2**20}
_MOST_TENSOR_BYTES = 2**38  # a quarter of a TiB, which takes minutes to hash
_SLACK = 64 * 1024  # bytes for the manifest, the folder and the last block of each file
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL", torch.uint8: "U8",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
}  # fmt: skip


@dataclass(frozen=True)
class _File:
    bytes: Natural
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Size and sha256 of each file of a checkpoint."""

    format: int
    step: Natural
    files: dict[str, _File]


class DamagedCheckpoint(PrintableError):
    """A checkpoint does not match its manifest; the message names the file and the difference."""


class NewerFormat(BadInput):
    """A checkpoint was written by a later version of this program. It is left as it is."""


class CheckpointNotSaved(RuntimeError):
    """A checkpoint could not be written; those that were there before are untouched."""

    def __init__(self, step: int, why: str):
        super().__init__(
            f"The checkpoint of step {step:,} was not saved: {why}. Those saved before are untouched."
        )


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: groups of named tensors on the CPU ("model", "optimizer"), and a JSON state."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


@dataclass(frozen=True)
class Parcel:
    """A checkpoint to be written: the bytes of each file, as views of the tensors' memory."""

    step: int
    contents: dict[str, list[memoryview]]

    @property
    def size(self) -> int:
        """The bytes that it takes on the disk, a little rounded up."""
        return _SLACK + sum(len(part) for parts in self.contents.values() for part in parts)


def steps(folder: Path) -> list[int]:
    """Lists the committed steps in `folder`, ascending by number and not by name."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def newest_step(folder: Path) -> int:
    return max(steps(folder), default=0)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def save(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> Path:
    """Commits a checkpoint of tensors of any shape. Raises CheckpointNotSaved, and then changes no other one."""
    return write(folder, pack(step, tensors, to_json({**state, "step": step})))


def to_json(value: Mapping[str, Any]) -> str:
    """Writes JSON with sorted keys. Raises ValueError for a number that is not finite."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"


def pack(step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: str) -> Parcel:
    """Lays out a checkpoint's files; tensors must not change until they are written. Raises TypeError for a dtype."""
    contents = {f"{name}.safetensors": _safetensors(group) for name, group in tensors.items()}
    return Parcel(step, {**contents, _STATE: [memoryview(state.encode())]})


def write(folder: Path, parcel: Parcel) -> Path:
    """Commits a checkpoint: after any kill or loss of power it is either whole or absent. Raises CheckpointNotSaved."""
    final = path_of(folder, parcel.step)
    aside = final.with_name(final.name + ".tmp")
    files = {}
    try:
        disk.make_folders(folder)
        disk.remove_tree(aside)
        disk.calls.mkdir(aside)
        for name, parts in parcel.contents.items():
            files[name] = disk.write_file(aside / name, parts)
        manifest = {"format": FORMAT, "step": parcel.step, "files": files}
        disk.write_file(aside / MANIFEST, [_sealed(manifest)])
        disk.calls.sync_folder(aside)
        _put_in_place(aside, final)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.remove_tree(aside)
        raise CheckpointNotSaved(parcel.step, f"{error.strerror or error} in {folder}") from error
    return final


def _put_in_place(aside: Path, final: Path) -> None:
    """Renames `aside` to `final`. A checkpoint of the same step stays as `.old` until the new one is synced."""
    old = final.with_name(final.name + ".old")
    if disk.exists(final):
        disk.remove_tree(old)
        disk.calls.rename(final, old)
    try:
        disk.calls.rename(aside, final)
    except OSError:
        if disk.exists(old):
            disk.calls.rename(old, final)
        raise
    disk.calls.sync_folder(final.parent)
    if disk.exists(old):
        disk.discard(old)


def _safetensors(group: Mapping[str, Tensor]) -> list[memoryview]:
    """Lays out one file: the header's length, the header, the tensors' bytes without a gap, widest elements first."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    views = []
    end = 0
    for name in sorted(group, key=lambda name: (-group[name].element_size(), name)):
        value = group[name]
        if value.dtype not in _DTYPES:
            raise TypeError(
                f"The tensor {name} is of {value.dtype}, which a checkpoint cannot hold."
            )
        view = memoryview(b"")
        if value.numel():
            flat: Any = value.detach().cpu().contiguous().reshape(-1)
            view = memoryview(flat.view(torch.uint8).numpy())
        begin = end
        end += len(view)
        dtype = _DTYPES[value.dtype]
        header[name] = {"dtype": dtype, "shape": [*value.shape], "data_offsets": [begin, end]}
        views.append(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor is aligned
    return [memoryview(struct.pack("<Q", len(text)) + text), *views]


def _sealed(body: Mapping[str, Any]) -> memoryview:
    """Returns the manifest's bytes with the sha256 of its own body in them."""
    digest = hashlib.sha256(to_json(body).encode()).hexdigest()
    return memoryview(to_json({**body, "sha256": digest}).encode())


def verify(path: Path) -> Manifest:
    """Returns the manifest of a checkpoint after comparing every file. Raises DamagedCheckpoint or NewerFormat."""
    try:
        manifest = _manifest(path)
        for name, expected in manifest.files.items():
            if not _FILE.fullmatch(name):
                raise DamagedCheckpoint(
                    f"its manifest names {shown(name)}, which no checkpoint has"
                )
            size = untrusted.size_of(path / name, links=False)
            if size != expected.bytes:
                raise DamagedCheckpoint(f"{name} has {size:,} bytes instead of {expected.bytes:,}")
            if size > (most := _MOST_BYTES.get(name, _MOST_TENSOR_BYTES)):
                raise DamagedCheckpoint(f"{name} has {size:,} bytes, and at most {most:,} are read")
            with (path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected.sha256:
                raise DamagedCheckpoint(f"the content of {name} does not match its sha256")
    except NewerFormat:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"its manifest or a file cannot be read ({_why(error)})") from error
    return manifest


def _why(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or error
    return f"{type(error).__name__}: {printable(reason, most=200)}"


def _manifest(path: Path) -> Manifest:
    """Reads a manifest that is byte for byte what `_sealed` wrote. Every later format keeps this seal."""
    untrusted.size_of(path / MANIFEST, links=False)
    raw = untrusted.read(path / MANIFEST, _MOST_BYTES[MANIFEST])
    values = untrusted.objects(raw)
    values.pop("sha256", None)
    if _sealed(values) != raw:
        raise DamagedCheckpoint("the manifest does not match its own sha256")
    if type(values.get("format")) is int and values["format"] > FORMAT:
        raise NewerFormat(
            f"Checkpoint {path} has format {shown(values['format'])}; this version reads up to {FORMAT}. Take that "
            "one or a newer one, or choose another run.name to start afresh. It is left as it is."
        )
    manifest = untrusted.parse(values, Manifest)
    if (named := _NAME.fullmatch(path.name)) and int(named[1]) != manifest.step:
        raise DamagedCheckpoint(f"its manifest is that of step {manifest.step:,}")
    return manifest


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint after verifying it; tensors on the CPU. Raises DamagedCheckpoint or NewerFormat."""
    manifest = verify(path)
    try:
        names = [name for name in manifest.files if name.endswith(".safetensors")]
        tensors = {name.removesuffix(".safetensors"): load_file(path / name) for name in names}
        state = untrusted.objects(untrusted.read(path / _STATE, _MOST_BYTES[_STATE]))
        if _STATE not in manifest.files or state.get("step") != manifest.step:
            raise DamagedCheckpoint(f"{_STATE} is not that of step {manifest.step:,}")
        to_json(state)  # a NaN, for example, was not written by a save
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise DamagedCheckpoint(f"a file cannot be read ({_why(error)})") from error
    return Checkpoint(path, manifest.step, tensors, state)


def load_model(path: Path) -> Checkpoint:
    """Loads a checkpoint like `load`. Raises DamagedCheckpoint also if it has no model."""
    if "model" not in (saved := load(path)).tensors:
        raise DamagedCheckpoint("it has no model.safetensors")
    return saved


def load_newest(
    folder: Path,
    quarantine: bool = False,
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest checkpoint that verifies, and one sentence for each damaged one that was skipped.

    `check` raises DamagedCheckpoint for unusable content. `quarantine` renames damaged ones once a good one is read;
    without a good one the sentences name those renamed earlier too. Raises NewerFormat.
    """
    paths = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    by_step = {}
    for path in paths:
        # `.old` comes first in this order, so it counts only if its replacement is missing
        if name := _NAME.fullmatch(path.name.removesuffix(".old")):
            by_step[int(name[1])] = path
    damaged: list[tuple[Path, str]] = []
    for _, path in sorted(by_step.items(), reverse=True):
        try:
            newest = load(path)
            check(newest)
        except DamagedCheckpoint as damage:
            damaged.append((path, str(damage)))
            continue
        return newest, [_passed_over(path, reason, quarantine) for path, reason in damaged]
    earlier = sorted(path for path in paths if _QUARANTINED.fullmatch(path.name))
    sentences = [f"Checkpoint {printable(path)} is damaged ({reason})." for path, reason in damaged]
    sentences += [f"Checkpoint {printable(path)} was found damaged earlier." for path in earlier]
    return None, sentences


def _passed_over(path: Path, reason: str, quarantine: bool) -> str:
    """Renames a damaged checkpoint if `quarantine` allows it; returns a sentence about it."""
    sentence = f"Checkpoint {printable(path)} is damaged ({reason}); the one before it is used."
    if not quarantine:
        return sentence
    aside = path.with_name(f"{path.name}.damaged")
    number = 2
    while disk.exists(aside):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        number += 1
    try:
        disk.calls.rename(path, aside)
    except OSError as error:
        return f"{sentence} It could not be renamed ({error.strerror or error})."
    return f"{sentence} It is kept as {aside.name}."


def tidy(folder: Path) -> None:
    """Removes what killed saves and deletions left; a checkpoint without its committed successor gets its name back."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (leftover := _LEFTOVER.fullmatch(path.name)):
            continue
        try:
            if leftover[2] == "old" and not disk.exists(path.with_name(leftover[1])):
                disk.calls.rename(path, path.with_name(leftover[1]))
                disk.calls.sync_folder(folder)
            else:
                disk.remove_tree(path)
        except OSError as error:
            print(
                f"Could not clean up {path} ({error}); delete it by hand if space runs out.",
                flush=True,
            )
