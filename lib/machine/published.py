"""Folders with published weights, as Hugging Face writes them: found by name, checked, read, and recognised by a hash.

They are anybody's. Safetensors are read from names inside the folder alone; a pickle is read only where a person named
its folder, by torch's reader that runs no code, and is written as safetensors at once.
"""

import hashlib
import json
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lib.config.files import read_bytes, size_of
from lib.errors import BadInput, printable
from lib.machine import disk, inputs, platform, records

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED, _PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_NAMES = (WHOLE, INDEX, _PICKLED, _PICKLED_INDEX)
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.(safetensors|bin)")
_MOST_BYTES = 2**25  # of an index, which has a line for each tensor
_MOST_SHARDS = 1000
_RECORD = "cache.json"  # of the files of a copy
_KEPT = re.compile(r"[\w.-]+\.(json|txt|model)")  # beside the weights: configuration and tokenizer


def find_model(name: str) -> Path:
    """Returns the folder of published weights: a path, or a mounted model or data set by its name on Kaggle.

    The name of a model is OWNER/MODEL, with /FRAMEWORK/VARIATION/VERSION where several are mounted. Where the weights
    lie deeper in it, the folder that holds them is found. Raises BadInput where there is none, or more than one.
    """
    named = inputs.find_input(name, platform.detect())
    if named.is_file() or has_weights(named):
        return named
    found = inputs.search([named], (WHOLE, INDEX))
    if len(found) == 1:
        return found[0]
    where = ", ".join(printable(folder) for folder in found[:5])
    what = (
        f"{len(found)} folders with weights ({where}). Name one of them"
        if found
        else (f"no {WHOLE} and no {INDEX}. Name a folder with these; one with {_PICKLED} must be named itself")
    )
    raise BadInput(f"The weights {printable(named)} have {what}.")


def has_weights(folder: Path) -> bool:
    """Says whether a folder itself holds published weights in one of the forms that are read."""
    return any((folder / name).is_file() for name in _NAMES)


def read(folder: Path) -> dict[str, Tensor]:
    """Reads all tensors of a folder by name, onto the CPU. Raises BadInput where they are damaged or lie elsewhere."""
    tensors: dict[str, Tensor] = {}
    for file, names in _files(as_safetensors(folder)).items():
        try:
            loaded = load_file(file)
        except (OSError, SafetensorError) as error:
            raise BadInput(f"The weights {printable(file)} cannot be read: {error}. Copy them again.") from None
        _check_shard(file, names, loaded.keys(), tensors)
        tensors |= loaded
    return tensors


def _check_shard(file: Path, names: set[str] | None, there: object, before: dict[str, Tensor]) -> None:
    """Raises BadInput where a shard has not exactly the tensors that the index gives it. One alone has no index."""
    there = set(there)  # type: ignore[call-overload]
    if wrong := sorted((there ^ names if names is not None else set()) | (there & before.keys())):
        raise BadInput(
            f"{printable(file)} and its index do not fit together: {printable(wrong[0], most=100)} is missing, is "
            f"there twice or is not in the index ({len(wrong)} such tensors). Copy the folder again."
        )


def as_safetensors(folder: Path) -> Path:
    """Returns the folder, checked, where its weights are safetensors; else one in the cache with the same as such."""
    if not has_weights(folder):
        raise BadInput(f"There are no weights in {printable(folder)}: no {WHOLE}, and no {INDEX}.")
    if (folder / WHOLE).is_file() or (folder / INDEX).is_file():
        for file, names in _files(folder).items():
            _check_header(file, names)
        return folder
    files = _files(folder)
    final = platform.detect().scratch_dir / "published" / _digest(files)
    if not records.Verified(final, "it is made again").read(_RECORD):
        disk.remove_tree(final)
        tensors: dict[str, Tensor] = {}
        for file, names in files.items():
            loaded = _unpickled(file)
            _check_shard(file, names, loaded.keys(), tensors)
            tensors |= loaded
        final.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(final, cache=True) as aside:
            aside.mkdir()
            for path in folder.iterdir():
                if _KEPT.fullmatch(path.name) and path.is_file() and not path.name.endswith(".index.json"):
                    shutil.copyfile(path, aside / path.name)
            copies = {
                name: value.detach().clone().contiguous() for name, value in tensors.items()
            }  # none shares memory
            save_file(copies, aside / WHOLE, {"format": "pt"})
            records.Verified(aside, "").write(_RECORD, {}, sorted(aside.iterdir()))
        print(f"{printable(folder)} holds pickled weights, which were read without running code. {final} has them now.")
    return final


def _check_header(file: Path, names: set[str] | None) -> None:
    if names is None:
        return
    try:
        with safe_open(file, framework="pt") as opened:
            _check_shard(file, names, opened.keys(), {})
    except (OSError, SafetensorError) as error:
        raise BadInput(f"The weights {printable(file)} cannot be read: {error}. Copy them again.") from None


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Returns the files with a folder's weights, each with the tensors that the index says are in it; None without one.

    Raises BadInput for an index that names a file elsewhere or none that is there.
    """
    whole, index = (WHOLE, INDEX) if any((folder / n).is_file() for n in (WHOLE, INDEX)) else (_PICKLED, _PICKLED_INDEX)
    if (folder / whole).is_file():
        _check_file(folder / whole)
        return {folder / whole: None}
    try:
        placed = json.loads(read_bytes(folder / index, _MOST_BYTES))["weight_map"]
        shards: dict[Path, set[str] | None] = {}
        for name, file in placed.items():
            if not isinstance(file, str) or not _SHARD.fullmatch(file):
                raise BadInput(
                    f"{printable(folder / index)} names the file {printable(repr(file), most=100)}. It may name files "
                    "beside it alone. Take the weights from where they were published."
                )
            shards.setdefault(folder / file, set()).add(name)  # type: ignore[union-attr]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        why = printable(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}", most=200)
        raise BadInput(f"{printable(folder / index)} is no index of weights ({why}). Copy it again.") from None
    if not 0 < len(shards) <= _MOST_SHARDS:
        raise BadInput(f"{printable(folder / index)} names {len(shards):,} files. Weights have 1 to {_MOST_SHARDS:,}.")
    for file in shards:
        _check_file(file)
    return shards


def _check_file(file: Path) -> None:
    """Raises BadInput where a file of weights is not there, or is a pipe or a device, which would be waited for."""
    try:
        size_of(file)
    except OSError as error:
        why = printable(error.strerror or error)
        raise BadInput(f"The weights {printable(file)} cannot be read ({why}). Copy the whole folder again.") from None


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as raw:
            is_zip = raw.read(2) == b"PK"
        if is_zip:
            with zipfile.ZipFile(file) as packed:  # torch itself stores, and would inflate whatever a record says
                if any(record.compress_type for record in packed.infolist()):
                    raise ValueError("its records are compressed, which torch does not do")
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        why = printable(str(error).splitlines()[0] if str(error) else type(error).__name__, most=200)
        raise BadInput(f"{printable(file)} is not read: it holds more than weights, or is damaged ({why}).") from None
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise BadInput(f"{printable(file)} holds something else than tensors by name. Take published weights.")
    return loaded


def digest(folder: Path) -> str:
    """Returns the sha256 of a folder's weights, file by file in the order of their names."""
    return _digest(_files(folder))


def _digest(files: dict[Path, set[str] | None]) -> str:
    whole = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as content:
            whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()
